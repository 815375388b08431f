"""Kinds of position, one a file: how a network learns where its tokens stand. The folder is the registry.

>>> position = build("rotary", Place(width=512, head_dim=64, max_len=4096), base=500_000.0)
>>> angles = position.rotation(torch.arange(128)[None])
>>> q, k = position.turn(q, angles), position.turn(k, angles)
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from greenformers.position._contract import Place, Position, Rotation

__all__ = ["Place", "Position", "Rotation", "build", "names", "position_class"]


def names() -> list[str]:
    """Every kind, by file name."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def build(name: str, place: Place, **options: Any) -> Position:
    """Make the kind of position of file `name`, which alone is imported.

    Args:
        name: One of `names()`.
        place: The network around it.
        **options: Keyword arguments of its class; each has a default that works.

    Raises:
        ValueError: There is no such kind, or an option is out of range.
        TypeError: It does not take an option.
    """
    return position_class(name)(place, **options)


def position_class(name: str) -> type[Position]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: There is no such kind.
    """
    if name not in names():
        raise ValueError(f"position must be one of {', '.join(names())}; got {name!r}")
    module = import_module(f"{__name__}.{name}")
    # The file's one public class is named as the file, in capitals.
    kind: type[Position] = getattr(module, name.title().replace("_", ""))
    return kind
