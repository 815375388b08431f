"""The parameters of a network by kind, each counted once: the share that a change covers is a share of these."""

from dataclasses import dataclass

from torch import nn

from greenformers.solve.units import Unit, pack, unpack
from greenformers.solve.walk import kind_of

NAMES = {"linear": "linear layers", "experts": "experts", "conv": "convolutions", "embedding": "embeddings"}
SMALL = "norms, biases and other vectors"
LOW_RANK = "low-rank layers"


@dataclass(frozen=True)
class Held:
    """Parameters of one kind in one module.

    Attributes:
        kind: Name of the kind: "linear layers", or for modules that no change covers "weights of" and the class.
        path: Path of the module, where experts and attentions are unpacked.
        count: Number of parameters.
    """

    kind: str
    path: str
    count: int


def census(model: nn.Module) -> list[Held]:
    """All parameters of a network, each once; the network is left as it was."""
    unpacked = unpack(model)
    seen: set[int] = set()
    low_rank: set[int] = set()
    entries = []
    for path, module in model.named_modules():
        if isinstance(module, Unit):
            low_rank |= {id(part) for part in module.modules()}
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                kind = _kind(module, name, parameter.dim(), id(module) in low_rank)
                entries.append(Held(kind, path, parameter.numel()))
    pack(model, unpacked)
    return entries


def _kind(module: nn.Module, name: str, dimensions: int, low_rank: bool) -> str:
    kind = kind_of(module)
    if name.endswith("bias") or dimensions < 2:
        return SMALL
    if low_rank:
        return LOW_RANK
    return NAMES[kind] if kind is not None and name == "weight" else f"weights of {type(module).__name__}"
