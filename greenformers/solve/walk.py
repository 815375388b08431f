"""The weights of a network that have a low-rank form: found, and seen as matrices.

| kind | module | matrix (m x n) | in its place |
|---|---|---|---|
| linear | nn.Linear | out x in | LED |
| linear | Conv1D of transformers, which holds its weight transposed | out x in | TransposedLED |
| conv | nn.Conv1d, 2d, 3d; one matrix a group | out / g x in / g times kernel | LowRankConv |
| embedding | nn.Embedding | entries x width | LowRankEmbedding |
| experts | ExpertsLinear; one matrix an expert | out x in | ExpertsLED |

The packed projections of an nn.MultiheadAttention are linear layers once they are unpacked, and so are the weights of
experts that transformers holds in one parameter, see `greenformers.solve.units.unpack`.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.lowrank.experts import ExpertsLED, ExpertsLinear
from greenformers.lowrank.linear import LED, HeadLED
from greenformers.model._transformers import TransposedLinear
from greenformers.solve.sparse_linear import SparseTransposed

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Select = str | Iterable[str] | Callable[[str, nn.Module], bool] | None

KINDS = ("linear", "conv", "embedding", "experts")

USUAL = ("linear", "experts")
"""The kinds that are factorised where none is named."""


def kind_of(module: nn.Module) -> str | None:
    """The kind of a dense layer that has a low-rank form, by its exact class: subclasses may compute something else.

    Subclasses of nn.Linear that compute the same, as Falcon's, are linear layers. None for any other module.
    """
    transposed = (TransposedLinear, SparseTransposed)
    if type(module) in (nn.Linear, *transposed) or computes_linear(type(module)):  # type: ignore[arg-type]
        return "linear"
    if type(module) in get_args(Convolution):
        return "conv"
    if type(module) is ExpertsLinear:
        return "experts"
    if type(module) is nn.Embedding and module.max_norm is None:
        return "embedding"
    return None


@cache
def computes_linear(kind: Hashable) -> bool:
    """Whether a subclass of nn.Linear computes x W^T + b from its weight and bias alone; a small instance is tried."""
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
    """A dense weight, and the layers that share it.

    Attributes:
        paths: Paths of these layers in the network; the first is the name of the site.
        module: The layer at the first path.
        kind: One of `KINDS`.
        groups: Number of groups of a convolution or of experts of a mixture, else 1.
        m, n: Number of outputs and inputs: the size of the matrix of each group.
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
    def rows(self) -> int:
        """Number of rows of `stacked`."""
        return self.groups * self.m

    @property
    def turned(self) -> bool:
        """Whether the layer holds its weight transposed, n x m."""
        return isinstance(self.module, TransposedLinear) or bool(getattr(self.module, "transposed", False))

    @property
    def also_head(self) -> bool:
        """Whether an embedding has its weight in common with other layers, such as a head."""
        return self.kind == "embedding" and len(self.paths) > 1

    @property
    def dense(self) -> int:
        """Number of parameters of the dense weight."""
        return self.groups * self.m * self.n

    def parameters(self, rank: int | None) -> int:
        """Number of parameters at a rank, without the bias; None stands for the dense weight."""
        return self.dense if rank is None else self.groups * rank * (self.m + self.n)

    def matrices(self) -> Tensor:
        """The weight as matrices (groups, m, n)."""
        if isinstance(self.module, ExpertsLinear):
            return self.module.matrices.detach()
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        if isinstance(self.module, TransposedLinear):
            weight = weight.mT
        return weight.detach().reshape(self.groups, self.m, self.n)

    def stacked(self) -> Tensor:
        """The matrices of all groups, one below the other (groups m, n)."""
        return self.matrices().flatten(0, 1)


