"""Folders that are registries: what is in them by file name, and the class that a file is named after."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import Any


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
    """Raise TypeError, with the options that there are, for one that a class does not take."""
    known = options_of(kind)
    for option in options:
        if option not in known:
            raise TypeError(f"{name} has no option {option!r}, it has {', '.join(known) or 'none'}")
