"""A recipe, an ordered list of changes, as a TOML file; and a change as words on a command line.

[[change]]
name = "low_rank"
keep = 0.5

[[change]]
name = "int8"
"""

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from greenformers.changes import Change, build, kind
from greenformers.changes._options import as_dict, types, value_of

RECIPE = "recipe.toml"
"""Name of the file in the folder of every result."""


def read_recipe(path: Path) -> list[Change]:
    """The changes of a recipe file.

    Raises:
        ValueError: The file is not TOML, or not a list of changes; the message names the file and the change.
        OSError: The file cannot be read.
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
        ValueError: There is no such change or option.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ValueError("a change is a table with a name")
    return build(entry["name"], **{name: value for name, value in entry.items() if name != "name"})


def recipe_text(changes: Iterable[Change | Mapping[str, Any]]) -> str:
    """The text of a recipe file of these changes; `read_recipe` reads it."""
    entries = [as_dict(change) if isinstance(change, Change) else dict(change) for change in changes]
    # One table after the other, which people can read and move; a list would be written on one line.
    return "\n".join(tomli_w.dumps({"change": entry}).replace("[change]", "[[change]]", 1) for entry in entries)


def parse(words: str) -> Change:
    """A change as typed: its name, then options as name=value, or as values in the order of its fields.

    >>> parse("attention sliding_window window=64 layers=1,3,5")

    Raises:
        ValueError: There is no such change or option, or a value does not fit.
    """
    try:
        name, *rest = shlex.split(words)
    except ValueError as error:
        raise ValueError(f"a change is a name and options, name=value; got {words!r}") from error
    allowed = types(kind(name))
    options: dict[str, Any] = {}
    for place, word in enumerate(rest):
        key, equals, value = word.partition("=")
        if not equals:
            if place >= len(allowed) or place != len(options):
                raise ValueError(f"{name}: {word!r} is not an option; options are name=value")
            key, value = list(allowed)[place], word
        options[key] = value_of(value, allowed.get(key, ()))
    return build(name, **options)
