"""Which recipe suits a trained model: each is made, judged on texts and timed on this machine.

Nothing is trained: what a recipe loses is what it loses before healing, which is to be had back in part.
"""

import copy
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes import Change, Given, kinds
from greenformers.changes._options import as_flags
from greenformers.checkpoint.structure import changes_of
from greenformers.compress.apply import apply, check
from greenformers.compress.comparison import compared
from greenformers.compress.job import USUAL
from greenformers.compress.quality import check_examples
from greenformers.compress.side_by_side import check_length
from greenformers.data._examples import Examples
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._tasks import task_of
from greenformers.data._texts import Texts
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record
from greenformers.model.positions import reach

DENSE = "as it is"
QUALITY = ("spearman", "accuracy", "bleu", "wer", "perplexity", "cosine")
"""Metrics that may judge, the first that is there."""
MARGIN = 1.05
"""A change is to be faster than the model as it is by so much at least."""
REPEATS = 9
"""Timed runs."""


Recipe = tuple[Change, ...]
"""Changes in order; none of them leave the model as it is."""


def name_of(recipe: Recipe) -> str:
    """How people call it."""
    return " + ".join(change.label for change in recipe) or DENSE


def command(recipe: Recipe, model: str, texts: str, at: "Setting") -> str:
    """The command line that makes a recipe.

    Raises:
        ValueError: There is nothing to make.
    """
    if not recipe:
        raise ValueError("the model as it is needs no command")
    words = ["greenformers", "compress", model, *as_flags(recipe)]
    if at.length is not None:
        words += ["--length", str(at.length), "--lengths", str(at.length)]
    if {"calibration", "training"} & {need for change in recipe for need in change.uses}:
        words += ["--texts", texts]
    return shlex.join([*words, "--out", "small"])


def healed(recipe: Recipe, at: "Setting") -> Recipe:
    """The recipe with training of the default kind, before what freezes weights."""
    trainer = next(kind for kind in kinds() if kind.trains)
    place = next((number for number, change in enumerate(recipe) if change.freezes), len(recipe))
    return (*recipe[:place], trainer.suited(texts=at.rows, following=recipe[place:]), *recipe[place:])


@dataclass(frozen=True)
class Setting:
    """What was measured at.

    Attributes:
        length: tokens of a text, as timed; None of what has no length.
        batch: examples at once.
        rows: examples, or blocks, that are there to learn from at least.
    """

    length: int | None
    batch: int
    rows: int = 64


@dataclass(frozen=True)
class Measured:
    """A recipe, and what came of it.

    Attributes:
        recipe: what was done.
        milliseconds: of a batch.
        speed, smaller, kept: times as fast, times smaller on disk, and share of the quality, of the model as it is.
        quality: the metric, in its unit, and `interval`, of 95 %, of its difference, where there is one.
        mib: on disk.
        co2: kg of a million texts.
        refused: why it cannot be, else None.
    """

    recipe: Recipe
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
        dense = next(row for row in self.rows if not row.recipe)
        good = [row for row in self.rows if row.kept >= 1 - loss and row.speed >= MARGIN]
        return good[0] if good else dense


def recipes(length: int, causal: bool) -> list[Recipe]:
    """What is tried at a length: what each change suggests by itself, and the favourites of all together.

    Together without those that are for long texts alone, and with them.
    """
    suggested = {kind: kind.suggested(length=length, causal=causal) for kind in kinds()}
    always = [kind for kind in suggested if kind.suggested(length=1, causal=causal)]
    singles: list[Recipe] = [(change,) for changes in suggested.values() for change in changes]
    together = [
        tuple(suggested[kind][-1] for kind in chosen if suggested[kind]) for chosen in (always, list(suggested))
    ]
    tried = [(), *sorted(singles, key=_cheapest), *together]
    return list({name_of(recipe): recipe for recipe in tried}.values())


def _cheapest(recipe: Recipe) -> int:
    """What takes no calibration first: the first figures come early."""
    return len({need for change in recipe for need in change.uses})


