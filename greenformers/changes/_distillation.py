"""Healing: distillation of the original into the smaller network on unlabelled examples; losses in `_student`."""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from greenformers.changes._recorded import recordable
from greenformers.changes._student import ATTENDING, Student
from greenformers.changes._teacher_cache import Ask, Asked, TeacherCache, digest
from greenformers.data._rows import SOUND, Batches, Rows
from greenformers.train.bf16 import EIGHTS, Precision
from greenformers.train.callbacks import DivergedError
from greenformers.train.checkpoint import newest_finite
from greenformers.train.fit import History, fit
from greenformers.train.objective import Batch, Example, Objective
from greenformers.train.processes import alone, first_before_others
from greenformers.train.schedule import Schedule
from greenformers.train.shard import is_sharded
from greenformers.train.state import put_weights
from greenformers.train.state import weights as whole_weights
from greenformers.train.stream import Stream

DROPS, CUTS = "drop", ("apply_spec_augment",)
"""What the names of options of modules and configurations hold that leave out values or layers in training, and options
that cut out parts of a recording."""

DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout

WIDENED, BATCH = 256, 16
"""Examples by which the matrices of a narrower student are made, and how many of them are run at once."""

HELD_BYTES = 2**30
"""Most bytes of what a teacher gave that are held in memory."""

_NONE = torch.Generator()

AT_ONCE = 64
"""Examples that are judged at once."""

VALID, HELD = 20, 256
"""One example in so many is held out, and no more than so many; on these the loss is evaluated, by which healing may
end early: of more it would be known no better, and take longer than the training."""


def heal(
    model: PreTrainedModel,
    original: PreTrainedModel,
    examples: "Distillation",
    schedule: Schedule,
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float = 2.0,
    layer_map: Sequence[int] | None = None,
    cache: Path | None = None,
    taught: dict[Hashable, Any] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[str, float], None] = lambda *_: None,
    callbacks: Sequence[TrainerCallback] = (),
    better: bool = True,
    replace: Callable[[Batch], Batch] | None = None,
    precision: Precision = "fp32",
) -> History:
    """Train a compressed network, the student, in place to give the outputs of its teacher.

    Args:
        model: The student.
        original: The teacher: the network before compression, or any other with the same inputs and outputs. It is not
            changed.
        examples: Examples that both read.
        schedule: Number of steps, batch size and learning rate.
        weights: Weights of the parts of the loss, by name; by default those of `WEIGHTS` for the task of the model.
        temperature: Temperature T of the logits.
        layer_map: The teacher's layer for each of the student's, that of its embedding first; -1 for none.
        cache: Folder that keeps what the teacher gives, which is asked once for each example; by default it is asked at
            each step.
        taught: What the teacher gave to the same examples in trainings before, which is used and added to where one
            vector of each example is all that is learned from.
        folder: Folder for checkpoints; without it none are written.
        resume: Continue from the newest checkpoint of the folder.
        progress: Function that is called as work goes on.
        callbacks: Further callbacks of the Trainer.
        better: Put all weights back as they were where the loss is higher in the end than it was before.
        replace: Function that makes another batch of one that is learned from.
        precision: Precision of the products of matrices of both networks.

    Returns:
        The log of training; "eval_distance" is the loss on the examples that are held out.

    Raises:
        ValueError: The model has no outputs for a part of the loss, or the loss is no longer finite.
    """
    sharded = is_sharded(schedule.shard)
    student = Student(
        copy.deepcopy(model) if sharded else model,  # what is sharded once does not become whole again
        original,
        weights,
        temperature,
        layer_map=layer_map,
        seen=examples.batches(WIDENED, BATCH),
        replace=replace,
        precision=precision,
    )
    examples.bf16 = precision == "bf16"
    if examples.bf16 and next(model.parameters()).device.type == "cpu":
        examples.multiple = EIGHTS
    # What is sharded is a copy.
    before = {} if sharded else {name: x.clone() for name, x in model.state_dict().items()}
    modes = [(part, part.training) for part in model.modules()]
    try:
        with in_full(model), attending(student):
            if cache is not None:
                examples.remember(student, cache, lambda share: progress("asking the teacher", share))
            elif replace is None and alone():
                examples.ask_once(student, schedule, taught)
            start = examples.evaluate(student, "valid", schedule.batch_size)["distance"]
            history = fit(
                student,  # type: ignore[arg-type]  # the Trainer takes any module
                examples, schedule, label="healing", console=Console(quiet=True), folder=folder, resume=resume,
                callbacks=(_Progress(progress), *callbacks),
            )  # fmt: skip
    except BaseException as error:
        model.load_state_dict(before, strict=not sharded)
        for part, mode in modes:
            part.training = mode
        if not isinstance(error, DivergedError):
            raise
        good = None if folder is None else newest_finite(folder)
        last = "" if good is None else f"; the last good checkpoint is {good}"
        raise ValueError(
            f"healing diverged at a learning rate of {schedule.learning_rate:g}: {error}; try a lower one{last}"
        ) from error
    model.eval()
    history.log.insert(0, {"step": 0, "eval_distance": start})
    # A network that hardly differs from its teacher may only lose by large steps.
    worse = better and history.stopped is None and reached(history, best=schedule.patience is not None) > start
    if sharded and not worse:
        held = whole_weights(student)
        own = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        put_weights({name: held[f"model.{name}"] for name in own}, model)
    elif worse and not sharded:
        model.load_state_dict(before)
    return history


