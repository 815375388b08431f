"""Feed-forward layers made mixtures of experts, each a copy of the layer: put in place, described, and placed again.

A feed-forward block of our models becomes the block `greenformers.feed_forward.switch`. In other classes the linear
layers of a feed-forward layer may stand in several modules, which call them one after the other with functions of
single neurons between. There the first ones become `ExpertsUp`: from a position to the neurons of its k experts, side
by side. The last one becomes `ExpertsDown`: the weighted sum of the outputs of these experts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from greenformers.blocks import Block
from greenformers.changes._paths import check_keys, check_paths, located
from greenformers.feed_forward import FeedForward
from greenformers.feed_forward.gated import Gated
from greenformers.feed_forward.switch import Switch
from greenformers.lowrank.experts import ExpertsLinear, Routed
from greenformers.model._transformers import TransposedLinear
from greenformers.solve.units import put

STD = 0.02
"""Standard deviation of a new router. Komatsuzaki 2022, arXiv:2212.05055, appendix A."""

MOST = 4096
"""Experts of a layer that a description may ask for."""


class Layer(NamedTuple):
    """A feed-forward layer of a network.

    Attributes:
        path: Path of its last linear layer, or of a block of our models.
        first: Paths of the linear layers before it, in the order of their calls; none for a block of our models.
    """

    path: str
    first: tuple[str, ...] = ()


class Passed:
    """What the first linear layer of a feed-forward layer hands on to the others: the choice of this pass.

    It holds a choice only between the calls of the first and the last of these layers.
    """

    def __init__(self) -> None:
        self.choice: tuple[Routed, Tensor] | None = None

    def read(self, *, last: bool) -> tuple[Routed, Tensor]:
        """The choice: rows by expert, and the gates of each position. The last layer takes it away.

        Raises:
            RuntimeError: The first layer was not called before.
        """
        choice = self.choice
        if choice is None:
            raise RuntimeError("the layer with the router must be called before the others of its feed-forward layer")
        if last:
            self.choice = None
        return choice


class ExpertsUp(nn.Module):
    """A first linear layer of all experts: from x (..., n) to the outputs of the k chosen ones (..., k m).

    Args:
        experts: The linear layers of the experts.
        k: Number of experts of a position.
        passed: What the layers of this feed-forward layer share.
        router: W_r (E, n), of the layer that is called first; None for others, which go by its choice.
    """

    def __init__(self, experts: ExpertsLinear, k: int, passed: Passed, router: nn.Parameter | None = None) -> None:
        super().__init__()
        self.experts, self.k, self.passed, self.router = experts, k, passed, router

    def forward(self, x: Float[Tensor, "*B n"]) -> Float[Tensor, "*B km"]:
        positions = x.flatten(0, -2)
        if self.router is not None:
            self.passed.choice = chosen(positions, self.router, self.k)
        routed, _ = self.passed.read(last=False)
        rows: Tensor = self.experts(positions[routed.tokens], routed)
        choices = rows.new_zeros(len(positions) * self.k, rows.shape[1]).index_copy(0, routed.order, rows)
        return choices.view(*x.shape[:-1], -1)

    @property
    def weight(self) -> Tensor:
        """The weights of all experts, for code that asks for the number format of a linear layer."""
        weight: Tensor = self.experts.weight
        return weight


class ExpertsDown(nn.Module):
    """The last linear layer of all experts: from neurons of the k chosen ones (..., k n) to the weighted sum (..., m).

    Args:
        experts: The linear layers of the experts.
        k: Number of experts of a position.
        passed: What the layers of this feed-forward layer share.
    """

    def __init__(self, experts: ExpertsLinear, k: int, passed: Passed) -> None:
        super().__init__()
        self.experts, self.k, self.passed = experts, k, passed

    def forward(self, x: Float[Tensor, "*B kn"]) -> Float[Tensor, "*B m"]:
        routed, gates = self.passed.read(last=True)
        choices = x.reshape(routed.length * self.k, -1)
        rows: Tensor = self.experts(choices[routed.order], routed)
        return routed.summed(rows, gates).to(rows.dtype).view(*x.shape[:-1], -1)

    @property
    def weight(self) -> Tensor:
        """As `ExpertsUp.weight`."""
        weight: Tensor = self.experts.weight
        return weight


def chosen(x: Float[Tensor, "T n"], router: Float[Tensor, "E n"], k: int) -> tuple[Routed, Float[Tensor, "T k"]]:
    """Rows of the k experts of each position, and their gates, which sum to 1.

    Routing is that of `Switch` with `normalised`, dropless and in float32.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        p = F.linear(x.to(wide), router.to(wide)).softmax(-1)
    g, experts = p.topk(k)
    return Routed.of(experts, len(router)), g / (g.detach() if k == 1 else g.sum(-1, keepdim=True))


