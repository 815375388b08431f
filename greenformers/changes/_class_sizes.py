"""The sizes of a network in the configuration of its class, and the network that the class builds of other sizes."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from greenformers.changes._stacks import shorten

HIDDEN = ("hidden_size",)
HEADS = (
    "num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads", "num_decoder_heads",
)  # fmt: skip
GROUPS = ("num_key_value_heads",)
NEURONS = (
    "intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "d_ff", "hidden_dim",
    "ffn_hidden_size",
)  # fmt: skip
"""Names of sizes in configurations of transformers; `attribute_map` of a configuration gives the first ones to all."""

OWN = ("head_dim", "d_kv")
"""Names of the coordinates of a head in configurations that do not make them of hidden size and heads."""

KEPT = ("generation_config",)
"""Attributes of a model that are no part of what its class builds from the configuration: the student's are set."""


def sized(
    config: PreTrainedConfig, *, hidden: tuple[int, int], heads: tuple[int, int], neurons: tuple[int, int]
) -> Any:
    """A configuration with other sizes, each given as (before, now).

    Names whose value is not the size before are left as they are.
    """
    own = copy.deepcopy(config)
    if hasattr(own, "quantization_config"):
        del own.quantization_config
    for names, (before, now) in ((HIDDEN, hidden), (HEADS, heads), (NEURONS, neurons)):
        for name in _held(own, names, before):
            setattr(own, name, now)
    if heads[0] != heads[1]:
        for name in GROUPS:
            groups = getattr(own, name, None)
            if type(groups) is int:
                setattr(own, name, groups * heads[1] // heads[0])
    if (neurons[0], hidden[0]) != (neurons[1], hidden[1]) and getattr(own, "n_inner", neurons) is None:
        own.n_inner = neurons[1]  # None stands for 4 times the hidden size
    return own


def _held(config: Any, names: tuple[str, ...], size: int) -> Iterator[str]:
    return (name for name in names if getattr(config, name, None) == size)


def own_head_dim(config: Any) -> bool:
    """Whether a configuration says how many coordinates a head has, whatever the hidden size."""
    return any(type(getattr(config, name, None)) is int for name in OWN)


def built(model: PreTrainedModel, config: Any, seed: int, device: torch.device | None = None) -> PreTrainedModel:
    """The network that the class of a model builds from a configuration, with fresh weights.

    It is on the device of the model, or on that named; on "meta" it has no values.

    Raises:
        ValueError: The class refuses the sizes.
    """
    first = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with device or nullcontext():
                fresh: Any = type(model)(config)
        except Exception as error:  # whatever classes raise that sizes do not fit
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"{type(model).__name__} is not built of these sizes: {line}") from error
    student: PreTrainedModel = fresh.to(device or first.device).train(model.training)
    # Each in the type that it has in the model: beside weights of half precision angles of positions are float32.
    types = {name: x.dtype for name, x in (*model.named_parameters(), *model.named_buffers())}
    for name, x in (*student.named_parameters(), *student.named_buffers()):
        if x.is_floating_point():
            x.data = x.data.to(types.get(name, first.dtype))
    return student


def check_shapes(student: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Check that the network that a class builds has parameters of these shapes.

    Raises:
        ValueError: It has not.
    """
    theirs = {name: x.shape for name, x in student.state_dict().items()}
    for name in sorted(theirs.keys() | values.keys()):
        ours = values[name].shape if name in values else None
        if ours != theirs.get(name):
            shapes = ["none" if shape is None else " x ".join(map(str, shape)) for shape in (ours, theirs.get(name))]
            raise ValueError(
                f"{type(student).__name__} builds of these sizes other weights than are left of it: {name} would be "
                f"{shapes[1]}, not {shapes[0]}"
            )


def become(model: PreTrainedModel, student: PreTrainedModel, layers: Mapping[str, Sequence[int]]) -> None:
    """Make a model its student, in place: the weights, sizes and configuration of another of its class.

    Its modules stay, with all that is attached to them.

    Args:
        model: The model.
        student: What it becomes.
        layers: Numbers of the layers that remain, by the path of their stack; others stay whole.
    """
    shorten(model, layers)
    trainable = {name: x.requires_grad for name, x in model.named_parameters()}  # by the numbers that remain
    for name, x in student.named_parameters():
        x.requires_grad_(trainable.get(name, True))
    for path, theirs in student.named_modules():
        ours = model.get_submodule(path)
        for name, tensor in (*theirs.named_parameters(recurse=False), *theirs.named_buffers(recurse=False)):
            setattr(ours, name, tensor)
        for name, value in vars(theirs).items():
            if not name.startswith("_") and not inspect.ismethod(value):
                vars(ours)[name] = value
