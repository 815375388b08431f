"""Calls that may run out of memory: that becomes an exception instead of the end of the program."""

import math
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import torch

T = TypeVar("T")

RESERVE = 0.1
"""Share of the free memory that is left to other programs."""

GROUPS = (
    tuple(f"/sys/fs/cgroup/memory.{name}" for name in ("max", "current", "stat")),
    tuple(f"/sys/fs/cgroup/memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")),
)
"""Files in which a container finds the most bytes that it may take, those it has, and what they are, by version of
control groups."""


class OutOfMemory(Exception):  # noqa: N818
    """A call needed more memory than there is.

    Attributes:
        limit: Bytes that were free.
    """

    def __init__(self, limit: float) -> None:
        super().__init__(f"more than {limit / 2**30:.1f} GiB of memory are needed")
        self.limit = limit


def free(device: torch.device) -> float:
    """Bytes of memory that a call may take on a device."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for such calls
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    return (1 - RESERVE) * max(0.0, min(psutil.virtual_memory().available, _of_group()))


def _of_group() -> float:
    """Bytes that this program's container leaves; infinite where there is none, or none with a limit."""
    for most, taken, parts in GROUPS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            return int(Path(most).read_text()) - int(Path(taken).read_text()) + _of_files(Path(parts))
    return math.inf


def _of_files(parts: Path) -> int:
    """Bytes of files that a container was done with: they count as taken, and are given up for others."""
    with suppress(OSError, ValueError):
        sizes = dict(line.split() for line in parts.read_text().splitlines())
        # The first version of control groups has one for the group alone too.
        return int(sizes.get("total_inactive_file", sizes.get("inactive_file", 0)))
    return 0


def attempt(call: Callable[[], T], device: torch.device, limit: float | None = None) -> T:
    """Run a call within the free memory, or less.

    On the CPU the address space is limited for the time of the call: without that the system would end some process,
    this one most likely.

    Args:
        call: Function to run.
        device: Device that it computes on.
        limit: Bytes of memory that the call may take on the CPU; by default those that are free.

    Returns:
        The result of the call.

    Raises:
        OutOfMemory: Raised where the call needs more.
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
    ceiling = int(psutil.Process().memory_info().vms + limit)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling if soft == resource.RLIM_INFINITY else min(soft, ceiling), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
