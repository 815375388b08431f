"""Training one model for an objective: schedule in, trained model and its history out."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from rich.console import Console
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from greenformers.train import checkpoint
from greenformers.train.callbacks import Interruption, Pace, Patience, Watch
from greenformers.train.objective import Objective
from greenformers.train.shard import shard, wanted
from greenformers.train.stream import Stream
from greenformers.train.trainer import ResumableTrainer

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a model learns: AdamW, linear warm-up, then cosine decay to 0 or a factor a step.

    Attributes:
        epochs: passes over the training set.
        steps: optimisation steps, in place of epochs.
        batch_size: examples a step, of all processes.
        accumulate: parts that a batch is computed in, one after the other; divides the batch.
        learning_rate: at its highest.
        warmup: share of the steps spent warming up.
        decay: factor of the learning rate after every step, in place of the cosine.
        weight_decay: of AdamW.
        clip: largest norm of the gradient; 0 for any.
        seed: of the order of the examples, dropout and masks.
        precision: of the matrix products; "fp16" needs a GPU. Weights and optimiser stay float32.
        shard: spread weights and optimiser state over the processes (FSDP), where there are several.
        recompute: keep no activations within a layer, compute them again in the backward pass.
        evaluate_every: steps between evaluations; by default an epoch.
        log_every: steps between entries of the loss; by default an epoch.
        save_every: steps between checkpoints; by default an epoch.
        keep: how many checkpoints stay.
        patience: end after so many evaluations without a better score, and go back to the best; None for never.
    """

    epochs: int = 40
    steps: int | None = None
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 2e-3
    warmup: float = 0.1
    decay: float | None = None
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    precision: Precision = "fp32"
    shard: bool = False
    recompute: bool = False
    evaluate_every: int | None = None
    log_every: int | None = None
    save_every: int | None = None
    keep: int = 2
    patience: int | None = None

    def __post_init__(self) -> None:
        at_least_1 = (
            "epochs",
            "steps",
            "batch_size",
            "accumulate",
            "evaluate_every",
            "log_every",
            "save_every",
            "keep",
        )
        for name in (*at_least_1, "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in 0..{2**32 - 1}, got {self.seed}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate must divide the batch, {self.batch_size}, got {self.accumulate}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup must be in 0..1, got {self.warmup}")
        if self.decay is not None and not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay}")
        for name in ("weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}; got {self.precision!r}")
        if self.precision == "fp16" and not torch.cuda.is_available():
            raise ValueError("precision must be fp32 or bf16 where there is no GPU, got 'fp16'")

    def paces(self) -> tuple[int | None, int | None, int | None]:
        """Steps between entries of the loss, evaluations and checkpoints."""
        return self.log_every, self.evaluate_every, self.save_every

    def stream(self, objective: Objective) -> Stream:
        """The examples of the whole run.

        Raises:
            ValueError: a batch is larger than the training set.
        """
        steps = self.steps
        if steps is None:
            steps = self.epochs * Stream(objective, self.batch_size, 1, self.seed).steps_an_epoch
        return Stream(objective, self.batch_size, steps, self.seed)


@dataclass(frozen=True)
class History:
    """What training left behind besides the trained model.

    Attributes:
        seconds: time in optimisation steps of this process, data loading and evaluation left out.
        log: what was logged: {"step", "loss"} in nats, averaged since the last one, and {"step", "eval_..."}.
        steps_an_epoch: steps in a pass over the training set.
        steps: optimisation steps done.
        stopped: the number of the signal that ended it early; None where it ran to its end.
    """

    seconds: float
    log: list[dict[str, float]]
    steps_an_epoch: int
    steps: int
    stopped: int | None = None

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of "loss", in training, or of a score of the validation split, "eval_accuracy" say."""
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
    """Train a model in place; the validation split is scored, never learnt from.

    Args:
        model: a model of the objective.
        objective: what is learnt.
        schedule: how long and how fast.
        label: of the progress bar.
        console: where the progress bar goes.
        folder: where checkpoints go; none are made without it.
        resume: go on from the newest whole checkpoint of the folder, if there is one.
        callbacks: also told of every event.

    Returns:
        What was logged; from the first step on, also where the run was resumed.

    Raises:
        ValueError: the batch does not fit the training set or the processes.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return fit(
                model, objective, schedule, label=label, console=console, folder=Path(temporary), callbacks=callbacks
            )
    stream = schedule.stream(objective)
    watch, interruption = Watch(label, console), Interruption()
    pace = Pace(*(every or stream.steps_an_epoch for every in schedule.paces()))
    sharded = wanted(schedule.shard)
    arguments = trainer_arguments(schedule, stream, folder)
    device = arguments.device  # asking for it is what lets the processes meet
    if sharded and torch.distributed.is_initialized():
        shard(model, device)
    trainer = ResumableTrainer(
        model,
        arguments,
        stream,
        keep=schedule.keep,
        decay=schedule.decay,
        callbacks=[watch, pace, interruption, *callbacks],
    )
    if schedule.patience is not None:
        trainer.add_callback(Patience(objective, schedule.patience, trainer.save_best))
    start = checkpoint.newest(folder, console.print) if resume else None
    with interruption.listening():
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
    reached = trainer.state.global_step
    stopped = interruption.signal if reached < stream.steps else None
    if schedule.patience is not None and stopped is None:
        trainer.load_best()
    log = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    return History(watch.seconds, log, stream.steps_an_epoch, reached, stopped)


def per_process(schedule: Schedule, *, whole: bool = False) -> int:
    """Examples that a process computes at once.

    Args:
        schedule: says how many a step has, and in how many parts.
        whole: every process sees the whole batch, as the stages of a pipeline do.

    Raises:
        ValueError: the batch cannot be shared.
    """
    # torchrun and accelerate say how many processes there are; one process feeds all GPUs it sees.
    processes = 1 if whole else int(os.environ.get("WORLD_SIZE", 0)) or torch.cuda.device_count() or 1
    shares = processes * schedule.accumulate
    if schedule.batch_size % shares:
        raise ValueError(f"batch must be a multiple of {shares}, processes x accumulate, got {schedule.batch_size}")
    return schedule.batch_size // shares


def trainer_arguments(schedule: Schedule, stream: Stream, folder: Path, *, whole: bool = False) -> TrainingArguments:
    """The schedule in the Trainer's words; `whole` and errors as in `per_process`."""
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
        activation_checkpointing_kwargs={"use_reentrant": False},
        average_tokens_across_devices=True,
        ddp_find_unused_parameters=False,
        eval_strategy="no",  # these three are up to `Pace`
        logging_strategy="no",
        save_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
    )