def layers(model: nn.Module, example: Any) -> list[Layer]:
    """The feed-forward layers of a network in the order of execution.

    Raises:
        ValueError: There are none that experts could be copies of, or they stand in blocks, which return no loss.
    """
    from greenformers.solve.feed_forward import feed_forwards

    blocks = [path for path, module in model.named_modules() if isinstance(module, FeedForward)]
    if blocks:
        own = [Layer(path) for path in blocks if fits(model.get_submodule(path))]
        if not own:
            raise ValueError(f"{type(model).__name__} has no dense feed-forward blocks")
        _check_losses(model)
        return own
    return [Layer(layer.second, tuple(layer.first)) for layer in feed_forwards(model, example)]


def _check_losses(model: nn.Module) -> None:
    """Raise ValueError where feed-forward blocks stand in layers that return no loss, see `Size.make_feed_forward`."""
    for layer in model.modules():
        if isinstance(layer, Block) and any(isinstance(part, FeedForward) for part in layer.modules()):
            raise ValueError(
                "block must be standard, whose layers return the loss that balances experts; "
                f"got {type(layer).__name__.lower()}"
            )


def fits(block: nn.Module) -> bool:
    """Whether a block of our models is of dense linear layers, up and down, with a gate or without."""
    parts = [getattr(block, name, None) for name in ("up", "down")]
    return all(type(part) is nn.Linear for part in (*parts, getattr(block, "gate", parts[0])))


def put_experts(model: nn.Module, layer: Layer, experts: int, k: int) -> None:
    """Put empty experts in place of a feed-forward layer, on its device and of its number format."""
    if not layer.first:
        block: Any = model.get_submodule(layer.path)
        size = replace(block.size, hidden=block.up.out_features, bias=block.up.bias is not None)
        weight = next(block.up.parameters())
        with torch.device("meta"):
            switch: Any = Switch(
                size, experts=experts, k=k, capacity=None, normalised=True, gated=isinstance(block, Gated)
            )
        switch = switch.to(weight.dtype).to_empty(device=weight.device).train(block.training)
        switch.activation = block.activation
        put(model, layer.path, switch)
        return
    passed, router = Passed(), None
    for number, path in enumerate(layer.first):
        module: Any = model.get_submodule(path)
        empty = _empty(module, experts)
        if number == 0:
            router = nn.Parameter(module.weight.new_empty(experts, empty.matrices.shape[2]))
        put(model, path, ExpertsUp(empty, k, passed, router if number == 0 else None).train(module.training))
    module = model.get_submodule(layer.path)
    put(model, layer.path, ExpertsDown(_empty(module, experts), k, passed).train(module.training))


def _empty(module: Any, experts: int) -> ExpertsLinear:
    weight = nn.Parameter(module.weight.new_empty(experts, *module.weight.shape), module.weight.requires_grad)
    bias = None
    if module.bias is not None:
        bias = nn.Parameter(module.bias.new_empty(experts, *module.bias.shape), module.bias.requires_grad)
    return ExpertsLinear(weight, bias, transposed=isinstance(module, TransposedLinear))


@torch.no_grad()
def copy_experts(model: nn.Module, layer: Layer, before: Mapping[str, nn.Module], draw: torch.Generator) -> None:
    """Make each expert a copy of the dense layer, and draw the router.

    Args:
        model: A network with the empty experts.
        layer: The feed-forward layer.
        before: The modules that stood there, by path.
        draw: Random numbers of the router.
    """
    now: Any = model.get_submodule(layer.path)
    pairs: list[tuple[Any, Any]]
    if layer.first:
        first: Any = model.get_submodule(layer.first[0])
        router = first.router
        pairs = [(model.get_submodule(path).experts, before[path]) for path in (*layer.first, layer.path)]
    else:
        router, block = now.router, before[layer.path]
        names = [name for name in ("gate", "up", "down") if getattr(now, name) is not None]
        pairs = [(getattr(now, name), getattr(block, name)) for name in names]
    router.copy_(STD * torch.randn(router.shape, generator=draw))
    for experts, dense in pairs:
        for target, source in ((experts.weight, dense.weight), (experts.bias, dense.bias)):
            if target is not None:
                target.copy_(source.expand_as(target))


