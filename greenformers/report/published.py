"""Published figures in CSV files, which are drawn beside ours; there are none where a file is missing."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from greenformers.report.heat import Field

THESIS = {
    ("lrt", "inference"): "thesis_fig3_4_lrt_inference.csv",
    ("linformer", "inference"): "thesis_fig3_4_linformer_inference.csv",
    ("lrt", "training"): "thesis_fig3_7_lrt_training.csv",
}
"""Files of figures 3.4 and 3.7 of the Greenformers thesis (Cahyawijaya 2021), by variant and mode."""

SAVED = {"linformer": "linformer_table3_inference.csv"}
"""Files of published tables of the time and memory that a variant saves, by variant."""

THESIS_LRT_LINFORMER = "thesis_fig3_5_lrt_vs_linformer.csv"
"""File of figure 3.5 of the thesis."""

SURVEY = "survey_table2_long_range_arena.csv"
"""File of table II of Fournier 2021, arXiv:2103.14636, which is of the Long Range Arena."""

MAX_LENGTH, ALZHEIMER = "thesis_table5_3_max_length.csv", "thesis_table5_2_alzheimer.csv"
"""Files of tables 5.3 and 5.2 of the thesis."""

STUDY = (*THESIS.values(), THESIS_LRT_LINFORMER, *SAVED.values(), SURVEY)
"""Files that the pictures of the efficiency study are drawn beside."""


def absent(folder: Path | None, names: Iterable[str]) -> str:
    """A line that names the files of published figures which a folder lacks; empty where there is nothing to say.

    Args:
        folder: Folder of the files; None where no published figures are asked for.
        names: Names of the files that are read.
    """
    missing = [name for name in names if folder is not None and not (folder / name).exists()]
    return f"{folder} lacks {', '.join(missing)}: these figures are not shown beside ours" if missing else ""


class _Row(dict[str, str]):
    """A row by column; to ask for a column that it lacks is a fault of its file."""

    def __init__(self, file: str, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self._file = file

    def __missing__(self, column: str) -> str:
        raise ValueError(f"{self._file} has no column {column}, it has {', '.join(map(str, self))}")


def rows(folder: Path | None, name: str) -> Sequence[dict[str, str]]:
    """The rows of a CSV file, each by column; to read a column that is not there raises a ValueError.

    Args:
        folder: Folder of the files; None for no rows.
        name: Name of the file; where there is none, there are no rows.

    Raises:
        ValueError: The file is no text.
        OSError: The file cannot be read.
    """
    if folder is None or not (folder / name).exists():
        return []
    with (folder / name).open(newline="", encoding="utf-8-sig") as file:
        return [_Row(name, values) for values in csv.DictReader(file, restval="")]


def fields(folder: Path | None, name: str, column: str, rank: str = "rank") -> dict[Field, float]:
    """The values of a column by length and rank, without those that are empty.

    Args:
        folder: Folder of the files; None for no values.
        name: Name of the file.
        column: Column of the values.
        rank: Column of the ranks.
    """
    return {
        (int(row["sequence_length"]), int(row[rank])): float(row[column]) for row in rows(folder, name) if row[column]
    }
