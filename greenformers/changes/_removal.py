"""What changes share that remove coupled units, as heads and neurons, without training.

Kwon 2022, arXiv:2204.09656; ZipLM, Kurtic 2023, arXiv:2302.04089.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from greenformers.lowrank.rank import Point
    from greenformers.solve.coupled import Coupled
    from greenformers.solve.unit_choice import Choice
    from greenformers.solve.unit_cost import UnitCost

BY = ("fit", "fisher")

NARROWED = "_{}_left"
"""Attribute of the innermost module around a layer that has lost units of a kind."""


@dataclass(frozen=True)
class Removal(Change):
    """Fewer units, those first that outputs depend on least; the others make up for them."""

    keep: float = 0.5
    by: str = option(
        "fit",
        "Which units of a layer go: fit (those without which least is lost after the fit), or fisher (those whose "
        "gates are felt least, rearranged so that effects cancel).",
    )
    refit: bool = option(True, "Fit what reads the units to the outputs of the whole network, by least squares.")

    reads_weights: ClassVar[bool] = True
    reads_dense: ClassVar[bool] = True
    by_block: ClassVar[bool] = True
    removes: ClassVar[Sequence[str]] = ()
    """Kinds of units: "heads", "neurons"."""

    multiple = 8
    of = "units"

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1:
            raise ValueError(f"{self.name()} to keep must be a share in (0, 1), got {self.keep}")
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, got {self.multiple}")
        if self.by not in BY:
            raise ValueError(f"{self.name()} by must be of {', '.join(BY)}; got {self.by!r}")
        if self.by == "fit" and not self.refit:
            raise ValueError(f'{self.name()} without refit must be by "fisher"; got by "fit"')

    @property
    def label(self) -> str:
        """The share, as in "neurons 0.5"."""
        return f"{self.name()} {self.keep:g}"

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to calibrate with."""
        return frozenset({"calibration"})

    @property
    def uses(self) -> frozenset[Need]:
        """The needs, and a batch to measure costs on, where the budget is of what depends on it."""
        return self.needs | ({"example"} if self.of != "parameters" else frozenset())

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that there are such layers, and enough units in them, and that nothing else reads these."""
        super().check(model, before, given)
        import torch

        from greenformers.solve.choose_units import check_budget
        from greenformers.solve.unit_cost import cost_of
        from greenformers.solve.watch import telling

        assert given.calibration is not None
        batch = telling(given.calibration)
        layers = self._layers(model, batch)
        if self.of != "latency":
            example = batch if given.example is None else given.example
            check_budget(layers, self.keep, cost_of(model, layers, self.of, example), self.multiple)
        all_but_one = {layer.second: torch.arange(layer.count - 1) for layer in layers}
        with removed(model, layers, all_but_one, batch):
            pass

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change, which then keeps its share of every block, by what the block's own outputs lose.

        Raises:
            ValueError: Seconds are to be measured.
        """
        if self.of == "latency":
            raise ValueError("block by block, from disk, nothing is measured: a budget of latency is not available")
        return self

    def around_blocks(self, part: "nn.Module") -> Self | None:
        """None: there are no such units before and behind the blocks."""
        return None

    @property
    def squares(self) -> int:
        """The curvature of the layers that read units, and its inverse."""
        return 8

    def _layers(self, model: "nn.Module", batch: Any) -> "list[Coupled]":
        from greenformers.solve.feed_forward import feed_forwards
        from greenformers.solve.heads import heads

        finders = {"heads": heads, "neurons": feed_forwards}
        return [layer for kind in self.removes for layer in finders[kind](model, batch)]

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Take units out of the network's layers.

        Raises:
            ValueError: The network has no such layers, its units are read elsewhere too, or there are too few.
        """
        from greenformers.lowrank.rank import spend

        layers, _, choice, points = self._measured(model, given)
        spent = spend(points, self.keep * sum(row[-1].cost for row in points))
        counts = {layer.second: point.choice for layer, point in zip(layers, spent, strict=True)}
        with self._without(model, layers, counts, choice, given) as (report, stay):
            stay()
        return report

    def _measured(
        self, model: "nn.Module", given: Given
    ) -> "tuple[list[Coupled], UnitCost, Choice, list[list[Point[int]]]]":
        """The layers, what they cost, which of their units stay, and what they lose with fewer of them."""
        from greenformers.solve.watch import telling

        batches: Any = given.calibration
        batch = telling(batches)
        layers = in_order(model, self._layers(model, batch), batch)
        key = (self.name(), self.by, self.refit, self.of, self.multiple)
        return layers, *given.once(key, lambda: self._curves(model, layers, given))

    def _curves(
        self, model: "nn.Module", layers: "list[Coupled]", given: Given
    ) -> "tuple[UnitCost, Choice, list[list[Point[int]]]]":
        from greenformers.solve.unit_cost import cost_of
        from greenformers.solve.unit_curves import curves

        batches: Any = given.calibration
        cost = cost_of(model, layers, self.of, given.example if given.example is not None else batches[0])
        choice = choice_of(self.by, model, layers, given)
        points = curves(
            model, layers, choice, batches, cost, multiple=self.multiple, refit=self.refit, loss=given.loss,
            memory=given.memory, progress=lambda share: given.progress("measuring", share),
        )  # fmt: skip
        return cost, choice, points

    @contextmanager
    def _without(
        self,
        model: "nn.Module",
        layers: "Sequence[Coupled]",
        counts: Mapping[str, int],
        choice: "Choice",
        given: Given,
    ) -> "Iterator[tuple[Report, Callable[[], None]]]":
        """A `with` block in which a network has these numbers of units, and for good if the given function is called.

        Raises:
            ValueError: Its units are read elsewhere too.
        """
        from greenformers.changes._options import as_dict
        from greenformers.solve.watch import telling

        batches: Any = given.calibration
        left = {layer.second: choice.left(layer, counts[layer.second]) for layer in layers}
        layers = [layer for layer in layers if len(left[layer.second]) < layer.count]
        before = {path: model.get_submodule(path) for layer in layers for path in layer.paths}
        with (
            fitted(model, layers, left, given) if self.refit else nullcontext(),
            removed(model, layers, left, telling(batches)) as stay,
        ):
            units = []
            for layer in layers:
                path, count = layer.second, len(left[layer.second])
                was, now = (
                    sum(_bytes(by_path(each)) for each in layer.paths) for by_path in (before.get, model.get_submodule)
                )
                lost = choice.lost(layer)
                share = (lost[count] / lost[0].clamp_min(1e-300)).item()
                units.append(UnitReport(path, f"{count} of {layer.count} {layer.kind}", was, now, predicted=share))
            yield Report(as_dict(self), _summary(self.removes, layers, left), units), stay

    @classmethod
    def described_by(cls) -> Sequence[str]:
        """The kinds of units that it removes are changes of their own."""
        return cls.removes

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Sizes of the layers that make units, and of the one that reads them, by the path of the latter."""
        (kind,) = cls.removes
        description: dict[str, Any] = {}
        for path, module in model.named_modules():
            stem = f"{path}." if path else ""
            for second, there in getattr(module, NARROWED.format(kind), {}).items():
                first = {stem + name: size for name, size in there["first"].items()}
                description[stem + second] = {**there, "first": first}
        return description or None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty, narrower linear layers at the paths of a description."""
        from greenformers.changes._paths import located
        from greenformers.solve.coupled import common, empty
        from greenformers.solve.units import put
        from greenformers.solve.walk import kind_of

        (kind,) = cls.removes
        _check_description(kind, description)
        paths = [*description, *(name for there in description.values() for name in there["first"])]
        at = located(model, paths)
        for path, there in description.items():
            if not all(name in at for name in (path, *there["first"])):
                continue
            first, second = {at[name]: size for name, size in there["first"].items()}, at[path]
            for where in (*first, second):
                if kind_of(model.get_submodule(where)) != "linear":
                    raise ValueError(f"{where} is no linear layer: it has no {kind} to remove")
            for where, rows in first.items():
                put(model, where, empty(model.get_submodule(where), rows=rows))
            put(model, second, empty(model.get_submodule(second), columns=there["second"]))
            around = model.get_submodule(common(list(first)))
            for name, size in there["sizes"].items():
                if type(vars(around).get(name)) is not int:
                    raise ValueError(f"{type(around).__name__} has no number {name} of the {kind} of {path}")
                setattr(around, name, size)
            _mark(model, kind, first, second, there["second"], there["sizes"])
        return [path for path in paths if path not in at]

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the narrower layers."""
        for path, there in (cls.describe(model) or {}).items():
            yield from (path, *there["first"])


