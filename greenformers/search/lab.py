"""Where recipes are made, judged and timed: always beside the model as it is, in the runtime that will be used.

Pairs of texts with scores judge a recipe by Spearman's correlation of its similarities with those of the model as it
is. Where what a recipe gets wrong has nothing to do with the scores, that is the share of the correlation with the
scores that it keeps (attenuation, Spearman 1904); and it is known far better from so many pairs. Of 12 healed recipes
of MiniLM-L6 it was, on 1,000 pairs, within 0.45 points of the share kept on 1,625 others; the share kept on the same
1,000 was 0.5 to 1.2 above that (docs/studies/search.md).

Recipes that round weights are timed beside the model with its weights rounded alike, and how much faster that is than
the model as it is is asked for again now and then. Where others use the machine too, products of one number format
become slower than those of another: in 14 turns within 5 minutes MiniLM-L6 in bf16 was 2.2 to 3.0 times as fast as in
float32 (standard deviation 12 %), and with 4 layers 1.39 to 1.52 times as fast as with 6 in bf16 (2 %).
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from greenformers.advise.in_runtime import TORCH
from greenformers.changes import Change, Given, kinds
from greenformers.changes._measured import Measured
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.files import line
from greenformers.compress.answers import Answers, Embedded, Ranked
from greenformers.compress.apply import apply
from greenformers.compress.quality import answers, check_examples
from greenformers.compress.side_by_side import subjects_of
from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.export.apart import File, Timer
from greenformers.export.measure import PAUSE, QUALITIES, size_of
from greenformers.export.network import LEAST, Network
from greenformers.export.runtime import RuntimeModel
from greenformers.export.write import write
from greenformers.measure.latency import interleaved
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import METRICS
from greenformers.search.healing import HURDLES
from greenformers.search.recipes import healed
from greenformers.search.space import Genes
from greenformers.search.trials import Trial
from greenformers.search.tries import Turn

ORIGINAL, TRIED = "original", "tried"
BEGUN, BEGUN_BYTES = 12, 2**30
"""Networks with the first changes of a recipe that are kept, and the most bytes that they are to take."""

HEALED = 64
"""Examples of a step of healing."""
MOST = 100.0
"""How many times better a recipe may be said to be than the model as it is."""
REPEATS, SECONDS = 9, 4.0
"""Least number of timed runs of the model as it is and of a recipe, in turns, and seconds that they take together at
least. With 9 runs of 60 ms the same recipe was 1.8 and 2.2 times as fast on a machine that others use too."""


TIMER = Timer()
"""The process in which files of a runtime are timed."""


@dataclass(frozen=True)
class Ready:
    """A model as the runtime has it.

    Attributes:
        model: What is judged.
        call: A pass over the batch that is timed.
        size: Bytes on disk.
        file: The file of a runtime other than torch.
    """

    model: Any
    call: Callable[[], object]
    size: int
    file: File | None = None


@dataclass
class Rounded:
    """The model with its weights rounded, beside which recipes that round alike are timed.

    Attributes:
        ready: The model; None until a recipe is to be timed beside it.
        speeds: How many times as fast as the model as it is, as often as that was asked for.
        trials: Recipes that were timed beside it.
    """

    ready: Ready | None = None
    speeds: list[float] = field(default_factory=list)
    trials: int = 0

    def count(self, speed: Callable[[], float]) -> None:
        """Count a recipe that is timed beside it; after 1, 2, 4, 8, ... of them its own speed is asked for."""
        self.trials += 1
        if self.trials.bit_count() == 1:
            self.speeds.append(speed())


def speed_up(own: Ready, tried: Ready) -> float:
    """How many times as fast as the model as it is, by the clock: the median of what two runs in turn say.

    Files of a runtime run in a process that has done nothing else, as they will.
    """
    how: dict[str, Any] = {"repeats": REPEATS, "warmup": 2, "min_time": SECONDS, "pause": PAUSE}
    if own.file is not None and tried.file is not None:
        before, after = TIMER.times((own.file, tried.file), **how)
    else:
        with torch.inference_mode():
            before, after = (
                timing.samples for timing in interleaved({ORIGINAL: own.call, TRIED: tried.call}, **how).values()
            )
    return median(a / b for a, b in zip(before, after, strict=True))


def _rounding() -> list[type[Change]]:
    """Changes that round weights, in their order in a recipe."""
    return [kind for kind in sorted(kinds(), key=lambda kind: kind.order) if kind.freezes]


def share_kept(metric: str, before: float, after: float) -> float:
    """The share of a quality that is kept; nan where there was none before.

    Of an error rate of 0 it is all where that stays, and nothing where it does not.
    """
    if METRICS[metric].less_is_better and before == 0:
        return float(after == before)
    if not before > 0:
        return nan
    # Of an error rate of 0 no share could be said.
    return before / max(after, before / MOST) if METRICS[metric].less_is_better else after / before


@dataclass
class Lab:
    """The model as it is, and what recipes are judged by.

    Attributes:
        original: The model as it is.
        reader: Reader of the examples.
        examples: Examples to judge by in the search.
        given: Data and settings of changes.
        folder: Folder for the files of the runtime.
        runtime: `TORCH`, or a format of `export` that another runtime reads.
        length: Tokens of the texts that are timed; None for inputs without a length.
        batch: Examples in the batch that is timed.
        faster: Function that gives the speed-up of a model over another, which is its first argument.
    """

    original: PreTrainedModel
    reader: Reader
    examples: Examples
    given: Given
    folder: Path
    runtime: str = TORCH
    length: int | None = None
    batch: int = 8
    faster: Callable[[Ready, Ready], float] = speed_up
    _measured: Measured = field(default_factory=Measured, repr=False)
    _taught: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    _rounded: dict[tuple[type[Change], ...], Rounded] = field(default_factory=dict, repr=False)
    _begun: OrderedDict[str, tuple[PreTrainedModel, CompressionReport]] = field(default_factory=OrderedDict, repr=False)
    _timed: dict[Genes, tuple[tuple[type[Change], ...], float]] = field(default_factory=dict, repr=False)
    _training: float | None = field(default=None, repr=False)

    def made(self, recipe: tuple[Change, ...]) -> PreTrainedModel:
        """A copy of the model with a recipe applied.

        Recipes that begin alike are made from where they part, before they are rounded: the last networks with such
        beginnings are kept, healed ones among them.

        Raises:
            ValueError: A change cannot be applied.
        """
        given = replace(self.given, measured=self._measured, taught=self._taught)
        count = next((at for at, change in enumerate(recipe) if change.freezes), len(recipe))
        most = min(BEGUN, BEGUN_BYTES // bytes_of(self.original))
        begun, report = self._beginning(recipe[:count] if most else (), given, most)
        model = copy.deepcopy(begun)
        if report is None or len(report.steps) < len(recipe):
            report = apply(model, recipe, given, done=report)
        trained = [step.seconds for step, change in zip(report.steps, recipe, strict=True) if change.trains]
        self._training = sum(trained) if trained else None
        return model

    def _beginning(
        self, recipe: tuple[Change, ...], given: Given, most: int
    ) -> tuple[PreTrainedModel, CompressionReport | None]:
        """The model with the first changes of a recipe, which others may go on from; of these so many are kept."""
        if not recipe:
            return self.original, None
        key = repr(recipe)
        begun = self._begun.get(key)
        if begun is None:
            before, report = self._beginning(recipe[:-1], given, most)
            model = copy.deepcopy(before)
            begun = model, apply(model, recipe, given, done=report)
        self._begun[key] = begun
        self._begun.move_to_end(key)
        while len(self._begun) > most:
            self._begun.popitem(last=False)
        return begun

    def healed(self, recipe: tuple[Change, ...], *parts: int) -> tuple[Change, ...]:
        """A recipe that is healed for so many steps, and then for so many more, and so on."""
        rows = 64 if self.given.training is None else len(self.given.training) * 19 // 20
        each = ([change.but(steps=n) for n in parts] if change.trains else [change] for change in healed(recipe, rows))
        return tuple(chain.from_iterable(each))

    def trial(
        self, genes: Genes, steps: int, make: Callable[[], PreTrainedModel], turn: Turn = lambda work: work()
    ) -> Trial:
        """A recipe made, judged and timed; one that cannot be, or takes more memory than there is, says so.

        Args:
            genes: The recipe.
            steps: Steps of healing.
            make: Function that makes it.
            turn: Function that calls another when nothing else runs.
        """
        own, metric, (examples, original) = self.own, self.own_quality[0], self._judging
        self._training = None
        try:
            model = make()
            training = self._training
            tried = self._ready(model, TRIED)
            scores = answers(tried.model, examples, self.reader).scores(original)
            if metric not in scores:
                return Trial(genes, steps, refused=f"its outputs have no {metric} to those of the original")
            after, difference = scores[metric]
            if not isfinite(after):
                return Trial(genes, steps, refused=f"its {metric} is {after}, which is not finite")
            if steps > HURDLES[-1] or genes not in self._timed:  # a little healing changes no speed
                self._timed[genes] = turn(lambda: self._speed(model, tried))
            rounding, relative = self._timed[genes]
        except OSError:  # a full disk, say, is no fault of the recipe
            raise
        except Exception as error:
            return Trial(genes, steps, refused=line(error))
        before = 100.0 if self.ranks else self.own_quality[1]  # it ranks pairs as it does itself
        low, high = sorted(1 - share_kept(metric, before, before + end) for end in difference or (0.0, 0.0))
        gain = self._rounded[rounding].speeds[-1] if rounding else 1.0
        return Trial(
            genes, steps, gain * relative, 1 - share_kept(metric, before, after), own.size / tried.size,
            beside=" + ".join(kind.name() for kind in rounding), rounded=gain,
            interval=None if difference is None else (low, high), training=training,
        )  # fmt: skip

    @cached_property
    def step_seconds(self) -> float:
        """About the seconds of a step of healing, see `HEALED`: three times those of a forward pass over as many."""
        forward = subjects_of({ORIGINAL: self.original}, self.length, self.batch)[ORIGINAL].forward
        with torch.inference_mode():
            (timing,) = interleaved({ORIGINAL: forward}, repeats=3, warmup=1).values()
        return 3 * HEALED / self.batch * timing.median

    def speed(self, model: PreTrainedModel) -> float:
        """How many times as fast a made recipe is.

        Raises:
            ValueError: It cannot be run in the runtime.
        """
        rounding, relative = self._speed(model, self._ready(model, TRIED))
        return relative * (median(self._rounded[rounding].speeds) if rounding else 1.0)

    def _speed(self, model: PreTrainedModel, tried: Ready) -> tuple[tuple[type[Change], ...], float]:
        """What rounds weights in a recipe, and how many times as fast as the model rounded alike the recipe is."""
        rounding = tuple(kind for kind in _rounding() if kind.shows(model) and not kind.shows(self.original))
        if not rounding:
            return (), self.faster(self.own, tried)
        beside = self._rounded.setdefault(rounding, Rounded())
        ready = beside.ready
        if ready is None:
            name = "-".join([ORIGINAL, *(kind.name() for kind in rounding)])
            ready = beside.ready = self._ready(self.made(tuple(kind() for kind in rounding)), name)
        beside.count(lambda: self.faster(self.own, ready))
        return rounding, self.faster(ready, tried)

    def know(self, trial: Trial) -> None:
        """Take over what a run before has measured: else one that was stopped would time what a whole one does not."""
        if trial.refused is not None or (trial.steps <= HURDLES[-1] and trial.genes in self._timed):
            return
        names = trial.beside.split(" + ")
        rounding = tuple(kind for kind in _rounding() if kind.name() in names)
        self._timed[trial.genes] = rounding, trial.speed / trial.rounded
        if rounding:
            self._rounded.setdefault(rounding, Rounded()).count(lambda: trial.rounded)

    @cached_property
    def own(self) -> Ready:
        """The model as it is."""
        return self._ready(self.original, ORIGINAL)

    @cached_property
    def own_quality(self) -> tuple[str, float]:
        """The metric of the quality, and that of the model as it is.

        Raises:
            ValueError: The model has no quality by these examples.
        """
        check_examples(self.original, self.examples, self.reader)
        scores = self._own_answers.scores()
        metric = next(name for name in QUALITIES if name in scores)
        value = scores[metric][0]
        if not value > 0:
            raise ValueError(
                f"{self.examples.name} cannot judge changes: the model as it is has a {metric} of {value:.3g} on it"
            )
        return metric, value

    @property
    def ranks(self) -> bool:
        """Whether recipes are judged by how they rank pairs, beside the model as it is."""
        return self.own_quality[0] == "spearman"

    @cached_property
    def _own_answers(self) -> Answers:
        return answers(self.own.model, self.examples, self.reader)

    @cached_property
    def _judging(self) -> tuple[Examples, Answers]:
        """What recipes are judged by, and what the model as it is answers to that."""
        if not self.ranks:
            return self.examples, self._own_answers
        assert isinstance(self.examples, Texts)
        own = self._own_answers if self.runtime == TORCH else answers(self.original, self.examples, self.reader)
        assert isinstance(own, Embedded | Ranked)
        judged = own.by_itself()
        assert judged.scored is not None
        return replace(self.examples, labels=judged.scored.tolist(), label_kind="score"), judged

    def _ready(self, model: PreTrainedModel, name: str) -> Ready:
        if self.runtime == TORCH:
            subject = subjects_of({name: model}, self.length, self.batch)[name]
            return Ready(model, subject.forward, bytes_of(model))
        folder = self.folder / name
        length = self.length or self.reader.length
        calibration: Any = self.given.calibration
        write(
            model, folder, [self.runtime], tokenizer=self.reader.tokenizer, calibration=calibration,
            length=max(LEAST, length), few=True,
        )  # fmt: skip
        file = RuntimeModel(self.runtime, folder, model, self.reader.tokenizer)
        example = Network(model, self.reader.tokenizer).batch(self.batch, length)
        own = File(self.runtime, folder, tuple(file.inputs), tuple(example))
        return Ready(file, partial(file.call, *example), size_of(self.runtime, folder), own)
