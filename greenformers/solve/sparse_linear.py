"""Linear layers with zeros among their weights: dense in memory, a bitmask and the other weights in a file.

A product with zeros takes torch as long as any other, so nothing is gained by another form in memory. Of the weights
(m, n), in the order in which they lie, a state dict holds

    mask (ceil(m n / 8),), uint8: a bit for each weight, the lowest first, set where the weight is not 0;
    values (k,): the k weights that are not 0.

A weight is pruned where it is 0: there is no other record. In training zeros get no gradient, and so stay 0.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from greenformers.lowrank.computed import computed
from greenformers.model._transformers import TransposedLinear, leave_as_made


def packed(weight: Tensor) -> tuple[UInt8[Tensor, "bytes"], Float[Tensor, "k"]]:
    """The bitmask of a weight, and its values that are not 0."""
    flat = weight.detach().flatten()
    bits = F.pad((flat != 0).to(torch.uint8), (0, -len(flat) % 8)).view(-1, 8)
    return (bits << _shifts(weight.device)).sum(1, dtype=torch.uint8), flat[flat != 0]


def unpacked(mask: UInt8[Tensor, "bytes"], values: Float[Tensor, "k"], shape: torch.Size) -> Tensor:
    """The weight of a bitmask and the values that are not 0; on the meta device, one of its shape.

    Raises:
        ValueError: The mask has not as many bits as the weight has entries, or not as many ones as there are values.
    """
    size = shape.numel()
    if mask.dtype != torch.uint8 or mask.shape != (mask_bytes(size),):
        raise ValueError(f"the mask of {size} weights must be {mask_bytes(size)} uint8, got {tuple(mask.shape)}")
    if mask.is_meta:
        return values.new_empty(shape)
    bits = ((mask[:, None] >> _shifts(mask.device)) & 1).flatten().bool()
    ones = int(bits.sum())
    if ones != values.numel() or bits[size:].any():
        raise ValueError(f"the mask of {size} weights has {ones} ones, and there are {values.numel()} values")
    return values.new_zeros(size).masked_scatter(bits[:size], values).view(shape)


def mask_bytes(size: int) -> int:
    """Bytes of the bitmask of so many weights."""
    return -(-size // 8)


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


class Sparse(nn.Module):
    """What sparse linear layers share, in either order of the weight."""

    weight: Any  # a parameter, or what a parametrization makes of it
    parametrizations: Any

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of weights that are not 0, and of all."""
        return int(self.weight.count_nonzero()), self.weight.numel()

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weight in a file."""
        left, size = self.sizes
        return mask_bytes(size) + left * self.weight.element_size()

    @property
    def bytes_spared(self) -> int:
        """Bytes by which the layer is smaller in a file than in memory; see `greenformers.measure.parameters`."""
        return self.weight.numel() * self.weight.element_size() - self.stored_bytes

    def held(self) -> Tensor:
        """The weight; where it is trained, with no gradient at zeros."""
        weight: Tensor = self.weight
        if not (torch.is_grad_enabled() and weight.requires_grad) or torch.compiler.is_exporting():
            return weight
        # A parametrization may round weights to 0 that are to be trained on.
        before = self.parametrizations.weight.original if is_parametrized(self, "weight") else weight
        return weight * (before.detach() != 0)


def _pack(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    """Put mask and values in place of the weight of a state dict; a parametrized weight stays."""
    weight = state.pop(prefix + "weight", None)
    if weight is not None:
        state[prefix + "mask"], state[prefix + "values"] = packed(weight)


def _unpack(layer: Any, state: dict[str, Any], prefix: str, *given: Any) -> None:
    """Put the weight in place of mask and values of a state dict that is about to be loaded."""
    errors: list[str] = given[-1]
    if {prefix + "mask", prefix + "values"} <= state.keys() and not is_parametrized(layer, "weight"):
        mask, values = state.pop(prefix + "mask"), state.pop(prefix + "values")
        try:
            state[prefix + "weight"] = unpacked(mask, values, layer.weight.shape)
        except ValueError as error:
            errors.append(f"{prefix}weight: {error}")
            state[prefix + "weight"] = layer.weight.detach()


class SparseLinear(Sparse, nn.Linear):
    """A linear layer with zeros among its weights (m, n)."""

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b."""
        return F.linear(x, self.held(), self.bias)


