"""Where a data set of text comes from: a folder of files, or the `datasets` library."""

from __future__ import annotations

from pathlib import Path


def choose(name: str, folder: str | Path | None, dataset: str | None) -> Path | str:
    """The folder as a path, or the name of the dataset as it is.

    Raises:
        ValueError: Both a folder and a dataset are given, or neither.
        OSError: The folder is missing.
    """
    if dataset is not None:
        if folder is not None:
            raise ValueError(f"{name} takes a folder or a dataset, got both: {str(folder)!r} and {dataset!r}")
        return dataset
    if folder is None:
        raise ValueError(f"{name} needs the folder that holds its files, or a dataset, got neither")
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"{name} needs the folder that holds its files, {str(path)!r} is not a folder")
    return path
