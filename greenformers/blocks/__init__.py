"""Blocks, one a file: layers that are not attention and then a feed-forward block. The folder is the registry.

>>> block = build("star", Size(width=512, heads=8, hidden=2048, max_len=4096))
>>> x, memory = block(x, mask)
"""

from typing import Any

from greenformers._registry import check_options, class_of, files
from greenformers.blocks._contract import Block, Past, Size
from greenformers.blocks._convolution import Convolution

__all__ = ["Block", "Convolution", "Past", "Size", "block_class", "build", "names"]


def names() -> list[str]:
    """Every block, by file name."""
    return files(__path__)


def build(name: str, size: Size, **options: Any) -> Block:
    """Make the block of file `name`, which alone is imported.

    Args:
        name: One of `names()`.
        size: Sizes of the network around it.
        **options: Keyword arguments of the block's class; each has a default that works.

    Raises:
        ValueError: There is no such block, it cannot do what is asked for, or an option is out of range.
        TypeError: The block does not take an option.
    """
    kind = block_class(name)
    check_options(name, kind, options)
    return kind(size, **options)


def block_class(name: str) -> type[Block]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: There is no such block.
    """
    kind: type[Block] = class_of(__name__, names(), name, "block")
    return kind
