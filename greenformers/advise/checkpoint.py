"""Advice on recipes for a trained model: each is applied, judged on examples and timed on this machine.

Nothing is trained: the loss of quality is that before healing, which brings part of it back.
"""

import copy
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.advise.in_runtime import TORCH, check_runtime, compared_in
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
from greenformers.export.measure import QUALITIES
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record
from greenformers.model.positions import reach

DENSE = "as it is"
MARGIN = 1.05
"""Least speed-up over the model as it is at which a recipe is advised."""
REPEATS = 9
"""Timed runs of each model."""


Recipe = tuple[Change, ...]
"""Changes in order; an empty recipe is the model as it is."""


def name_of(recipe: Recipe) -> str:
    """Name of a recipe, for people."""
    return " + ".join(change.label for change in recipe) or DENSE


def command(recipe: Recipe, model: str, texts: str, at: "Setting") -> str:
    """The command line that applies a recipe.

    Args:
        recipe: Changes in order.
        model: Folder or name of the model.
        texts: File of texts.
        at: Setting that the recipe was measured in.

    Raises:
        ValueError: Raised where the recipe is empty.
    """
    if not recipe:
        raise ValueError("the model as it is needs no command")
    words = ["greenformers", "compress", model, *as_flags(recipe)]
    if at.length is not None:
        words += ["--length", str(at.length), "--lengths", str(at.length)]
    if {"calibration", "training"} & {need for change in recipe for need in change.uses}:
        words += ["--texts", texts]
    return shlex.join([*words, "--out", "small"])


def healed(recipe: Recipe, rows: int) -> Recipe:
    """The recipe with a training of the default kind on so many examples, before changes that freeze weights."""
    trainer = next(kind for kind in kinds() if kind.trains)
    place = next((number for number, change in enumerate(recipe) if change.freezes), len(recipe))
    return (*recipe[:place], trainer.suited(texts=rows, following=recipe[place:]), *recipe[place:])


