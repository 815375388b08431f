"""Data sets of the `datasets` library: from the Hugging Face hub, or a local folder of parquet or jsonl files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from greenformers._extras import needed

# Names that data sets of the hub give to their splits; the first that is there is taken.
NAMES = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}


def fetch(dataset: str) -> dict[str, Any]:
    """The splits that there are, of train, valid and test, as `datasets.Dataset`s. No code of the data set is run.

    Args:
        dataset: Name or folder that `datasets.load_dataset` takes; after a colon, the configuration.

    Raises:
        MissingExtraError: The package datasets is not installed.
        ValueError: The library makes no data set of that name.
        OSError: There is no data set of that name, or it cannot be reached.
    """
    return _loaded(dataset, streaming=False)


def streamed(dataset: str) -> dict[str, Any]:
    """As `fetch`, but `datasets.IterableDataset`s, of which a row is fetched when it is read."""
    return _loaded(dataset, streaming=True)


def _loaded(dataset: str, *, streaming: bool) -> dict[str, Any]:
    library = needed("a data set of the hub", "hub", "datasets")
    exceptions = import_module("datasets.exceptions")
    path, colon, configuration = dataset.rpartition(":")
    if Path(dataset).is_dir() or not colon:
        path, configuration = dataset, ""
    if not path.strip():
        raise ValueError(f"dataset must be a name on the Hugging Face hub or a folder, got {dataset!r}")
    try:
        loaded = library.load_dataset(path, configuration or None, streaming=streaming)
    except OSError as error:
        raise OSError(f"dataset {dataset!r} cannot be loaded: {_line(error)}") from error
    except (exceptions.DatasetsError, ValueError, RuntimeError) as error:
        raise ValueError(f"dataset {dataset!r} cannot be loaded: {_line(error)}") from error
    names_here = {ours: next((name for name in names if name in loaded), None) for ours, names in NAMES.items()}
    splits = {ours: loaded[name] for ours, name in names_here.items() if name is not None}
    if not splits:
        raise ValueError(
            f"dataset {dataset!r} has none of the splits train, validation, test; it has {', '.join(loaded)}"
        )
    return splits


def _line(error: BaseException) -> str:
    """The reason that an error gives, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
