"""Int8 modules of a network: put in place, described, shared, and trained for.

Linear layers and experts multiply in integers, see `greenformers.changes._int8_linear`; embeddings are looked up and
scaled.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from greenformers.changes._int8_experts import Int8Experts
from greenformers.changes._int8_linear import LEVELS, Int8Linear, fixed, off_by_last_digits, quantised
from greenformers.changes._straight_through import noise_of, rounded_inputs, straight_through
from greenformers.lowrank.computed import computed
from greenformers.lowrank.experts import ExpertsLinear
from greenformers.model._transformers import TransposedLinear
from greenformers.model.experts import pack, unpack
from greenformers.solve.units import put
from greenformers.solve.walk import kind_of


class Int8Embedding(nn.Module):
    """An embedding with int8 rows, and one scale for each row."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.scale = fixed(torch.ones(num_embeddings))  # first, as in Int8Linear
        self.quantised = fixed(torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8))

    @classmethod
    def of(cls, embedding: nn.Embedding) -> "Int8Embedding":
        """The int8 form of a floating-point embedding."""
        layer = cls(embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx)
        layer.quantised, layer.scale = quantised(embedding.weight)
        return layer

    @property
    def weight(self) -> Float[Tensor, "entries d"]:
        """S q, the rows that the int8 numbers stand for; see `computed`."""
        return computed(lambda: self.scale[:, None] * self.quantised, tuple(self.quantised.shape), self.scale)

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Rows of the ids."""
        return F.embedding(ids, self.quantised) * F.embedding(ids, self.scale[:, None])

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


Int8 = Int8Linear | Int8Experts | Int8Embedding


def quantise(model: nn.Module) -> list[tuple[str, nn.Module, "Int8"]]:
    """Put int8 modules in the place of linear layers and experts, the factors of low-rank ones too, and of embeddings.

    Convolutions, low-rank embeddings and weights that a network reads without calling their module stay as they are.
    No parameter is trainable afterwards.

    Returns:
        Path, module before and module after, for each that was replaced.

    Raises:
        ValueError: There is no such module, or a weight is not finite. Nothing is changed then.
    """
    unpacked = unpack(model)
    try:
        dense = targets(model)
        if not dense:
            raise ValueError("the network has no linear layer and no embedding to quantise")
        quantised_modules = {path: _of(module) for path, module in dense}
    except BaseException:
        pack(model, unpacked)
        raise
    tied: dict[int, Int8] = {}
    for path, module in dense:
        first = tied.setdefault(id(module.weight), quantised_modules[path])
        share(quantised_modules[path], first)
        put(model, path, quantised_modules[path].train(module.training))
    pack(model, unpacked)
    model.requires_grad_(False)
    return [(path, module, quantised_modules[path]) for path, module in dense]


def place(model: nn.Module, paths: Iterable[str]) -> None:
    """Put empty int8 modules at paths.

    Raises:
        ValueError: A module at one of the paths has no int8 form.
    """
    for path in paths:
        module = model.get_submodule(path)
        if not _fits(module):
            raise ValueError(f"{path}: a {type(module).__name__} has no int8 form")
        with torch.device(next(model.parameters()).device):
            put(model, path, _empty(module))


def targets(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The linear layers, the factors of low-rank ones too, and embeddings that have an int8 form, by path."""
    # A packed attention reads the weights of its projections and never calls them.
    packed = [part for part in model.modules() if isinstance(part, nn.MultiheadAttention)]
    read = {id(part) for attention in packed for part in attention.modules()}
    fitting = [
        (path, module)
        for path, module in model.named_modules(remove_duplicate=False)
        if path and id(module) not in read and _fits(module)
    ]
    # Where a module of another class holds the weight too, it would be left with a dense copy.
    mine = Counter(id(module.weight) for module in {id(module): module for _, module in fitting}.values())
    held = Counter(id(weight) for part in model.modules() for weight in part.parameters(recurse=False))
    return [(path, module) for path, module in fitting if held[id(module.weight)] <= mine[id(module.weight)]]


def int8_of(model: nn.Module) -> list[str]:
    """The paths of int8 modules."""
    return [path for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, Int8)]


def share(module: Int8, source: Int8) -> None:
    """Make a module hold the numbers and scales of `source`; it keeps its own bias."""
    module.quantised, module.scale = source.quantised, source.scale


def groups_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose modules share their numbers."""
    paths: dict[int, list[str]] = {}
    for path in int8_of(model):
        paths.setdefault(id(model.get_submodule(path).quantised), []).append(path)
    return [group for group in paths.values() if len(group) > 1]


def shared(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Shared numbers and scales: (name, name under which they are saved)."""
    for first, *others in groups_of(model):
        yield from ((f"{path}.{name}", f"{first}.{name}") for path in others for name in ("quantised", "scale"))


@contextmanager
def aware(model: nn.Module, share: float = 1.0) -> Iterator[None]:
    """A `with` block for training with rounded weights, or a share of them, and inputs; gradients pass as if they
    were not rounded.
    """  # noqa: D205
    handles: list[Any] = []
    unpacked = unpack(model)
    modules = list({id(module): module for _, module in targets(model)}.values())
    held = Counter(id(module.weight) for module in modules)
    rounded = []
    for module in modules:
        if type(module) is nn.Embedding and share == 1 and held[id(module.weight)] == 1:
            # Of the rows that are looked up alone: a table of 30,000 takes longer than the layers of a small network.
            handles.append(module.register_forward_hook(lambda _, __, rows: straight_through(rows, _nearest(rows))))
            continue
        if not isinstance(module, nn.Embedding):
            handles.append(module.register_forward_pre_hook(lambda _, args: (rounded_inputs(args[0]), *args[1:])))
        parametrize.register_parametrization(module, "weight", _Rounded(turned(module), share))
        rounded.append(module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in rounded:
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        pack(model, unpacked)


def jittered(model: nn.Module, seed: int) -> AbstractContextManager[None]:
    """A `with` block in which inputs of int8 layers are off by their last digits, as in another order of sums."""
    return off_by_last_digits([layer for layer in model.modules() if isinstance(layer, Int8Linear | Int8Experts)], seed)


class _Rounded(nn.Module):
    """A weight rounded as int8 will round it."""

    def __init__(self, turned: bool, share: float) -> None:
        super().__init__()
        self.turned, self.share = turned, share

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.mT if self.turned else weight
        rows = straight_through(rows, _nearest(rows), noise_of(rows, self.share, self.training))
        return rows.mT if self.turned else rows


@torch.no_grad()
def _nearest(rows: Tensor) -> Tensor:
    """Rows rounded as int8 will round them."""
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LEVELS
    return (rows / scale).round() * scale


def _fits(module: nn.Module) -> bool:
    return kind_of(module) in ("linear", "experts", "embedding")


def turned(module: nn.Module) -> bool:
    """Whether a layer holds its weight transposed, as (n, m)."""
    return isinstance(module, TransposedLinear) or (isinstance(module, ExpertsLinear) and module.transposed)


def _of(module: Any) -> Int8:
    if isinstance(module, nn.Embedding):
        return Int8Embedding.of(module)
    if isinstance(module, ExpertsLinear):
        return Int8Experts.of(module)
    return Int8Linear.of(module.weight.T if turned(module) else module.weight, module.bias)


def _empty(module: Any) -> Int8:
    if isinstance(module, nn.Embedding):
        return Int8Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx)
    if isinstance(module, ExpertsLinear):
        return Int8Experts.empty(module)
    m, n = module.weight.shape[::-1] if turned(module) else module.weight.shape
    return Int8Linear(n, m, module.bias is not None)