@dataclass(frozen=True)
class Setting:
    """Setting that recipes were measured in.

    Attributes:
        length: Tokens of a text, as timed; None for inputs without a length.
        batch: Examples in a batch.
        rows: Least number of examples, or of blocks of text, that a training has.
    """

    length: int | None
    batch: int
    rows: int = 64


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
        rows: Measurement of each recipe, the fastest first; recipes that cannot be applied are last.
        metric: Name of the metric that judged.
        setting: Setting that the recipes were measured in.
        records: Records of all measurements.
    """

    rows: list[Measured]
    metric: str
    setting: Setting
    records: list[Record]

    def chosen(self, loss: float) -> Measured:
        """The fastest recipe that loses at most a share `loss` of the quality; none, where no such recipe is faster."""
        dense = next(row for row in self.rows if not row.recipe)
        good = [row for row in self.rows if row.quality_share >= 1 - loss and row.speed >= MARGIN]
        return good[0] if good else dense


def recipes(length: int, causal: bool) -> list[Recipe]:
    """Recipes to try: those that each change suggests by itself, and the last of each together.

    Together they are tried twice, without the changes that suit long texts alone, and with them. Changes that are to be
    tried apart are together with those that freeze weights alone.

    Args:
        length: Tokens of a text.
        causal: Whether the model is a decoder.
    """
    suggested = {kind: kind.suggested(length=length, causal=causal) for kind in kinds()}
    always = [kind for kind in suggested if kind.suggested(length=1, causal=causal)]
    singles: list[Recipe] = [(change,) for changes in suggested.values() for change in changes]
    alike = [
        *([kind for kind in chosen if not kind.apart] for chosen in (always, list(suggested))),
        *([kind for kind in suggested if kind is apart or kind.freezes] for apart in always if apart.apart),
    ]
    together = [tuple(suggested[kind][-1] for kind in chosen if suggested[kind]) for chosen in alike]
    tried = [(), *sorted(singles, key=_cheapest), *together]
    return list({name_of(recipe): recipe for recipe in tried}.values())


def _cheapest(recipe: Recipe) -> int:
    """Sort key by which recipes without calibration come first, so that the first figures come early."""
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
    runtime: str = TORCH,
    about: dict[str, Any],
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Advice:
    """Apply, judge and time every recipe.

    Args:
        model: Model of `transformers`; it is not changed.
        tokenizer: Tokenizer of the model; None for a model without one.
        examples: Examples; every other one calibrates the low-rank linear layers, and the rest judge.
        features: Image processor or feature extractor of a model for images or sound.
        length: Tokens of a text; by default the length that 95 % of the texts fit into.
        batch: Examples in a batch.
        limit: Largest number of examples that judge.
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
    check_runtime(runtime)
    if runtime != TORCH and not isinstance(examples, Texts):
        raise ValueError(f"{examples.name}: models of images and sound are measured in torch alone, not in {runtime}")
    intensity = grid_intensity(country)
    if frozen := [kind.name() for kind in changes_of(model) if kind.freezes]:
        raise ValueError(f"{frozen[0]} was applied to the model already: give the model from before")
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
    fitted = [tuple(change.fitted(model, length) for change in recipe) for recipe in recipes(length, causal)]
    for number, recipe in enumerate(fitted):
        try:
            models[name_of(recipe)] = changed_copy(model, recipe, models, given)
        except ValueError as error:
            refused.append(Measured(recipe, refused=str(error)))
        progress("making", (number + 1) / len(fitted))
    if runtime == TORCH:
        records = compared(
            models, judged, reader, benchmark="advice", lengths=[timed], batch=batch, repeats=REPEATS, country=country,
            about=about, progress=progress,
        )  # fmt: skip
    else:
        records, reasons = compared_in(
            runtime, models, judged, reader, calibration, length=length, batch=batch, repeats=REPEATS, country=country,
            about=about, progress=progress,
        )  # fmt: skip
        refused += [
            Measured(recipe, refused=reasons[name_of(recipe)]) for recipe in fitted if name_of(recipe) in reasons
        ]
        models = {name: model for name, model in models.items() if name not in reasons}
    metric = next(name for name in QUALITIES if any(record.metric == name for record in records))
    own = next(record.value for record in records if (record.variant, record.metric) == (DENSE, metric))
    if not own > 0:
        raise ValueError(f"{examples.name} cannot judge changes: the model as it is has a {metric} of {own:.3g} on it")
    rows = [_row(recipe, records, metric, batch, intensity) for recipe in fitted if name_of(recipe) in models]
    learnt = sum(len(inputs["input_ids"]) for inputs in calibration) if isinstance(seen, Texts) else len(seen)
    setting = Setting(timed, batch, max(1, learnt * 19 // 20))
    return Advice([*sorted(rows, key=lambda row: row.milliseconds), *refused], metric, setting, records)


def halves(examples: Examples, limit: int) -> tuple[Examples, Examples]:
    """Examples to calibrate with and others to judge by, both from all over the file.

    Args:
        examples: Examples in the order of their file.
        limit: Largest number of examples in each half.

    Raises:
        ValueError: Raised where there are fewer than 8 examples.
    """
    count = len(examples)
    if count < 8:
        raise ValueError(f"{examples.name} has {count} examples; at least 8 are needed, half of them to judge by")
    take = min(limit, count // 2)
    chosen = [place * count // (2 * take) for place in range(2 * take)]
    return examples.at(chosen[::2]), examples.at(chosen[1::2])


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
    lengths = [len(ids) for ids in tokenizer(texts.lines, truncation=True, max_length=most)["input_ids"]]
    return max(1, int(np.quantile(lengths, 0.95)))


def changed_copy(
    model: PreTrainedModel, recipe: Recipe, models: Mapping[str, PreTrainedModel], given: Given
) -> PreTrainedModel:
    """A copy of a model with a recipe applied, made from the model of the recipe's longest beginning that there is.

    Args:
        model: Model as it is; it is not changed.
        recipe: Changes in order.
        models: Models that were made before, by the names of their recipes.
        given: Data and settings that the changes may use.

    Raises:
        ValueError: Raised where a change cannot be applied.
    """
    begun = next(count for count in range(len(recipe), -1, -1) if not count or name_of(recipe[:count]) in models)
    changed = copy.deepcopy(models[name_of(recipe[:begun])] if begun else model)
    check(changed, recipe[begun:], given)
    apply(changed, recipe[begun:], given)
    return changed


def _row(recipe: Recipe, records: Sequence[Record], metric: str, batch: int, intensity: float) -> Measured:
    of = {record.metric: record for record in records if record.variant == name_of(recipe)}
    latency, size, quality = of["latency"], of["size"], of[metric]
    return Measured(
        recipe, latency.value, latency.ratio or float("nan"), size.ratio or float("nan"), quality.ratio or 0.0,
        quality.value, quality.interval, size.value,
        # mWh of one batch are kWh of a million batches.
        of["energy_inference"].value / batch * intensity / 1000,
    )  # fmt: skip
