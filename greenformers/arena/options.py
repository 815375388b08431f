"""Options of a grid: tasks, variants, size and seeds. The command line reads this file for its help."""

from dataclasses import dataclass
from pathlib import Path

from greenformers.train.setting import setting

SIZES = ("tiny", "small", "paper")


@dataclass(frozen=True)
class Grid:
    """A grid of cells: a task, a variant and a seed each. The help text of each field is its documentation.

    Raises:
        ValueError: A number or the size is out of range, or a list is empty.
    """

    tasks: tuple[str, ...] = setting(
        ("listops", "text", "pixels"), "Tasks, with commas: listops, text, retrieval, pixels, pathfinder, path_x."
    )
    variants: tuple[str, ...] = setting(
        ("transformer", "linformer", "performer"),
        "Variants, with commas: transformer, lrt, attentions, blocks; all for every attention and block. "
        "NAME:OPTION=VALUE sets an option or position, A/B takes two attentions in turn, layer by layer.",
    )
    size: str = setting(
        "tiny", "Size of networks, inputs and training: tiny (minutes), small, or paper (days on a GPU)."
    )
    seeds: int = setting(3, "Seeds of weights and order of the examples: 0 and those after it.")
    pretrain: bool = setting(
        True, "Train every variant once more, the first half of the steps on restoring masked inputs of the task."
    )
    controls: bool = setting(
        True, "Train local windows too: of 5, of 30, and beside each variant one that needs as many FLOPs."
    )
    steps: int | None = setting(None, "Steps of a training, pre-training included, in place of those of the size.")
    batch: int | None = setting(None, "Examples in a batch, in place of those of the size.")
    limit: int | None = setting(None, "Largest number of training, of validation and of test examples.")
    lengths: tuple[int, ...] = setting(
        (1024, 4096), "Lengths at which steps of the text network are timed too, those of the published table; or ''."
    )
    data: Path | None = setting(  # noqa: RUF009
        None, "Folder of the folders imdb, cifar10_gray and wikitext2, for tasks of real data."
    )

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(SIZES)}; got {self.size!r}")
        for name in ("tasks", "variants"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be at least one name, got none")
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name} must differ, got {', '.join(getattr(self, name))}")
        for name, least in {"seeds": 1, "steps": 2, "batch": 1, "limit": 10}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if any(length < 2 for length in self.lengths):
            raise ValueError(f"lengths must be at least 2, got {', '.join(map(str, self.lengths))}")
