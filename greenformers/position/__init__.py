"""Kinds of position, one a file: how the positions of tokens enter a network. The folder is the registry.

>>> position = build("rotary", Place(width=512, head_dim=64, max_len=4096), base=500_000.0)
>>> angles = position.rotation(torch.arange(128)[None])
>>> q, k = position.turn(q, angles), position.turn(k, angles)
"""

from typing import Any

from greenformers._registry import check_options, class_of, files
from greenformers.position._contract import Place, Position, Rotation, falling

__all__ = ["Place", "Position", "Rotation", "build", "falling", "names", "position_class"]


def names() -> list[str]:
    """Every kind, by file name."""
    return files(__path__)


def build(name: str, place: Place, **options: Any) -> Position:
    """Make the kind of position of file `name`, which alone is imported.

    Args:
        name: One of `names()`.
        place: Sizes of the network around it.
        **options: Keyword arguments of its class; each has a default that works.

    Raises:
        ValueError: There is no such kind, or an option is out of range.
        TypeError: It does not take an option.
    """
    kind = position_class(name)
    check_options(name, kind, options)
    return kind(place, **options)


def position_class(name: str) -> type[Position]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: There is no such kind.
    """
    kind: type[Position] = class_of(__name__, names(), name, "position")
    return kind
