"""A student of the network's own class: fewer and narrower layers that begin as what is left of the network's own.

Layers go first, then attention heads and neurons, then hidden coordinates, and what is left is fitted by least squares
(`greenformers.solve.student`). The class builds the student from its configuration, so anything that reads models of
transformers reads it. It is to be healed: MiniLM (Wang 2020, arXiv:2002.10957), TinyBERT (Jiao 2020, arXiv:1909.10351).
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from greenformers.changes._student_sizes import Sizes
    from greenformers.solve.coupled import Coupled
    from greenformers.solve.hidden_width import HiddenWidth

START = ("pruned", "pca", "random")
SIZES = "_sizes_of_student"
"""Attribute with the sizes of a student and of the network that it comes from."""


@dataclass(frozen=True)
class Narrow(Change):
    """A student of the same class with smaller sizes, to be healed; it begins as what is left of the network."""

    hidden: int | None = option(None, "Hidden coordinates of the student; by default half of them.", "--narrow")
    layers: int | None = option(None, "Layers of the student; by default all.", "--narrow-layers")
    heads: int | None = option(
        None, "Attention heads of a layer; by default as many as leave their coordinates.", "--narrow-heads"
    )
    neurons: int | None = option(
        None, "Neurons of a feed-forward layer; by default as many for each hidden coordinate.", "--narrow-neurons"
    )
    start: str = option(
        "pruned",
        "What the student begins with: pruned (heads, neurons and coordinates that outputs depend on most), pca (the "
        "same, with the directions of hidden states with most energy in place of coordinates), random weights.",
        "--narrow-start",
    )
    layers_by: str = option("even", "How layers are chosen, as --layers-by.", "--narrow-layers-by")

    order: ClassVar[int] = 2
    reads_weights: ClassVar[bool] = True
    built_by_the_class: ClassVar[bool] = True
    builds_anew: ClassVar[bool] = True
    needs_healing: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "neurons"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} of a student must be at least 1, got {size}")
        if self.start not in START:
            raise ValueError(f"start of a student must be of {', '.join(START)}; got {self.start!r}")
        if self.layers_by != "even" and self.layers is None:
            raise ValueError(f"layers_by chooses among layers: give their number too, or leave {self.layers_by} out")
        self._layers(1)

    def _layers(self, keep: int) -> Any:
        from greenformers.changes.layers import Layers

        return Layers(keep, self.layers_by)

    @property
    def label(self) -> str:
        """Its sizes, as in "3 layers of 192" or "a student of half the width"."""
        width = "half the width" if self.hidden is None else f"{self.hidden}"
        count = f"{self.layers} layer{'' if self.layers == 1 else 's'}"
        sizes = f"a student of {width}" if self.layers is None else f"{count} of {width}"
        return sizes if self.start == "pruned" else f"{sizes}, {self.start}"

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to calibrate with."""
        return frozenset({"calibration"})

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that the network has such units and coordinates, and that its class builds these sizes."""
        from transformers import PreTrainedModel

        from greenformers.data._pooling import pooling_of

        super().check(model, before, given)
        if not isinstance(model, PreTrainedModel):
            raise ValueError(
                f"{type(model).__name__} is not a model of transformers, whose configuration the sizes belong to"
            )
        _, sizes, _ = self._student(model, given, trial=True)
        if sizes.hidden[0] != sizes.hidden[1] and any(hasattr(layer, "weight") for layer in pooling_of(model).layers):
            raise ValueError("the modules behind the transformer take vectors of its hidden size: keep hidden as it is")

    def _student(
        self, model: "PreTrainedModel", given: Given, *, trial: bool = False
    ) -> "tuple[PreTrainedModel, Sizes, str]":
        """The student, its sizes, and what it holds in words; as a trial without values, of any units."""
        import copy

        import torch

        from greenformers.changes import _class_sizes as classes
        from greenformers.changes._student_sizes import sizes_of, units_of
        from greenformers.solve.deletion import delete
        from greenformers.solve.head_dim import narrow_heads
        from greenformers.solve.hidden_width import hidden_width
        from greenformers.solve.narrow import Exchange
        from greenformers.solve.student import cut_elsewhere, fit, turn
        from greenformers.solve.watch import telling

        batches: Any = given.calibration
        small: Any = copy.deepcopy(model)
        left = self._fewer_layers(small, given, trial)
        width = hidden_width(small, batches[0], shared=True)
        units = units_of(small, telling(batches))
        sizes = sizes_of(small, width, units, left, hidden=self.hidden, heads=self.heads, neurons=self.neurons)
        drawn = trial or self.start == "random"
        attention = self._fewer_units(small, units, sizes, given, drawn)
        if left is None and all(now == had for had, now in (sizes.hidden, sizes.heads, sizes.neurons)):
            raise ValueError(f"a student must be smaller than {type(model).__name__}, in one of its sizes at least")
        config = classes.sized(small.config, hidden=sizes.hidden, heads=sizes.heads, neurons=sizes.neurons)
        dense = small if drawn else copy.deepcopy(small)
        outputs: dict[str, Tensor] = {}
        for layer in attention if sizes.head_dim[0] != sizes.head_dim[1] else ():
            outputs |= narrow_heads(small, layer, *sizes.head_dim)
        U, said = self._basis(dense, width, sizes.hidden[1], given, drawn)
        exchange, skeleton = Exchange(small), classes.built(model, config, 0, torch.device("meta"))
        U = U.to(next(small.parameters()).device)
        if self.start == "pca" and not drawn:
            turn(exchange, width, U)
        else:
            delete(exchange, width, U.argmax(0))
        shapes = {name: x.shape for name, x in skeleton.state_dict().items()}
        outputs |= cut_elsewhere(exchange, *sizes.hidden, shapes)
        values = small.state_dict()
        classes.check_shapes(skeleton, values)
        student = small if trial else classes.built(model, config, given.seed)
        for name in classes.KEPT:
            if name in vars(small):
                vars(student)[name] = vars(small)[name]
        if not drawn:
            student.load_state_dict(values)
            head: Any = student.get_output_embeddings()  # as many outputs as words: too many to hold for all examples
            fit(
                student, dense, width, U, batches, outputs=outputs, skip=[] if head is None else [head],
                memory=given.memory, progress=lambda share: given.progress("fitting", share),
            )  # fmt: skip
        return student, sizes, said

    def _fewer_layers(self, small: "nn.Module", given: Given, trial: bool) -> dict[str, list[int]] | None:
        from greenformers.changes._stacks import stacks
        from greenformers.changes.layers import LEFT, Layers

        if self.layers is None or all(len(stack) == self.layers for stack in stacks(small).values()):
            return None
        vars(small).pop(LEFT, None)
        (Layers(self.layers) if trial else self._layers(self.layers)).apply(small, given)
        left: dict[str, list[int]] = vars(small)[LEFT]
        return left

    def _fewer_units(
        self, small: "nn.Module", units: "dict[str, list[Coupled]]", sizes: "Sizes", given: Given, drawn: bool
    ) -> "list[Coupled]":
        """Take heads and neurons out of a network. The attention layers, with what is left of them."""
        import torch

        from greenformers.changes._removal import choice_of, fitted, in_order, removed
        from greenformers.solve.coupled import among
        from greenformers.solve.refit import moments
        from greenformers.solve.seen import Seen
        from greenformers.solve.watch import telling

        batches: Any = given.calibration
        counts = {
            layer.second: layer.count * now // before
            for kind, (before, now) in (("heads", sizes.heads), ("neurons", sizes.neurons))
            for layer in units[kind]
            if now < before
        }
        fewer = [layer for kind in units.values() for layer in kind if layer.second in counts]
        if not fewer:
            return units["heads"]
        layers, left = in_order(small, fewer, telling(batches)), {}
        choice = None if drawn else choice_of("fit", small, layers, given)
        seen = None if drawn else Seen(small, batches, given.memory)
        for layer in layers:
            if choice is None or seen is None:
                left[layer.second] = torch.arange(counts[layer.second])
            else:
                choice.see(layer, small.get_submodule(layer.second), moments(seen, layer.second, layer.calls))
                left[layer.second] = choice.left(layer, counts[layer.second])
        with (
            nullcontext() if drawn else fitted(small, layers, left, given),
            removed(small, layers, left, telling(batches)) as stay,
        ):
            stay()
        return [among(layer, left[layer.second]) if layer.second in left else layer for layer in units["heads"]]

    def _basis(
        self, dense: "nn.Module", width: "HiddenWidth", narrow: int, given: Given, drawn: bool
    ) -> "tuple[Tensor, str]":
        """Columns (d, d') of the student's coordinates, and what is left in them in words."""
        import torch

        from greenformers.solve.deletion import information
        from greenformers.solve.loss import default
        from greenformers.solve.rotation import unit_columns
        from greenformers.solve.student import principal_states

        batches: Any = given.calibration
        if drawn or narrow == width.size:
            said = "random weights" if self.start == "random" else "all hidden coordinates"
            return unit_columns(torch.arange(narrow), width.size), said

        def weighing(share: float) -> None:
            given.progress("weighing", share)

        if self.start == "pca":
            U, share = principal_states(dense, width, batches, narrow, weighing)
            return U, f"{share:.1%} of the energy of hidden states"
        felt = information(dense, width, batches, given.loss or default(dense, batches, given.seed), weighing)
        left = felt.argsort(descending=True)[:narrow].sort().values
        return unit_columns(left, width.size), f"{felt[left].sum() / felt.sum():.1%} of the Fisher information"

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Make the network its student.

        Raises:
            ValueError: It has no such units or coordinates, or its class does not build these sizes.
        """
        from greenformers.changes._class_sizes import become
        from greenformers.changes._options import as_dict
        from greenformers.changes.layers import LEFT
        from greenformers.measure.flops import flops
        from greenformers.solve.unchanged import outputs

        network: Any = model
        batches: Any = given.calibration
        example = given.example if given.example is not None else batches[0]
        work = [flops(lambda: outputs(model, example)) / 2]
        before = _bytes_by_path(model)
        student, sizes, said = self._student(network, given)
        become(network, student, sizes.layers or {})
        work.append(flops(lambda: outputs(model, example)) / 2)
        if sizes.layers is not None and hasattr(model, LEFT):
            earlier = vars(model)[LEFT]
            left = {
                path: [earlier[path][place] for place in places] if path in earlier else places
                for path, places in sizes.layers.items()
            }
            setattr(model, LEFT, earlier | left)
        setattr(model, SIZES, asdict(sizes))
        now = _bytes_by_path(model)
        units = [UnitReport(path, *_left(path, size, now, sizes)) for path, size in before.items()]
        counted = [
            f"{pair[1]:,} of {pair[0]:,} {kind}"
            for kind, pair in (("hidden coordinates", sizes.hidden), ("heads", sizes.heads), ("neurons", sizes.neurons))
        ]
        if sizes.layers is not None:
            counted.insert(0, "; ".join(f"layers {', '.join(map(str, at))}" for at in sizes.layers.values()))
        summary = f"{', '.join(counted)} are left, with {said}; {work[0]:,.0f} -> {work[1]:,.0f} multiply-adds"
        return Report(as_dict(self), summary, units)

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Narrow]":
        """Three quarters of the hidden coordinates, and half of them."""
        from greenformers.changes._student_sizes import MULTIPLE

        width = _width(model)
        sizes = [round(share * width / MULTIPLE) * MULTIPLE for share in (0.75, 0.5)]
        return [cls(size) for size in dict.fromkeys(sizes) if 0 < size < width]

    def products_left(self, model: "nn.Module") -> float:
        """The square of the share of the width: inputs and outputs of each product are as many times fewer."""
        width = _width(model)
        return (self.hidden / width) ** 2 if width and self.hidden else 1.0

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The sizes of the student, and of the network that it comes from."""
        return getattr(model, SIZES, None)

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Record the sizes; the network is of these by its configuration."""
        from greenformers.changes._student_sizes import checked

        setattr(model, SIZES, checked(description))
        return []


def _width(model: "nn.Module") -> int:
    """The hidden size by the configuration; 0 where it has none."""
    from greenformers.changes._class_sizes import HIDDEN

    config = getattr(model, "config", None)
    return next((size for name in HIDDEN if type(size := getattr(config, name, None)) is int), 0)


def _bytes_by_path(model: "nn.Module") -> dict[str, int]:
    return {
        path: size
        for path, module in model.named_modules()
        if (size := sum(x.numel() * x.element_size() for x in module.parameters(recurse=False)))
    }


def _left(path: str, size: int, now: dict[str, int], sizes: "Sizes") -> tuple[str, int, int]:
    """The form of a module of the network before, and its bytes before and now."""
    for stack, places in (sizes.layers or {}).items():
        if path.startswith(f"{stack}."):
            place, _, rest = path.removeprefix(f"{stack}.").partition(".")
            if int(place) not in places:
                return "dropped", size, 0
            path = f"{stack}.{places.index(int(place))}" + (f".{rest}" if rest else "")
    return f"hidden {sizes.hidden[1]}", size, now[path]
