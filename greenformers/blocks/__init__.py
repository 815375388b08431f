"""Blocks, one a file: layers that are not attention and then a feed-forward block. The folder is the registry.

>>> block = build("star", Size(width=512, heads=8, hidden=2048, max_len=4096))
>>> x, memory = block(x, mask)
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from greenformers.blocks._contract import Block, Size

__all__ = ["Block", "Size", "block_class", "build", "names"]


def names() -> list[str]:
    """Every block, by file name."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def build(name: str, size: Size, **options: Any) -> Block:
    """Make the block of file `name`, which alone is imported.

    Args:
        name: one of `names()`.
        size: of the network around it.
        **options: keyword arguments of the block's class; each has a default that works.

    Raises:
        ValueError: no such block, one that cannot do what is asked for, or an option out of range.
        TypeError: an option the block does not take.
    """
    return block_class(name)(size, **options)


def block_class(name: str) -> type[Block]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: no such block.
    """
    if name not in names():
        raise ValueError(f"block must be one of {', '.join(names())}; got {name!r}")
    module = import_module(f"{__name__}.{name}")
    # The file's one public class is named as the file, in capitals.
    block: type[Block] = getattr(module, name.title().replace("_", ""))
    return block
