"""Which change suits a trained model: each is made, judged on texts and timed on this machine.

Nothing is trained: what a change loses is what it loses before healing, which is to be had back in part.
"""

import copy
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.advise.cost import grid_intensity
from greenformers.changes.attention import swap_attention
from greenformers.changes.int8 import is_quantised, quantise
from greenformers.checkpoint.pretrained import check_length
from greenformers.checkpoint.structure import mark, ranks_of
from greenformers.compress.comparison import compared
from greenformers.data._texts import Texts, batches, task_of
from greenformers.measure.record import Record
from greenformers.model.positions import reach
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import compress

DENSE = "as it is"
SOLVER = "activation"
QUALITY = ("spearman", "accuracy", "perplexity", "cosine")
"""Metrics that may judge, the first that is there."""
LONG = 256
"""From here on attention is a part of the time that another one can save."""
MARGIN = 1.05
"""A change is to be faster than the model as it is by so much at least."""
REPEATS, HEALED = 9, 64
"""Timed runs, and texts a step of healing where there are as many."""


@dataclass(frozen=True)
class Change:
    """What is done to a model, in this order: another attention, low-rank maps, 8 bits.

    Attributes:
        attention: name of a mechanism, and `options` of it; None for the model's own.
        keep: share of the maps' weights; None for all, dense.
        int8: weights of 8 bits.
    """

    attention: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    keep: float | None = None
    int8: bool = False

    @property
    def name(self) -> str:
        """How people call it."""
        rank = "" if self.keep is None else f"low rank {self.keep:g}"
        return " + ".join(filter(None, [self.attention, rank, "int8" * self.int8])) or DENSE

    def commands(self, model: str, texts: str, at: "Setting", healed: bool = False) -> list[str]:
        """The command lines that make it, with healing or without."""
        if self == Change():
            return []
        model, texts, lengths = shlex.quote(model), shlex.quote(texts), f" --lengths {at.length}"
        heal = f" --heal 300 --heal-texts {texts}{f' --heal-batch {at.rows}' * (at.rows < HEALED)}" * healed
        if self.attention is not None:
            options = "".join(f" --option {name}={value}" for name, value in self.options.items())
            longer = f" --length {at.length}" * at.longer
            swap = f"greenformers swap {model} --attention {self.attention}{options}{longer}{lengths}"
            if self.keep is None and not self.int8:
                return [f"{swap}{heal} --out small"]
            return [f"{swap} --out swapped", self._compress(f"swapped --teacher {model}", texts, at, lengths, heal)]
        return [self._compress(model, texts, at, lengths, heal)]

    def _compress(self, model: str, texts: str, at: "Setting", lengths: str, heal: str) -> str:
        rank = "" if self.keep is None else f" --keep {self.keep:g} --solver {SOLVER} --calibrate {texts}"
        aware = " --int8-aware" * (self.int8 and bool(heal))
        return (
            f"greenformers compress {model}{rank}{' --int8' * self.int8} --length {at.length}{lengths}{heal}{aware} "
            "--out small"
        )


@dataclass(frozen=True)
class Setting:
    """What was measured at.

    Attributes:
        length: tokens of a text, as timed.
        batch: texts at once.
        longer: the model's own positions end before that length.
        rows: texts, or blocks, that are there to learn from at least.
    """

    length: int
    batch: int
    longer: bool = False
    rows: int = 64


@dataclass(frozen=True)
class Measured:
    """A change, and what came of it.

    Attributes:
        change: what was done.
        milliseconds: of a batch.
        speed, smaller, kept: times as fast, times smaller on disk, and share of the quality, of the model as it is.
        quality: the metric, in its unit, and `interval`, of 95 %, of its difference, where there is one.
        mib: on disk.
        co2: kg of a million texts.
        refused: why it cannot be, else None.
    """

    change: Change
    milliseconds: float = float("nan")
    speed: float = float("nan")
    smaller: float = float("nan")
    kept: float = float("nan")
    quality: float = float("nan")
    interval: list[float] | None = None
    mib: float = float("nan")
    co2: float = float("nan")
    refused: str | None = None


@dataclass(frozen=True)
class Advice:
    """What was found.

    Attributes:
        rows: the fastest first, those that cannot be last.
        metric: which judged.
        setting: at what.
        records: all that was measured.
    """

    rows: list[Measured]
    metric: str
    setting: Setting
    records: list[Record]

    def chosen(self, loss: float) -> Measured:
        """The fastest that keeps all but a share `loss` of the quality; the model as it is, where none is faster."""
        dense = next(row for row in self.rows if row.change == Change())
        good = [row for row in self.rows if row.kept >= 1 - loss and row.speed >= MARGIN]
        return good[0] if good else dense


