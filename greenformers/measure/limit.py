"""Running out of memory as an answer, not as the end of the program."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psutil
import torch

T = TypeVar("T")

RESERVE = 0.1
"""Of the free memory, what is left to others."""


class OutOfMemory(Exception):  # noqa: N818
    """A call needed more memory than there is.

    Attributes:
        limit: bytes that there were.
    """

    def __init__(self, limit: float) -> None:
        super().__init__(f"more than {limit / 2**30:.1f} GiB of memory are needed")
        self.limit = limit


def free(device: torch.device) -> float:
    """Bytes that a call may take."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return (1 - RESERVE) * psutil.virtual_memory().available


def attempt(call: Callable[[], T], device: torch.device, limit: float | None = None) -> T:
    """Run a call within the free memory, or less.

    On the CPU the address space is limited for the time of the call: without that the system would end some process,
    this one most likely.

    Args:
        call: what to run.
        device: where it computes.
        limit: bytes, on the CPU; by default what is free.

    Raises:
        OutOfMemory: it needs more.
    """
    limit = free(device) if limit is None or device.type == "cuda" else limit
    try:
        with _limited(limit if device.type == "cpu" else None):
            return call()
    except MemoryError as error:
        raise OutOfMemory(limit) from error
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise OutOfMemory(limit) from error
        raise


@contextmanager
def _limited(limit: float | None) -> Iterator[None]:
    if limit is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(psutil.Process().memory_info().vms + limit)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
