"""Libraries that an install without extras does not bring, and the error where one is missing."""

from importlib import import_module
from types import ModuleType


class MissingExtraError(ImportError):
    """A library of an extra is not installed; the message names it, and the command that installs it."""


def missing(subject: str, extra: str, *packages: str) -> MissingExtraError:
    """The error to raise where a library of an extra is not installed.

    Args:
        subject: Subject of the message, which needs the library: "speech".
        extra: Name of the extra in pyproject.toml.
        packages: Libraries that have to be installed, as `pip` calls them.
    """
    needs = "needs" if len(packages) == 1 else "needs all of"
    return MissingExtraError(
        f"{subject} {needs} {', '.join(packages)}: install greenformers with its extra {extra!r}, "
        f"such as pip install '.[{extra}]' in a clone"
    )


def needed(subject: str, extra: str, package: str, module: str | None = None) -> ModuleType:
    """A library of an extra, imported.

    Args:
        subject: Subject of the message, which needs the library.
        extra: Name of the extra in pyproject.toml.
        package: Name of the library for `pip`.
        module: Name of the library in Python, where that differs.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module(module or package)
    except ModuleNotFoundError as error:
        raise missing(subject, extra, package) from error