@contextmanager
def on_device(device: torch.device, *models: PreTrainedModel) -> Iterator[None]:
    """A `with` block in which models are on a device; afterwards they are where they were."""
    before = [next(model.parameters()).device for model in models]
    try:
        for model in models:
            model.to(device)  # type: ignore[arg-type]
        yield
    finally:
        for model, place in zip(models, before, strict=True):
            model.to(place)  # type: ignore[arg-type]


def distances(history: History) -> list[float]:
    """Distances from the teacher on the examples that are not learnt from: before the first step, and as logged."""
    return [value for _, value in history.curve("eval_distance")]


def reached(history: History, *, best: bool) -> float:
    """The distance of the weights that are left: the last, or, where training ends with the best ones, the least."""
    after = distances(history)[1:]
    return min(after) if best else after[-1]


@contextmanager
def in_full(model: PreTrainedModel) -> Iterator[None]:
    """A `with` block in which nothing is left out in training: no value (dropout), no layer, no part of a recording.

    The teacher leaves out nothing, and its outputs and states are what the student learns. Each text is read about
    once, so that there is nothing for dropout to prevent: 3 of 6 layers of MiniLM-L6 keep after 300 steps 99.1 % of
    Spearman's correlation on pairs not seen, with the dropout of its configuration 98.8 %.
    """
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    before = [
        (holder, name, value)
        for holder in [*model.modules(), *configs.values()]
        for name, value in vars(holder).items()
        if isinstance(value, bool | float) and (DROPS in name or name in CUTS or _is_share(holder, name))
    ]
    for holder, name, value in before:
        setattr(holder, name, type(value)(0))
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


def _is_share(holder: Any, name: str) -> bool:
    """Whether a name is that of the share which a dropout module leaves out."""
    return name == "p" and isinstance(holder, DROPOUTS)


@contextmanager
def attending(student: Student) -> Iterator[None]:
    """A `with` block in which student and teacher note what they attend with, if the loss compares that.

    Raises:
        ValueError: One of them has an attention of its own, or is an encoder-decoder.
    """
    if not any(student.weights.get(name) for name in ATTENDING):
        yield
        return
    models = (student.model, student.teacher)
    for model in models:
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(
                f"{' and '.join(ATTENDING)} are learned by networks of one stack; {type(model).__name__} has two"
            )
    with recordable(*models):
        yield


