"""Training of one model for an objective, by a schedule; the result is the trained model and its history."""

import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments, set_seed

from greenformers import _heap
from greenformers.attention.compressive import Compressive
from greenformers.attention.etc import Etc
from greenformers.attention.longformer import Longformer
from greenformers.blocks.star import Star
from greenformers.depth.adaptive import Adaptive
from greenformers.train import checkpoint, low_rank
from greenformers.train._accelerate import as_before
from greenformers.train.bf16 import Precision, recomputed
from greenformers.train.callbacks import Finite, Interruption, Pace, Patience, Until, Watch
from greenformers.train.objective import Objective
from greenformers.train.processes import alone, first_process, wait
from greenformers.train.schedule import Schedule
from greenformers.train.shard import is_sharded, shard
from greenformers.train.stream import Stream, generator
from greenformers.train.trainer import ResumableTrainer

DENSE = "dense"
"""Folder, among checkpoints, of those of the steps in which layers are dense."""


@dataclass(frozen=True)
class History:
    """The record of a training run.

    Attributes:
        seconds: Time in optimisation steps of this process, data loading and evaluation left out.
        log: Entries of the log: {"step", "loss"} in nats, averaged since the entry before, and {"step", "eval_..."}.
        steps_an_epoch: Steps in a pass over the training set.
        steps: Optimisation steps done.
        stopped: Number of the signal that ended the run early; None where it ran to its end.
    """

    seconds: float
    log: list[dict[str, float]]
    steps_an_epoch: int
    steps: int
    stopped: int | None = None

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Pairs (step, value) of "loss", in training, or of a score of the validation split such as "eval_accuracy"."""
        return [(int(entry["step"]), entry[name]) for entry in self.log if name in entry]


def fit(
    model: PreTrainedModel,
    objective: Objective,
    schedule: Schedule,
    *,
    label: str,
    console: Console,
    folder: Path | None = None,
    resume: bool = False,
    callbacks: tuple[TrainerCallback, ...] = (),
) -> History:
    """Train a model in place; the validation split is scored, never trained on.

    Args:
        model: A model that the objective has built.
        objective: The objective that the model is trained for.
        schedule: How long and how fast the model is trained.
        label: Label of the progress bar.
        console: Console that shows the progress bar.
        folder: Folder of the checkpoints; without it there are none.
        resume: Whether to go on from the newest whole checkpoint of the folder, if there is one.
        callbacks: Further callbacks, called at every event.

    Returns:
        The history from the first step on, also where the run was resumed.

    Raises:
        ValueError: The batch does not fit the training set or the processes, or low_rank_training the model.
    """
    dense_first = schedule.low_rank_training == "dense_first"
    if folder is None and schedule.patience is not None and not alone():
        raise ValueError("patience needs a folder where there are several processes: the best weights are read there")
    if folder is None and dense_first and not alone():
        raise ValueError("low_rank_training dense_first needs a folder where there are several processes")
    low_rank.check(model, schedule.low_rank_training, schedule.stream(objective).steps)
    # Weights and moments that nobody could go on from are not written: of a small model they take as long as a step.
    keep = 0 if folder is None else schedule.keep
    options: dict[str, Any] = {"label": label, "console": console, "callbacks": callbacks}
    with nullcontext(folder) if folder is not None else tempfile.TemporaryDirectory() as place:
        path, seconds = Path(place), 0.0
        start = checkpoint.newest(path, console.print) if resume else None
        if start is None and dense_first:
            seconds, ended = _dense_first(model, objective, schedule, path, resume=resume, **options)
            if ended is not None:
                return ended
            start = path / f"step-{low_rank.dense_steps(schedule.stream(objective).steps)}"
        history = _fit(model, objective, schedule, path, keep=keep, start=start, **options)
        return replace(history, seconds=seconds + history.seconds)


def _dense_first(
    model: PreTrainedModel, objective: Objective, schedule: Schedule, folder: Path, *, resume: bool, console: Console,
    **options: Any,
) -> tuple[float, History | None]:  # fmt: skip
    """Train dense layers, and write the checkpoint of the low-rank network that goes on from there.

    Returns:
        Time in optimisation steps; and the history, where a signal ended the training early.
    """
    steps, seconds = schedule.stream(objective).steps, 0.0
    step = low_rank.dense_steps(steps)
    dense = folder / DENSE
    start, end = checkpoint.newest(dense, console.print) if resume else None, dense / f"step-{step}"
    wait()  # whoever looks for the newest checkpoint removes those that are not finished
    if start != end:
        set_seed(schedule.seed)
        config: Any = model.config
        network = objective.build(config.without_ranks())
        history = _fit(
            network, objective, schedule, dense, keep=schedule.keep, start=start, until=step, console=console, **options
        )
        seconds = history.seconds
        if history.stopped is not None:
            return seconds, history
    if first_process():
        checkpoint.write(folder, step, low_rank.low_rank_checkpoint(end, model), keep=steps)
    wait()
    return seconds, None


def _fit(
    model: PreTrainedModel, objective: Objective, schedule: Schedule, folder: Path, *, keep: int, start: Path | None,
    label: str, console: Console, callbacks: tuple[TrainerCallback, ...], until: int | None = None,
) -> History:  # fmt: skip
    """Train from a checkpoint, or from the beginning, for all steps or until one."""
    stream = schedule.stream(objective)
    watch, interruption = Watch(label, console), Interruption()
    pace = Pace(*(every or stream.steps_an_epoch for every in schedule.paces()))
    sharded = is_sharded(schedule.shard)
    if sharded:
        replace(schedule, shard=True)  # refuses what cannot be sharded
    arguments = trainer_arguments(schedule, stream, folder)
    if any(map(_has_idle_parameters, model.modules())):
        arguments.ddp_find_unused_parameters = True
    way, muon_rate = schedule.low_rank_training, schedule.highest_muon_rate(model)
    if way == "spectral" and start is None:
        low_rank.begin_spectral(model, generator(schedule.seed, 7))
    device = arguments.device  # reading this property initialises the process group
    if sharded and torch.distributed.is_initialized():
        shard(model, device)
    trainer = ResumableTrainer(
        model,
        arguments,
        stream,
        keep=keep,
        decay=schedule.decay,
        again=low_rank.dense_steps(stream.steps) if way == "dense_first" else None,
        muon_rate=muon_rate,
        decays_products=way == "spectral",
        callbacks=[
            watch,
            pace,
            interruption,
            *([] if until is None else [Until(until)]),
            *callbacks,
            Finite(muon_rate),
        ],
    )
    if schedule.patience is not None:
        trainer.add_callback(Patience(objective, schedule.patience, trainer.save_best))
    with watch, interruption.listening(), as_before(model), _heap.page_reuse():
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
    reached = trainer.state.global_step
    stopped = interruption.signal if interruption.heeded else None
    if schedule.patience is not None and stopped is None:
        trainer.load_best()
    log = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    return History(watch.seconds, log, stream.steps_an_epoch, reached, stopped)


def _has_idle_parameters(module: nn.Module) -> bool:
    """Whether some parameters of a module may have no gradient, for which data parallelism would wait.

    Pre-training uses no pooling; nobody reads the relay behind the last layer of a star; without global positions
    Longformer and ETC have no use for their projections and labels, and without a memory, which takes one process,
    nothing is compressed. A token that leaves early reads no deeper exit, and halting with no weight in the loss learns
    nothing.
    """
    if isinstance(module, Longformer):
        return not module.globals
    if isinstance(module, Etc):
        return module.clip is not None and not module.globals
    if isinstance(module, Compressive):
        return module.function == "convolution"
    if isinstance(module, Adaptive):
        return module.training_by == "mixed" or (module.learns and not module.alpha)
    return isinstance(module, Star) or isinstance(getattr(module, "pool", None), nn.Module)


def per_process(schedule: Schedule, *, whole: bool = False) -> int:
    """Number of examples that a process computes at once.

    Args:
        schedule: Schedule with the batch size and the number of its parts.
        whole: Whether every process sees the whole batch, as the stages of a pipeline do.

    Raises:
        ValueError: The batch cannot be divided evenly, or accelerate was started with another precision.
    """
    _check_precision(schedule.precision)
    # torchrun and accelerate set the number of processes; a single process uses all GPUs that it sees.
    processes = 1 if whole else int(os.environ.get("WORLD_SIZE", 0)) or torch.cuda.device_count() or 1
    shares = processes * schedule.accumulate
    if schedule.batch_size % shares:
        raise ValueError(f"batch must be a multiple of {shares}, processes x accumulate, got {schedule.batch_size}")
    return schedule.batch_size // shares


def _check_precision(precision: Precision) -> None:
    """Raise ValueError where the Trainer would take another precision from the environment, of `accelerate launch`."""
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if asked not in ("no", precision):
        raise ValueError(
            f"mixed_precision of accelerate must be no, or {precision}, the precision of the training; got {asked}"
        )


def trainer_arguments(schedule: Schedule, stream: Stream, folder: Path, *, whole: bool = False) -> TrainingArguments:
    """The schedule as arguments of the Trainer; `whole` and errors are those of `per_process`."""
    at_once = per_process(schedule, whole=whole)
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=stream.steps,
        per_device_train_batch_size=at_once,
        per_device_eval_batch_size=4 * at_once,
        gradient_accumulation_steps=schedule.accumulate,
        learning_rate=schedule.learning_rate,
        warmup_steps=schedule.warmup,
        weight_decay=schedule.weight_decay,
        max_grad_norm=schedule.clip,
        seed=schedule.seed,
        use_cpu=not torch.accelerator.is_available(),
        bf16=schedule.precision == "bf16",
        fp16=schedule.precision == "fp16",
        activation_checkpointing=schedule.recompute,
        activation_checkpointing_kwargs={"use_reentrant": False}
        | ({"context_fn": recomputed} if schedule.precision == "bf16" else {}),
        average_tokens_across_devices=True,
        ddp_find_unused_parameters=stream.objective.partial,
        eval_strategy="no",  # `Pace` decides on these three
        logging_strategy="no",
        save_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
    )
