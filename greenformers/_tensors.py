"""Tensors in files of safetensors: a full disk is an OSError, as with any other file."""

from collections.abc import Mapping
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
