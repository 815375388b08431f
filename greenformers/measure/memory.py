"""Peak memory of a call, in bytes of tensors."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import accumulate

import torch

from greenformers._torch import cpu_allocations


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Peak bytes of tensors allocated during `call`, above those live at its start.

    The call runs once. Run a training step once before, so that the optimiser's state exists, and let it drop
    its gradients at its end and not at its start: on the CPU, torch does not see that a tensor from before the
    call is released, so the peak would hold the old gradients and the new ones.

    On the CPU the bytes are those that torch's allocator hands out: exact, but without scratch space that MKL
    or oneDNN take for themselves. On CUDA they are the caching allocator's, without what it holds in reserve.

    Args:
        call: Function to run; wrap it in `torch.inference_mode()` for inference.
        device: Device whose memory is measured, "cpu" or a CUDA device.

    Raises:
        ValueError: Raised where the device is neither CPU nor CUDA.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be a CPU or CUDA device, got {device}")
    gc.collect()  # old garbage freed during the call would lower its peak
    return _peak_on_cpu(call) if device.type == "cpu" else _peak_on_cuda(call, device)


def _peak_on_cpu(call: Callable[[], object]) -> int:
    # Each profile writes two lines to stderr. Only this variable stops that; it is read at the first profile.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    return max(accumulate(cpu_allocations(call), initial=0))


def _peak_on_cuda(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
