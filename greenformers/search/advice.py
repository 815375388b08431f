"""Advice on recipes for a trained model: a search without training, and what is best of it measured side by side.

Nothing is trained: the loss of quality is that before healing, which brings part of it back.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.advise.in_runtime import TORCH, check_runtime, compared_in
from greenformers.changes import Given
from greenformers.checkpoint.structure import changes_of
from greenformers.compress.comparison import compared
from greenformers.compress.job import USUAL
from greenformers.compress.quality import check_examples
from greenformers.compress.side_by_side import check_length
from greenformers.data._examples import Examples, Images
from greenformers.data._pairs import encoded_pairs
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._tasks import OF_PAIRS, task_of
from greenformers.data._texts import Texts
from greenformers.export.measure import QUALITIES
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record
from greenformers.model.positions import reach
from greenformers.search.bound import Bound
from greenformers.search.lab import Lab, share_kept
from greenformers.search.once import halved_once
from greenformers.search.recipes import Recipe, Setting, name_of
from greenformers.search.search import Plan, Search
from greenformers.search.space import Genes, Space
from greenformers.search.trials import Trial, Trials, front

MARGIN = 1.05
"""Least speed-up over the model as it is at which a recipe is advised."""
REPEATS = 9
"""Timed runs of each model."""
MOST = 6
"""Recipes of the front that are measured side by side, beside each change alone."""


@dataclass(frozen=True)
class Measured:
    """A recipe and its measurements. Ratios are to the model as it is; figures are nan where the recipe was refused.

    Attributes:
        recipe: Changes in order.
        milliseconds: Milliseconds of a batch.
        speed: Factor by which a batch is faster.
        smaller: Factor by which the model is smaller on disk.
        quality_share: Share of the quality.
        quality: The quality, in the unit of its metric.
        interval: 95 % confidence interval of the difference in quality, None where there is no paired test.
        mib: MiB on disk.
        co2: CO2 equivalent in kg of a million examples.
        refused: Reason why the recipe cannot be applied, else None.
    """

    recipe: Recipe
    milliseconds: float = float("nan")
    speed: float = float("nan")
    smaller: float = float("nan")
    quality_share: float = float("nan")
    quality: float = float("nan")
    interval: list[float] | None = None
    mib: float = float("nan")
    co2: float = float("nan")
    refused: str | None = None


@dataclass(frozen=True)
class Advice:
    """Measurements of all recipes.

    Attributes:
        rows: Measurement of each recipe, the fastest first; changes that cannot be applied are last.
        metric: Name of the metric that judged.
        setting: Setting that the recipes were measured in.
        records: Records of all measurements.
    """

    rows: list[Measured]
    metric: str
    setting: Setting
    records: list[Record]

    def chosen(self, bound: Bound) -> Measured:
        """The best recipe within a bound; the model as it is, where no such recipe is faster.

        Within a loss it is the fastest. Of those that are fast enough it is the one that loses least, and where none
        is, the fastest of all.
        """
        dense = next(row for row in self.rows if not row.recipe)
        faster = [row for row in self.rows if row.speed >= MARGIN]
        if bound.lose is not None:
            faster = [row for row in faster if row.quality_share >= 1 - bound.lose]
        elif enough := [row for row in faster if row.speed >= (bound.faster or 1)]:
            return max(enough, key=lambda row: row.quality_share)
        return faster[0] if faster else dense


def shown(search: Search) -> list[Genes]:
    """What is measured side by side: the best of the front, and each change alone as strong as suits the bound best."""
    done, bound = search.trials.done(), search.plan.bound

    def merit(trial: Trial) -> float:
        return bound.merit(trial.speed, trial.lost)

    best = sorted((trial for trial in front(done) if trial.speed >= MARGIN), key=merit, reverse=True)[:MOST]
    alone = [trial for trial in done if sum(map(bool, trial.genes)) == 1]
    for place in range(len(search.space.slots)):
        best += sorted((trial for trial in alone if trial.genes[place]), key=merit, reverse=True)[:1]
    return list(dict.fromkeys(trial.genes for trial in best))


def advise(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    examples: Examples,
    *,
    bound: Bound,
    seconds: float = 180.0,
    features: Any = None,
    length: int | None = None,
    batch: int = 8,
    limit: int = 200,
    country: str = "USA",
    runtime: str = TORCH,
    about: dict[str, Any],
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Advice:
    """Search for recipes that need no training, and measure the best side by side.

    The search sees half of the examples, which calibrate too; the other half judges what comes of it.

    Args:
        model: Model of `transformers`; it is not changed.
        tokenizer: Tokenizer of the model; None for a model without one.
        examples: Examples; at least 8.
        bound: What the best recipe must keep to.
        seconds: Seconds in which recipes are tried.
        features: Image processor or feature extractor of a model for images or sound.
        length: Tokens of a text; by default the length that 95 % of the texts fit into.
        batch: Examples in a batch.
        limit: Largest number of examples in each half.
        country: Country of the electricity, a 3-letter ISO code.
        runtime: Runtime that the models are measured in, one of `RUNTIMES`.
        about: Context of the records.
        progress: Function that is called with a text and the share that is done.

    Raises:
        ValueError: Raised where a value is out of range, there are too few examples, the examples cannot judge the
            model, or a change that freezes weights was applied to it before.
    """
    for name, value in (("batch", batch), ("limit", limit), ("length", 1 if length is None else length)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not seconds > 0:
        raise ValueError(f"minutes must be above 0, got {seconds / 60:g}")
    check_runtime(runtime)
    if length is not None and isinstance(examples, Images):
        raise ValueError(f"length is of texts, and {examples.name} holds images; got {length}")
    if runtime != TORCH and not isinstance(examples, Texts):
        raise ValueError(f"{examples.name}: models of images and sound are measured in torch alone, not in {runtime}")
    intensity = grid_intensity(country)
    if frozen := [kind.name() for kind in changes_of(model) if kind.freezes]:
        raise ValueError(f"{frozen[0]} was applied to the model already: give the model from before")
    task = task_of(model)
    seen, judged = halved_once(examples, task, limit)
    causal = task == "causal_lm"
    timed: int | None = None
    if isinstance(examples, Texts) and tokenizer is not None:
        timed = length = length or usual(examples, tokenizer, model)
    length = length or USUAL
    check_length(model, timed)
    reader = Reader.of(model, tokenizer, length, features=features)
    check_examples(model, judged, reader)
    calibration = reader.batches(seen)
    given = Given(calibration=calibration)
    space = Space.of(model, given, length=length, causal=causal, heals=False, runtime=runtime)
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(model, reader, seen, given, Path(folder), runtime, timed, batch)
        lab.own_quality  # noqa: B018 - that it can be judged is known before the first trial
        plan = Plan(bound, seconds, heals=False)
        search = Search(
            space, lab, plan, Trials(Path(folder) / "trials.jsonl"),
            lambda _: progress("trying", min(1.0, search.trials.seconds / seconds)),
        )  # fmt: skip
        search.run()
        tried = [(), *(space.recipe(genes) for genes in shown(search))]
        models = {name_of(recipe): lab.made(recipe) if recipe else model for recipe in tried}
    refused: dict[str, str] = {}
    if runtime == TORCH:
        records = compared(
            models, judged, reader, benchmark="advice", lengths=[timed], batch=batch, repeats=REPEATS, country=country,
            about=about, progress=progress,
        )  # fmt: skip
    else:
        records, refused = compared_in(
            runtime, models, judged, reader, calibration, length=length, batch=batch, repeats=REPEATS, country=country,
            about=about, progress=progress,
        )  # fmt: skip
    metric = next(name for name in QUALITIES if any(record.metric == name for record in records))
    rows = [_row(recipe, records, metric, batch, intensity) for recipe in tried if name_of(recipe) not in refused]
    no = [Measured(recipe, refused=refused[name_of(recipe)]) for recipe in tried if name_of(recipe) in refused]
    learnt = sum(len(inputs["input_ids"]) for inputs in calibration) if isinstance(seen, Texts) else len(seen)
    setting = Setting(timed, batch, max(1, learnt * 19 // 20))
    return Advice([*sorted(rows, key=lambda row: row.milliseconds), *no, *_refused(search)], metric, setting, records)


def usual(texts: Texts, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Usual length: tokens that 95 % of the texts fit into, at most the model's; at most 512 for a causal model.

    Args:
        texts: Texts to be read.
        tokenizer: Tokenizer of the model.
        model: Model that reads the texts; a causal one reads them as blocks of running text.
    """
    most = reach(model) or 512
    most = min(most, pooling_of(model).length or most)
    if task_of(model) == "causal_lm":
        return min(most, 512)
    if task_of(model) in OF_PAIRS and texts.paired:
        first, second = zip(*texts.segments, strict=True)
        lengths = [len(row["input_ids"]) for row in encoded_pairs(tokenizer, first, second, most)]
    else:
        lengths = [len(ids) for ids in tokenizer(texts.lines, truncation=True, max_length=most)["input_ids"]]
    return max(1, int(np.quantile(lengths, 0.95)))


def _refused(search: Search) -> list[Measured]:
    """Changes that fit the model in no setting, or could be made in none, with a reason each."""
    rows = [Measured((change,), refused=why) for change, why in search.space.refused]
    for place in range(len(search.space.slots)):
        alone = [trial for trial in search.trials.seen if trial.genes[place] and sum(map(bool, trial.genes)) == 1]
        if alone and all(trial.refused is not None for trial in alone):
            rows.append(Measured(search.space.recipe(alone[0].genes), refused=alone[0].refused))
    return rows


def _row(recipe: Recipe, records: Sequence[Record], metric: str, batch: int, intensity: float) -> Measured:
    of = {record.metric: record for record in records if record.variant == name_of(recipe)}
    latency, size, quality = of["latency"], of["size"], of[metric]
    before = next(record.value for record in records if record.metric == metric and record.variant == name_of(()))
    return Measured(
        recipe, latency.value, latency.ratio or float("nan"), size.ratio or float("nan"),
        share_kept(metric, before, quality.value),
        quality.value, quality.interval, size.value,
        # mWh of one batch are kWh of a million batches.
        of["energy_inference"].value / batch * intensity / 1000,
    )  # fmt: skip
