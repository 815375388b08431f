"""Folders that are registries: what is in them by file name, and the class that a file is named after."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from inspect import signature
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


def class_of(package: str, names: Iterable[str], name: str, what: str) -> Any:
    """The public class of a file, named as the file is, in capitals: sliding_window -> SlidingWindow.

    Args:
        package: The package whose folder it is in; that file alone is imported.
        names: Files to choose from.
        name: The file.
        what: What it is, for the message.

    Raises:
        ValueError: There is no such file.
    """
    if name not in names:
        raise ValueError(f"{what} must be one of {', '.join(names)}; got {name!r}")
    return getattr(import_module(f"{package}.{name}"), name.title().replace("_", ""))


def options_of(kind: type) -> list[str]:
    """The options of a class, which are its keyword-only arguments."""
    return [each.name for each in signature(kind).parameters.values() if each.kind is each.KEYWORD_ONLY]


def check_options(name: str, kind: type, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that a class does not take, or a value of another type than it says."""
    known = options_of(kind)
    for option, value in options.items():
        if option not in known:
            raise TypeError(f"{name} has no option {option!r}, it has {', '.join(known) or 'none'}")
        if not _fits(value, hint := _hints(kind).get(option, Any)):
            raise TypeError(f"{name}: {option} must be {_said(hint)}, got {value!r}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind.__init__)  # type: ignore[misc]


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a plain type; of one that is not plain any value is: the class itself looks at it."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if hint in (str, bool, NoneType):
        return isinstance(value, hint)
    return not isinstance(value, str) or not isinstance(get_origin(hint) or hint, type)


def _said(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_said, get_args(hint)))
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "none"}
    return plain.get(hint, "several values")
