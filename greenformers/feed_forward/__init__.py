"""Feed-forward blocks, one kind a file: what follows attention in a layer. The folder is the registry.

>>> feed_forward = build("dense", Size(width=512, hidden=2048))
>>> out = feed_forward(x, mask)
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from greenformers.feed_forward._contract import FeedForward, Size

__all__ = ["FeedForward", "Size", "build", "feed_forward_class", "names"]


def names() -> list[str]:
    """Every kind, by file name."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def build(name: str, size: Size, **options: Any) -> FeedForward:
    """Make the feed-forward block of file `name`, which alone is imported.

    Args:
        name: one of `names()`.
        size: of the network around it.
        **options: keyword arguments of its class; each has a default that works.

    Raises:
        ValueError: no such kind, one that cannot do what is asked for, or an option out of range.
        TypeError: an option it does not take.
    """
    return feed_forward_class(name)(size, **options)


def feed_forward_class(name: str) -> type[FeedForward]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: no such kind.
    """
    if name not in names():
        raise ValueError(f"feed_forward must be one of {', '.join(names())}; got {name!r}")
    module = import_module(f"{__name__}.{name}")
    # The file's one public class is named as the file, in capitals.
    kind: type[FeedForward] = getattr(module, name.title().replace("_", ""))
    return kind
