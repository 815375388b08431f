"""What was made of parameters, as a packed weight is, and is made again only when they change."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from torch import Tensor

from greenformers._torch import version

T = TypeVar("T")


class MadeOf(Generic[T]):
    """What was made of parameters, with what tells whether they are the same still.

    Args:
        parameters: What it was made of; None where there is none.
        value: What was made of them.
    """

    def __init__(self, parameters: Iterable[Tensor | None], value: T) -> None:
        self.value = value
        self._of = [None if part is None else (part, part.data_ptr(), version(part)) for part in parameters]

    def fresh(self, parameters: Iterable[Tensor | None]) -> bool:
        """Whether these are the parameters it was made of, unchanged."""
        for part, then in zip(parameters, self._of, strict=True):
            if then is None or part is None:
                if then is not part:
                    return False
            elif part is not then[0] or part.data_ptr() != then[1] or version(part) != then[2]:
                return False
        return True
