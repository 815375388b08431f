"""Linear layers, embeddings and experts that hold a code in place of their weight: put in place, described and shared.

`CodedWeight` is what a code has to give: `greenformers.changes._bits_layers` has those of few bits,
`greenformers.changes._product_layers` those of codebooks. Layers that shared a weight share its code.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.changes._paths import located
from greenformers.changes._report import UnitReport
from greenformers.lowrank.computed import computed
from greenformers.lowrank.experts import ExpertsLinear, Routed
from greenformers.model._transformers import TransposedLinear, leave_as_made
from greenformers.model.experts import pack
from greenformers.solve.units import put
from greenformers.solve.walk import Select, Site, kind_of, sites
from greenformers.train.bf16 import HALVES

KINDS = ("linear", "embedding", "experts")
"""Kinds of layers that can hold a code."""


class CodedWeight(nn.Module):
    """The code of a weight (m, n); its tensors are parameters.

    Attributes:
        m, n: Size of the weight.
    """

    m: int
    n: int

    @property
    def like(self) -> Tensor:
        """A tensor of the type that the weight has among other weights, and on its device."""
        raise NotImplementedError

    @property
    def described(self) -> dict[str, Any]:
        """What must be known, beside the size, to make an empty one."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The form, as in "4 bits, groups of 64"."""
        raise NotImplementedError

    def rows(self, at: Int[Tensor, "..."] | None = None) -> Float[Tensor, "... n"]:
        """Rows of the weight; by default all."""
        raise NotImplementedError

    def dense(self, at: Int[Tensor, "..."] | None = None) -> Float[Tensor, "... n"]:
        """`rows` in the type of the network's other parameters."""
        return self.rows(at).to(self.like.dtype)

    def of_type(self, dtype: torch.dtype) -> Self:
        """The code with its numbers in the type of the dense weight, if that is half precision."""
        for x in self.parameters() if dtype in HALVES else ():
            narrow = x.detach().to(dtype)
            # A single number, by which all others are multiplied, must be exact.
            if x.is_floating_point() and (x.numel() > 1 or narrow.float().equal(x.detach().float())):
                x.data = narrow
        return self


class CodedLinear(nn.Linear):
    """A linear layer with a code; gradients reach the code's parameters that are floating point.

    It is an nn.Linear for libraries that look for linear layers, such as PEFT; its `weight` is the dense one.
    """

    bias: nn.Parameter | None  # type: ignore[assignment]  # so it is in nn.Linear too

    def __init__(self, held: CodedWeight, bias: nn.Parameter | None, *, turned: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.turned = held.n, held.m, turned
        self.held, self.bias = held, bias
        leave_as_made(self)

    @property
    def weight(self) -> Float[Tensor, "m n"]:  # type: ignore[override]
        """The weight that the code stands for; see `computed`."""
        return computed(self.held.dense, (self.held.m, self.held.n), self.held.like)

    def reset_parameters(self) -> None:
        """Nothing is reset: there is no fresh code."""

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.held.rows().to(x.dtype), bias)


