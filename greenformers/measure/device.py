"""Which device a measurement runs on."""

import torch


def device_of(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ValueError: neither the CPU nor a CUDA device, or one that is not there.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, or cuda: and a number; got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} is not there: {torch.cuda.device_count()} CUDA devices are")
    return device
