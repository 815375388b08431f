"""Feed-forward blocks, one kind a file: what follows attention in a layer. The folder is the registry.

>>> feed_forward = build("dense", Size(width=512, hidden=2048))
>>> out = feed_forward(x, mask)
"""

from typing import Any

from greenformers._registry import check_options, class_of, files
from greenformers.feed_forward._contract import FeedForward, Size

__all__ = ["FeedForward", "Size", "build", "feed_forward_class", "names"]


def names() -> list[str]:
    """Every kind, by file name."""
    return files(__path__)


def build(name: str, size: Size, **options: Any) -> FeedForward:
    """Make the feed-forward block of file `name`, which alone is imported.

    Args:
        name: One of `names()`.
        size: Sizes of the network around it.
        **options: Keyword arguments of its class; each has a default that works.

    Raises:
        ValueError: There is no such kind, it cannot do what is asked for, or an option is out of range.
        TypeError: It does not take an option.
    """
    kind = feed_forward_class(name)
    check_options(name, kind, options)
    return kind(size, **options)


def feed_forward_class(name: str) -> type[FeedForward]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: There is no such kind.
    """
    kind: type[FeedForward] = class_of(__name__, names(), name, "feed_forward")
    return kind
