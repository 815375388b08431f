"""Attention mechanisms, one a file. The folder is the registry.

>>> attention = build("linformer", Shape(heads=12, head_dim=64, max_len=4096), k=128)
>>> out = attention(q, k, v, key_mask)
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from greenformers.attention._contract import Attention, Role, Shape

__all__ = ["Attention", "Role", "Shape", "attention_class", "build", "names"]


def names() -> list[str]:
    """Every mechanism, by file name."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def build(name: str, shape: Shape, **options: Any) -> Attention:
    """Make the mechanism of file `name`, which alone is imported.

    Args:
        name: one of `names()`.
        shape: heads, width and length around it.
        **options: keyword arguments of the mechanism's class; each has a default that works.

    Raises:
        ValueError: no such mechanism, or an option out of range.
        TypeError: an option the mechanism does not take.
    """
    return attention_class(name)(shape, **options)


def attention_class(name: str) -> type[Attention]:
    """The class of file `name`, which alone is imported.

    Raises:
        ValueError: no such mechanism.
    """
    if name not in names():
        raise ValueError(f"attention must be one of {', '.join(names())}; got {name!r}")
    module = import_module(f"{__name__}.{name}")
    # The file's one public class is named as the file, in capitals: sliding_window -> SlidingWindow.
    found: type[Attention] = getattr(module, name.title().replace("_", ""))
    return found
