"""A recipe as a TOML file: an ordered list of changes.

[[change]]
name = "low_rank"
keep = 0.5

[[change]]
name = "int8"
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from greenformers.changes import Change, build
from greenformers.changes._options import as_dict

RECIPE = "recipe.toml"
"""Name of the file in the folder of every result."""


def read_recipe(path: Path) -> list[Change]:
    """The changes of a file.

    Raises:
        ValueError: Not TOML, or not a list of changes; the message names the file and the change.
        OSError: It cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from error
    entries = content.pop("change", None)
    if content or not isinstance(entries, list) or not entries:
        beside = f"; it has {', '.join(content)}" if content else ""
        raise ValueError(f"{path.name} must hold a list of tables [[change]] and nothing else{beside}")
    changes = []
    for number, entry in enumerate(entries, 1):
        try:
            changes.append(change_of(entry))
        except ValueError as error:
            raise ValueError(f"{path.name}, change {number}: {error}") from error
    return changes


def change_of(entry: Any) -> Change:
    """The change of a table: its name, and its options.

    Raises:
        ValueError: No such change or option.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ValueError("a change is a table with a name")
    return build(entry["name"], **{name: value for name, value in entry.items() if name != "name"})


def recipe_text(changes: Iterable[Change | Mapping[str, Any]]) -> str:
    """The file of some changes; `read_recipe` reads it."""
    entries = [as_dict(change) if isinstance(change, Change) else dict(change) for change in changes]
    return tomli_w.dumps({"change": entries})
