"""Several processes, started by torchrun or accelerate, that work on one thing: who writes, and who waits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

WAIT, NOTHING = timedelta(days=30), -1


def processes() -> int:
    """Number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", 1))


def alone() -> bool:
    """Whether this is the only process."""
    return processes() == 1


def first_process() -> bool:
    """Whether this is the process that writes: the only one, or the first of several."""
    # The launchers' variable, as the process group is initialised only when training starts.
    return int(os.environ.get("RANK", 0)) == 0


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
