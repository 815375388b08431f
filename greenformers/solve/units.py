"""The low-rank units of a network: built, filled with factors, put in place of dense weights, and made dense again.

The packed projections of an nn.MultiheadAttention and the fused weights of experts are unpacked first (`unpack`).
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor, nn

from greenformers.lowrank.computed import computed
from greenformers.lowrank.convolution import LowRankConv
from greenformers.lowrank.embedding import LowRankEmbedding
from greenformers.lowrank.experts import ExpertsLED, ExpertsLinear
from greenformers.lowrank.linear import LED
from greenformers.lowrank.multihead import LowRankMultihead, refuse_fast_path
from greenformers.model._transformers import TransposedLinear
from greenformers.model.experts import pack as pack_experts
from greenformers.model.experts import unpack as unpack_experts
from greenformers.solve.walk import Convolution, Site, kind_of

Unit = LED | ExpertsLED | LowRankConv | LowRankEmbedding
BIASED = (LED, ExpertsLED, LowRankConv)


class TransposedLED(LED):
    """LED in place of a Conv1D of `transformers`, whose `weight` is transposed as that of the Conv1D is."""

    @property
    def weight(self) -> Tensor:
        """The dense weight the two factors stand for, (n, m)."""
        D, E = self.decoder, self.encoder
        return computed(lambda: (D.weight @ E.weight).mT, (self.in_features, self.out_features), D.weight)


def unpack(model: nn.Module) -> dict[str, nn.Module]:
    """Unpack experts and every nn.MultiheadAttention, whose projections become linear layers. The modules replaced."""
    attentions = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if path and type(module) is nn.MultiheadAttention
    }
    unpacked = {id(attention): LowRankMultihead.like(attention) for attention in attentions.values()}
    for path, attention in attentions.items():
        put(model, path, unpacked[id(attention)])
    return {**attentions, **unpack_experts(model)}


def pack(model: nn.Module, unpacked: Mapping[str, nn.Module]) -> None:
    """Put back the attentions and experts of which no weight became low rank."""
    for path, module in unpacked.items():
        attention = isinstance(module, nn.MultiheadAttention)
        if attention and not any(isinstance(part, LED) for part in model.get_submodule(path).modules()):
            put(model, path, module)
    pack_experts(model, unpacked)


def unit(module: nn.Module, rank: int) -> Unit:
    """An empty low-rank unit in place of a dense layer, on its device and of its dtype.

    Raises:
        TypeError: The layer has no low-rank form.
        ValueError: The rank is out of range.
    """
    kind = kind_of(module)
    if isinstance(module, get_args(Convolution)):
        return LowRankConv.like(module, rank)
    if isinstance(module, ExpertsLinear):
        return ExpertsLED.like(module, rank)
    if kind == "embedding":
        return LowRankEmbedding.like(module, rank)  # type: ignore[arg-type]
    if kind != "linear":
        raise TypeError(
            f"a {type(module).__name__} has no low-rank form; linear layers, experts, convolutions and embeddings do"
        )
    weight = module.weight
    assert isinstance(weight, Tensor)
    m, n = weight.shape[::-1] if isinstance(module, TransposedLinear) else weight.shape
    with torch.device("meta"):  # where nothing is drawn
        layer = (TransposedLED if isinstance(module, TransposedLinear) else LED)(
            n, m, rank, bias=module.bias is not None
        )
    return layer.to(weight.dtype).to_empty(device=weight.device)


def filled(
    model: nn.Module, site: Site, decoder: Tensor, encoder: Tensor, shift: Tensor | None = None
) -> dict[str, Unit]:
    """The units in place of a site, by path, with the factors (g, m, r) and (g, r, n) of its matrices.

    Layers that share the weight share the factors. Factors of frozen weights are frozen. Biases are those of the dense
    layers, or until `commit` new ones that are raised by `shift`.
    """
    by_module: dict[int, Unit] = {}
    by_path: dict[str, Unit] = {}
    for path in site.paths:
        module = model.get_submodule(path)
        if id(module) not in by_module:
            by_module[id(module)] = _filled(module, decoder, encoder, shift, next(iter(by_module.values()), None))
        by_path[path] = by_module[id(module)]
    return by_path


def _filled(module: nn.Module, decoder: Tensor, encoder: Tensor, shift: Tensor | None, first: Unit | None) -> Unit:
    low_rank = unit(module, decoder.shape[-1])
    if first is not None:
        share(low_rank, first)
    else:
        D, E = factors(low_rank)
        with torch.no_grad():
            D.copy_(decoder.reshape(D.shape))
            E.copy_(encoder.reshape(E.shape))
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                # The row of padding is zero as a rule; so is its factor then, exactly.
                D[module.padding_idx] *= module.weight[module.padding_idx].any()
        weight: Any = module.weight
        D.requires_grad_(weight.requires_grad)
        E.requires_grad_(weight.requires_grad)
    bias = getattr(module, "bias", None)
    if isinstance(low_rank, BIASED) and isinstance(bias, nn.Parameter):
        raised = None if shift is None else (bias + shift.view_as(bias)).to(bias.dtype)
        low_rank.bias = bias if raised is None else nn.Parameter(raised, bias.requires_grad)
    low_rank.train(module.training)
    return low_rank


def commit(model: nn.Module, by_path: Mapping[str, Unit]) -> None:
    """Put units in the place of dense layers for good, and raised biases into the parameters that were there.

    So a bias that another module holds too stays shared.
    """
    for path, low_rank in by_path.items():
        before = getattr(model.get_submodule(path), "bias", None)
        if isinstance(low_rank, BIASED) and isinstance(before, nn.Parameter) and low_rank.bias is not before:
            assert low_rank.bias is not None
            with torch.no_grad():
                before.copy_(low_rank.bias)
            low_rank.bias = before
        put(model, path, low_rank)


def factor_names(low_rank: Unit) -> tuple[str, str]:
    """The names of the two factors as parameters; in an LED each is the weight of a linear layer."""
    if isinstance(low_rank, ExpertsLED):
        return "decoders.weight", "encoders.weight"
    return ("decoder.weight", "encoder.weight") if isinstance(low_rank, LED) else ("decoder", "encoder")


def factors(low_rank: Unit) -> tuple[Any, Any]:
    """The two factors, decoder and encoder: parameters, or what has taken their place."""
    decoder, encoder = map(operator.attrgetter, factor_names(low_rank))
    return decoder(low_rank), encoder(low_rank)


def share(low_rank: Unit, first: Unit) -> None:
    """Give a unit the factors of `first`; it keeps its own bias."""
    for name, parameter in zip(factor_names(low_rank), factors(first), strict=True):
        where, _, last = name.rpartition(".")
        setattr(low_rank.get_submodule(where), last, parameter)


def dense(low_rank: Unit) -> nn.Module:
    """The dense layer that a unit stands for."""
    if not isinstance(low_rank, LED):
        return low_rank.to_dense()
    full: nn.Linear | TransposedLinear
    with torch.device("meta"):
        if isinstance(low_rank, TransposedLED):
            full = TransposedLinear(low_rank.out_features, low_rank.in_features)
        else:
            full = nn.Linear(low_rank.in_features, low_rank.out_features, low_rank.bias is not None)
    D, E = factors(low_rank)
    full.to(D.dtype).to_empty(device=D.device)
    with torch.no_grad():
        full.weight.copy_(low_rank.weight)
    full.weight.requires_grad_(D.requires_grad or E.requires_grad)
    if low_rank.bias is not None:
        full.bias = low_rank.bias
    return full.train(low_rank.training)


def expand(model: nn.Module, low_rank: Iterable[tuple[str, Unit]]) -> None:
    """Put dense layers in the place of units. Those that shared their factors share the weight."""
    by_module: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter] = {}
    for path, module in low_rank:
        if id(module) not in by_module:
            full: Any = dense(module)
            full.weight = weights.setdefault(id(factors(module)[0]), full.weight)
            by_module[id(module)] = full
        put(model, path, by_module[id(module)])


def merged(model: nn.Module) -> int:
    """Make every low-rank unit dense again, in place, and pack attentions and experts. The number of units."""
    low_rank = list(units(model))
    expand(model, low_rank)
    packed: dict[int, nn.Module] = {}
    for path, attention in list(model.named_modules(remove_duplicate=False)):
        if path and isinstance(attention, LowRankMultihead):
            if id(attention) not in packed:
                packed[id(attention)] = attention.to_dense()
            put(model, path, packed[id(attention)])
    pack_experts(model)
    return len(low_rank)


def units(model: nn.Module) -> Iterator[tuple[str, Unit]]:
    """The low-rank units of a network by path; a unit with several paths comes once for each."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, get_args(Unit)):
            yield path, module


DENSE = (nn.Linear, *get_args(Convolution), nn.Embedding, TransposedLinear, nn.MultiheadAttention, LowRankMultihead)
"""Modules whose weights torch's own fast paths can read, or that keep themselves from these paths."""


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module at a path, and keep encoders of torch around it from reading its weight instead of calling it."""
    parent = model.get_submodule(path.rpartition(".")[0])
    setattr(parent, path.rpartition(".")[2], module)
    if not isinstance(module, DENSE):
        for end in [0, *(i for i, letter in enumerate(path) if letter == ".")]:
            around = model.get_submodule(path[:end])
            if isinstance(around, nn.TransformerEncoder | nn.TransformerEncoderLayer):
                refuse_fast_path(around)
                return


@contextmanager
def restored_by_errors(modules: Sequence[nn.Module]) -> Iterator[None]:
    """A `with` block after whose errors the parameters of modules hold what they held before."""
    before = [(parameter, parameter.detach().clone()) for module in modules for parameter in module.parameters()]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, values in before:
                parameter.copy_(values)
        raise
