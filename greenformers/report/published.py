"""Published figures in CSV files, which are drawn beside ours; there are none where a file is missing."""

import csv
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


def rows(folder: Path | None, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file, each by column.

    Args:
        folder: Folder of the files; None for no rows.
        name: Name of the file; where there is none, there are no rows.
    """
    if folder is None or not (folder / name).exists():
        return []
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


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
