"""Folders that are registries: the files in them by name, and the class that each file is named after."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import signature
from math import isfinite
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def files(path: Iterable[str]) -> list[str]:
    """Names of the public files in the folders of a package's `__path__`, in order."""
    return list(_files(tuple(path)))


@cache
def _files(path: tuple[str, ...]) -> tuple[str, ...]:
    # Configurations ask for these names thousands of times, and each time a folder would be read.
    return tuple(sorted(module.name for module in iter_modules(list(path)) if not module.name.startswith("_")))


def class_of(package: str, names: Iterable[str], name: str, kind: str) -> Any:
    """The public class of a file, named as the file is, in capitals: sliding_window -> SlidingWindow.

    Args:
        package: The package whose folder holds the file; that file alone is imported.
        names: Names of the files to choose from.
        name: Name of the file.
        kind: Kind of entry that the registry holds, for the message.

    Raises:
        ValueError: There is no such file.
    """
    if name not in names:
        raise ValueError(f"{kind} must be one of {', '.join(names)}; got {name!r}")
    return getattr(import_module(f"{package}.{name}"), name.title().replace("_", ""))


def options_of(kind: type) -> list[str]:
    """The options of a class, which are its keyword-only arguments."""
    return [
        parameter.name for parameter in signature(kind).parameters.values() if parameter.kind is parameter.KEYWORD_ONLY
    ]


def check_options(name: str, kind: type, options: Mapping[str, Any]) -> None:
    """Check options before a class is built with them.

    Raises:
        TypeError: The class does not take an option, or a value is of another type than it says.
        ValueError: A number is not finite.
    """
    names = options_of(kind)
    for option, value in options.items():
        if option not in names:
            raise TypeError(f"{name} has no option {option!r}, it has {', '.join(names) or 'none'}")
        if not fits(value, hint := _hints(kind).get(option, Any)):
            raise TypeError(f"{name}: {option} must be {said(hint)}, got {value!r}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name}: {option} must be a finite number, got {value}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind.__init__)  # type: ignore[misc]


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type; any value is of a type that is not plain: the class itself checks those."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(fits(value, choice) for choice in get_args(hint))
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if hint in (str, bool, NoneType):
        return isinstance(value, hint)
    if hint is Any or not isinstance(kind, type):
        return True
    if kind is Sequence or kind is list:
        (each,) = get_args(hint) or (Any,)
        return isinstance(value, kind) and not isinstance(value, str) and all(fits(entry, each) for entry in value)
    return isinstance(value, kind)


def said(hint: Any) -> str:
    """A type in words, for messages."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(said, get_args(hint))))
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "none"}
    return plain.get(hint, "values by name" if get_origin(hint) is dict else "several values")