def choice_of(by: str, model: "nn.Module", layers: "Sequence[Coupled]", given: Given) -> "Choice":
    """Which units of layers stay, of any number: by "fit" or "fisher"."""
    from greenformers.solve.gates import gate_gradients
    from greenformers.solve.loss import default
    from greenformers.solve.unit_choice import ByFisher, ByFit, curvatures

    def progress(share: float) -> None:
        given.progress("weighing", share)

    batches: Any = given.calibration
    loss = given.loss or default(model, batches, given.seed)
    paths = [layer.second for layer in layers]
    if by == "fit":
        return ByFit(curvatures(model, paths, batches, loss, memory=given.memory, progress=progress))
    at_inputs = gate_gradients(model, paths, batches, loss, progress)
    return ByFisher({layer.second: layer.of_units(at_inputs.pop(layer.second)) for layer in layers})


def in_order(model: "nn.Module", layers: "Sequence[Coupled]", batch: Any) -> "list[Coupled]":
    """The layers in the order of execution."""
    from greenformers.solve.walk import sites
    from greenformers.solve.watch import trace

    seconds = [layer.second for layer in layers]
    order = list(trace(model, [site for site in sites(model, "linear") if site.path in seconds], batch).shapes)
    return sorted(layers, key=lambda layer: order.index(layer.second))


