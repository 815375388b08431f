"""What changes have measured of networks, kept from one recipe to the next."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from typing import Any, TypeVar

T = TypeVar("T")


class Measured:
    """What changes have measured of networks: the same change at another strength need not measure it again.

    Args:
        most: Number of measurements that are kept, those that were used last.
    """

    def __init__(self, most: int = 24) -> None:
        self._most, self._before = most, ""
        self._values: OrderedDict[tuple[str, Hashable], Any] = OrderedDict()

    def after(self, changes: Iterable[object]) -> "Measured":
        """The same, of networks to which these changes were applied."""
        view = copy(self)
        view._before = repr(tuple(changes))
        return view

    def once(self, key: Hashable, measure: Callable[[], T]) -> T:
        """What was measured under this key of such a network; measured now if it was not."""
        place = self._before, key
        if place not in self._values:
            self._values[place] = measure()
        self._values.move_to_end(place)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        value: T = self._values[place]
        return value
