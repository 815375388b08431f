"""Tensors in files of safetensors: a full disk is an OSError, as with any other file, a damaged file a ValueError."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EIO, ENOSPC
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file as save
from torch import Tensor


def save_file(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file of safetensors.

    Raises:
        OSError: The disk is full, or cannot be written.
    """
    try:
        save(dict(tensors), path, metadata)
    except SafetensorError as error:
        number = ENOSPC if "os error 28" in str(error) else EIO
        raise OSError(number, str(error), str(path)) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A context in which a file of safetensors is read.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
