"""Files of text, plain or compressed: how they are found, unpacked and decoded."""

from __future__ import annotations

import codecs
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

SUFFIXES = ("", ".gz", ".xz")
# Bytes in one file once unpacked; 96,000 long expressions of ListOps with all parentheses have near 5e8, all of IMDB
# 33e6. A small archive can hold far more.
LARGEST = 2**30


def find(folder: Path, name: str) -> Path | None:
    """The file of that name, plain, or else as .gz, or else as .xz; None where there is none."""
    candidates = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def need(folder: Path, name: str) -> Path:
    """The file of that name, as `find` finds it.

    Raises:
        OSError: There is no such file.
    """
    path = find(folder, name)
    if path is None:
        raise FileNotFoundError(f"{name}, {name}.gz or {name}.xz is needed, none is in folder {str(folder)!r}")
    return path


def read_text(path: Path) -> str:
    """The whole text of a file, unpacked if it is .gz or .xz, with its line ends unchanged.

    Raises:
        ValueError: The archive is damaged, or the text has more than `LARGEST` bytes or is not UTF-8; the message names
            the file.
        OSError: The file cannot be read.
    """
    with _whole(path), _opened(path) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"{path.name}: expected at most {LARGEST} bytes of text, found more")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name}: expected UTF-8, found another byte at place {error.start}") from error


def stream_lines(path: Path) -> Iterator[bytes]:
    r"""The lines of a file one after the other, unpacked, without their ends \n or \r\n, and a byte-order mark.

    Raises:
        ValueError: The archive is damaged; the message names the file.
        OSError: The file cannot be read.
    """
    with _opened(path) as file, _whole(path):
        start = codecs.BOM_UTF8
        for line in file:
            yield line.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r")
            start = b""


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn the errors of damaged archives into one that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        kind = "gzip" if path.suffix.lower() == ".gz" else "xz"
        raise ValueError(f"{path.name}: expected a whole {kind} file, found a damaged one ({error})") from error


def _opened(path: Path) -> BufferedIOBase:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if suffix == ".xz" else path.open("rb")


def read_lines(path: Path) -> list[str]:
    r"""The lines of a file without their ends, \n or \r\n. Other characters that break lines elsewhere do not here.

    Raises:
        ValueError: As in `read_text`.
        OSError: The file cannot be read.
    """
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
