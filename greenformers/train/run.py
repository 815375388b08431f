"""Run folders: settings, metrics, checkpoints while the run lasts, and the trained model at its end."""

import json
import shutil
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers._tensors import reading
from greenformers.train import checkpoint
from greenformers.train.callbacks import DivergedError, better
from greenformers.train.classification import ImageClassification
from greenformers.train.fit import History, fit, per_process
from greenformers.train.fit_pipeline import fit_pipeline
from greenformers.train.lottery import Lottery
from greenformers.train.low_rank import check, dense_steps
from greenformers.train.objective import Objective
from greenformers.train.pipeline import checked
from greenformers.train.processes import alone, first_process, processes
from greenformers.train.replaced_token_detection import GeneratorAndDiscriminator
from greenformers.train.rounds import Rounds
from greenformers.train.save import check_new, save
from greenformers.train.settings import Settings, Training
from greenformers.train.settings_file import read
from greenformers.train.shard import check_shard, is_sharded
from greenformers.train.state import put_weights, weights
from greenformers.train.task import MODEL, Task
from greenformers.train.trainer import check_memory

T = TypeVar("T", bound=Training)

SETTINGS, METRICS, SCORES, CHECKPOINTS = "run.json", "metrics.jsonl", "scores.json", "checkpoints"
SNAPSHOTS = "at"
"""Folder with a folder for each snapshot, which holds the model as the folder of a run does."""


class Stopped(KeyboardInterrupt):
    """A signal ended a run early.

    Attributes:
        signal: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        scores: Scores of the trained model, such as "loss"; empty where a signal ended the run early.
        history: History of the training.
        steps: Number of optimisation steps of the whole run, or of one round of a lottery ticket.
        rounds: Scores of each finished round of a lottery ticket, "weights_left" among them, by its number.
    """

    scores: dict[str, float]
    history: History
    steps: int
    rounds: dict[int, dict[str, float]] = field(default_factory=dict)


def start(folder: Path, settings: Training, console: Console) -> Outcome:
    """Train in a new folder.

    Raises:
        ValueError: A setting is out of range, or the folder is not empty; nothing is written then.
        DivergedError: The loss became no number; nothing is left then.
        OSError: A file is missing, or the folder cannot be written to.
    """
    # Checked here alone: a run that was sharded may be resumed in one process.
    if settings.shard and alone():
        raise ValueError("shard needs several processes: start the run with torchrun")
    if first_process():
        check_new(folder)
    settings = settings.settled()
    task, model = _prepared(settings)
    if first_process():
        folder.mkdir(parents=True, exist_ok=True)
        settings.write(folder / SETTINGS)
    try:
        return _train(folder, settings, task, model, console, resume=False)
    except DivergedError:
        if first_process():
            shutil.rmtree(folder)
        raise


def resume(folder: Path, console: Console, kind: type[Training] = Settings) -> Outcome:
    """Go on with a run from its newest whole checkpoint, or from its beginning if there is none.

    Raises:
        ValueError: The run has ended already.
        OSError: There is no run in the folder.
    """
    settings = settings_of(folder, kind)
    if (folder / SCORES).exists():
        raise ValueError(f"{folder.name} has nothing to resume: it ran to its end")
    task, model = _prepared(settings)
    return _train(folder, settings, task, model, console, resume=True)


def ensure(folder: Path, settings: Training, console: Console) -> dict[str, float]:
    """The scores of a run with these settings, which is started, resumed, or only read where it has ended.

    Raises:
        ValueError: The folder holds a run with other settings.
        Stopped: A signal ended the run early; call again to go on.
    """
    settings = settings.settled()
    if not (folder / SETTINGS).exists():
        outcome = start(folder, settings, console)
    elif differs := settings.differs(settings_of(folder, type(settings))):
        raise ValueError(f"{folder.name} holds a run with other settings than these: {', '.join(differs)}")
    elif (folder / SCORES).exists():
        return json.loads((folder / SCORES).read_text())
    else:
        if first_process():
            settings.write(folder / SETTINGS)  # with the places of now
        outcome = resume(folder, console, type(settings))
    if outcome.history.stopped is not None:
        raise Stopped(outcome.history.stopped)
    return outcome.scores


def settings_of(folder: Path, kind: type[T]) -> T:
    """The settings of a run, of one kind.

    Raises:
        OSError: There is no run in the folder.
        ValueError: It is a run of another kind.
    """
    check_kind(folder, kind)
    return kind(**read(folder / SETTINGS, kind))