class SparseTransposed(Sparse, TransposedLinear):
    """A Conv1D of `transformers` with zeros among its weights (n, m)."""

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W + b."""
        out = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.held())
        return out.view(*x.shape[:-1], out.shape[-1])


def sparse(module: Any, weight: nn.Parameter | None = None) -> SparseLinear | SparseTransposed:
    """The sparse form of a linear layer, with its parameters, or with this weight in place of its own."""
    kind = SparseTransposed if _turned(module) else SparseLinear
    layer: Any = _like(module, kind, module.weight if weight is None else weight)
    layer.register_state_dict_post_hook(_pack)
    layer.register_load_state_dict_pre_hook(_unpack)
    return layer


def plain(module: Sparse) -> nn.Linear | TransposedLinear:
    """The linear layer as the network's class has it, with the same parameters."""
    kind = TransposedLinear if _turned(module) else nn.Linear
    return _like(module, kind, module.weight)  # type: ignore[return-value]


def _like(module: Any, kind: type[nn.Module], weight: nn.Parameter) -> nn.Module:
    rows, columns = weight.shape
    with torch.device("meta"):  # where nothing is drawn
        layer: Any = kind(columns, rows) if issubclass(kind, TransposedLinear) else kind(columns, rows, bias=False)
    layer.weight, layer.bias = weight, module.bias
    return layer.train(module.training)


class StoredLinear(nn.Linear):
    """What a file holds of a sparse linear layer; `opened` makes the layer of it once the numbers are read.

    Args:
        module: The linear layer in whose place it stands, on the meta device as a rule.
        values: Number k of the weights that are not 0.

    Raises:
        ValueError: There are more values than weights.
    """

    bias: nn.Parameter | None  # type: ignore[assignment]  # so it is in nn.Linear too

    def __init__(self, module: Any, values: int) -> None:
        nn.Module.__init__(self)
        shape, like = module.weight.shape, module.weight
        if values > shape.numel():
            raise ValueError(f"{values} values are more than the {shape.numel()} weights of the layer")
        self.turned, self.shape = _turned(module), shape
        self.in_features, self.out_features = shape if self.turned else shape[::-1]
        self.values = nn.Parameter(torch.empty(values, dtype=like.dtype, device=like.device))
        mask = torch.empty(mask_bytes(shape.numel()), dtype=torch.uint8, device=like.device)
        self.mask = nn.Parameter(mask, requires_grad=False)
        self.bias = module.bias
        self.train(module.training)
        leave_as_made(self)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight that mask and values stand for, as the layer will hold it."""
        return computed(lambda: unpacked(self.mask, self.values, self.shape), tuple(self.shape), self.values)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of weights that are not 0, and of all."""
        return len(self.values), self.shape.numel()

    def opened(self) -> SparseLinear | SparseTransposed:
        """The sparse linear layer.

        Raises:
            ValueError: Mask and values do not fit each other.
        """
        weight = unpacked(self.mask.detach(), self.values.detach(), self.shape)
        return sparse(self, nn.Parameter(weight, self.values.requires_grad))


def _turned(module: nn.Module) -> bool:
    """Whether a layer holds its weight transposed, as (n, m)."""
    return module.turned if isinstance(module, StoredLinear) else isinstance(module, TransposedLinear)


def sparse_layers(model: nn.Module) -> Iterator[tuple[str, Sparse | StoredLinear]]:
    """The sparse layers of a network by path, also those whose numbers are still to be read."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Sparse | StoredLinear):
            yield path, module
