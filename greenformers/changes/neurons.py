"""Fewer neurons in feed-forward layers, without training. Kwon 2022, arXiv:2204.09656.

Layers are found by what they compute, see `greenformers.solve.feed_forward`, and made narrower by
`greenformers.solve.neurons`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, Need, Report, UnitReport, option

if TYPE_CHECKING:
    from torch import nn

    from greenformers.solve.feed_forward import FeedForward

NARROWED = "_neurons_left"
"""Attribute of the innermost module around a feed-forward layer that has lost neurons."""

EXACT = 1e-3
"""Largest difference of outputs, relative to the largest, between neurons that are gone and neurons that are 0."""


@dataclass(frozen=True)
class Neurons(Change):
    """Fewer neurons in feed-forward layers, those first that outputs depend on least; the others make up for them."""

    keep: float = option(0.5, "Share of the neurons of feed-forward layers to keep, in (0, 1).", "--neurons")
    rearrange: bool = option(True, "Choose the neurons of a layer by how their effects cancel, too.")
    refit: bool = option(True, "Fit what reads the neurons to the outputs of the whole network, by least squares.")
    multiple: int = option(8, "Numbers of neurons are multiples of this number.")

    order: ClassVar[int] = 25
    reads_weights: ClassVar[bool] = True
    reads_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1:
            raise ValueError(f"neurons to keep must be a share in (0, 1), got {self.keep}")
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, got {self.multiple}")

    @property
    def label(self) -> str:
        """The share, as in "neurons 0.5"."""
        return f"neurons {self.keep:g}"

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to calibrate with."""
        return frozenset({"calibration"})

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that there are feed-forward layers, of enough neurons."""
        import torch

        from greenformers.solve.feed_forward import feed_forwards
        from greenformers.solve.neurons import counts

        super().check(model, before, given)
        assert given.calibration is not None
        layers = feed_forwards(model, given.calibration[0])
        counts({layer.second: torch.zeros(layer.width) for layer in layers}, self.keep, self.multiple)

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Take neurons out of the network's feed-forward layers.

        Raises:
            ValueError: The network has no such layers, its neurons are read elsewhere too, or there are too few.
        """
        import copy

        from greenformers.changes._options import as_dict
        from greenformers.solve import neurons
        from greenformers.solve.feed_forward import feed_forwards
        from greenformers.solve.gates import gate_gradients
        from greenformers.solve.loss import default
        from greenformers.solve.units import put

        batches: Any = given.calibration
        layers = feed_forwards(model, batches[0])
        loss = given.loss or default(model, batches[0], given.seed)
        gradients = gate_gradients(
            model, [layer.second for layer in layers], batches, loss, lambda share: given.progress("weighing", share)
        )
        fisher = {path: g.square().mean(0) for path, g in gradients.items()}
        remaining = {}
        for path, count in neurons.counts(fisher, self.keep, self.multiple).items():
            g = gradients[path]
            by_itself = fisher[path].argsort(descending=True)[:count].sort().values
            remaining[path] = neurons.chosen(g, count) if self.rearrange else by_itself
        layers = [layer for layer in layers if len(remaining[layer.second]) < layer.width]
        paths = [path for layer in layers for path in (*layer.first, layer.second)]
        before = {path: model.get_submodule(path) for path in paths}
        dense = copy.deepcopy(model) if self.refit else None
        expected = _masked(model, layers, remaining, batches[0])
        try:
            for layer in layers:
                neurons.narrow(model, layer, remaining[layer.second].to(before[layer.second].weight.device))  # type: ignore[arg-type]
            _check_same(model, expected, batches[0])
            if dense is not None:
                outputs = neurons.Outputs(model, dense, batches)
                for number, layer in enumerate(layers):
                    outputs.fit(layer.second, layer.calls)
                    given.progress("fitting", (number + 1) / len(layers))
        except BaseException:
            for path, module in before.items():
                put(model, path, module)
            raise
        after, units = {path: model.get_submodule(path) for path in paths}, []
        for layer in layers:
            width, information = len(remaining[layer.second]), fisher[layer.second]
            _mark(model, layer, width)
            was, left = (
                sum(_bytes(by_path[path]) for path in (*layer.first, layer.second)) for by_path in (before, after)
            )
            lost = 1 - (information[remaining[layer.second]].sum() / information.sum()).item()
            units.append(UnitReport(layer.second, f"{width} of {layer.width} neurons", was, left, predicted=lost))
        total = sum(layer.width for layer in layers), sum(len(remaining[layer.second]) for layer in layers)
        summary = f"{total[1]:,} of {total[0]:,} neurons are left in {len(layers)} feed-forward layers"
        return Report(as_dict(self), summary, units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Numbers of neurons, and the layers that make them, by the path of the layer that reads them."""
        description = {}
        for path, module in model.named_modules():
            for first, second, width in getattr(module, NARROWED, ()):
                stem = f"{path}." if path else ""
                description[stem + second] = {"first": [stem + name for name in first], "neurons": width}
        return description or None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty, narrower linear layers at the paths of a description."""
        from greenformers.changes._paths import check_keys, check_paths, located
        from greenformers.solve.feed_forward import FeedForward
        from greenformers.solve.neurons import empty
        from greenformers.solve.units import put
        from greenformers.solve.walk import kind_of

        if not isinstance(description, dict) or not description:
            raise ValueError("the description of neurons must be layers by path")
        for path, there in description.items():
            check_keys(f"the neurons of {path}", there, ("first", "neurons"))
            check_paths(f"the first layers of {path}", there["first"])
            if type(there["neurons"]) is not int or there["neurons"] < 1:
                raise ValueError(f"the neurons of {path} must be a whole number from 1 on, got {there['neurons']!r}")
        paths = [*description, *(name for there in description.values() for name in there["first"])]
        at = located(model, paths)
        for path, there in description.items():
            if not all(name in at for name in (path, *there["first"])):
                continue
            first, second = tuple(at[name] for name in there["first"]), at[path]
            for where in (*first, second):
                if kind_of(model.get_submodule(where)) != "linear":
                    raise ValueError(f"{where} is no linear layer: it has no neurons to remove")
            for where in first:
                put(model, where, empty(model.get_submodule(where), rows=there["neurons"]))
            put(model, second, empty(model.get_submodule(second), columns=there["neurons"]))
            _mark(model, FeedForward(first, second, there["neurons"], 1), there["neurons"])
        return [path for path in paths if path not in at]

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the narrower layers."""
        for path, there in (cls.describe(model) or {}).items():
            yield from (path, *there["first"])

    @classmethod
    def suggested(cls, *, length: int, causal: bool) -> Sequence[Self]:
        """No settings yet."""
        return []


def _masked(model: "nn.Module", layers: "Sequence[FeedForward]", remaining: Any, batch: Any) -> Any:
    """The output of a batch where all other neurons are 0."""
    import torch

    from greenformers.data._pooling import pooling_of
    from greenformers.measure.quality import evaluating
    from greenformers.solve.loss import output
    from greenformers.solve.watch import call

    handles = []
    for layer in layers:
        mask = torch.zeros(layer.width)
        mask[remaining[layer.second]] = 1

        def silence(_: Any, args: Any, mask: Any = mask) -> Any:
            return (args[0] * mask.to(args[0]), *args[1:])

        handles.append(model.get_submodule(layer.second).register_forward_pre_hook(silence))
    try:
        with evaluating(model), torch.no_grad():
            return output(call(model, batch), batch, pooling_of(model))
    finally:
        for handle in handles:
            handle.remove()


def _check_same(model: "nn.Module", expected: Any, batch: Any) -> None:
    try:
        got = _masked(model, [], {}, batch)
    except RuntimeError as error:
        raise ValueError(f"{type(model).__name__} reads its neurons elsewhere too: {error}") from error
    if not (got - expected).abs().max() <= EXACT * expected.abs().max():
        raise ValueError(f"{type(model).__name__} reads its neurons elsewhere too: none can be removed")


def _mark(model: "nn.Module", layer: "FeedForward", width: int) -> None:
    """Note at the innermost module around a layer how many neurons it has left."""
    paths = [path.split(".") for path in (*layer.first, layer.second)]
    depth = next(at for at in range(len(paths[0])) if len({tuple(path[: at + 1]) for path in paths}) > 1)
    around: Any = model.get_submodule(".".join(paths[0][:depth]))
    names = [".".join(path[depth:]) for path in paths]
    others = [given for given in getattr(around, NARROWED, []) if given[1] != names[-1]]
    setattr(around, NARROWED, [*others, (names[:-1], names[-1], width)])


def _bytes(module: Any) -> int:
    return sum(x.numel() * x.element_size() for x in module.parameters())
