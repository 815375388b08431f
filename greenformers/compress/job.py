"""What `greenformers compress` is asked for besides the recipe. Imports nothing heavy: --help reads the fields."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES: dict[str, str] = {"calibration": "calibrate", "training": "heal_texts", "judging": "evaluate"}
"""The field of a job that names the texts of a part, where they are not drawn from `texts`."""


USUAL = 128
"""Tokens of a text, where nothing is said."""
TIMED = 512
"""Tokens at which costs are measured at most, where nothing is said."""


def setting(default: Any, about: str, flag: str | None = None) -> Any:
    """A field of a job: its default, and what is said about it."""
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata={"help": about, "flag": flag})
    return field(default=default, metadata={"help": about, "flag": flag})


@dataclass(frozen=True)
class Job:
    """What the command is asked for besides the recipe; the help text of each is its documentation."""

    texts: Path | None = setting(
        None, "Texts to calibrate with, to learn from and to judge by, split by the seed: .txt, or .tsv with sentence, "
        "label; sentence1, sentence2, score; or source, target. Of images a folder with one for each class, of "
        "recordings that or a corpus."
    )  # fmt: skip
    calibrate: Path | None = setting(None, "Texts to calibrate with, in place of a part of --texts.")
    heal_texts: Path | None = setting(None, "Texts to learn from, labels unread, in place of a part of --texts.")
    evaluate: Path | None = setting(None, "Texts to judge by, in place of a part of --texts.")
    limit: int = setting(1000, "At most so many texts to calibrate with.")
    length: int | None = setting(
        None,
        "Longest text in tokens, and length of a language model's blocks; by default 128, of a "
        "sentence-transformers folder its max_seq_length, or what the model takes.",
    )
    lengths: tuple[int, ...] | None = setting(
        None,
        "Lengths to measure costs at, with commas, '' for none; by default that of the texts. Named or not, measuring "
        "takes at most a fifth of the whole, or 10 s, unless --measure is given.",
    )
    measure: bool = setting(False, "Measure every cost in full, however long it takes.", "--measure")
    teacher: str | None = setting(
        None, "The original to learn from and be compared with, if MODEL itself was changed before."
    )
    seed: int = setting(0, "Seed of what is drawn, and of the order of texts.")
    country: str = setting("USA", "Whose electricity: a 3-letter ISO code.")

    def __post_init__(self) -> None:
        for name in ("limit", "length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.lengths and min(self.lengths) < 1:
            raise ValueError(f"lengths must be at least 1, got {min(self.lengths)}")

    def at(self, reach: int | None, own: int | None = None) -> tuple[int, tuple[int, ...]]:
        """The longest text and the lengths to measure at.

        Args:
            reach: Longest input that the network takes, None for any.
            own: Longest text that its makers give it, None where they say nothing.
        """
        usual = own or USUAL
        length = min(usual, reach or usual) if self.length is None else self.length
        timed = min(length, TIMED) if self.length is None else length
        return length, (timed,) if self.lengths is None else tuple(dict.fromkeys(self.lengths))