def advise(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    examples: Examples,
    *,
    features: Any = None,
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
        examples: half of them, every other one, calibrate the low-rank maps, the others judge.
        features: image processor or feature extractor, of a model of images or sound.
        length: of a text, in tokens; by default what 95 % of the texts fit into.
        batch: examples at once.
        limit: at most so many examples judge.
        country: whose electricity, a 3-letter ISO code.
        about: context of the records.
        progress: called as work goes on.

    Raises:
        ValueError: a value out of range, too few examples, or some that cannot judge such a model.
    """
    for name, value in (("batch", batch), ("limit", limit), ("length", 1 if length is None else length)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    intensity = grid_intensity(country)
    if frozen := [kind.name() for kind in changes_of(model) if kind.freezes]:
        raise ValueError(f"the model went through {frozen[0]} already: give the one it was made from")
    seen, judged = halves(examples, limit)
    causal = task_of(model) == "causal_lm"
    timed: int | None = None
    if isinstance(examples, Texts) and tokenizer is not None:
        timed = length = length or usual(examples, tokenizer, model)
    length = length or USUAL
    check_length(model, timed)
    reader = Reader.of(model, tokenizer, length, features=features)
    check_examples(model, judged, reader)
    calibration = reader.batches(seen)
    given = Given(calibration=calibration)
    models: dict[str, PreTrainedModel] = {}
    refused: list[Measured] = []
    wanted = [tuple(change.fitted(model, length) for change in recipe) for recipe in recipes(length, causal)]
    for number, recipe in enumerate(wanted):
        try:
            models[name_of(recipe)] = made(model, recipe, models, given)
        except ValueError as error:
            refused.append(Measured(recipe, refused=str(error)))
        progress("making", (number + 1) / len(wanted))
    records = compared(
        models, judged, reader, benchmark="advice", lengths=[timed], batch=batch, repeats=REPEATS, country=country,
        about=about, progress=progress,
    )  # fmt: skip
    metric = next(name for name in QUALITY if any(record.metric == name for record in records))
    own = next(record.value for record in records if (record.variant, record.metric) == (DENSE, metric))
    if not own > 0:
        raise ValueError(f"{examples.name} cannot judge changes: the model as it is has a {metric} of {own:.3g} on it")
    rows = [_row(recipe, records, metric, batch, intensity) for recipe in wanted if name_of(recipe) in models]
    learnt = sum(len(found["input_ids"]) for found in calibration) if isinstance(seen, Texts) else len(seen)
    setting = Setting(timed, batch, max(1, learnt * 19 // 20))
    return Advice([*sorted(rows, key=lambda row: row.milliseconds), *refused], metric, setting, records)


def halves(examples: Examples, limit: int) -> tuple[Examples, Examples]:
    """Examples to calibrate on and others to judge by, at most `limit` of each, from all over the file.

    Raises:
        ValueError: fewer than 8 examples.
    """
    count = len(examples)
    if count < 8:
        raise ValueError(f"{examples.name} has {count} examples; at least 8 are needed, half of them to judge by")
    take = min(limit, count // 2)
    chosen = [place * count // (2 * take) for place in range(2 * take)]
    return examples.at(chosen[::2]), examples.at(chosen[1::2])


def usual(texts: Texts, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Tokens that 95 % of the texts fit into and the model takes; of a language model, which reads on, at most 512."""
    most = reach(model) or 512
    most = min(most, pooling_of(model).length or most)
    if task_of(model) == "causal_lm":
        return min(most, 512)
    lengths = [len(ids) for ids in tokenizer(texts.lines, truncation=True, max_length=most)["input_ids"]]
    return max(1, int(np.quantile(lengths, 0.95)))


def made(model: PreTrainedModel, recipe: Recipe, known: Mapping[str, PreTrainedModel], given: Given) -> PreTrainedModel:
    """A copy of a model, changed; from the longest beginning of the recipe that was made before.

    Raises:
        ValueError: It cannot be.
    """
    begun = next(count for count in range(len(recipe), -1, -1) if not count or name_of(recipe[:count]) in known)
    changed = copy.deepcopy(known[name_of(recipe[:begun])] if begun else model)
    check(changed, recipe[begun:], given)
    apply(changed, recipe[begun:], given)
    return changed


def _row(recipe: Recipe, records: Sequence[Record], metric: str, batch: int, intensity: float) -> Measured:
    of = {record.metric: record for record in records if record.variant == name_of(recipe)}
    latency, size, quality = of["latency"], of["size"], of[metric]
    return Measured(
        recipe, latency.value, latency.ratio or float("nan"), size.ratio or float("nan"), quality.ratio or 0.0,
        quality.value, quality.interval, size.value,
        # mWh of a batch are kWh of a million batches.
        of["energy_inference"].value / batch * intensity / 1000,
    )  # fmt: skip
