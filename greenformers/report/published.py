"""Published figures, from CSV files beside which ours are drawn; none where the files are not at hand."""

import csv
from pathlib import Path

from greenformers.report.heat import Field

THESIS = {
    ("lrt", "inference"): "thesis_fig3_4_lrt_inference.csv",
    ("linformer", "inference"): "thesis_fig3_4_linformer_inference.csv",
    ("lrt", "training"): "thesis_fig3_7_lrt_training.csv",
}
"""Figures 3.4 and 3.7 of the thesis, by variant and mode."""

SAVED = {"linformer": "linformer_table3_inference.csv"}
"""Tables of papers of the time and memory that a variant saves."""


def rows(folder: Path | None, name: str) -> list[dict[str, str]]:
    """The lines of a file, by column."""
    if folder is None or not (folder / name).exists():
        return []
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def fields(folder: Path | None, name: str, column: str, rank: str = "rank") -> dict[Field, float]:
    """A column by length and rank."""
    return {
        (int(row["sequence_length"]), int(row[rank])): float(row[column]) for row in rows(folder, name) if row[column]
    }