class _Progress(TrainerCallback):
    """Reports the progress after every step."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress("healing", state.global_step / state.max_steps)


class Distillation(Objective):
    """Examples for distillation, of which one in `VALID` is held out, and no more than `HELD`.

    Args:
        rows: The examples as the network reads them.
        schedule: Schedule whose batch size the number of examples is checked against.

    Attributes:
        multiple: Number of which the lengths of batches of texts are multiples.

    Raises:
        ValueError: There are fewer than 2 examples, or too few for a batch.
    """

    metric = "distance"
    greater_is_better = False
    splits: ClassVar[tuple[str, ...]] = ("train", "valid")
    partial: ClassVar[bool] = True  # poolers, say, of which the loss compares nothing
    taught: TeacherCache | Asked | None
    multiple: int = 1

    def __init__(self, rows: Rows, schedule: Schedule | None = None) -> None:
        if len(rows) < 2:
            raise ValueError(f"healing needs at least 2 examples, got {len(rows)}")
        held = range(0, len(rows), max(VALID, -(-len(rows) // HELD)))
        self.places = {"train": [at for at in range(len(rows)) if at not in held], "valid": list(held)}
        self.all, self.taught = rows, None
        self.rows = {split: rows.at(places) for split, places in self.places.items()}
        lengths = self.rows["train"].lengths
        self.lengths = None if lengths is None else torch.tensor(lengths)
        if schedule is not None:
            Stream(self, schedule.batch_size, schedule.steps or 1, schedule.seed)  # raises where there are too few

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def example(self, split: str, index: int, source: torch.Generator) -> Example:
        place = self.places[split][index]
        taught = {} if self.taught is None or place not in self.taught else self.taught[place]
        return {**self.rows[split][index], **taught}

    def check_kept(self, student: Student) -> dict[str, str | int]:
        """See `Student.outputs`, for these examples.

        Raises:
            ValueError: What the teacher gives cannot be kept.
        """
        first = self.all[0]
        if any(name in first for name in SOUND):
            raise ValueError(
                "recordings of a batch are cut to the shortest, so what a teacher gives cannot be kept: leave out "
                "teacher_cache"
            )
        return student.outputs(first)

    def remember(self, student: Student, folder: Path, progress: Callable[[float], None]) -> TeacherCache:
        """Ask the teacher once for each example, and keep what it gives in a folder.

        Raises:
            ValueError: The folder holds something else, there is no room for it, or it cannot be kept.
        """
        needed = self.check_kept(student)
        rows = {name: [self._rows(count, at) for at in range(len(self.all))] for name, count in needed.items()}
        batches = Batches(self.all, BATCH).places
        with first_before_others():
            cache = TeacherCache(folder, digest(student.teacher, self.all), len(self.all))
            # What is kept is for trainings of any precision.
            cache.fill(list(rows), rows, self._asking(student, needed, "fp32"), batches, progress)
        self.taught = cache
        return cache

    def ask_once(self, student: Student, schedule: Schedule, taught: dict[Hashable, Any] | None) -> None:
        """Ask the teacher once for what is learned from again, as it is needed, where that has room in memory.

        That is what judges, at each evaluation; and all examples, where one vector of each is all that is learned, and
        there is more than one epoch or training. The teacher is asked for batches as those of the first epoch are, of
        which each is what is learned from next.
        """
        if not student.can_be_kept or any(name in self.all[0] for name in SOUND):
            return
        needed = student.outputs(self.all[0])
        ask = self._asking(student, needed, student.precision)
        again = (schedule.steps or 0) * schedule.batch_size > self.size("train")
        every = student.compares_vectors and (again or taught is not None)
        size, lengths, train = schedule.batch_size, self.all.lengths, self.places["train"]
        first = [train[at] for at in Stream(self, size, 1, schedule.seed).order(0).tolist()] if every else []
        others = sorted(
            {*range(len(self.all))} - {*first} if every else self.places["valid"],
            key=lambda at: 0 if lengths is None else lengths[at],
        )
        a_row = {name: x.nbytes / len(x) for name, (x,) in ask([0]).items()}
        asked = first + others
        if sum(a_row[name] * self._rows(count, at) for name, count in needed.items() for at in asked) > HELD_BYTES:
            return
        batches = [places[at : at + size] for places in (first, others) for at in range(0, len(places), size)]
        key = (size, schedule.seed, student.precision, *needed)
        held = taught.setdefault(key, {}) if taught is not None and every else {}
        self.taught = Asked(batches, ask, held)

    def _rows(self, count: int | str, at: int) -> int:
        """Rows that an example has of an output, by its number of them or by the argument that is as long."""
        return count if isinstance(count, int) else len(self.all[at][count])

    def _asking(self, student: Student, needed: Mapping[str, int | str], precision: Precision) -> Ask:
        """The function that asks the teacher for what the loss needs."""

        def ask(places: Sequence[int]) -> dict[str, list[Tensor]]:
            counts = {name: [self._rows(count, at) for at in places] for name, count in needed.items()}
            return student.ask(self.all.collate([self.all[at] for at in places], self.multiple), counts, precision)

        return ask

    def collate(self, examples: list[Example]) -> Batch:
        return self.rows["train"].collate(examples, self.multiple)

    def batches(self, count: int, size: int) -> Iterator[Batch]:
        """Batches of `size` of the first examples that are learnt from, up to `count`."""
        rows = self.rows["train"]
        for start in range(0, min(count, len(rows)), size):
            yield rows.collate([rows[at] for at in range(start, min(start + size, count, len(rows)))])

    def scored(self, batch: Batch) -> int:
        return len(next(iter(batch.values())))

    def config(self, **sizes: Any) -> Any:
        """Not available: the network has been built already.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a network that is healed has its configuration")

    def build(self, config: Any) -> PreTrainedModel:
        """Not available, see `config`.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a network that is healed has been built already")

    def evaluate(self, model: nn.Module, split: str, batch_size: int) -> dict[str, float]:
        """The loss on the examples that are held out, `AT_ONCE` at a time.

        It is that of batches: of others it would be another, before the first step and after the last.
        """
        del batch_size
        rows = self.rows[split]
        lengths = rows.lengths
        order = list(range(len(rows)))
        if lengths is not None:
            order.sort(key=lambda index: lengths[index])
        device, training = next(model.parameters()).device, model.training
        model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(order), AT_ONCE):
                places = order[start : start + AT_ONCE]
                batch = self.collate([self.example(split, place, _NONE) for place in places])
                loss = model(**{name: x.to(device) for name, x in batch.items()})["loss"]
                total += float(loss) * len(places)
        model.train(training)
        return {"distance": total / len(order)}
