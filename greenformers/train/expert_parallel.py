"""Expert parallelism: each process keeps some experts of every mixture, and all else in full. Lepikhin 2020, 3.

arXiv:2006.16668. Each process reads its own part of a batch; positions go to the processes of their experts and back,
see `greenformers.feed_forward._expert_parallel`. With W processes each holds 1 / W of the experts, of their gradients
and of their moments. It is for a training loop of one's own: what wraps a model to average all gradients (DDP, the
Trainer) would average those of different experts.

>>> spread(model)  # in every process, with the same weights; before the optimiser is made
>>> model(**part_of_the_batch).loss.backward()
>>> average_gradients(model)
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from greenformers.depth import Depth
from greenformers.feed_forward.switch import Switch


def spread(model: nn.Module, group: Any = None) -> list[str]:
    """Keep in each process its own experts of every mixture, in place. The paths of the mixtures.

    Args:
        model: A network with the same weights in all processes.
        group: The processes; by default all of them.

    Raises:
        ValueError: There is no mixture, one is spread already, processes do not divide its experts, or the network has
            a kind of depth that calls its layers as often as a batch needs.
    """
    group = dist.group.WORLD if group is None else group
    mixtures = {path: module for path, module in model.named_modules() if isinstance(module, Switch)}
    if not mixtures:
        raise ValueError(f"{type(model).__name__} has no mixture of experts to spread")
    if any(isinstance(module, Depth) for module in model.modules()):
        raise ValueError("experts cannot be spread: processes would call the layers of this depth differently often")
    processes, rank = dist.get_world_size(group), dist.get_rank(group)
    for path, mixture in mixtures.items():
        if mixture.group is not None:
            raise ValueError(f"the experts of {path or 'the network'} are spread already")
        if mixture.experts % processes:
            raise ValueError(f"processes must divide the {mixture.experts} experts, got {processes}")
    parts: dict[int, nn.Parameter] = {}  # layers that share their weights share the parts of them
    whole = [(holder, name, weight) for mixture in mixtures.values() for holder, name, weight in _of_experts(mixture)]
    for holder, name, weight in whole:
        if id(weight) not in parts:
            own = weight.detach().chunk(processes)[rank].clone()
            parts[id(weight)] = nn.Parameter(own, weight.requires_grad)
        setattr(holder, name, parts[id(weight)])
    for mixture in mixtures.values():
        mixture.group = group
    return list(mixtures)


def average_gradients(model: nn.Module, group: Any = None) -> None:
    """Make gradients those of the mean, over processes, of their losses; call it in all of them after `backward`.

    The gradient of an expert is a sum over processes already, whose positions it has read: it is divided by their
    number. All others are averaged over processes.

    Args:
        model: A network that `spread` has changed.
        group: The processes; by default all of them.
    """
    processes = dist.get_world_size(group)
    experts = {id(weight) for mixture in _spread(model) for _, _, weight in _of_experts(mixture)}
    for parameter in model.parameters():
        if id(parameter) not in experts and parameter.requires_grad:
            if parameter.grad is None:  # all processes take part
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        if parameter.grad is not None:
            parameter.grad /= processes


def gather(model: nn.Module) -> None:
    """Put all experts back into every process, in place: to save the network, say. Call it in all of them."""
    mixtures, wholes = _spread(model), dict[int, nn.Parameter]()
    spread = [(mixture.group, *place) for mixture in mixtures for place in _of_experts(mixture)]
    for group, holder, name, weight in spread:
        if id(weight) not in wholes:
            parts = [torch.empty_like(weight) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, weight.detach().contiguous(), group=group)
            wholes[id(weight)] = nn.Parameter(torch.cat(parts), weight.requires_grad)
        setattr(holder, name, wholes[id(weight)])
    for mixture in mixtures:
        mixture.group = None


def _spread(model: nn.Module) -> list[Switch]:
    return [module for module in model.modules() if isinstance(module, Switch) and module.group is not None]


def _of_experts(mixture: Switch) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """The parameters that have a row an expert: module, name and parameter."""
    for layer in (mixture.gate, mixture.up, mixture.down):
        for holder in () if layer is None else layer.modules():
            for name, weight in list(holder.named_parameters(recurse=False)):
                yield holder, name, weight
