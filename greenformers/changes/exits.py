"""Early exits: an encoder or classifier stops computing a text once an exit after one of its layers is sure of it.

Exits learn by distillation what the whole network says (DeeBERT, Xin 2020, arXiv:2004.12993; PABEE, Zhou 2020,
arXiv:2006.04152; CALM, Schuster 2022, arXiv:2207.07061). How sure they must be is chosen on texts that they have not
learnt from, so that no more is lost than is allowed. See `greenformers.changes._exit_modules` for the formulas.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import nn

    from greenformers.changes._exit_training import Outcomes
    from greenformers.changes._exits import EarlyExits
    from greenformers.train.schedule import Schedule


@dataclass(frozen=True)
class Exits(Change):
    """Early exits: texts of which an exit is sure skip the layers after it."""

    steps: int = option(300, "Training steps of the exits, with linear warm-up and a cosine decay to 0.", "--exits")
    batch_size: int = option(64, "Texts in each step.", "--exits-batch")
    learning_rate: float = option(1e-3, "Highest learning rate.", "--exits-rate")
    after: tuple[int, ...] | None = option(
        None, "Numbers of the layers, from 0, that exits stand after; by default all but the last.", "--exits-after"
    )
    lose: float = option(
        0.01,
        "What may be lost on average, in (0, 1): the share of texts that are given another class than by the whole "
        "network, or the distance 1 - cosine from its own embedding.",
        "--exits-lose",
    )
    by: str | None = option(
        None,
        "What an exit must be sure by. Classifiers: confidence (the default) or entropy; encoders: error (the distance "
        "that the exit foretells, the default) or saturation (the cosine to the exit before).",
        "--exits-by",
    )
    patience: int = option(1, "Exits in a row that must be as sure, and tell one class.", "--exits-patience")
    joint: bool = option(
        False, "Train the layers too; by default they stay as they are, and so does the whole network.", "--exits-joint"
    )

    order: ClassVar[int] = 95
    by_input: ClassVar[bool] = True

    def __post_init__(self) -> None:
        from greenformers.changes._exit_modules import OF_CLASSIFIERS, OF_ENCODERS

        for name in ("steps", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be above 0 and finite, got {self.learning_rate}")
        if self.after is not None and (not self.after or sorted(set(self.after)) != list(self.after)):
            raise ValueError(f"after must be ascending numbers of layers, got {', '.join(map(str, self.after))}")
        if not 0 < self.lose < 1:
            raise ValueError(f"lose must be a share in (0, 1), got {self.lose}")
        if self.by not in (None, *OF_CLASSIFIERS, *OF_ENCODERS):
            raise ValueError(f"by must be of {', '.join((*OF_CLASSIFIERS, *OF_ENCODERS))}; got {self.by!r}")

    @property
    def label(self) -> str:
        """What may be lost, as in "exits 1 %"."""
        return f"exits {100 * self.lose:g} %"

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to learn from; some of them choose the threshold."""
        return frozenset({"training"})

    def check(self, model: "nn.Module", before: "Sequence[type[Change]]", given: Given) -> None:
        """Check also that the network is an encoder or a classifier of texts, with a stack of layers that can stop.

        Raises:
            ValueError: It is not, texts of a batch cannot leave it one by one, or there are too few texts to show that
                no more is lost than is allowed.
        """
        from greenformers.changes._exit_check import check_examples, fitting, tried
        from greenformers.train.processes import alone

        super().check(model, before, given)
        if not alone():
            raise ValueError("exits are trained by one process: start the command without torchrun")
        frozen = next((kind for kind in before if kind.freezes), None)
        if self.joint and frozen is not None:
            raise ValueError(f"joint trains layers, and {frozen.name()} leaves rounded weights: leave it out")
        fit = fitting(model, self.after, self.by)
        network: Any = model
        rows = given.training
        assert rows is not None
        check_examples(rows, self.lose, self.schedule(given.seed))
        tried(network, fit, rows)

    def schedule(self, seed: int) -> "Schedule":
        """The schedule of training."""
        from greenformers.train.schedule import Schedule

        every = max(1, self.steps // 10)
        return Schedule(
            steps=self.steps, batch_size=self.batch_size, learning_rate=self.learning_rate, seed=seed,
            evaluate_every=every, log_every=every, save_every=self.steps,
        )  # fmt: skip

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Put exits into the network, train them, and choose the threshold; nothing is changed if this raises.

        Raises:
            ValueError: The network has no such exits, there are too few texts, or the layers that learn too lose more
                than is allowed.
        """
        from greenformers.changes._exit_check import fitting
        from greenformers.changes._exit_training import copy_of, parted
        from greenformers.changes._exits import put, remove
        from greenformers.changes._while_learning import on_device
        from greenformers.train.processes import training_device

        network: Any = model
        if given.training is None:
            raise ValueError("exits need examples to learn from")
        learnt, held = parted(given.training)
        fit = fitting(network, self.after, self.by)
        exits = fit.exits(self.patience, given.seed)
        before = {name: x.clone() for name, x in model.state_dict().items()} if self.joint else None
        put(network, fit.path, exits)
        try:
            whole = copy_of(network) if self.joint else None
            networks = (network,) if whole is None else (network, whole)
            with on_device(training_device(), *networks):
                return self._learn(network, exits, whole, learnt, held, fit.path, given)
        except BaseException:
            remove(model, fit.path)
            if before is not None:
                model.load_state_dict(before)
            raise

    def _learn(
        self, model: Any, exits: "EarlyExits", whole: Any, learnt: Any, held: Any, path: str, given: Given
    ) -> Report:
        """Train exits that are in place, and choose their threshold."""
        from contextlib import nullcontext
        from dataclasses import replace

        from greenformers.changes._block_healing import in_float32
        from greenformers.changes._exit_threshold import choose
        from greenformers.changes._exit_training import Learner, train
        from greenformers.changes._options import as_dict

        with in_float32(model), nullcontext() if whole is None else in_float32(whole):
            values, log = train(model, exits, whole, learnt, self.schedule(given.seed), given.progress)
        outcomes = Learner(model, exits, whole).measured(
            held, exits.rule.by, lambda share: given.progress("choosing the threshold", share)
        )
        threshold = choose(lambda value: outcomes.lost(replace(exits.rule, threshold=value)), self.lose)
        if threshold is None and self.joint:
            raise ValueError(
                f"the layers that learnt with the exits lose more than {self.lose:g}: try a lower learning rate, or "
                "leave out joint"
            )
        exits.rule = replace(exits.rule, threshold=1.0 if threshold is None else threshold)
        return Report(as_dict(self), _summary(exits, outcomes, values), _units(exits, outcomes, path), log)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Where exits stand and when texts leave, by the path of the stack."""
        from greenformers.changes._exits import described, exits_in

        return {path: described(exits) for path, exits in exits_in(model).items()} or None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put exits with empty weights beside the stacks of a description."""
        from greenformers.changes._exits import place_empty

        if not isinstance(description, dict) or not description:
            raise ValueError("the description of exits must be what there is to know of them, by the path of a stack")
        return [missing for path, there in description.items() for missing in place_empty(model, path, there)]

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the modules with exits, which the class does not build."""
        from greenformers.changes._exits import EarlyExits

        return [path for path, part in model.named_modules() if isinstance(part, EarlyExits)]

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Take the exits out again; layers that have learnt with them stay so. The number of exits."""
        from greenformers.changes._exits import exits_in, remove

        by_path = exits_in(model)
        for path in by_path:
            remove(model, path)
        return sum(len(exits.by_layer) for exits in by_path.values())


def _summary(exits: "EarlyExits", outcomes: "Outcomes", values: Sequence[float]) -> str:
    from greenformers.changes._exit_threshold import CONFIDENCE, upper

    rule, lost = exits.rule, outcomes.lost(exits.rule)
    layers = _layers(exits, outcomes).double().mean().item()
    said = (
        f"loss of the exits {values[0]:.4g} -> {values[-1]:.4g}; of {exits.last + 1} layers {layers:.2f} are computed "
        f"on average of {len(lost):,} texts held out, and {lost.mean():.3%} is lost, "
        f"at most {upper(lost):.3%} with {CONFIDENCE:.0%} confidence"
    )
    if rule.threshold >= 1:
        return f"{said}: no threshold is shown to lose little enough, so nobody leaves; give more texts or allow more"
    return f"{said}, at {rule.by} above {rule.threshold:.6g}"


def _layers(exits: "EarlyExits", outcomes: "Outcomes") -> Any:
    """The number of layers that are computed of each text, (n,)."""
    import torch

    return torch.tensor([*(at + 1 for at in exits.by_layer), exits.last + 1])[outcomes.places(exits.rule)]


def _units(exits: "EarlyExits", outcomes: "Outcomes", path: str) -> list[UnitReport]:
    from greenformers.changes._exits import NAME

    places, lost = outcomes.places(exits.rule), outcomes.lost(exits.rule)
    stem = f"{path.rpartition('.')[0]}." if "." in path else ""
    units = []
    for number, (at, module) in enumerate(exits.by_layer.items()):
        leave = places == number
        size = sum(x.numel() * x.element_size() for x in module.parameters())
        form = f"{leave.double().mean():.1%} leave after layer {at}"
        loss = lost[leave].mean().item() if bool(leave.any()) else None
        units.append(UnitReport(f"{stem}{NAME}.exits.{at}", form, 0, size, lost=loss))
    return units
