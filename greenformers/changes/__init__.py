"""Changes of a trained network, one a file. The folder is the registry.

>>> change = build("low_rank", keep=0.5)
>>> report = change.apply(model, Given())

`greenformers.compress` applies a list of them, a recipe. The classes are names of this package:
`from greenformers.changes import Heal, Int8, LowRank`.
"""

from typing import Any

from greenformers._registry import class_of, files
from greenformers.changes._contract import Change, Given, Need
from greenformers.changes._report import Report, UnitReport

__all__ = ["Change", "Given", "Need", "Report", "UnitReport", "build", "kind", "kinds", "names"]


def names() -> list[str]:
    """Every change, by file name."""
    return files(__path__)


def kind(name: str) -> type[Change]:
    """The class of a change, named as its file is: `low_rank.py` holds `LowRank`.

    Raises:
        ValueError: There is no such change.
    """
    change: type[Change] = class_of(__name__, names(), name, "a change")
    return change


def kinds() -> list[type[Change]]:
    """Every change, in the order in which the command line applies them."""
    return sorted(map(kind, names()), key=lambda change: (change.order, change.name()))


def build(name: str, **options: Any) -> Change:
    """Build the change of the file `name`.

    Args:
        name: One of `names()`.
        **options: Fields of the class of the change; each has a default that works.

    Raises:
        ValueError: There is no such change or option, or an option is out of range.
    """
    from greenformers.changes._options import checked

    change = kind(name)
    return change(**checked(change, options))


def __getattr__(name: str) -> Any:
    for file in names() if name[:1].isupper() else ():
        if file.title().replace("_", "") == name:
            return kind(file)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
