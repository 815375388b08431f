"""Options of `greenformers compress` besides the recipe. Nothing heavy is imported, as --help reads the fields."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES: dict[str, str] = {"calibration": "calibrate", "training": "heal_texts", "judging": "evaluate"}
"""For each part of the texts the field of a job with a file for it, in place of a share of `texts`."""


USUAL = 128
"""Default length of a text in tokens."""
TIMED = 512
"""Greatest default length in tokens at which costs are measured."""


def setting(default: Any, about: str, flag: str | None = None) -> Any:
    """A field of a job: its default, its help text, and its flag on the command line."""
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata={"help": about, "flag": flag})
    return field(default=default, metadata={"help": about, "flag": flag})


@dataclass(frozen=True)
class Job:
    """Options of the command besides the recipe; the help text of each field is its documentation."""

    texts: Path | None = setting(
        None, "Texts to calibrate with, to learn from and to judge by, split by --seed: a file .txt, .tsv, .jsonl, "
        ".parquet or .conll, a folder of them, or hf://datasets/NAME; columns text; sentence, label; sentence1, "
        "sentence2 with score or label; tokens, tags (not in .tsv); question, context, answers; or source, target. "
        "Images are in a folder with one subfolder for each class, recordings in such a folder or in a corpus."
    )  # fmt: skip
    calibrate: Path | None = setting(None, "Texts to calibrate with, in place of a part of --texts.")
    heal_texts: Path | None = setting(
        None, "Texts to learn from, in place of a part of --texts; their labels are not read."
    )
    evaluate: Path | None = setting(None, "Texts to judge by, in place of a part of --texts.")
    limit: int = setting(1000, "Largest number of texts to calibrate with.")
    length: int | None = setting(
        None,
        "Longest text in tokens, and length of a language model's blocks; by default 128, or the max_seq_length of a "
        "sentence-transformers folder, but no more than the model takes.",
    )
    lengths: tuple[int, ...] | None = setting(
        None,
        "Lengths in tokens at which costs are measured, with commas, '' for none; by default that of the texts. "
        "Measuring takes at most a fifth of the whole time, or 10 s, unless --measure is given.",
    )
    measure: bool = setting(False, "Measure all costs in full, however long it takes.", "--measure")
    teacher: str | None = setting(
        None, "The original model, to learn from and to compare with, if MODEL itself has been compressed before."
    )
    teacher_cache: Path | None = setting(
        None, "Folder that keeps what the teacher gives to each text: it is asked once, not at every step of healing, "
        "and by no further command with the same teacher and texts.",
    )  # fmt: skip
    seed: int = setting(0, "Seed of random numbers, of the split of the texts and of their order.")
    country: str = setting("USA", "Country of the electricity, as a 3-letter ISO code, for the emissions.")

    def __post_init__(self) -> None:
        for name in ("limit", "length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.lengths and min(self.lengths) < 1:
            raise ValueError(f"lengths must be at least 1, got {min(self.lengths)}")

    def at(self, reach: int | None, own: int | None = None) -> tuple[int, tuple[int, ...]]:
        """The longest text, and the lengths at which costs are measured, in tokens.

        Args:
            reach: Longest input that the network takes, None for any.
            own: Longest text by the settings of its pooling, None where they name none.
        """
        usual = own or USUAL
        length = min(usual, reach or usual) if self.length is None else self.length
        timed = min(length, TIMED) if self.length is None else length
        return length, (timed,) if self.lengths is None else tuple(dict.fromkeys(self.lengths))
