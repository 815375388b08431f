"""The hidden width of a network: the dimensions of its weights that are those of the residual stream.

They are found by what the network computes and not by name. A dimension of a weight belongs to the inputs or to the
outputs of its layer. Two layers share coordinates where the input of one at coordinate j depends, by gradients, on
the output of the other at coordinate j alone: as in a sum of outputs. A norm has one set of coordinates for both
sides, and so has a weight that two layers share. The largest set of dimensions that hang together so, and that a norm
and several linear layers belong to, is the hidden width.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.model._transformers import TransposedLinear
from greenformers.solve.walk import Convolution, kind_of
from greenformers.solve.watch import Batch, call

TRIED = 4
"""Coordinates of an input of which it is tried on what they depend."""

Dimension = tuple[str, int]
"""Name of a parameter of a module, and a dimension of it."""


@dataclass(frozen=True)
class HiddenWidth:
    """The hidden width of a network.

    Attributes:
        size: Number d of hidden coordinates.
        dimensions: Dimensions of size d, by path of the module that holds the parameter.
        writers: Paths of the linear layers, embeddings, convolutions and modules with parameters that are added to the
            stream.
        readers: Paths of the linear layers that read it.
        norms: Paths of the norms, and of other layers that act on each coordinate.
        sources: Paths of the layers whose outputs the input of a reader or norm is a sum of, by path.
        order: Paths of the linear layers, in the order of execution.
        calls: How often a pass calls each layer.
        sequential: Paths of the norms that see sequences (B, N, d).
    """

    size: int
    dimensions: Mapping[str, tuple[Dimension, ...]]
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    norms: tuple[str, ...]
    sources: Mapping[str, frozenset[str]]
    order: tuple[str, ...]
    calls: Mapping[str, int]
    sequential: tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """A module with parameters: where its coordinates stand.

    Attributes:
        module: The module.
        kind: "linear", "embedding", "conv", "norm", or "parameters" for parameters that are used by no such module.
        inputs: Dimensions of its parameters that belong to its inputs.
        outputs: Those that belong to its outputs.
        axis: Dimension of inputs and outputs with the coordinates.
    """

    module: nn.Module
    kind: str
    inputs: tuple[Dimension, ...]
    outputs: tuple[Dimension, ...]
    axis: int = -1


def layer_of(module: nn.Module) -> Layer | None:
    """The coordinates of a module that holds parameters; None where it holds none."""
    held = dict(module.named_parameters(recurse=False))
    if not held:
        return None
    sizes = {x.shape for x in held.values()}
    if len(sizes) == 1 and len(next(iter(sizes))) == 1 and not list(module.children()):
        each = tuple((name, 0) for name in held)
        return Layer(module, "norm", each, each)
    bias: tuple[Dimension, ...] = (("bias", 0),) if "bias" in held else ()
    if held.keys() - {"bias"} != {"weight"}:  # as a weight that is computed from others
        return Layer(module, "parameters", (), ())
    if kind_of(module) == "linear":
        rows, columns = (1, 0) if isinstance(module, TransposedLinear) else (0, 1)
        return Layer(module, "linear", (("weight", columns),), (("weight", rows), *bias))
    if isinstance(module, nn.Embedding):
        return Layer(module, "embedding", (), (("weight", 1),))
    if isinstance(module, get_args(Convolution)):
        return Layer(module, "conv", (("weight", 1),) if module.groups == 1 else (), (("weight", 0), *bias), axis=1)
    return Layer(module, "parameters", (), ())


def hidden_width(model: nn.Module, example: Batch, *, shared: bool) -> HiddenWidth:
    """Find the hidden width of a network.

    Args:
        model: The network, left as it was.
        example: A batch with texts of several tokens.
        shared: Whether the coordinates of a weight that several layers share are the same, as they must be where it
            stays shared.

    Raises:
        ValueError: There is no hidden width, or there are several.
    """
    seen = _Pass(model, example)
    sets = _Sets()
    for path, layer in seen.layers.items():
        for group in (layer.inputs, layer.outputs):
            for a, b in pairwise(seen.keys(path, group, shared)):
                sets.unite(a, b)
    sources = seen.sources()
    for path, names in sources.items():
        read = seen.keys(path, seen.layers[path].inputs, shared)[0]
        for name, outputs in names.items():
            for key in seen.keys(name, outputs, shared):  # several of a module with parameters of its own
                sets.unite(read, key)
    members = seen.members(sets, shared)
    streams = [key for key, layers in members.items() if _is_stream(seen.layers, layers)]
    streams.sort(key=lambda key: -len(members[key]))
    name = type(model).__name__
    if not streams:
        raise ValueError(f"{name} has no hidden width that its embeddings, linear layers and norms have in common")
    if len(streams) > 1 and 2 * len(members[streams[1]]) > len(members[streams[0]]):
        raise ValueError(f"{name} has several hidden widths, as of an encoder and a decoder: none of them alone is cut")
    return seen.width(members[streams[0]], sources)


def _is_stream(layers: Mapping[str, Layer], members: Mapping[str, set[Dimension]]) -> bool:
    """Whether a set of dimensions is a sum that is normalised: several linear layers write it, and several read it."""
    kinds: Counter[str] = Counter()
    for path, dimensions in members.items():
        layer = layers[path]
        kinds["norm"] += layer.kind == "norm"
        kinds["writer"] += layer.kind == "linear" and bool(dimensions & set(layer.outputs))
        kinds["reader"] += layer.kind == "linear" and bool(dimensions & set(layer.inputs))
    return kinds["norm"] > 0 and kinds["writer"] > 1 and kinds["reader"] > 1


class _Sets:
    """Sets that are united two by two."""

    def __init__(self) -> None:
        self.parents: dict[Hashable, Hashable] = {}

    def of(self, key: Hashable) -> Hashable:
        """The member that stands for the set of another."""
        while (parent := self.parents.get(key, key)) != key:
            key = parent
        return key

    def unite(self, a: Hashable, b: Hashable) -> None:
        """Make one set of the sets of two members."""
        self.parents[self.of(a)] = self.of(b)


class _Pass:
    """Inputs and outputs of all layers in one pass; the outputs are leaves, at which gradients end."""

    def __init__(self, model: nn.Module, example: Batch) -> None:
        self.layers = {path: layer for path, module in model.named_modules() if (layer := layer_of(module)) is not None}
        self.inputs: dict[str, list[Tensor]] = {}
        self.outputs: list[tuple[str, Tensor]] = []
        self.calls: Counter[str] = Counter()
        self.bare = {
            (path, name): parameter
            for path, layer in self.layers.items()
            if layer.kind == "parameters"
            for name, parameter in layer.module.named_parameters(recurse=False)
            if parameter.is_floating_point()
        }
        with evaluating(model), torch.enable_grad(), self._thawed(), ExitStack() as stack:
            for path, layer in self.layers.items():
                if layer.kind != "parameters":
                    stack.callback(layer.module.register_forward_hook(self._note(path)).remove)
            call(model, example)

    @contextmanager
    def _thawed(self) -> Iterator[None]:
        frozen = [parameter for parameter in self.bare.values() if not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def _note(self, path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
            if not isinstance(out, Tensor) or not out.is_floating_point():
                return None
            self.calls[path] += 1
            if args and isinstance(args[0], Tensor) and args[0].requires_grad:
                self.inputs.setdefault(path, []).append(args[0])
            leaf = out.detach().requires_grad_()
            self.outputs.append((path, leaf))
            return leaf.clone()  # which may be added to in place

        return hook

    def keys(self, path: str, dimensions: Sequence[Dimension], shared: bool) -> list[Hashable]:
        """Names of dimensions, by which those of a shared weight are the same where `shared` says so."""
        module = self.layers[path].module
        return [(id(getattr(module, name)) if shared else (path, name), at) for name, at in dimensions]

    def sources(self) -> dict[str, dict[str, tuple[Dimension, ...]]]:
        """Layers, and the dimensions of their outputs, on which the coordinates of an input depend, by path."""
        draw = torch.Generator().manual_seed(0)
        sources: dict[str, dict[str, tuple[Dimension, ...]]] = {}
        for path, calls in self.inputs.items():
            layer = self.layers[path]
            if not layer.inputs or layer.kind == "embedding":
                continue
            for x in calls:
                axis = layer.axis % x.dim()
                tried = torch.randperm(x.shape[axis], generator=draw)[:TRIED]
                probe = torch.rand(x.movedim(axis, -1).shape[:-1], generator=draw) + 0.5  # sums must not cancel
                probed = (x.movedim(axis, -1)[..., tried.to(x.device)].sum(-1) * probe.to(x)).sum()
                with self._thawed():
                    touched = self._touched(probed, x.shape[axis], set(tried.tolist()))
                sources.setdefault(path, {}).update(touched)
        return {path: names for path, names in sources.items() if names}

    def _touched(self, probed: Tensor, n: int, tried: set[int]) -> dict[str, tuple[Dimension, ...]]:
        leaves = [(path, None, y) for path, y in self.outputs]
        leaves += [(path, name, parameter) for (path, name), parameter in self.bare.items()]  # type: ignore[misc]
        slopes = torch.autograd.grad(probed, [y for *_, y in leaves], retain_graph=True, allow_unused=True)
        touched: dict[str, tuple[Dimension, ...]] = {}
        for (path, name, y), slope in zip(leaves, slopes, strict=True):
            layer = self.layers[path]
            axes = range(y.dim()) if name is not None else [layer.axis % y.dim()]
            for axis in axes if slope is not None else ():
                if y.shape[axis] != n:
                    continue
                at = set(slope.movedim(axis, 0).reshape(n, -1).ne(0).any(1).nonzero().flatten().tolist())
                if at and at <= tried:
                    touched[path] = layer.outputs if name is None else (*touched.get(path, ()), (name, axis))
        return touched

    def members(self, sets: _Sets, shared: bool) -> dict[Hashable, dict[str, set[Dimension]]]:
        """The dimensions of each set, by path."""
        members: dict[Hashable, dict[str, set[Dimension]]] = {}
        for path, layer in self.layers.items():
            bare = [
                (name, at)
                for (where, name), parameter in self.bare.items()
                if where == path
                for at in range(parameter.dim())
            ]
            for dimension in (*layer.inputs, *layer.outputs, *bare):
                (key,) = self.keys(path, [dimension], shared)
                members.setdefault(sets.of(key), {}).setdefault(path, set()).add(dimension)
        return members

    def width(self, members: Mapping[str, set[Dimension]], sources: Mapping[str, Mapping[str, object]]) -> HiddenWidth:
        """The hidden width whose dimensions are these."""
        writers, readers, norms = [], [], []
        for path, dimensions in members.items():
            layer = self.layers[path]
            if layer.kind == "norm":
                norms.append(path)
                continue
            if layer.kind == "parameters" or dimensions & set(layer.outputs):
                writers.append(path)
            if dimensions & set(layer.inputs):
                readers.append(path)
        path, (name, at) = next((path, next(iter(dimensions))) for path, dimensions in members.items())
        return HiddenWidth(
            getattr(self.layers[path].module, name).shape[at],
            {path: tuple(sorted(dimensions)) for path, dimensions in members.items()},
            tuple(writers), tuple(readers), tuple(norms),
            {path: frozenset(names) for path, names in sources.items() if path in members},
            tuple(path for path in self.calls if path in members and self.layers[path].kind == "linear"),
            self.calls,
            tuple(path for path in norms if all(x.dim() == 3 for x in self.inputs.get(path, ()))),
        )  # fmt: skip
