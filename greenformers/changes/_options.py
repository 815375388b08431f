"""Options of a change: from JSON, TOML or words on a command line to the fields of its dataclass, and back."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from greenformers.changes._contract import Change


def types(kind: type[Change]) -> dict[str, tuple[type, ...]]:
    """The types that each option may have: `int | None` gives (int, NoneType)."""
    hints = get_type_hints(kind)
    return {
        entry.name: get_args(hint) if get_origin(hint := hints[entry.name]) in (Union, UnionType) else (hint,)
        for entry in fields(kind)
    }


def checked(kind: type[Change], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the fields hold them: a list as a tuple, a whole number as a float where the field is a float.

    Options that are no fields go into the field `options`, where the change has one for the options of another class.

    Raises:
        ValueError: There is no such option, or a value is of another type.
    """
    allowed = types(kind)
    accepted = {name: value for name, value in options.items() if name in allowed}
    others = {name: value for name, value in options.items() if name not in allowed}
    if others and "options" in allowed:
        accepted["options"] = {**accepted.get("options", {}), **others}
    elif others:
        name = next(iter(others))
        close = get_close_matches(name, allowed, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{kind.name()} has no option {name!r}, it has {', '.join(allowed) or 'none'}{hint}")
    return {name: _fitted(f"{kind.name()}: {name}", value, allowed[name]) for name, value in accepted.items()}


def _fitted(label: str, value: Any, allowed: tuple[type, ...]) -> Any:
    for hint in allowed:
        base = get_origin(hint) or hint
        if base is float and type(value) is int:
            return float(value)
        if base is tuple and isinstance(value, list | tuple):
            return tuple(_fitted(label, entry, get_args(hint)[:1]) for entry in value)
        if type(value) is base:
            return value
    names = {NoneType: "none", tuple: "a list", dict: "a table", float: "a number", int: "a whole number", str: "text",
             bool: "true or false"}  # fmt: skip
    expected = " or ".join(names[get_origin(hint) or hint] for hint in allowed if hint is not NoneType)
    raise ValueError(f"{label} must be {expected}, got {value!r}")


def as_dict(change: Change) -> dict[str, Any]:
    """The change as TOML and JSON hold it: its name, and the options that differ from their defaults."""
    return {"name": change.name()} | {
        entry.name: list(value) if isinstance(value, tuple) else value
        for entry in fields(change)
        if (value := getattr(change, entry.name)) != default(entry)
    }


def default(entry: "Field[Any]") -> Any:
    """Default of a field."""
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def value_of(text: str, allowed: tuple[type, ...] = ()) -> Any:
    """The value of a typed text for a field of these types; without types, that of its JSON, else the text itself.

    A list is typed with commas, as in 1,3,5, and whole numbers also as a range, as in 0-2; a table is typed as JSON.
    """
    for hint in allowed:
        if (get_origin(hint) or hint) is tuple:
            entry = get_args(hint)[0]
            words = [word.strip() for word in text.split(",") if word.strip()]
            return [number for word in words for number in _range(word)] if entry is int else words
    if str in allowed and not {int, float} & set(allowed):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _range(word: str) -> list[Any]:
    if word.removeprefix("-").isdecimal():
        return [int(word)]
    first, dash, last = word.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        return [word]  # which the check of types refuses
    return list(range(int(first), int(last) + 1))


def typed(change: Change) -> str:
    """The change as it is typed after `--change`; `parse` reads it."""
    options = as_dict(change)
    words = [options.pop("name")]
    words += [f"{name}={value if isinstance(value, str) else as_text(value)}" for name, value in
              {**{name: value for name, value in options.items() if name != "options"},
               **options.get("options", {})}.items()]  # fmt: skip
    return shlex.join(words)


def as_text(value: Any) -> str:
    """A value as it is typed; None and an empty table are an empty text."""
    if value in (None, {}):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else json.dumps(value)


def as_flags(changes: Sequence[Change]) -> list[str]:
    """The words after `greenformers compress MODEL` for these changes: short forms where all of them have one."""
    short = [_short_forms(change) for change in changes]
    places = [(change.order, change.name()) for change in changes]
    if None in short or places != sorted(set(places)):
        return [word for change in changes for word in ("--change", typed(change))]
    return [word for words in short for word in words or ()]


def _short_forms(change: Change) -> list[str] | None:
    """The flags of a change; None where an option has no flag, or where nothing would be typed."""
    words = [] if change.flag is None else [change.flag]
    for entry in fields(change):
        value = getattr(change, entry.name)
        if value == default(entry) and words:
            continue
        flag = entry.metadata.get("flag")
        if flag is None or value in (None, {}) or value is False:
            if value != default(entry):
                return None
            continue
        if isinstance(value, dict):
            words += [word for name, inner in value.items() for word in (flag, f"{name}={as_text(inner)}")]
        else:
            words += [flag] if value is True else [flag, as_text(value)]
    return words or None
