"""The maps of a network that have a low-rank form: found, seen as matrices, replaced.

| kind | module | matrix (m x n) | in its place |
|---|---|---|---|
| linear | nn.Linear | out x in | LED |
| linear | Conv1D of transformers, which holds its weight transposed | out x in | TransposedLED |
| conv | nn.Conv1d, 2d, 3d; one matrix a group | out / g x in / g times kernel | LowRankConv |
| embedding | nn.Embedding | entries x width | LowRankEmbedding |

The packed projections of an nn.MultiheadAttention are unpacked first (`unpack`) and are linear maps from then on.
"""

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.lowrank.computed import computed
from greenformers.lowrank.convolution import LowRankConv
from greenformers.lowrank.embedding import LowRankEmbedding
from greenformers.lowrank.linear import LED, HeadLED
from greenformers.lowrank.multihead import LowRankMultihead, refuse_fast_path
from greenformers.model._transformers import TransposedLinear

Unit = LED | LowRankConv | LowRankEmbedding
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Select = str | Iterable[str] | Callable[[str, nn.Module], bool] | None

KINDS = ("linear", "conv", "embedding")


class TransposedLED(LED):
    """LED in place of a Conv1D of `transformers`: who reads its weight finds it as TransposedLinear holds it."""

    @property
    def weight(self) -> Tensor:
        """The dense weight the two factors stand for, (n, m)."""
        D, E = self.decoder, self.encoder
        return computed(lambda: (D.weight @ E.weight).mT, (self.in_features, self.out_features), D.weight)


def kind_of(module: nn.Module) -> str | None:
    """The kind of a dense map that has a low-rank form, by its exact class: subclasses may compute something else.

    Those of nn.Linear that compute the same, as Falcon's, are linear maps.
    """
    if type(module) in (nn.Linear, TransposedLinear) or computes_linear(type(module)):  # type: ignore[arg-type]
        return "linear"
    if type(module) in get_args(Convolution):
        return "conv"
    if type(module) is nn.Embedding and module.max_norm is None:
        return "embedding"
    return None


@cache
def computes_linear(kind: Hashable) -> bool:
    """Whether a subclass of nn.Linear computes x W^T + b from its weight and bias alone, as a small one of it shows."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Linear)):
        return False
    x, weight, b = (torch.arange(0.3, 0.3 + n, 1.0, device="cpu").sin() for n in (10, 6, 3))
    x, weight = x.view(5, 2), weight.view(3, 2)
    try:
        for bias in (b, None):
            small: Any = kind.__new__(kind)
            nn.Module.__init__(small)
            small.in_features, small.out_features = 2, 3
            small.weight, small.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)
            with torch.no_grad():
                if not torch.allclose(small.eval()(x), F.linear(x, weight, bias), atol=1e-6):
                    return False
    except Exception:  # it needs more than these, or has no weight of its own
        return False
    return True


@dataclass(frozen=True)
class Site:
    """A dense map, or several that share one weight.

    Attributes:
        paths: where it stands in the network; the first gives it its name.
        module: at the first path.
        kind: one of `KINDS`.
        groups: of a convolution; else 1.
        m, n: of the matrix, of each group.
    """

    paths: tuple[str, ...]
    module: nn.Module
    kind: str
    groups: int
    m: int
    n: int

    @property
    def path(self) -> str:
        """The name of the site."""
        return self.paths[0]

    @property
    def dense(self) -> int:
        """Weights of the dense map."""
        return self.groups * self.m * self.n

    def parameters(self, rank: int | None) -> int:
        """Weights at a rank, without the bias; of the dense map for None."""
        return self.dense if rank is None else self.groups * rank * (self.m + self.n)

    def matrices(self) -> Tensor:
        """The weight as matrices (groups, m, n)."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        if isinstance(self.module, TransposedLinear):
            weight = weight.mT
        return weight.detach().reshape(self.groups, self.m, self.n)


def sites(model: nn.Module, select: Select = None) -> list[Site]:
    """The maps that are to be factorised.

    Args:
        model: any network.
        select: None for all linear maps but those whose weight an embedding shares; a kind; a pattern such as
            "*.layer.[0-3].*.query", or several, of kinds or patterns; or a function of path and module. A map that
            shares its weight with one selected comes with it.

    Raises:
        ValueError: nothing is selected, or a pattern selects nothing.
    """
    found: dict[int, list[tuple[str, nn.Module]]] = {}
    # An attention that could not be unpacked reads the weights of its maps, and never calls them.
    # And the factors of a low-rank layer are no layers to be factorised.
    whole = [part for part in model.modules() if isinstance(part, nn.MultiheadAttention | LED | HeadLED)]
    read = {id(part) for around in whole for part in around.modules()}
    for path, module in model.named_modules(remove_duplicate=False):
        if path and kind_of(module) and id(module) not in read:
            weight = module.weight
            if isinstance(weight, Tensor) and weight.is_floating_point():
                found.setdefault(id(weight), []).append((path, module))
    holders = Counter(
        id(parameter)
        for module in {id(module): module for module in model.modules()}.values()
        for parameter in module.parameters(recurse=False)
    )
    groups = [group for weight, group in found.items() if _choosable(group, holders[weight])]
    chosen = _chosen(groups, select)
    return [_site(group) for group in chosen]


