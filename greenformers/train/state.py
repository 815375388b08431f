"""The state of a training run as plain tensors and numbers, whole on every process, and back again.

Parameters and optimiser state may be sharded over processes (FSDP2); a checkpoint does not depend on how many.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from greenformers._tensors import save_file
from greenformers.train.checkpoint import write_json

MODEL, OPTIMIZER, SCHEDULE = "model.safetensors", "optimizer.safetensors", "schedule.json"


def weights(model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """Parameters and buffers by name, each tensor once. Every process must call this; without `keep` it gets none."""
    seen: set[int] = set()
    whole = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            value = _whole(tensor)
            if keep:
                whole[name] = value
    return whole


def optimizer_state(model: nn.Module, optimizer: Optimizer, *, keep: bool = True) -> dict[str, Tensor]:
    """State of the optimiser, named by parameter and kind; see `weights`."""
    whole = {}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            moment = _whole(value)
            if keep:
                whole[f"{name}/{kind}"] = moment
    return whole


def save(
    folder: Path, tensors: dict[str, Tensor], moments: dict[str, Tensor], schedule: LRScheduler, scaler: Any
) -> None:
    """Write the results of `weights` and `optimizer_state`, and the state of schedule and loss scaler."""
    save_file(tensors, folder / MODEL, metadata={"format": "pt"})
    save_file(moments, folder / OPTIMIZER)
    state = {name: value for name, value in schedule.state_dict().items() if name != "lr_lambdas"}
    write_json(folder / SCHEDULE, {"schedule": state, "scaler": None if scaler is None else scaler.state_dict()})


def save_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write weights alone, in place of those the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"unfinished-{MODEL}"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.replace(folder / MODEL)


def load_weights(folder: Path, model: nn.Module) -> None:
    """Put the weights of a checkpoint into a model.

    Raises:
        ValueError: The weights are not those of this network.
    """
    put_weights(load_file(folder / MODEL), model)


@torch.no_grad()
def put_weights(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Put the result of `weights` into a model.

    Raises:
        ValueError: The weights are not those of this network.
    """
    own = dict([*model.named_parameters(), *model.named_buffers()])
    if tensors.keys() != own.keys() or any(tensors[name].shape != tensor.shape for name, tensor in own.items()):
        raise ValueError("these are the weights of another network than the run's settings describe")
    for name, tensor in own.items():
        tensor.copy_(_like(tensors[name], tensor))


def load_optimizer(folder: Path, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> None:
    """Put the optimiser state of a checkpoint into the optimiser of the named parameters, which may be some of all."""
    fused = {
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if group.get("fused") or group.get("capturable")
    }
    for key, value in load_file(folder / OPTIMIZER).items():
        name, _, kind = key.rpartition("/")
        if name not in parameters:
            continue
        parameter = parameters[name]
        # Moments are laid out as their parameter is; counters are plain numbers, where fused updates need them.
        if kind != "step" and value.shape == parameter.shape:
            value = _like(value, parameter)
        elif id(parameter) in fused:
            value = value.to(parameter.device)
        optimizer.state[parameter][kind] = value


def load_schedule(folder: Path, schedule: LRScheduler, optimizer: Optimizer, scaler: Any) -> None:
    """Put the state of a checkpoint into learning rate schedule and loss scaler."""
    state = json.loads((folder / SCHEDULE).read_text())
    schedule.__dict__.update(state["schedule"])
    for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
        group["lr"] = rate
    if scaler is not None and state["scaler"] is not None:
        scaler.load_state_dict(state["scaler"])


def _whole(tensor: Tensor) -> Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().cpu().contiguous()


def _like(whole: Tensor, tensor: Tensor) -> Tensor:
    whole = whole.to(tensor.device, tensor.dtype)
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else whole
