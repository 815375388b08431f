"""Modules with int8 weights: linear layers multiply in integers, embeddings are looked up and scaled.

Weights: symmetric, one scale a row, s = max |w| / 127, w ~ s q. Inputs of linear layers are quantised at every call
(dynamically) by their least and greatest value; sums are of 32 bits. Jacob 2017, arXiv:1712.05877. On a CPU the
product is one fused kernel of torch; elsewhere, and in a graph, the same in integers too.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from greenformers._torch import int8_linear, int8_matmul, pack_int8, version
from greenformers.changes._paths import stand_in
from greenformers.lowrank.linear import LED
from greenformers.solve.walk import TransposedLED, kind_of, put

LEVELS = 127
JITTER = 1e-6


class Int8Linear(nn.Module):
    """A linear layer with an int8 weight; for inference.

    Args:
        in_features: width n of the input.
        out_features: width m of the output.
        bias: add a bias.

    Attributes:
        weight: q (m, n), int8.
        scale: s (m,), float32.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _fixed(torch.zeros(out_features, in_features, dtype=torch.int8))
        self.scale = _fixed(torch.ones(out_features))
        self.bias = _fixed(torch.zeros(out_features)) if bias else None
        self._packed: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, weight: Float[Tensor, "m n"], bias: nn.Parameter | None) -> "Int8Linear":
        """Of a dense weight and bias."""
        made = cls(weight.shape[1], weight.shape[0], bias is not None)
        made.weight, made.scale = quantised(weight)
        made.bias = bias  # which a head may share
        return made

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension.

        Raises:
            RuntimeError: a gradient is asked for.
        """
        return self.product(x, self.bias)

    def product(self, x: Float[Tensor, "... n"], bias: Tensor | None) -> Float[Tensor, "... m"]:
        """The product with a bias that may be another's."""
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("int8 weights have no gradient: train before they are quantised")
        if x.ndim == 1:
            return self.product(x[None], bias)[0]
        if x.is_cpu and not torch.compiler.is_compiling():
            return int8_linear(x.float(), self._pack(bias)).to(x.dtype)
        return self._in_graph(x.float().flatten(0, -2), bias).to(x.dtype).unflatten(0, x.shape[:-1])

    def _in_graph(self, x: Float[Tensor, "N n"], bias: Tensor | None) -> Float[Tensor, "N m"]:
        """What the fused kernel computes: inputs as unsigned 8-bit numbers, x ~ step (q - zero)."""
        low, high = x.amin((0, 1)).clamp(max=0), x.amax((0, 1)).clamp(min=0)
        step = (high - low) / 255
        step = torch.where(step == 0, 1.0, step)
        zero = (-low / step).round()
        q = ((x / step).round() + zero).clamp(0, 255) - 128  # with a sign, as the product wants it
        sums = int8_matmul(q.to(torch.int8), self.weight.T)
        shift = (128 - zero) * self.weight.sum(1, dtype=torch.int32)
        out = (sums + shift) * (step * self.scale)
        return out if bias is None else out + bias

    def _pack(self, bias: Tensor | None) -> Any:
        """The weight as the kernel wants it; made once for each weight there is."""
        held = [part for part in (self.weight, self.scale, bias) if part is not None]
        key = [(part.data_ptr(), version(part)) for part in held]
        if self._packed is None or self._packed[0] != key:
            self._packed = (key, pack_int8(self.weight, self.scale, bias))
        return self._packed[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_packed": None}  # made again where it is copied to

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Int8LED(nn.Module):
    """A low-rank layer, both of whose factors are int8."""

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.encoder = Int8Linear(in_features, rank, bias=False)
        self.decoder = Int8Linear(rank, out_features, bias=False)
        self.bias = _fixed(torch.zeros(out_features)) if bias else None

    @classmethod
    def of(cls, led: LED) -> "Int8LED":
        """Of a low-rank layer."""
        made = cls(led.in_features, led.out_features, led.rank, led.bias is not None)
        made.encoder, made.decoder = Int8Linear.of(led.encoder, None), Int8Linear.of(led.decoder, None)
        made.bias = led.bias
        return made

    @property
    def weight(self) -> Tensor:
        """The second factor: who reads a layer's weight asks for its type (T5)."""
        return self.decoder.weight

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension, through the rank."""
        return self.decoder.product(self.encoder(x), self.bias)


class Int8Embedding(nn.Module):
    """An embedding with int8 rows, one scale a row."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = _fixed(torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8))
        self.scale = _fixed(torch.ones(num_embeddings))

    @classmethod
    def of(cls, embedding: nn.Embedding) -> "Int8Embedding":
        """Of an embedding of floating-point numbers."""
        made = cls(embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx)
        made.weight, made.scale = quantised(embedding.weight)
        return made

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Rows."""
        return F.embedding(ids, self.weight) * F.embedding(ids, self.scale[:, None])

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


Plain = Int8Linear | Int8Embedding
Int8 = Plain | Int8LED


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
    """Put int8 modules in the place of linear layers, low-rank ones too, and embeddings.

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
        first = tied.setdefault(id(_source(module)), quantised_modules[path])
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
    """The linear layers, low-rank ones too, and embeddings that have an int8 form, by path."""
    # A packed attention reads the weights of its projections and never calls them.
    packed = [part for part in model.modules() if isinstance(part, nn.MultiheadAttention)]
    read = {id(part) for attention in packed for part in attention.modules()}
    return [
        (path, module)
        for path, module in model.named_modules(remove_duplicate=False)
        if path and id(module) not in read and _fits(module)
    ]


def int8_of(model: nn.Module) -> list[str]:
    """The paths of int8 modules; of a low-rank layer the whole."""
    inside = {id(part) for led in model.modules() if isinstance(led, Int8LED) for part in (led.encoder, led.decoder)}
    return [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Int8) and id(module) not in inside
    ]


