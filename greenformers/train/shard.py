"""Fully sharded data parallelism: every process keeps a slice of each weight. Zhao 2023, arXiv:2304.11277 (FSDP2)."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from greenformers.depth import Depth
from greenformers.model._transformers import mark_as_sharded, whole_layers
from greenformers.train.processes import alone

ASKED = "GREENFORMERS_SHARD"
"""Variable of the environment that stands for accelerate's, which is for the first training only."""


def is_sharded(flag: bool) -> bool:
    """Whether the settings ask for sharding, or `accelerate launch --use_fsdp` does.

    Accelerate shards on GPUs only. `shard` works on every device, so accelerate must not do it as well.
    """
    if os.environ.pop("ACCELERATE_USE_FSDP", "false").lower() == "true":
        os.environ[ASKED] = "true"
    # Where each process works apart, nothing is spread.
    return flag or (ASKED in os.environ and not alone())


def check_shard(model: nn.Module) -> None:
    """Check that a model can be sharded.

    Raises:
        ValueError: The model has a kind of depth that calls its layers as often as a batch needs.
    """
    if any(isinstance(module, Depth) for module in model.modules()):
        raise ValueError("shard must be off: processes would call the layers of this depth differently often")


def shard(model: nn.Module, device: torch.device) -> None:
    """Spread the weights of a model, layer by layer, over all processes, in place.

    Raises:
        ValueError: Raised as by `check_shard`.
    """
    check_shard(model)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    model.to(device)
    for module in whole_layers(model):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mark_as_sharded(model)
