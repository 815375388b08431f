"""Kinds of depth, one a file: how many of a stack's layers a position goes through. The folder is the registry.

>>> depth = build("universal", Size(width=512, steps=6), tau=0.01)
>>> y, steps, loss = depth(x, lambda n, u, running: layer(u))
"""

from typing import Any

from greenformers._registry import check_options, class_of, files
from greenformers.depth._contract import Depth, Exits, Size
from greenformers.depth._running import Running

__all__ = ["Depth", "Exits", "Running", "Size", "build", "depth_class", "names"]


def names() -> list[str]:
    """Every kind, by file name."""
    return files(__path__)


def build(name: str, size: Size, **options: Any) -> Depth:
    """Make the kind of depth of file `name`, which alone is imported.

    Args:
        name: One of `names()`.
        size: Sizes of the network around it.
        **options: Keyword arguments of its class; each has a default that works.

    Raises:
        ValueError: There is no such kind, or an option is out of range.
        TypeError: It does not take an option.
    """
    kind = depth_class(name)
    check_options(name, kind, options)
    return kind(size, **options)


def depth_class(name: str) -> type[Depth]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: There is no such kind.
    """
    kind: type[Depth] = class_of(__name__, names(), name, "depth")
    return kind
