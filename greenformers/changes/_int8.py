"""Modules with int8 weights: linear layers multiply in integers, embeddings are looked up and scaled.

Weights: symmetric, one scale a row, s = max |w| / 127, w ~ s q. Inputs of linear layers are quantised at every call
(dynamically) by their least and greatest value; sums are of 32 bits. Jacob 2017, arXiv:1712.05877. On a CPU the
product is one fused kernel of torch; elsewhere, and in a graph, the same in integers too.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from greenformers._gradients import by_hand
from greenformers._torch import int8_linear, int8_matmul, pack_int8, version
from greenformers.lowrank.computed import computed
from greenformers.model._transformers import TransposedLinear, leave_as_made
from greenformers.solve.units import put
from greenformers.solve.walk import kind_of

LEVELS = 127
JITTER = 1e-6


class Int8Linear(nn.Linear):
    """A linear layer with an int8 weight, which is not learnt; gradients pass through it to what comes before.

    It is an nn.Linear to whoever looks for linear layers, such as PEFT; who reads its weight finds what it stands for.

    Args:
        in_features: width n of the input.
        out_features: width m of the output.
        bias: add a bias.

    Attributes:
        quantised: q (m, n), int8.
        scale: s (m,), float32.
    """

    bias: nn.Parameter | None  # type: ignore[assignment]  # so it is in nn.Linear too

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        self.quantised = _fixed(torch.zeros(out_features, in_features, dtype=torch.int8))
        self.scale = _fixed(torch.ones(out_features))
        self.bias = _fixed(torch.zeros(out_features)) if bias else None
        self._packed: tuple[Any, ...] | None = None
        leave_as_made(self)

    @classmethod
    def of(cls, weight: Float[Tensor, "m n"], bias: nn.Parameter | None) -> "Int8Linear":
        """Of a dense weight and bias."""
        made = cls(weight.shape[1], weight.shape[0], bias is not None)
        made.quantised, made.scale = quantised(weight)
        made.bias = bias  # which a head may share
        return made

    @property
    def weight(self) -> Float[Tensor, "m n"]:  # type: ignore[override]
        """S q, the weight that the numbers stand for; see `computed`."""
        return computed(lambda: self.scale[:, None] * self.quantised, tuple(self.quantised.shape), self.scale)

    def reset_parameters(self) -> None:
        """Nothing: the weight is not learnt."""

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension."""
        if x.requires_grad and torch.is_grad_enabled():
            y: Tensor = _Product.apply(x, self)
            return y
        return self.product(x)

    def product(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The product in integers, without a gradient."""
        if x.ndim == 1:
            return self.product(x[None])[0]
        if x.is_cpu and not torch.compiler.is_compiling():
            return int8_linear(x.float(), self._pack()).to(x.dtype)
        return self._in_graph(x.float().flatten(0, -2)).to(x.dtype).unflatten(0, x.shape[:-1])

    def _in_graph(self, x: Float[Tensor, "N n"]) -> Float[Tensor, "N m"]:
        """What the fused kernel computes: inputs as unsigned 8-bit numbers, x ~ step (q - zero)."""
        low, high = x.amin((0, 1)).clamp(max=0), x.amax((0, 1)).clamp(min=0)
        step = (high - low) / 255
        step = torch.where(step == 0, 1.0, step)
        zero = (-low / step).round()
        q = ((x / step).round() + zero).clamp(0, 255) - 128  # with a sign, as the product wants it
        sums = int8_matmul(q.to(torch.int8), self.quantised.T)
        shift = (128 - zero) * self.quantised.sum(1, dtype=torch.int32)
        out = (sums + shift) * (step * self.scale)
        return out if self.bias is None else out + self.bias

    def _pack(self) -> Any:
        """The weight as the kernel wants it; made once for each weight there is."""
        held = [part for part in (self.quantised, self.scale, self.bias) if part is not None]
        key = [(part.data_ptr(), version(part)) for part in held]
        if self._packed is None or self._packed[0] != key:
            self._packed = (key, pack_int8(self.quantised, self.scale, self.bias))
        return self._packed[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_packed": None}  # made again where it is copied to


class _Product(torch.autograd.Function):
    """The product in integers, whose gradient is that of the weight: inputs as if they were not rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Int8Linear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    @by_hand(1, lambda ctx, x: F.linear(x, ctx.layer.weight.to(x.dtype)))
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        layer = ctx.layer
        return (grad * layer.scale.to(grad.dtype)) @ layer.quantised.to(grad.dtype), None


class Int8Embedding(nn.Module):
    """An embedding with int8 rows, one scale a row."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.quantised = _fixed(torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8))
        self.scale = _fixed(torch.ones(num_embeddings))

    @classmethod
    def of(cls, embedding: nn.Embedding) -> "Int8Embedding":
        """Of an embedding of floating-point numbers."""
        made = cls(embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx)
        made.quantised, made.scale = quantised(embedding.weight)
        return made

    @property
    def weight(self) -> Float[Tensor, "entries d"]:
        """S q, the rows that the numbers stand for; see `computed`."""
        return computed(lambda: self.scale[:, None] * self.quantised, tuple(self.quantised.shape), self.scale)

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Rows."""
        return F.embedding(ids, self.quantised) * F.embedding(ids, self.scale[:, None])

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


Int8 = Int8Linear | Int8Embedding


def quantised(weight: Float[Tensor, "m n"]) -> tuple[nn.Parameter, nn.Parameter]:
    """A weight as q and s of its rows.

    Raises:
        ValueError: values that are not finite.
    """
    weight = weight.detach().float()
    if not bool(weight.isfinite().all()):
        raise ValueError("a weight holds values that are not finite")
    scale = weight.abs().amax(1).clamp(min=1e-12) / LEVELS
    # In the order of rows, also where the weight is kept the other way round.
    return _fixed((weight / scale[:, None]).round().to(torch.int8).contiguous()), _fixed(scale)


def quantise(model: nn.Module) -> list[tuple[str, nn.Module, "Int8"]]:
    """Put int8 modules in the place of linear layers, the factors of low-rank ones too, and of embeddings.

    Convolutions, low-rank embeddings and what a network reads without calling it stay as they are. No parameter is
    trainable afterwards.

    Returns:
        Path, the module that was there, and the one that is there now.

    Raises:
        ValueError: there is none, or a weight is not finite. Nothing is changed then.
    """
    dense = targets(model)
    if not dense:
        raise ValueError("the network has no linear layer and no embedding to quantise")
    quantised_modules = {path: _of(module) for path, module in dense}
    tied: dict[int, Int8] = {}
    for path, module in dense:
        first = tied.setdefault(id(module.weight), quantised_modules[path])
        share(quantised_modules[path], first)
        put(model, path, quantised_modules[path].train(module.training))
    model.requires_grad_(False)
    return [(path, module, quantised_modules[path]) for path, module in dense]


def place(model: nn.Module, paths: Iterable[str]) -> None:
    """Put empty int8 modules at paths.

    Raises:
        ValueError: what is there has no such form.
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
    return [
        (path, module)
        for path, module in model.named_modules(remove_duplicate=False)
        if path and id(module) not in read and _fits(module)
    ]


def int8_of(model: nn.Module) -> list[str]:
    """The paths of int8 modules."""
    return [path for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, Int8)]


def share(one: Int8, other: Int8) -> None:
    """Make a module hold the numbers of another; a bias stays its own."""
    one.quantised, one.scale = other.quantised, other.scale


def groups_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose numbers are shared."""
    paths: dict[int, list[str]] = {}
    for path in int8_of(model):
        paths.setdefault(id(model.get_submodule(path).quantised), []).append(path)
    return [group for group in paths.values() if len(group) > 1]


def shared(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Numbers that are one with another's: (name, name of the one that is saved)."""
    for first, *others in groups_of(model):
        yield from ((f"{path}.{name}", f"{first}.{name}") for path in others for name in ("quantised", "scale"))


@contextmanager
def aware(model: nn.Module) -> Iterator[None]:
    """Training in a `with` block that knows of int8: weights and inputs are rounded, gradients pass as if not."""
    handles: list[Any] = []
    modules = list({id(module): module for _, module in targets(model)}.values())
    for module in modules:
        if not isinstance(module, nn.Embedding):
            handles.append(module.register_forward_pre_hook(lambda _, args: (_rounded_inputs(args[0]), *args[1:])))
        parametrize.register_parametrization(module, "weight", _Rounded(turned(module)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in modules:
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


@contextmanager
def jittered(model: nn.Module, seed: int) -> Iterator[None]:
    """In a `with` block inputs of int8 layers are off by their last digits, as by another order of roundings."""
    draw = torch.Generator().manual_seed(seed)

    def off(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0]
        return (x + JITTER * x * torch.randn(x.shape, generator=draw).to(x), *args[1:])

    layers = [module for module in model.modules() if isinstance(module, Int8Linear)]
    handles = [module.register_forward_pre_hook(off) for module in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Rounded(nn.Module):
    """A weight as int8 will have it."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.T if self.turned else weight
        with torch.no_grad():
            scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / LEVELS
            change = (rows / scale).round() * scale - rows
        return weight + (change.T if self.turned else change)


def _rounded_inputs(x: Tensor) -> Tensor:
    with torch.no_grad():
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
        step = ((high - low) / 255).clamp(min=1e-12)
        change = (x / step).round() * step - x
    return x + change


def _fixed(x: Tensor) -> nn.Parameter:
    """A parameter, for it counts and is saved as one, that is not learnt."""
    return nn.Parameter(x, requires_grad=False)


def _fits(module: nn.Module) -> bool:
    return kind_of(module) in ("linear", "embedding")


def turned(module: nn.Module) -> bool:
    """Whether a layer holds its weight as (n, m)."""
    return isinstance(module, TransposedLinear)


def _of(module: Any) -> Int8:
    if isinstance(module, nn.Embedding):
        return Int8Embedding.of(module)
    return Int8Linear.of(module.weight.T if turned(module) else module.weight, module.bias)


def _empty(module: Any) -> Int8:
    if isinstance(module, nn.Embedding):
        return Int8Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx)
    m, n = module.weight.shape[::-1] if turned(module) else module.weight.shape
    return Int8Linear(n, m, module.bias is not None)