def sites(model: nn.Module, select: Select = None, *, factors: bool = False) -> list[Site]:
    """The weights that are to be factorised.

    Args:
        model: Any network.
        select: None for all experts and all linear layers but those that share their weight with an embedding; a kind;
            a pattern of paths such as "*.layer.[0-3].*.query"; several kinds or patterns; or a function of path and
            module. Layers that share a selected weight come with it.
        factors: Whether the two factors of a low-rank linear layer are linear layers too.

    Raises:
        ValueError: Nothing is selected, or a pattern selects nothing.
    """
    by_weight: dict[int, list[tuple[str, nn.Module]]] = {}
    # An attention that could not be unpacked reads the weights of its projections, and never calls them.
    # And the factors of a low-rank layer are no layers to be factorised.
    around = (
        nn.MultiheadAttention | HeadLED | ExpertsLED if factors else nn.MultiheadAttention | HeadLED | ExpertsLED | LED
    )
    whole = [part for part in model.modules() if isinstance(part, around)]
    read = {id(part) for holder in whole for part in holder.modules()}
    for path, module in model.named_modules(remove_duplicate=False):
        if path and kind_of(module) and id(module) not in read:
            weight = module.weight
            if isinstance(weight, Tensor) and weight.is_floating_point():
                by_weight.setdefault(id(weight), []).append((path, module))
    holders = Counter(
        id(parameter)
        for module in {id(module): module for module in model.modules()}.values()
        for parameter in module.parameters(recurse=False)
    )
    groups = [group for weight, group in by_weight.items() if _choosable(group, holders[weight])]
    chosen = _chosen(groups, select)
    return [_site(group) for group in chosen]


def check_patterns(model: nn.Module, patterns: Sequence[str]) -> None:
    """Check that each kind or pattern of paths fits a layer of a network.

    Raises:
        ValueError: One fits none.
    """
    layers = [[(path, module)] for path, module in model.named_modules(remove_duplicate=False) if kind_of(module)]
    for pattern in patterns:
        _check_fits(pattern, layers)


def _check_fits(pattern: str, groups: list[list[tuple[str, nn.Module]]]) -> None:
    if not any(_fits(pattern, *member) for group in groups for member in group):
        raise ValueError(
            f"the selection {pattern!r} matches none of the {len(groups)} weights; "
            f"kinds are {', '.join(KINDS)}, paths are such as {_examples(groups)}"
        )


def _choosable(group: list[tuple[str, nn.Module]], holders: int) -> bool:
    # Not if something of another class holds the weight too: it would be left with a copy. And an embedding and the
    # linear layer tied to it share both factors, but a tied TransposedLinear would need them transposed.
    modules = {id(module): module for _, module in group}.values()
    return len(modules) == holders and len({isinstance(module, TransposedLinear) for module in modules}) == 1


def _chosen(groups: list[list[tuple[str, nn.Module]]], select: Select) -> list[list[tuple[str, nn.Module]]]:
    if callable(select):
        chosen = [group for group in groups if any(select(path, module) for path, module in group)]
    elif select is None:
        chosen = [group for group in groups if all(kind_of(module) in USUAL for _, module in group)]
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        for pattern in patterns:
            _check_fits(pattern, groups)
        chosen = [group for group in groups if any(_fits(p, *member) for member in group for p in patterns)]
    if not chosen:
        raise ValueError(f"nothing is selected: of the network's {len(groups)} weights none fits")
    return chosen


def _fits(pattern: str, path: str, module: nn.Module) -> bool:
    return kind_of(module) == pattern if pattern in KINDS else fnmatchcase(path, pattern)


def _examples(groups: list[list[tuple[str, nn.Module]]]) -> str:
    return ", ".join(repr(group[0][0]) for group in groups[:2]) or "(none)"


def _site(group: list[tuple[str, nn.Module]]) -> Site:
    # Of an embedding and the linear layer tied to it the embedding gives name and kind, whichever comes first.
    group = sorted(group, key=lambda member: kind_of(member[1]) != "embedding")
    module = group[0][1]
    kind = kind_of(module)
    assert kind is not None
    paths = tuple(path for path, _ in group)
    weight: Any = module.weight
    if isinstance(module, ExpertsLinear):
        return Site(paths, module, kind, *module.matrices.shape)
    if isinstance(module, get_args(Convolution)):
        convolution: Any = module
        g = convolution.groups
        return Site(paths, module, kind, g, len(weight) // g, weight[0].numel())
    m, n = weight.shape[::-1] if isinstance(module, TransposedLinear) else weight.shape
    return Site(paths, module, kind, 1, m, n)