@contextmanager
def fitted(
    model: "nn.Module", layers: "Sequence[Coupled]", left: "Mapping[str, Tensor]", given: Given
) -> "Iterator[None]":
    """A `with` block before which what is left makes up for what goes; if it raises, weights are as they were."""
    from greenformers.solve.refit import fit, moments
    from greenformers.solve.seen import Seen
    from greenformers.solve.units import restored_by_errors

    seen = Seen(model, given.calibration or (), given.memory)
    with restored_by_errors([model.get_submodule(layer.second) for layer in layers]):
        for number, layer in enumerate(layers):
            columns = layer.columns[left[layer.second]].flatten().sort().values
            fit(model.get_submodule(layer.second), columns, moments(seen, layer.second, layer.calls))
            given.progress("fitting", (number + 1) / len(layers))
        yield


@contextmanager
def removed(
    model: "nn.Module", layers: "Sequence[Coupled]", left: "Mapping[str, Tensor]", batch: Any
) -> "Iterator[Callable[[], None]]":
    """A `with` block in which the other units are gone; at its end they are back, unless the given function is called.

    Raises:
        ValueError: Without them the network does not compute what it does with these at 0.
    """
    from greenformers.solve.coupled import check_removed, remove, silenced
    from greenformers.solve.units import put

    expected = silenced(model, layers, left, batch)
    before = {path: model.get_submodule(path) for layer in layers for path in layer.paths}
    around = {layer.around: model.get_submodule(layer.around) for layer in layers}
    attributes = {path: {k: v for k, v in vars(module).items() if type(v) is int} for path, module in around.items()}
    sizes: dict[str, dict[str, int]] = {}
    confirmations = []
    try:
        for layer in layers:
            sizes[layer.second] = remove(model, layer, left[layer.second])
        check_removed(model, " and ".join(dict.fromkeys(layer.kind for layer in layers)), expected, batch)
        yield lambda: confirmations.append(True)
    finally:
        if not confirmations:
            for path, module in before.items():
                put(model, path, module)
            for path, module in around.items():
                vars(module).update(attributes[path])
    for layer in layers if confirmations else ():
        first = {path: len(left[layer.second]) * rows.shape[1] for path, rows in layer.first.items()}
        width = len(left[layer.second]) * layer.columns.shape[1]
        _mark(model, layer.kind, first, layer.second, width, sizes[layer.second])
        _realign(model, layer.second, left[layer.second].tolist())


def _realign(model: Any, second: str, heads: list[int]) -> None:
    """Number anew the heads that tell the times of words, where those of a layer that is one of them are fewer."""
    from greenformers.changes._stacks import realign

    parts = second.split(".")
    if "decoder" in parts and "encoder_attn" in parts:
        number = int(parts[parts.index("layers") + 1])

        def now(layer: int, head: int) -> tuple[int, int] | None:
            if layer != number:
                return layer, head
            return (layer, heads.index(head)) if head in heads else None

        realign(model, now)


def _mark(
    model: "nn.Module", kind: str, first: Mapping[str, int], second: str, columns: int, sizes: Mapping[str, int]
) -> None:
    """Note at the innermost module around a layer how much of it is left."""
    from greenformers.solve.coupled import common

    path = common([*first, second])
    stem = len(path) + 1 if path else 0
    around: Any = model.get_submodule(path)
    entry = {"first": {name[stem:]: size for name, size in first.items()}, "second": columns, "sizes": dict(sizes)}
    name = NARROWED.format(kind)
    setattr(around, name, {**getattr(around, name, {}), second[stem:]: entry})


def _check_description(kind: str, description: Any) -> None:
    from greenformers.changes._paths import check_keys
    from greenformers.model._transformers import HEAD_SIZES

    def numbers(about: str, given: Any) -> None:
        if not isinstance(given, dict) or not all(
            isinstance(name, str) and type(size) is int and size > 0 for name, size in given.items()
        ):
            raise ValueError(f"{about} must be whole numbers from 1 on, by name; got {given!r}")

    if not isinstance(description, dict) or not description:
        raise ValueError(f"the description of {kind} must be layers by path")
    for path, there in description.items():
        check_keys(f"the {kind} of {path}", there, ("first", "second", "sizes"))
        numbers(f"the first layers of {path}", there["first"])
        numbers(f"the inputs of {path}", {path: there["second"]})
        numbers(f"the sizes around {path}", there["sizes"])
        if not there["first"] or not set(there["sizes"]) <= set(HEAD_SIZES):
            raise ValueError(f"the {kind} of {path} need first layers, and sizes of {', '.join(HEAD_SIZES)}")


def _summary(kinds: Sequence[str], layers: "Sequence[Coupled]", left: "Mapping[str, Tensor]") -> str:
    said = []
    for kind in kinds:
        mine = [layer for layer in layers if layer.kind == kind]
        now, was = sum(len(left[layer.second]) for layer in mine), sum(layer.count for layer in mine)
        said.append(f"{now:,} of {was:,} {kind} are left in {len(mine)} layers" if mine else f"all {kind} are left")
    return "; ".join(said)


def _bytes(module: Any) -> int:
    return sum(x.numel() * x.element_size() for x in module.parameters())