def _choosable(group: list[tuple[str, nn.Module]], holders: int) -> bool:
    # Not if something of another class holds the weight too: it would be left with a copy. And an embedding and the
    # linear map tied to it share both factors, but a tied TransposedLinear would need them transposed.
    modules = {id(module): module for _, module in group}.values()
    return len(modules) == holders and len({type(module) is TransposedLinear for module in modules}) == 1


def _chosen(groups: list[list[tuple[str, nn.Module]]], select: Select) -> list[list[tuple[str, nn.Module]]]:
    if callable(select):
        chosen = [group for group in groups if any(select(path, module) for path, module in group)]
    elif select is None:
        chosen = [group for group in groups if all(kind_of(module) == "linear" for _, module in group)]
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        for pattern in patterns:
            if not any(_fits(pattern, *member) for group in groups for member in group):
                raise ValueError(
                    f"the selection {pattern!r} matches none of the {len(groups)} maps; "
                    f"kinds are {', '.join(KINDS)}, paths are such as {_examples(groups)}"
                )
        chosen = [group for group in groups if any(_fits(p, *member) for member in group for p in patterns)]
    if not chosen:
        raise ValueError(f"nothing is selected: of the network's {len(groups)} maps none fits")
    return chosen


def _fits(pattern: str, path: str, module: nn.Module) -> bool:
    return kind_of(module) == pattern if pattern in KINDS else fnmatchcase(path, pattern)


def _examples(groups: list[list[tuple[str, nn.Module]]]) -> str:
    return ", ".join(repr(group[0][0]) for group in groups[:2]) or "(none)"


def _site(group: list[tuple[str, nn.Module]]) -> Site:
    # Of an embedding and the map tied to it the embedding gives the name and the kind, whichever comes first.
    group = sorted(group, key=lambda member: kind_of(member[1]) != "embedding")
    module = group[0][1]
    kind = kind_of(module)
    assert kind is not None
    paths = tuple(path for path, _ in group)
    weight: Any = module.weight
    if isinstance(module, get_args(Convolution)):
        convolution: Any = module
        g = convolution.groups
        return Site(paths, module, kind, g, len(weight) // g, weight[0].numel())
    m, n = weight.shape[::-1] if isinstance(module, TransposedLinear) else weight.shape
    return Site(paths, module, kind, 1, m, n)


def unpack(model: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """Unpack every nn.MultiheadAttention, so that its projections are linear maps. Those that were there, by path."""
    found = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if path and type(module) is nn.MultiheadAttention
    }
    made = {id(attention): LowRankMultihead.like(attention) for attention in found.values()}
    for path, attention in found.items():
        put(model, path, made[id(attention)])
    return found


def pack(model: nn.Module, unpacked: Mapping[str, nn.MultiheadAttention]) -> None:
    """Put those attentions back of which no map became low rank."""
    for path, attention in unpacked.items():
        if not any(isinstance(part, LED) for part in model.get_submodule(path).modules()):
            put(model, path, attention)


def unit(module: nn.Module, rank: int) -> Unit:
    """An empty low-rank unit for a dense map, on its device and of its dtype.

    Raises:
        TypeError: the map has no low-rank form.
        ValueError: rank out of range.
    """
    kind = kind_of(module)
    if isinstance(module, get_args(Convolution)):
        return LowRankConv.like(module, rank)
    if kind == "embedding":
        return LowRankEmbedding.like(module, rank)  # type: ignore[arg-type]
    if kind != "linear":
        raise TypeError(f"a {type(module).__name__} has no low-rank form; linear maps, convolutions and embeddings do")
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
    if isinstance(made, LED | LowRankConv) and isinstance(bias, nn.Parameter):
        made.bias = bias if shift is None else nn.Parameter((bias + shift).to(bias.dtype), bias.requires_grad)
    made.train(module.training)
    return made


def commit(model: nn.Module, found: Mapping[str, Unit]) -> None:
    """Put units in the place of dense maps, for good: raised biases go into the parameters that were there.

    So a bias that something else holds too stays shared.
    """
    for path, made in found.items():
        before = getattr(model.get_submodule(path), "bias", None)
        if isinstance(made, LED | LowRankConv) and isinstance(before, nn.Parameter) and made.bias is not before:
            assert made.bias is not None
            with torch.no_grad():
                before.copy_(made.bias)
            made.bias = before
        put(model, path, made)


def factor_names(made: Unit) -> tuple[str, str]:
    """The names of the two factors as parameters: of an LED each is the weight of a linear layer."""
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
    """Make every low-rank unit dense again, in place, and pack attentions of torch. How many units there were."""
    found = list(units(model))
    expand(model, found)
    packed: dict[int, nn.Module] = {}
    for path, attention in list(model.named_modules(remove_duplicate=False)):
        if path and isinstance(attention, LowRankMultihead):
            if id(attention) not in packed:
                packed[id(attention)] = attention.to_dense()
            put(model, path, packed[id(attention)])
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
