"""Weights of a network in few bits: rounded, put in place, described, shared, and trained for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from greenformers.changes._bits_layers import BitsEmbedding, BitsLinear, Packed
from greenformers.changes._paths import check_keys, located
from greenformers.changes._straight_through import noise_of, straight_through
from greenformers.model._transformers import TransposedLinear
from greenformers.solve.awq import awq
from greenformers.solve.gptq import gptq
from greenformers.solve.grid import BITS, PER, Form, Grid, nearest
from greenformers.solve.layer_by_layer import Inputs, error, layer_by_layer
from greenformers.solve.units import put
from greenformers.solve.walk import Select, Site, kind_of, sites
from greenformers.solve.watch import Batch, Trace

PARTS = ("unit", "steps", "zero", "packed", "inputs")

Layer = BitsLinear | BitsEmbedding


def roundable(model: nn.Module, select: Select = None) -> list[Site]:
    """The linear layers, the factors of low-rank ones too, and embeddings whose weights can be rounded.

    Raises:
        ValueError: There is none, or a pattern selects nothing.
    """
    kinds = ("linear", "embedding")
    if select is not None:
        return [site for site in sites(model, select, factors=True) if site.kind in kinds]
    chosen: dict[str, Site] = {}  # a head that shares its weight with an embedding is of both kinds
    for kind in kinds:
        with suppress(ValueError):  # there is none
            chosen |= {site.path: site for site in sites(model, kind, factors=True)}
    if not chosen:
        raise ValueError(f"{type(model).__name__} has no linear layer and no embedding to round")
    return list(chosen.values())


def by_weights(site: Site, form: Form) -> tuple[Packed, float]:
    """A weight rounded to the nearest numbers, and the relative error.

    Raises:
        ValueError: It is not finite.
    """
    W = site.matrices()[0].float()
    if not W.isfinite().all():
        raise ValueError(f"{site.path}: the weight holds values that are not finite")
    grid = Grid.of(W, form)
    q = grid.round(W)
    return Packed.of(q, grid), error(W, grid.values(q))


def by_inputs(
    model: nn.Module, traced: Trace, batches: Sequence[Batch], by: str, form: Form, *, act_order: bool, memory: float,
    progress: Callable[[float], None],
) -> tuple[dict[str, Packed], dict[str, float]]:  # fmt: skip
    """Weights of linear layers rounded in the order of execution, and the relative errors of outputs, by path.

    The network's weights are rounded ones afterwards.
    """
    packed: dict[str, Packed] = {}

    def solve(site: Site, W: Tensor, given: Inputs) -> Tensor:
        if by == "gptq":
            q, grid = gptq(W, given.C, form, act_order=act_order)
            packed[site.path] = Packed.of(q, grid)
        else:
            packed[site.path] = Packed.of(*awq(W, given.C, given.size, form))
        return packed[site.path].rows()

    return packed, layer_by_layer(model, traced, batches, solve, memory=memory, progress=progress)


def commit(model: nn.Module, site: Site, held: Packed) -> None:
    """Put layers with a packed weight at all the paths of a site."""
    modules = {path: model.get_submodule(path) for path in site.paths}  # of which a parent may be at several paths
    layers = {id(module): _layer(module, held).train(module.training) for module in modules.values()}
    for path, module in modules.items():
        put(model, path, layers[id(module)])


def _layer(module: Any, held: Packed) -> Layer:
    if isinstance(module, nn.Embedding):
        return BitsEmbedding(held, module.padding_idx)
    return BitsLinear(held, module.bias)


def bits_layers(model: nn.Module) -> list[tuple[str, Layer]]:
    """The layers with packed weights, by path."""
    return [
        (path, module)
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, BitsLinear | BitsEmbedding)
    ]


def groups_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose layers share a packed weight."""
    paths: dict[int, list[str]] = {}
    for path, layer in bits_layers(model):
        paths.setdefault(id(layer.held), []).append(path)
    return [group for group in paths.values() if len(group) > 1]


