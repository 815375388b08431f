"""Files of settings."""

import json
import tomllib
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from greenformers.train.settings import Settings, Training


def read(path: Path, kind: type[Training] = Settings) -> dict[str, Any]:
    """The settings in a TOML or JSON file.

    Raises:
        ValueError: The file is not TOML or JSON, or has a key that is no setting or a value of another type.
        OSError: The file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no file of settings, it is no text") from error
    try:
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"{path.name} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path.name} must hold settings by name, got a {type(settings).__name__}")
    for name, value in settings.items():
        _check(path.name, name, value, kind)
    return settings


def _check(file: str, name: str, value: Any, kind: type[Training]) -> None:
    types = {entry.name: entry.type for entry in fields(kind)}
    if name not in types and isinstance(value, dict):
        raise ValueError(f"{file}: settings stand in no table, got [{name}]")
    if name not in types:
        close = get_close_matches(name, types, n=1)
        raise ValueError(f"{file}: no setting {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    allowed = get_args(types[name]) or (types[name],)
    kinds = tuple(dict if kind == dict[str, Any] else kind for kind in allowed)
    whole = isinstance(value, int) and not isinstance(value, bool) and float in kinds
    if not (type(value) in kinds or whole):
        expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise ValueError(f"{file}: {name} must be {expected}, got {value!r}")
