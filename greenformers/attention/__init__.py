"""Attention mechanisms, one a file. The folder is the registry.

>>> attention = build("linformer", Shape(heads=12, head_dim=64, max_len=4096), k=128)
>>> out = attention(q, k, v, key_mask)
"""

from typing import Any

from greenformers._registry import check_options, class_of, files
from greenformers.attention._contract import Attention, Role, Shape

__all__ = ["Attention", "Role", "Shape", "attention_class", "build", "names"]


def names() -> list[str]:
    """Every mechanism, by file name."""
    return files(__path__)


def build(name: str, shape: Shape, **options: Any) -> Attention:
    """Make the mechanism of file `name`, which alone is imported.

    Args:
        name: One of `names()`.
        shape: Sizes of the network around it: heads, width and length.
        **options: Keyword arguments of the mechanism's class; each has a default that works.

    Raises:
        ValueError: There is no such mechanism, or an option is out of range.
        TypeError: The mechanism does not take an option.
    """
    kind = attention_class(name)
    check_options(name, kind, options)
    return kind(shape, **options)


def attention_class(name: str) -> type[Attention]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: There is no such mechanism.
    """
    kind: type[Attention] = class_of(__name__, names(), name, "attention")
    return kind
