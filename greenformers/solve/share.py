"""Batches to calibrate with, spread over several processes that calibrate one network together.

What is computed of the data are sums over batches: each process makes those of its own share, and they are added up.
All processes then have the same statistics, and compute the same weights of them.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from greenformers.solve.watch import Batch
from greenformers.train.processes import added_up, gathered, processes, rank

T = TypeVar("T")


class Share(Sequence[Batch]):
    """The batches of this process, of those that all processes calibrate with together: read as they are asked for.

    Args:
        batches: The batches of all processes.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.numbers = range(rank(), len(batches), processes())  # of short and of long ones some for each

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.batches[number] for number in self.numbers[place]]
        return self.batches[self.numbers[place]]


def every(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The batches of all processes, by which each of them sees the same of a network."""
    return batches.batches if isinstance(batches, Share) else batches


def check_share(count: int) -> None:
    """Check that there is a batch for each process.

    Raises:
        ValueError: There are fewer batches than processes.
    """
    if count < processes():
        raise ValueError(
            f"{processes()} processes need a batch of examples each, got {count}: start fewer, or give more"
        )


def total(sums: Mapping[Hashable, Tensor], batches: Sequence[Batch]) -> dict[Hashable, Tensor]:
    """Sums over the batches of all processes, by key; those over these batches where no others share in.

    Args:
        sums: Sums over these batches. Processes may lack keys: experts that none of their tokens is routed to.
        batches: The batches.
    """
    if not isinstance(batches, Share):
        return dict(sums)
    like: dict[Hashable, tuple[torch.Size, torch.dtype]] = {}
    for held in gathered({key: (x.shape, x.dtype) for key, x in sums.items()}):
        like |= {key: shape for key, shape in held.items() if key not in like}
    device = next(iter(sums.values())).device if sums else None
    return {
        key: added_up(sums[key] if key in sums else torch.zeros(shape, dtype=dtype, device=device))
        for key, (shape, dtype) in like.items()
    }


def anywhere(holds: bool, batches: Sequence[Batch]) -> bool:
    """Whether something holds in any of the processes that share these batches, which all get the same answer."""
    return any(gathered(holds)) if isinstance(batches, Share) else holds


def first(value: T | None, batches: Sequence[Batch]) -> T | None:
    """A value of the first process that has one, of those that share these batches."""
    values = gathered(value) if isinstance(batches, Share) else [value]
    return next((held for held in values if held is not None), None)
