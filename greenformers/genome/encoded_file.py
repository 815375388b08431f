"""The files that `greenformers genome encode` writes, read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from greenformers.genome.encode import Encoding
from greenformers.genome.files import GenomeError, Region, checked


def load(path: Path) -> Iterator[dict[str, str]]:
    """The rows of an encoded file, one after the other, by their columns.

    Raises:
        GenomeError: The file is not an encoded one, or is damaged.
    """
    settings_of(path)
    with path.open(encoding="utf-8", newline="") as file:
        header = [file.readline(), file.readline()][1].rstrip("\n").split("\t")
        for number, line in enumerate(file, start=3):
            fields = line.rstrip("\n").split("\t")
            if not line.endswith("\n"):
                raise GenomeError(f"{path}: line {number} has no end: the file was cut")
            if len(fields) != len(header):
                raise GenomeError(f"{path}: line {number} must have {len(header)} columns, has {len(fields)}")
            yield dict(zip(header, fields, strict=True))


def settings_of(path: Path) -> dict[str, object]:
    """The settings of an encoded file.

    Raises:
        GenomeError: The file is not an encoded one.
    """
    checked(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first, header = file.readline(), file.readline()
        settings = json.loads(first.removeprefix("#"))
        Encoding(Path(settings["reference"]), Region.parse(settings["region"]), settings["mode"], settings["alphabet"])
    except (ValueError, KeyError, TypeError) as error:
        raise GenomeError(f"{path}: no file that `greenformers genome encode` wrote") from error
    if not header.startswith("person\t"):
        raise GenomeError(f"{path}: no file that `greenformers genome encode` wrote")
    return dict(settings)
