"""Flags from the fields of dataclasses, and dataclasses from flags.

A field with `help` in its metadata becomes a flag; other fields keep their defaults. The name of the flag is that of
the field, with dashes, or `flag` in the metadata: "--k", "--fast/--slow".

| type of the field | value on the command line |
|---|---|
| bool | --name or --no-name |
| int, float, str, Path, Enum, Literal | one value |
| tuple[X, ...] or tuple[X, Y] | values, separated by commas |
| list[X] | one value; the flag may be repeated |
| dict[str, Any] | name=value; the flag may be repeated |

Each type may be `| None`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from greenformers.cli._terminal import pairs

T = TypeVar("T")

_CALLED = {int: "whole numbers", float: "numbers"}


def flags(
    kind: type, *, defaults: object = None, unset: bool = False, panel: str | None = None
) -> list[inspect.Parameter]:
    """The keyword-only parameters of a command for the fields of a dataclass.

    Args:
        kind: The dataclass.
        defaults: Instance whose values are the defaults, in place of those of the fields.
        unset: Whether a flag that is not typed gives None, so that `given` has only those that were typed; the help
            still shows the default.
        panel: Heading of the flags in --help.

    Raises:
        TypeError: A field has a type that flags cannot have.
    """
    return [_flag(kind, entry, hint, defaults, unset, panel) for entry, hint in _entries(kind)]


def given(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that were typed, converted to their types.

    Args:
        kind: The dataclass.
        values: Values of the command's parameters, by name; None and empty lists were not typed.

    Raises:
        ValueError: A text cannot be converted to the type of its field.
    """
    typed = [(entry, hint, values.get(_name(entry))) for entry, hint in _entries(kind)]
    return {entry.name: _value(_name(entry), hint, value) for entry, hint, value in typed if value not in (None, [])}


def filled(kind: type[T], values: Mapping[str, Any], defaults: T | None = None) -> T:
    """An instance of a dataclass from the values of a command's parameters.

    Args:
        kind: The dataclass.
        values: Values of the command's parameters, by name; those that are no fields are ignored.
        defaults: Instance with the values of the fields that were not typed; None for the defaults of the dataclass.

    Raises:
        ValueError: A text cannot be converted to the type of its field, or the dataclass refuses a value.
    """
    typed = given(kind, values)
    return kind(**typed) if defaults is None else replace(defaults, **typed)  # type: ignore[type-var]


def from_fields(command: Callable[..., None]) -> Callable[..., None]:
    """The command with flags for the fields of its dataclasses, in place of each parameter that is a dataclass.

    The default of such a parameter is an instance, which has the defaults of its flags.
    """
    own = inspect.signature(command).parameters
    kinds: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
    defaults = {name: None if own[name].default is inspect.Parameter.empty else own[name].default for name in kinds}

    @wraps(command)
    def with_flags(**values: Any) -> None:
        instances = {name: filled(kind, values, defaults[name]) for name, kind in kinds.items()}
        command(**{name: values[name] for name in own if name not in kinds}, **instances)

    parameters: list[inspect.Parameter] = []
    for name, each in own.items():
        if name in kinds:
            parameters += flags(kinds[name], defaults=defaults[name])
        else:
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_flags


def _entries(kind: type) -> Iterator[tuple["Field[Any]", Any]]:
    """The fields that are flags, with their types."""
    entries = [entry for entry in fields(kind) if "help" in entry.metadata]
    # Hints are resolved only where they are text: a name may be imported for type checkers alone.
    hints = get_type_hints(kind) if any(isinstance(entry.type, str) for entry in entries) else {}
    for entry in entries:
        yield entry, hints.get(entry.name, entry.type)


def _name(entry: "Field[Any]") -> str:
    """The name of the parameter of a field, which is that of its flag."""
    flag = entry.metadata.get("flag")
    return entry.name if flag is None else flag.split("/")[0].lstrip("-").replace("-", "_")


def _flag(
    kind: type, entry: "Field[Any]", hint: Any, defaults: object, unset: bool, panel: str | None
) -> inspect.Parameter:
    declared = [] if entry.metadata.get("flag") is None else [entry.metadata["flag"]]
    default, about = _as_typed(_default(entry, defaults)), entry.metadata["help"]
    if unset:
        if default is not None and default is not ...:
            shown = ",".join(default) if isinstance(default, list) else default
            # The help would read unescaped brackets as markup, and drop them.
            about += rf" \[default: {shown}]"
        option, default = typer.Option(*declared, help=about, show_default=False, rich_help_panel=panel), None
    else:
        option = typer.Option(*declared, help=about, rich_help_panel=panel)
    annotation = _annotation(f"{kind.__name__}.{entry.name}", hint)
    if default is None:
        annotation = annotation | None
    return inspect.Parameter(
        _name(entry), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, option]
    )


def _default(entry: "Field[Any]", defaults: object) -> Any:
    """The default of a field; `...` where it has none."""
    if defaults is not None:
        return getattr(defaults, entry.name)
    if entry.default is not MISSING:
        return entry.default
    return ... if entry.default_factory is MISSING else entry.default_factory()


def _as_typed(default: Any) -> Any:
    """A default as a user would type it, with commas or repeated; None for an empty list or dictionary."""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if isinstance(default, dict):
        return [f"{name}={value}" for name, value in default.items()] or None
    return None if default == [] else default


def _bare(hint: Any) -> Any:
    """A type without its None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else hint


def _annotation(name: str, hint: Any) -> Any:
    """The type of the flag of a field."""
    bare = _bare(hint)
    origin = get_origin(bare)
    if origin is tuple:
        return str
    if (origin or bare) is dict:
        return list[str]
    if origin in (list, Literal) or isinstance(bare, type):
        return bare
    raise TypeError(f"{name} has the type {hint}, which flags cannot have")


def _value(name: str, hint: Any, value: Any) -> Any:
    """The value of a field from the text that was typed."""
    bare = _bare(hint)
    origin = get_origin(bare)
    if origin is tuple:
        return _values(name, get_args(bare), value)
    return pairs(name, value) if (origin or bare) is dict else value


def _values(name: str, kinds: tuple[Any, ...], text: str) -> tuple[Any, ...]:
    """Values from a text in which they are separated by commas.

    Raises:
        ValueError: A value is of another type, or their number is not that of `kinds`.
    """
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    expected = (kinds[0],) * len(words) if kinds[1:] == (...,) else kinds
    if len(words) != len(expected):
        raise ValueError(f"{name} must be {len(expected)} values with commas between; got {text!r}")
    try:
        return tuple(kind(word) for kind, word in zip(expected, words, strict=True))
    except ValueError:
        called = _CALLED.get(expected[0], "values")
        raise ValueError(f"{name} must be {called} with commas between; got {text!r}") from None