def check_kind(folder: Path, kind: type[Training]) -> None:
    """Raise ValueError where a run lacks most of the settings that only runs of this kind have."""
    shared = {entry.name for entry in fields(Training)}
    own = [entry.name for entry in fields(kind) if entry.name not in shared]
    try:
        stored = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except ValueError:  # of which `read` tells what is wrong
        return
    lacking = [name for name in own if isinstance(stored, dict) and name not in stored]
    if 2 * len(lacking) > len(own):
        raise ValueError(f"{folder} is a run of another command: it has no setting {lacking[0]!r}")


def trained(folder: Path, kind: type[Training] = Settings) -> PreTrainedModel:
    """The trained model of a finished run with settings of one kind.

    Raises:
        OSError: The run has not ended, or there is none in the folder.
        ValueError: It is a run of another kind, or its weights are damaged.
    """
    described = folder / MODEL / "config.json"
    if (folder / SETTINGS).is_file() and not described.is_file():
        raise FileNotFoundError(f"{folder} has no model yet: its training has not ended, and goes on with --resume")
    if not described.is_file():
        raise FileNotFoundError(f"{folder} must be a finished run: it has no {MODEL}/{described.name}")
    name = json.loads(described.read_text())["architectures"][0]
    network = getattr(kind.networks(), name, None)
    if network is None:
        raise ValueError(f"{folder} must be a run of another command: it holds a {name}")
    with reading(folder / MODEL / "model.safetensors"):
        return network.from_pretrained(folder / MODEL)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The entries that a run has logged."""
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def _prepared(settings: Training) -> tuple[Task, PreTrainedModel]:
    """Task and network of a run; errors in the settings are raised here, before anything is written."""
    schedule, lottery = settings.schedule, settings.lottery
    per_process(schedule, whole=settings.micro_batches is not None)
    if settings.stages is not None and settings.micro_batches is None:
        raise ValueError(f"stages is for pipelines: give micro_batches too, got stages {settings.stages}")
    task = settings.task()
    images = task.objective.data if isinstance(task.objective, ImageClassification) else None
    if schedule.patience is not None and images is not None and images.valid is None:
        name = images.name
        raise ValueError(f"patience would choose by the test images: {name} has no validation split")
    model = task.network()
    if settings.micro_batches is not None:
        checked(model, schedule, settings.micro_batches, settings.stages, processes())
    if settings.residual == "reversible":
        for name, on in (("recompute", settings.recompute), ("shard", is_sharded(settings.shard))):
            if on:
                raise ValueError(
                    f"{name} must be off with residual reversible, which stores no activations to recompute"
                )
    steps, snapshots = schedule.stream(task.objective).steps, settings.snapshot_steps
    if is_sharded(settings.shard):
        _ = replace(settings, shard=True).lottery  # refuses what cannot be sharded
        if not alone():
            check_shard(model)
    check_memory(task.objective, processes(), schedule.accumulate)
    if lottery is not None:
        lottery.check(model, steps)
    if snapshots and settings.micro_batches is not None:
        raise ValueError(f"snapshots are not made in a pipeline (micro_batches), got {settings.snapshots}")
    if snapshots and not 1 <= snapshots[0] <= snapshots[-1] <= steps:
        raise ValueError(f"snapshots must be in 1..{steps}, the steps of the run, got {settings.snapshots}")
    _check_low_rank_training(settings, model, steps)
    task.objective.size("valid")  # a run without a validation split would fail at its first evaluation
    return task, model


def _check_low_rank_training(settings: Training, model: PreTrainedModel, steps: int) -> None:
    """Raise ValueError where the way of training low-rank layers has no effect, or excludes another setting."""
    way, snapshots = settings.low_rank_training, settings.snapshot_steps
    check(model, way, steps)
    if way is not None and settings.init is not None:
        raise ValueError(
            f"init must be left out with low_rank_training {way}, which starts anew; got {settings.init!r}"
        )
    if way == "dense_first" and snapshots and snapshots[0] <= (dense := dense_steps(steps)):
        raise ValueError(
            f"snapshots must be in {dense + 1}..{steps}, where layers are of low rank, got {settings.snapshots}"
        )


def _train(
    folder: Path, settings: Training, task: Task, model: PreTrainedModel, console: Console, *, resume: bool
) -> Outcome:
    if (lottery := settings.lottery) is not None:
        return _train_rounds(folder, settings, lottery, task, console)
    label, checkpoints = folder.name, folder / CHECKPOINTS
    outcome = _train_once(folder, settings, task, model, console, label=label, checkpoints=checkpoints, resume=resume)
    if outcome.history.stopped is None:
        _finish(folder, task, model, outcome.scores)
    return outcome


def _train_rounds(folder: Path, settings: Training, lottery: Lottery, task: Task, console: Console) -> Outcome:
    """Train the rounds of a lottery ticket that are not finished."""
    steps = settings.schedule.stream(task.objective).steps
    rounds = Rounds(folder, folder / CHECKPOINTS, lottery, task, steps, writes=first_process())
    seconds = 0.0
    for number in rounds.unfinished:
        model = rounds.network(number)
        outcome = _train_once(
            rounds.folder(number), settings, task, model, console, label=f"{folder.name}, round {number}",
            checkpoints=rounds.checkpoints(number), resume=True, callbacks=rounds.callbacks(number),
        )  # fmt: skip
        seconds += outcome.history.seconds
        if outcome.history.stopped is not None:
            break
        rounds.end(number, model, weights(model), outcome.scores)
    else:
        if first_process():
            checkpoint.replace(folder / METRICS, (rounds.folder(number) / METRICS).read_text())
        _finish(folder, task, model, outcome.scores)
    return replace(outcome, history=replace(outcome.history, seconds=seconds), rounds=rounds.rows)


def _train_once(
    folder: Path,
    settings: Training,
    task: Task,
    model: PreTrainedModel,
    console: Console,
    *,
    label: str,
    checkpoints: Path,
    resume: bool,
    callbacks: tuple[TrainerCallback, ...] = (),
) -> Outcome:
    schedule = settings.schedule
    snapshots = _Snapshots(folder / SNAPSHOTS, settings.snapshot_steps, task, model)
    options: dict[str, Any] = {
        "label": label,
        "console": console,
        "folder": checkpoints,
        "resume": resume,
        "callbacks": (_Metrics(folder / METRICS), snapshots, *callbacks),
    }
    if settings.micro_batches is None:
        history = fit(model, task.objective, schedule, **options)
    else:
        history = fit_pipeline(
            model, task.objective, schedule, settings.micro_batches, stages=settings.stages, **options
        )
    steps = schedule.stream(task.objective).steps
    if history.stopped is not None:
        return Outcome({}, history, steps)
    return Outcome(_scores_of(history, task.objective, best=schedule.patience is not None), history, steps)


def _scores_of(history: History, objective: Objective, *, best: bool) -> dict[str, float]:
    """The scores of the trained weights: those of the last evaluation, or of the best one."""
    key = f"eval_{objective.metric}"
    entries = [entry for entry in history.log if key in entry]
    sign = 1 if objective.greater_is_better else -1
    # Of equal scores the first one, as in early stopping.
    chosen = max(entries, key=lambda entry: better(sign * entry[key])) if best else entries[-1]
    return {name.removeprefix("eval_"): value for name, value in chosen.items() if name.startswith("eval_")}


def _finish(folder: Path, task: Task, model: PreTrainedModel, scores: dict[str, float]) -> None:
    tensors = weights(model)  # every process has a part of a sharded model
    if first_process():
        _save_model(folder, task, tensors)
        checkpoint.replace(folder / SCORES, json.dumps(scores, indent=1) + "\n")
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _save_model(folder: Path, task: Task, tensors: dict[str, Tensor]) -> None:
    model = task.fresh()
    put_weights(tensors, model)
    # Of replaced token detection the discriminator is saved; a saved model has logits for all positions.
    saved = model.discriminator if isinstance(model, GeneratorAndDiscriminator) else model
    saved.config.sparse_prediction = False
    # A run that was killed here before has saved the same model already.
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    save(saved, folder / MODEL, task.tokenizer)
    task.objective.add_to(folder / MODEL, saved)


class _Metrics(TrainerCallback):
    """Writes the log to a file of JSON lines: whole once, then what is new, as whole it takes longer at every entry."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._written = 0  # a run that goes on has the log of its checkpoint, which may end before that of the file

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        new = [entry for entry in state.log_history[self._written :] if "train_runtime" not in entry]
        text = "".join(json.dumps(entry) + "\n" for entry in new)
        if self._written:
            with self._path.open("a") as file:
                file.write(text)
        else:
            checkpoint.replace(self._path, text)
        self._written = len(state.log_history)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero and self._path.is_file():
            checkpoint.sync(self._path)


class _Snapshots(TrainerCallback):
    """Saves the model after some steps; a run that was stopped in between saves the same ones again."""

    def __init__(self, folder: Path, steps: list[int], task: Task, model: PreTrainedModel) -> None:
        self._folder, self._steps, self._task, self._model = folder, set(steps), task, model

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step in self._steps:
            tensors = weights(self._model)  # every process has a part of a sharded model
            if state.is_world_process_zero:
                _save_model(self._folder / str(state.global_step), self._task, tensors)
