"""The low-rank units of a network: made, filled with factors, put in the place of dense weights, and made dense again.

The packed projections of an nn.MultiheadAttention and the fused weights of experts are unpacked first (`unpack`).
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
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
    """LED in place of a Conv1D of `transformers`: who reads its weight finds it as TransposedLinear holds it."""

    @property
    def weight(self) -> Tensor:
        """The dense weight the two factors stand for, (n, m)."""
        D, E = self.decoder, self.encoder
        return computed(lambda: (D.weight @ E.weight).mT, (self.in_features, self.out_features), D.weight)


def unpack(model: nn.Module) -> dict[str, nn.Module]:
    """Unpack every nn.MultiheadAttention, so that its projections are linear layers, and experts. What was there."""
    found = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if path and type(module) is nn.MultiheadAttention
    }
    made = {id(attention): LowRankMultihead.like(attention) for attention in found.values()}
    for path, attention in found.items():
        put(model, path, made[id(attention)])
    return {**found, **unpack_experts(model)}


def pack(model: nn.Module, unpacked: Mapping[str, nn.Module]) -> None:
    """Put those attentions and experts back of which no map became low rank."""
    for path, module in unpacked.items():
        attention = isinstance(module, nn.MultiheadAttention)
        if attention and not any(isinstance(part, LED) for part in model.get_submodule(path).modules()):
            put(model, path, module)
    pack_experts(model, unpacked)


def unit(module: nn.Module, rank: int) -> Unit:
    """An empty low-rank unit for a dense map, on its device and of its dtype.

    Raises:
        TypeError: the map has no low-rank form.
        ValueError: rank out of range.
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
        made = (TransposedLED if isinstance(module, TransposedLinear) else LED)(
            n, m, rank, bias=module.bias is not None
        )
    return made.to(weight.dtype).to_empty(device=weight.device)


def filled(
    model: nn.Module, site: Site, decoder: Tensor, encoder: Tensor, shift: Tensor | None = None
) -> dict[str, Unit]:
    """The units that stand for a site, by path, from the factors of its matrices: (g, m, r) and (g, r, n).

    Maps that share the weight share the factors. Weights that were frozen stay so. Biases are the dense ones, or new
    ones raised by `shift`, until `commit`.
    """
    made: dict[int, Unit] = {}
    found: dict[str, Unit] = {}
    for path in site.paths:
        module = model.get_submodule(path)
        if id(module) not in made:
            made[id(module)] = _filled(module, decoder, encoder, shift, next(iter(made.values()), None))
        found[path] = made[id(module)]
    return found


def _filled(module: nn.Module, decoder: Tensor, encoder: Tensor, shift: Tensor | None, first: Unit | None) -> Unit:
    made = unit(module, decoder.shape[-1])
    if first is not None:
        share(made, first)
    else:
        D, E = factors(made)
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
    if isinstance(made, BIASED) and isinstance(bias, nn.Parameter):
        raised = None if shift is None else (bias + shift.view_as(bias)).to(bias.dtype)
        made.bias = bias if raised is None else nn.Parameter(raised, bias.requires_grad)
    made.train(module.training)
    return made


def commit(model: nn.Module, found: Mapping[str, Unit]) -> None:
    """Put units in the place of dense maps, for good: raised biases go into the parameters that were there.

    So a bias that something else holds too stays shared.
    """
    for path, made in found.items():
        before = getattr(model.get_submodule(path), "bias", None)
        if isinstance(made, BIASED) and isinstance(before, nn.Parameter) and made.bias is not before:
            assert made.bias is not None
            with torch.no_grad():
                before.copy_(made.bias)
            made.bias = before
        put(model, path, made)


def factor_names(made: Unit) -> tuple[str, str]:
    """The names of the two factors as parameters: of an LED each is the weight of a linear layer."""
    if isinstance(made, ExpertsLED):
        return "decoders.weight", "encoders.weight"
    return ("decoder.weight", "encoder.weight") if isinstance(made, LED) else ("decoder", "encoder")


def factors(made: Unit) -> tuple[Any, Any]:
    """The two factors: parameters, of whatever stands in their place by now."""
    decoder, encoder = map(operator.attrgetter, factor_names(made))
    return decoder(made), encoder(made)


def share(made: Unit, first: Unit) -> None:
    """Give a unit the factors of another; a bias stays its own."""
    for name, parameter in zip(factor_names(made), factors(first), strict=True):
        where, _, last = name.rpartition(".")
        setattr(made.get_submodule(where), last, parameter)


def dense(made: Unit) -> nn.Module:
    """The dense map that a unit stands for."""
    if not isinstance(made, LED):
        return made.to_dense()
    full: nn.Linear | TransposedLinear
    with torch.device("meta"):
        if isinstance(made, TransposedLED):
            full = TransposedLinear(made.out_features, made.in_features)
        else:
            full = nn.Linear(made.in_features, made.out_features, made.bias is not None)
    D, E = factors(made)
    full.to(D.dtype).to_empty(device=D.device)
    with torch.no_grad():
        full.weight.copy_(made.weight)
    full.weight.requires_grad_(D.requires_grad or E.requires_grad)
    if made.bias is not None:
        full.bias = made.bias
    return full.train(made.training)


def expand(model: nn.Module, found: Iterable[tuple[str, Unit]]) -> None:
    """Put dense maps in the place of units. Those that shared their factors share the weight."""
    made: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter] = {}
    for path, module in found:
        if id(module) not in made:
            full: Any = dense(module)
            full.weight = weights.setdefault(id(factors(module)[0]), full.weight)
            made[id(module)] = full
        put(model, path, made[id(module)])


def merged(model: nn.Module) -> int:
    """Make every low-rank unit dense again, in place, and pack attentions and experts. How many units there were."""
    found = list(units(model))
    expand(model, found)
    packed: dict[int, nn.Module] = {}
    for path, attention in list(model.named_modules(remove_duplicate=False)):
        if path and isinstance(attention, LowRankMultihead):
            if id(attention) not in packed:
                packed[id(attention)] = attention.to_dense()
            put(model, path, packed[id(attention)])
    pack_experts(model)
    return len(found)


def units(model: nn.Module) -> Iterator[tuple[str, Unit]]:
    """The low-rank units of a network, by path; one that stands at several paths, at each."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, get_args(Unit)):
            yield path, module


DENSE = (nn.Linear, *get_args(Convolution), nn.Embedding, TransposedLinear, nn.MultiheadAttention, LowRankMultihead)
"""What torch's own fast paths can read the weights of, or what keeps itself from them."""


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Place a module at a path, and keep encoders of torch around it from reading its weight instead of calling it."""
    parent = model.get_submodule(path.rpartition(".")[0])
    setattr(parent, path.rpartition(".")[2], module)
    if not isinstance(module, DENSE):
        for end in [0, *(i for i, letter in enumerate(path) if letter == ".")]:
            around = model.get_submodule(path[:end])
            if isinstance(around, nn.TransformerEncoder | nn.TransformerEncoderLayer):
                refuse_fast_path(around)
                return