def shared(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Shared numbers: (name, name under which they are saved)."""
    for first, *others in groups_of(model):
        held: Any = model.get_submodule(first)
        names = [name for name in PARTS if getattr(held.held, name) is not None]
        yield from ((f"{path}.held.{name}", f"{first}.held.{name}") for path in others for name in names)


def place(model: nn.Module, described: Mapping[str, Any], ties: Iterable[Sequence[str]]) -> list[str]:
    """Put empty layers at the paths of a description. The paths that the network does not have.

    Raises:
        ValueError: A layer at a path has no such form.
    """
    at = located(model, described)
    first = {path: group[0] for group in ties for path in group}
    held: dict[str, Packed] = {}
    for path, where in at.items():
        module: Any = model.get_submodule(where)
        if kind_of(module) not in ("linear", "embedding"):
            raise ValueError(f"{path}: a {type(module).__name__} has no form in few bits")
        m, n = module.weight.shape[::-1] if isinstance(module, TransposedLinear) else module.weight.shape
        owner = first.get(path, path)
        if owner not in held:
            form, scaled = checked(path, described[path])
            with torch.device(next(model.parameters()).device):
                held[owner] = Packed(m, n, form, scaled=scaled)
        if (held[owner].m, held[owner].n) != (m, n):
            raise ValueError(f"{path} and {owner} share no weight: their sizes differ")
        put(model, where, _layer(module, held[owner]))
    return [path for path in described if path not in at]


def checked(path: str, described: Any) -> tuple[Form, bool]:
    """The form of a packed weight in a description from an untrusted file.

    Raises:
        ValueError: It is not one.
    """
    check_keys(f"bits of {path}", described, ("bits", "per", "group", "symmetric", "scaled"))
    bits, per, group = described["bits"], described["per"], described["group"]
    if type(bits) not in (int, float) or bits not in BITS:
        raise ValueError(f"bits of {path} must be of {', '.join(f'{each:g}' for each in BITS)}; got {bits!r}")
    if per not in PER or type(group) is not int or group < 1:
        raise ValueError(f"grids of {path} must be per {', '.join(PER)}, of 1 input or more; got {per!r}, {group!r}")
    if type(described["symmetric"]) is not bool or type(described["scaled"]) is not bool:
        raise ValueError(f"symmetric and scaled of {path} must be true or false")
    return Form(bits, per, group, described["symmetric"]), described["scaled"]


@contextmanager
def aware(model: nn.Module, select: Select, form: Form, share: float) -> Iterator[None]:
    """A `with` block for training with rounded weights; gradients pass as if nothing were rounded.

    Below 2 bits the sizes of weights are trained too; weights are then as they were rounded afterwards, so that
    rounding them changes nothing.
    """
    held: list[tuple[list[Any], _Rounded]] = []
    for site in roundable(model, select):
        turned = isinstance(site.module, TransposedLinear)
        modules: dict[int, Any] = {id(module): module for module in map(model.get_submodule, site.paths)}
        rounded = _Rounded(site.matrices()[0], form, turned=turned, share=share)
        for module in modules.values():
            parametrize.register_parametrization(module, "weight", rounded)
        held.append((list(modules.values()), rounded))
    try:
        yield
    finally:
        for modules_of_one, rounded in held:
            value = rounded.eval()(modules_of_one[0].parametrizations.weight.original) if rounded.moved else None
            for module in modules_of_one:
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
            if value is not None:
                with torch.no_grad():
                    modules_of_one[0].weight.copy_(value)


class _Rounded(nn.Module):
    """A weight rounded to the nearest numbers, as a parametrization.

    Attributes:
        growth: Logarithms of what steps are multiplied by; None from 2 bits on, where steps follow the weights.
    """

    def __init__(self, W: Tensor, form: Form, *, turned: bool, share: float) -> None:
        super().__init__()
        self.form, self.turned, self.share = form, turned, share
        self.growth = nn.Parameter(torch.zeros_like(Grid.of(W, form).scale)) if form.bits < 2 else None

    @property
    def moved(self) -> bool:
        """Whether training has changed the steps."""
        return self.growth is not None and bool(self.growth.count_nonzero())

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.mT if self.turned else weight
        n = rows.shape[1]
        with torch.no_grad():
            scale, zero = Grid.of(rows, self.form).columns(0, n, n)
        if self.growth is not None:
            grown = self.growth.exp()
            scale = scale * (grown if grown.shape[1] == 1 else grown[:, torch.arange(n) // self.form.group_of(n)])
        q = nearest(rows.detach(), scale.detach(), zero, self.form.levels)
        rounded = (scale * (q - zero)).to(rows.dtype)
        rows = straight_through(rows, rounded, noise_of(rows, self.share, self.training))
        return rows.mT if self.turned else rows