def described(model: nn.Module) -> dict[str, Any]:
    """Paths of the first linear layers, number of experts and k of each mixture that is in place, by its path."""
    by_passed: dict[int, list[str]] = {}
    description: dict[str, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, ExpertsUp):
            by_passed.setdefault(id(module.passed), []).append(path)
    for path, module in model.named_modules():
        if isinstance(module, ExpertsDown):
            first = by_passed[id(module.passed)]
            # The one with the router first, as its call is.
            first.sort(key=lambda path: getattr(model.get_submodule(path), "router", None) is None)
            router: Any = model.get_submodule(first[0]).router
            description[path] = {"first": first, "experts": len(router), "k": module.k}
        elif isinstance(module, Switch) and path in _of_ours(model):
            description[path] = {"first": [], "experts": module.experts, "k": module.k}
    return description


PLACED = "_blocks_made_experts"
"""Attribute of a network in which the paths of its blocks that were made experts stand."""


def _of_ours(model: nn.Module) -> Sequence[str]:
    """Paths of blocks that were made experts: others are as the configuration says."""
    paths: Sequence[str] = getattr(model, PLACED, ())
    return paths


def note(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Remember which blocks of our models were made experts."""
    own = [layer.path for layer in layers if not layer.first]
    if own:
        setattr(model, PLACED, [*_of_ours(model), *own])


def placed(model: nn.Module, description: Any) -> list[str]:
    """Put empty experts where a description says. The paths that the network does not have.

    Raises:
        ValueError: It is not such a description, or does not fit the network.
    """
    if not isinstance(description, dict) or not description:
        raise ValueError("the description of experts must be an object of mixtures by path")
    for path, form in description.items():
        check_keys(f"the mixture at {path}", form, ("first", "experts", "k"))
        check_paths(f"the first layers of {path}", form["first"])
        if type(form["experts"]) is not int or not 1 <= form["experts"] <= MOST:
            raise ValueError(f"the experts of {path} must be in 1..{MOST}, got {form['experts']!r}")
        if type(form["k"]) is not int or not 1 <= form["k"] <= form["experts"]:
            raise ValueError(f"k of {path} must be in 1..{form['experts']}, got {form['k']!r}")
    everywhere = located(model, [path for path, form in description.items() for path in (path, *form["first"])])
    missing = []
    for path, form in description.items():
        if not {path, *form["first"]} <= everywhere.keys():
            missing.append(path)
            continue
        layer = Layer(everywhere[path], tuple(everywhere[name] for name in form["first"]))
        _check_fits(model, layer)
        put_experts(model, layer, form["experts"], form["k"])
        note(model, [layer])
    return missing


def _check_fits(model: nn.Module, layer: Layer) -> None:
    last: Any = model.get_submodule(layer.path)
    if not layer.first:
        if not (isinstance(last, FeedForward) and fits(last)):
            raise ValueError(f"{layer.path}: a {type(last).__name__} is no feed-forward block of dense linear layers")
        return
    modules = [model.get_submodule(path) for path in (*layer.first, layer.path)]
    if len({id(module) for module in modules}) < len(modules):
        raise ValueError(f"the layers of the mixture at {layer.path} must be different ones")
    for path, module in zip((*layer.first, layer.path), modules, strict=True):
        if type(module) not in (nn.Linear, TransposedLinear):
            raise ValueError(f"{path}: a {type(module).__name__} is no dense linear layer")
    sizes = [_size(module) for module in modules]
    if len(set(sizes[:-1])) > 1 or sizes[0][1] != sizes[-1][0]:
        raise ValueError(f"the layers of the mixture at {layer.path} must fit each other, they are {sizes}")


def _size(module: Any) -> tuple[int, int]:
    n, m = module.weight.shape if isinstance(module, TransposedLinear) else module.weight.shape[::-1]
    return n, m


def paths_of(model: nn.Module) -> Iterator[str]:
    """Paths of the modules that stand in place of those of the class."""
    for path, form in described(model).items():
        yield from (*form["first"], path)