class CodedEmbedding(nn.Module):
    """An embedding with a code; only rows that are looked up are made."""

    def __init__(self, held: CodedWeight, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = held.m, held.n, padding_idx
        self.held = held

    @property
    def weight(self) -> Float[Tensor, "entries d"]:
        """The rows that the code stands for; see `computed`."""
        return computed(self.held.dense, (self.held.m, self.held.n), self.held.like)

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Rows of the ids, of the type of the network's other parameters."""
        return self.held.dense(ids)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class CodedExperts(nn.Module):
    """One weight of all experts of a mixture with a code, in place of `ExpertsLinear`.

    The weights W_1 to W_E (m, n) of the experts, one below the other, are the weight (E m, n) that the code is of.

    Args:
        held: The code.
        dense: The layer in whose place it stands, of which it takes sizes and biases.
    """

    def __init__(self, held: CodedWeight, dense: ExpertsLinear) -> None:
        super().__init__()
        self.experts, self.out_features, self.in_features = dense.matrices.shape
        self.held, self.bias, self.transposed = held, dense.bias, dense.transposed

    @property
    def weight(self) -> Float[Tensor, "..."]:
        """The weights that the code stands for, as `ExpertsLinear` holds them; see `computed`."""
        E, m, n = self.experts, self.out_features, self.in_features

        def dense_weights() -> Tensor:
            matrices = self.held.dense().view(E, m, n)
            return matrices.mT if self.transposed else matrices

        return computed(dense_weights, (E, n, m) if self.transposed else (E, m, n), self.held.like)

    def forward(self, x: Float[Tensor, "S n"], routed: Routed) -> Float[Tensor, "S m"]:
        """W_e x for each row x, where e is its expert."""
        outputs = [self.product(part, e) for e, part in enumerate(x.split(routed.counts)) if len(part)]
        return torch.cat(outputs) if outputs else x.new_zeros(0, self.out_features)

    def product(self, x: Float[Tensor, "S n"], expert: int) -> Float[Tensor, "S m"]:
        """W_e x for rows of one expert, whose weight alone is made."""
        at = torch.arange(self.out_features, device=x.device) + expert * self.out_features
        bias = None if self.bias is None else self.bias[expert].to(x.dtype)
        return F.linear(x, self.held.rows(at).to(x.dtype), bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, experts={self.experts}"


Layer = CodedLinear | CodedEmbedding | CodedExperts


def codable(model: nn.Module, select: Select = None) -> list[Site]:
    """The linear layers, the factors of low-rank ones too, embeddings and experts whose weights can have a code.

    Experts are found where they are unpacked, see `greenformers.model.experts.as_modules`.

    Raises:
        ValueError: There is none, or a pattern selects nothing.
    """
    if select is not None:
        return [site for site in sites(model, select, factors=True) if site.kind in KINDS]
    chosen: dict[str, Site] = {}  # a head that shares its weight with an embedding is of both kinds
    for kind in KINDS:
        with suppress(ValueError):  # there is none
            chosen |= {site.path: site for site in sites(model, kind, factors=True)}
    if not chosen:
        raise ValueError(f"{type(model).__name__} has no linear layer and no embedding to round")
    return list(chosen.values())


def commit(model: nn.Module, site: Site, layer: Callable[[Any], Layer]) -> None:
    """Put layers with a code, as `layer` makes them of those that there are, at all the paths of a site."""
    modules = {path: model.get_submodule(path) for path in site.paths}  # of which a parent may be at several paths
    layers = {id(module): layer(module).train(module.training) for module in modules.values()}
    for path, module in modules.items():
        put(model, path, layers[id(module)])


def coded(model: nn.Module, kind: type[CodedWeight]) -> list[tuple[str, Layer]]:
    """The layers with codes of a kind, by path."""
    return [
        (path, module)
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Layer) and type(module.held) is kind
    ]


def groups_of(model: nn.Module, kind: type[CodedWeight]) -> list[list[str]]:
    """Groups of paths whose layers share a code."""
    paths: dict[int, list[str]] = {}
    for path, layer in coded(model, kind):
        paths.setdefault(id(layer.held), []).append(path)
    return [group for group in paths.values() if len(group) > 1]


def shared(model: nn.Module, kind: type[CodedWeight]) -> Iterator[tuple[str, str]]:
    """Shared numbers: (name, name under which they are saved)."""
    for first, *others in groups_of(model, kind):
        held: Any = model.get_submodule(first)
        names = [name for name, _ in held.held.named_parameters()]
        yield from ((f"{path}.held.{name}", f"{first}.held.{name}") for path in others for name in names)


def place(
    model: nn.Module, forms: Mapping[str, Any], ties: Iterable[Sequence[str]],
    empty: Callable[[str, int, int, Any], CodedWeight], layer: Callable[[Any, Any], Layer],
) -> list[str]:  # fmt: skip
    """Put empty layers at the paths of a description.

    Args:
        model: The network.
        forms: What is known of the code at each path.
        ties: Groups of paths whose layers share a code.
        empty: Function that makes an empty code, of path, m, n and form; raises ValueError for what is none.
        layer: Function that makes a layer, of the one that there is and a code.

    Returns:
        The paths that the network does not have.

    Raises:
        ValueError: A layer at a path can have no code, or sizes differ.
    """
    at = located(model, forms)
    first = {path: group[0] for group in ties for path in group}
    held: dict[str, CodedWeight] = {}
    for path, where in at.items():
        module: Any = model.get_submodule(where)
        if kind_of(module) not in KINDS:
            raise ValueError(f"{path}: a {type(module).__name__} cannot hold a code")
        m, n = _size(module)
        owner = first.get(path, path)
        if owner not in held:
            with torch.device(next(model.parameters()).device):
                held[owner] = empty(path, m, n, forms[path])
        if (held[owner].m, held[owner].n) != (m, n):
            raise ValueError(f"{path} and {owner} share no weight: their sizes differ")
        put(model, where, layer(module, held[owner]))
    return [path for path in forms if path not in at]


def opened(model: nn.Module, kind: type[CodedWeight]) -> int:
    """Put dense layers in place of those with codes of a kind, shared weights for shared codes. The number of codes."""
    weights: dict[int, nn.Parameter] = {}
    layers: dict[int, nn.Module] = {}
    for path, layer in coded(model, kind):
        if id(layer.held) not in weights:
            weights[id(layer.held)] = nn.Parameter(layer.held.rows().detach().to(layer.held.like.dtype))
        if id(layer) not in layers:
            layers[id(layer)] = _dense(layer, weights[id(layer.held)]).train(layer.training)
        put(model, path, layers[id(layer)])
    pack(model)
    return len(weights)


def _size(module: Any) -> tuple[int, int]:
    if isinstance(module, ExpertsLinear):
        E, m, n = module.matrices.shape
        return E * m, n
    m, n = module.weight.shape
    return (n, m) if isinstance(module, TransposedLinear) else (m, n)


def _dense(layer: Layer, weight: nn.Parameter) -> nn.Module:
    if isinstance(layer, CodedExperts):
        matrices = weight.unflatten(0, (layer.experts, -1))
        matrices = matrices.mT.contiguous() if layer.transposed else matrices
        return ExpertsLinear(nn.Parameter(matrices), layer.bias, transposed=layer.transposed)
    m, n = weight.shape
    with torch.device("meta"):  # where nothing is drawn
        if isinstance(layer, CodedEmbedding):
            dense: Any = nn.Embedding(m, n, layer.padding_idx)
        else:
            dense = TransposedLinear(m, n) if layer.turned else nn.Linear(n, m, bias=False)
            dense.bias = layer.bias
    dense.weight = nn.Parameter(weight.T.contiguous()) if getattr(layer, "turned", False) else weight
    return dense


def unit_of(site: Site, held: CodedWeight, lost: float) -> UnitReport:
    """The report of a weight that has got a code."""
    weight: Any = site.module.weight
    bytes_of = sum(part.numel() * part.element_size() for part in held.parameters())
    return UnitReport(
        site.path, held.label, site.dense * weight.element_size(), bytes_of, lost=lost, tied=site.paths[1:]
    )
