"""Modules with fewer coordinates: their parameters are exchanged in place, and what counts these follows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor, nn

from greenformers.model._transformers import TransposedLinear
from greenformers.solve.units import put
from greenformers.solve.walk import Convolution


class Exchange:
    """Parameters and modules of a network that are exchanged, and can be put back.

    Args:
        model: The network.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.aliases: dict[int, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            self.aliases.setdefault(id(module), []).append(path)
        self._before: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []
        self._modules: list[tuple[str, nn.Module]] = []

    def parameters(self, path: str, values: Mapping[str, nn.Parameter]) -> None:
        """Exchange parameters of a module by name; a bias may be new."""
        module = self.model.get_submodule(path)
        sizes = {k: v for k, v in vars(module).items() if type(v) is int or k == "normalized_shape"}
        self._before.append((module, {name: getattr(module, name) for name in values}, sizes))
        for name, value in values.items():
            setattr(module, name, value)
        resize(module)

    def module(self, path: str, module: nn.Module) -> None:
        """Exchange a module at all of its paths."""
        before = self.model.get_submodule(path)
        for alias in self.aliases[id(before)]:
            self._modules.append((alias, before))
            put(self.model, alias, module)

    def undo(self) -> None:
        """Put everything back."""
        for path, module in reversed(self._modules):
            put(self.model, path, module)
        for module, parameters, sizes in reversed(self._before):
            for name, value in parameters.items():
                setattr(module, name, value)
            vars(module).update(sizes)
        self._before, self._modules = [], []


@contextmanager
def exchanged(model: nn.Module) -> Iterator[Exchange]:
    """A `with` block with an `Exchange` that is undone where the block raises."""
    exchange = Exchange(model)
    try:
        yield exchange
    except BaseException:
        exchange.undo()
        raise


def resize(module: nn.Module) -> None:
    """Make the sizes that a module holds those of its parameters."""
    layer: Any = module
    if isinstance(module, TransposedLinear):
        layer.nx, layer.nf = layer.weight.shape
    elif isinstance(module, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(module, nn.Embedding):
        layer.embedding_dim = layer.weight.shape[1]
    elif isinstance(module, get_args(Convolution)):
        layer.out_channels, layer.in_channels = layer.weight.shape[0], layer.weight.shape[1] * layer.groups
    elif hasattr(module, "normalized_shape"):
        layer.normalized_shape = tuple(layer.weight.shape)


def like(parameter: nn.Parameter, values: Tensor) -> nn.Parameter:
    """A parameter with other values, of the type and on the device of another, frozen where that is."""
    return nn.Parameter(values.to(parameter.device, parameter.dtype).contiguous(), parameter.requires_grad)


def rms_norm(module: nn.Module, width: int, eps: float) -> nn.RMSNorm:
    """A norm of torch by the root mean square, without values, in place of another norm."""
    weight = next(module.parameters())
    with torch.device("meta"):
        norm = nn.RMSNorm(width, eps)
    norm = norm.to_empty(device=weight.device).to(weight.dtype).train(module.training)
    norm.weight.requires_grad_(weight.requires_grad)
    return norm