def share(one: Int8, other: Int8) -> None:
    """Make a module hold the numbers of another; a bias stays its own."""
    pairs = (
        [(one.encoder, other.encoder), (one.decoder, other.decoder)]
        if isinstance(one, Int8LED) and isinstance(other, Int8LED)
        else [(cast(Any, one), cast(Any, other))]
    )
    for mine, first in pairs:
        mine.weight, mine.scale = first.weight, first.scale


def groups_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose numbers are shared."""
    paths: dict[int, list[str]] = {}
    for path in int8_of(model):
        paths.setdefault(id(_numbers(model.get_submodule(path))), []).append(path)
    return [group for group in paths.values() if len(group) > 1]


def _numbers(module: Any) -> Tensor:
    return module.decoder.weight if isinstance(module, Int8LED) else module.weight


def shared(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Numbers that are one with another's: (name, name of the one that is saved)."""
    first: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Plain):
            leader = first.setdefault(id(module.weight), path)
            if leader != path:
                yield from ((f"{path}.{name}", f"{leader}.{name}") for name in ("weight", "scale"))


@contextmanager
def aware(model: nn.Module) -> Iterator[None]:
    """Training in a `with` block that knows of int8: weights and inputs are rounded, gradients pass as if not."""
    handles: list[Any] = []
    parts: list[tuple[nn.Module, str]] = []
    for module in {id(module): module for _, module in targets(model)}.values():
        names = ("encoder", "decoder") if isinstance(module, LED) else ("weight",)
        parts += [(module, name) for name in names]
        if not isinstance(module, nn.Embedding):
            handles.append(module.register_forward_pre_hook(lambda _, args: (_rounded_inputs(args[0]), *args[1:])))
    for module, name in parts:
        parametrize.register_parametrization(module, name, _Rounded(kind_of(module) == "linear" and _turned(module)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, name in parts:
            original = getattr(module.parametrizations, name).original
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
            assert getattr(module, name) is original


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
    if isinstance(module, LED):
        return type(module) in (LED, TransposedLED)
    return kind_of(module) in ("linear", "embedding")


def _turned(module: nn.Module) -> bool:
    return not isinstance(module, nn.Linear)


def _source(module: nn.Module) -> Any:
    return module.decoder if isinstance(module, LED) else module.weight


def _of(module: nn.Module) -> Int8:
    if isinstance(module, LED):
        return _for(Int8LED.of(module), module)
    if isinstance(module, nn.Embedding):
        return Int8Embedding.of(module)
    linear: Any = module
    return Int8Linear.of(linear.weight if isinstance(module, nn.Linear) else linear.weight.T, linear.bias)


def _empty(module: nn.Module) -> Int8:
    if isinstance(module, LED):
        return _for(Int8LED(module.in_features, module.out_features, module.rank, module.bias is not None), module)
    if isinstance(module, nn.Embedding):
        return Int8Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx)
    linear: Any = module
    m, n = linear.weight.shape if isinstance(module, nn.Linear) else linear.weight.shape[::-1]
    return Int8Linear(n, m, linear.bias is not None)


def _for(module: Int8LED, led: LED) -> Int8LED:
    """With a note of the low-rank layer that it stands for: who looks for ranks finds it."""
    with torch.device("meta"):
        stand_in(module, type(led)(led.in_features, led.out_features, led.rank, bias=led.bias is not None))
    return module
