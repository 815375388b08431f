"""The part of a selection that is of use in a part of a network: a pattern need not select a weight of every block."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from greenformers.changes._contract import Change

C = TypeVar("C", bound=Change)


def selecting(change: C, look: Callable[[Any], object]) -> C | None:
    """The change with those patterns of its `select` that select something; None where none does.

    Args:
        change: A change with an option `select`.
        look: Function that looks for the weights of a selection, and raises ValueError where there is none.
    """
    select = change.select  # type: ignore[attr-defined]
    if select is None:
        return change if _selects(look, None) else None
    patterns = tuple(pattern for pattern in select if _selects(look, (pattern,)))
    return change.but(select=patterns) if patterns else None


def _selects(look: Callable[[Any], object], select: Any) -> bool:
    with suppress(ValueError):
        look(select)
        return True
    return False
