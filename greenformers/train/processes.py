"""Several processes, started by torchrun or accelerate, that work on one thing: who writes, and who waits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

WAIT, NOTHING = timedelta(days=30), -1

LAUNCHED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of the environment by which a launcher tells processes of each other."""


def processes() -> int:
    """Number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", 1))


def alone() -> bool:
    """Whether this is the only process."""
    return processes() == 1


def processes_here() -> int:
    """Number of processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", processes()))


def rank() -> int:
    """The number of this process, from 0."""
    # The launchers' variable, as the process group is initialised only when work begins.
    return int(os.environ.get("RANK", 0))


def first_process() -> bool:
    """Whether this is the process that writes: the only one, or the first of several."""
    return rank() == 0


@contextmanager
def apart() -> Iterator[None]:
    """A `with` block in which each of several processes works as if it were alone, on things of its own."""
    before = {name: os.environ.pop(name) for name in LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ |= before


@contextmanager
def first_before_others() -> Iterator[None]:
    """A `with` block that the first process leaves before the others enter it, to read what it has written."""
    if alone():
        yield
        return
    with _group().main_process_first():
        yield


def told(number: int | None = None) -> int | None:
    """The number that the first process tells all others, which wait for it; None where it tells none.

    Args:
        number: What to tell, of the first process; that of the others is not looked at.
    """
    if alone():
        return number
    import torch
    from accelerate.utils import broadcast

    held = torch.tensor([NOTHING if number is None else number], device=_group().device)
    value = int(broadcast(held, from_process=0))
    return None if value == NOTHING else value


def wait() -> None:
    """Wait until all processes are here."""
    if not alone():
        _group().wait_for_everyone()


def gathered(value: T) -> list[T]:
    """What each process gives, in the order of their numbers, for all of them."""
    if alone():
        return [value]
    from accelerate.utils import gather_object

    _group()
    values: list[T] = gather_object([value])
    return values


def added_up(tensor: "Tensor") -> "Tensor":
    """The sum of the tensors that each process gives, the same in all of them to the bit; theirs may be overwritten."""
    if alone():
        return tensor
    import torch

    total = tensor.to(_group().device).contiguous()
    torch.distributed.all_reduce(total)  # in place: of wide layers they take a gigabyte
    return total.to(tensor.device)


def training_device() -> Any:
    """The device that this process trains on: its own accelerator where there are any, else the CPU."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", 0)))


def _group() -> Any:
    """The group of all processes, which wait for each other as long as measurements and calibrations may take."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.accelerator.is_available(), timeout=WAIT)
