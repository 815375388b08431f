"""Training of a changed network to give the outputs of its teacher; losses in `_student`."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers.changes._distillation import BATCH, Distillation
from greenformers.changes._student import Student
from greenformers.changes._while_learning import attending, draws_apart, in_full
from greenformers.train.bf16 import EIGHTS, Precision
from greenformers.train.callbacks import DivergedError
from greenformers.train.checkpoint import newest_finite
from greenformers.train.fit import History, fit
from greenformers.train.objective import Batch
from greenformers.train.processes import alone
from greenformers.train.run import Stopped
from greenformers.train.schedule import Schedule
from greenformers.train.shard import is_sharded
from greenformers.train.state import put_weights
from greenformers.train.state import weights as whole_weights

WIDENED = 256
"""Examples by which the matrices of a narrower student are made."""


def heal(
    model: PreTrainedModel,
    original: PreTrainedModel,
    examples: Distillation,
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
        better: Put all weights back as they were where the loss is higher in the end than it was before, or no number.
        replace: Function that makes another batch of one that is learned from.
        precision: Precision of the products of matrices of both networks.

    Returns:
        The log of training; "eval_distance" is the loss on the examples that are held out.

    Raises:
        ValueError: The model has no outputs for a part of the loss, or the loss is no longer finite.
        Stopped: A signal ended training early; the weights are as they were, and `resume` goes on.
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
        with draws_apart(), in_full(student.model), attending(student):
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
            if history.stopped is not None:
                raise Stopped(history.stopped)
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
    # A network that hardly differs from its teacher may only lose by large steps. NaN is no less than any number.
    worse = better and not reached(history, best=schedule.patience is not None) <= start
    if sharded and not worse:
        held = whole_weights(student)
        own = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        put_weights({name: held[f"model.{name}"] for name in own}, model)
    elif worse and not sharded:
        model.load_state_dict(before)
    return history


def distances(history: History) -> list[float]:
    """Distances from the teacher on the examples that are not learnt from: before the first step, and as logged."""
    return [value for _, value in history.curve("eval_distance")]


def reached(history: History, *, best: bool) -> float:
    """The distance of the weights that are left: the last, or, where training ends with the best ones, the least."""
    after = distances(history)[1:]
    return min(after) if best else after[-1]


class _Progress(TrainerCallback):
    """Reports the progress after every step."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress("healing", state.global_step / state.max_steps)
