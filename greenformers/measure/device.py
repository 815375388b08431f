"""The device that a network runs on."""

from collections.abc import Mapping
from typing import Any

import torch


def device_of(name: str) -> torch.device:
    """The device of a name, "cpu", "cuda" or "cuda:1".

    Raises:
        ValueError: Raised where the name is neither of the CPU nor of a CUDA device, or this machine lacks that device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, or cuda: and a number; got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def accelerator() -> torch.device:
    """The accelerator of this machine, and the CPU where there is none."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def processor() -> Mapping[str, Any]:
    """What this processor has, by the names that torch gives it, such as "amx_bf16"; empty where torch does not say."""
    return getattr(torch.cpu, "get_capabilities", dict)()
