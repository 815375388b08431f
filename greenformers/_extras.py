"""Libraries that an install without extras does not bring, and what is said where one is missing."""

from importlib import import_module
from types import ModuleType


class MissingExtraError(ImportError):
    """A library of an extra is not installed; the message says which one and how it comes."""


def missing(what: str, extra: str, *packages: str) -> MissingExtraError:
    """The error to raise where a library of an extra is not installed.

    Args:
        what: What needs it, the subject of the message: "speech".
        extra: Name of the extra in pyproject.toml.
        packages: What has to be installed, as `pip` calls it.
    """
    needs = "needs" if len(packages) == 1 else "needs all of"
    return MissingExtraError(
        f"{what} {needs} {', '.join(packages)}: install greenformers with its extra {extra!r}, "
        f"such as pip install '.[{extra}]' in a clone"
    )


def needed(what: str, extra: str, package: str, module: str | None = None) -> ModuleType:
    """A library of an extra, imported.

    Args:
        what: What needs it, the subject of the message.
        extra: Name of the extra in pyproject.toml.
        package: Library, as `pip` calls it.
        module: Library, as Python calls it, where that differs.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module(module or package)
    except ModuleNotFoundError as error:
        raise missing(what, extra, package) from error