def changes(length: int, causal: bool) -> list[Change]:
    """What is tried at a length: of long texts another attention too, one that looks at a quarter of them at most."""
    found = [Change(), Change(int8=True), Change(keep=0.75), Change(keep=0.5), Change(keep=0.5, int8=True)]
    if length >= LONG:
        window = {"window": length // (4 if causal else 8)}
        other = Change("linear_transformer") if causal else Change("linformer", {"k": length // 4})
        found += [Change("sliding_window", window), other, Change("sliding_window", window, 0.5, True)]
    return found


def advise(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Texts,
    *,
    length: int | None = None,
    batch: int = 8,
    limit: int = 200,
    country: str = "USA",
    about: dict[str, Any],
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Advice:
    """Make, judge and time every change.

    Args:
        model: of `transformers`; not changed.
        tokenizer: of it.
        texts: half of them, every other one, calibrate the low-rank maps, the others judge.
        length: of a text, in tokens; by default what 95 % of the texts fit into.
        batch: texts at once.
        limit: at most so many texts judge.
        country: whose electricity, a 3-letter ISO code.
        about: context of the records.
        progress: called as work goes on.

    Raises:
        ValueError: a value out of range, too few texts, or texts that cannot judge such a model.
    """
    for name, value in (("batch", batch), ("limit", limit), ("length", 1 if length is None else length)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    intensity = grid_intensity(country)
    if is_quantised(model):
        raise ValueError("the model is of 8 bits already: give the one it was made from")
    seen, judged = halves(texts, limit)
    causal = task_of(model) == "causal_lm"
    length = length or usual(texts, tokenizer, model)
    check_length(model, length)
    calibration = batches(seen.lines, tokenizer, task_of(model), length)
    models: dict[str, PreTrainedModel] = {}
    refused: list[Measured] = []
    wanted = changes(length, causal)
    for number, change in enumerate(wanted):
        try:
            # What was made for the same change without 8 bits is not made again.
            whole = models.get(replace(change, int8=False).name)
            models[change.name] = made(model, change, calibration, length) if whole is None else eight_bits(whole)
        except ValueError as error:
            refused.append(Measured(change, refused=str(error)))
        progress("making", (number + 1) / len(wanted))
    records = compared(
        models, judged, tokenizer, benchmark="advice", length=length, lengths=[length], batch=batch, repeats=REPEATS,
        country=country, about=about, progress=progress,
    )  # fmt: skip
    metric = next(name for name in QUALITY if any(record.metric == name for record in records))
    own = next(record.value for record in records if (record.variant, record.metric) == (DENSE, metric))
    if not own > 0:
        raise ValueError(f"{texts.name} cannot judge changes: the model as it is has a {metric} of {own:.3g} on it")
    rows = [_row(change, records, metric, batch, intensity) for change in wanted if change.name in models]
    learnt = sum(len(found["input_ids"]) for found in calibration)
    setting = Setting(length, batch, length > (reach(model) or length), max(1, learnt * 19 // 20))
    return Advice([*sorted(rows, key=lambda row: row.milliseconds), *refused], metric, setting, records)


def halves(texts: Texts, limit: int) -> tuple[Texts, Texts]:
    """Examples to calibrate on and others to judge by, at most `limit` of each, from all over the file.

    Raises:
        ValueError: fewer than 8 examples.
    """
    count = len(texts.segments)
    if count < 8:
        raise ValueError(f"{texts.name} has {count} examples; at least 8 are needed, half of them to judge by")
    take = min(limit, count // 2)
    chosen = [place * count // (2 * take) for place in range(2 * take)]

    def part(first: int) -> Texts:
        places = chosen[first::2]
        labels = None if texts.labels is None else [texts.labels[place] for place in places]
        return Texts(texts.name, [texts.segments[place] for place in places], labels)

    return part(0), part(1)


def usual(texts: Texts, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Tokens that 95 % of the texts fit into and the model takes; of a language model, which reads on, at most 512."""
    most = reach(model) or 512
    if task_of(model) == "causal_lm":
        return min(most, 512)
    lengths = [len(ids) for ids in tokenizer(texts.lines, truncation=True, max_length=most)["input_ids"]]
    return max(1, int(np.quantile(lengths, 0.95)))


def made(model: PreTrainedModel, change: Change, calibration: Sequence[Any], length: int) -> PreTrainedModel:
    """A copy of a model, changed.

    Raises:
        ValueError: it cannot be.
    """
    if change.keep is not None and ranks_of(model):
        raise ValueError("its maps are low rank already")
    model = copy.deepcopy(model)
    if change.attention is not None:
        swap_attention(model, change.attention, length=max(length, reach(model) or 0), options=change.options)
    if change.keep is not None:
        compress(model, Budget(change.keep), solver=SOLVER, calibration=calibration)
    return eight_bits(model) if change.int8 else model


def eight_bits(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with weights of 8 bits.

    Raises:
        ValueError: it has none that could be.
    """
    model = copy.deepcopy(model)
    quantise(model)
    mark(model)
    return model


def _row(change: Change, records: Sequence[Record], metric: str, batch: int, intensity: float) -> Measured:
    of = {record.metric: record for record in records if record.variant == change.name}
    latency, size, quality = of["latency"], of["size"], of[metric]
    return Measured(
        change, latency.value, latency.ratio or float("nan"), size.ratio or float("nan"), quality.ratio or 0.0,
        quality.value, quality.interval, size.value,
        # mWh of a batch are kWh of a million batches.
        of["energy_inference"].value / batch * intensity / 1000,
    )  # fmt: skip
