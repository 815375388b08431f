"""Data sets of the `datasets` library: from the Hugging Face hub, or a local folder of parquet or jsonl files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from greenformers._extras import needed

# As the hub's data sets call them; the first that is there.
NAMES = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}


def fetch(dataset: str) -> dict[str, Any]:
    """The splits there are, of train, valid and test, each a `datasets.Dataset`. No code of the data set is run.

    Args:
        dataset: what `datasets.load_dataset` takes; after a colon, the configuration.

    Raises:
        MissingExtraError: the library is not installed.
        ValueError: the library makes no data set of that name.
        OSError: there is no data set of that name, or it cannot be reached.
    """
    library = needed("a data set of the hub", "hub", "datasets")
    exceptions = import_module("datasets.exceptions")
    path, colon, configuration = dataset.rpartition(":")
    if Path(dataset).is_dir() or not colon:
        path, configuration = dataset, ""
    if not path.strip():
        raise ValueError(f"dataset must be a name on the Hugging Face hub or a folder, got {dataset!r}")
    try:
        loaded = library.load_dataset(path, configuration or None)
    except OSError as error:
        raise OSError(f"dataset {dataset!r} cannot be loaded: {_line(error)}") from error
    except (exceptions.DatasetsError, ValueError, RuntimeError) as error:
        raise ValueError(f"dataset {dataset!r} cannot be loaded: {_line(error)}") from error
    found = {ours: next((name for name in names if name in loaded), None) for ours, names in NAMES.items()}
    splits = {ours: loaded[name] for ours, name in found.items() if name is not None}
    if not splits:
        raise ValueError(
            f"dataset {dataset!r} has none of the splits train, validation, test; it has {', '.join(loaded)}"
        )
    return splits


def _line(error: BaseException) -> str:
    """Why, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
