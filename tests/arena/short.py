"""A small ListOps on the disk, where a grid of size tiny looks for what it has drawn."""

from pathlib import Path

from greenformers.arena.protocol import TASKS, drawn_folder
from greenformers.data import Labelled, listops

COUNTS = {"train": 40, "valid": 10, "test": 20}


def expressions(seed: int = 0) -> Labelled:
    return listops.generate(**COUNTS, shortest=5, longest=30, depth=4, arguments=4, seed=seed)


def drawn(out: Path) -> None:
    """Write the expressions into the folder of a grid."""
    listops.write(drawn_folder("listops", TASKS["listops"].sizes["tiny"], out / "data"), expressions())
