"""Work of several processes that each do things of their own, in threads of this one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch.distributed import HashStore

from greenformers.train.others import Others

T = TypeVar("T")


def each(work: Callable[[Others], T], count: int) -> list[T]:
    """What the work of each process gives."""
    store = HashStore()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: work(Others(rank, count, store)), range(count)))
