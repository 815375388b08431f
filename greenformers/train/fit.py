"""Training of one model for an objective, by a schedule; the result is the trained model and its history."""

import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from greenformers.train import checkpoint
from greenformers.train.bf16 import Precision, recomputed
from greenformers.train.callbacks import Interruption, Pace, Patience, Watch
from greenformers.train.objective import Objective
from greenformers.train.processes import alone
from greenformers.train.shard import is_sharded, shard
from greenformers.train.stream import Stream
from greenformers.train.trainer import ResumableTrainer


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a model is trained: linear warm-up, then cosine decay to 0 or a factor a step.

    Attributes:
        epochs: Number of passes over the training set.
        steps: Number of optimisation steps, in place of epochs.
        batch_size: Examples a step, of all processes together.
        accumulate: Parts of a batch that are computed one after the other; a divisor of the batch size.
        learning_rate: Highest learning rate of AdamW.
        muon_rate: Highest learning rate of Muon, which then trains the matrices inside the layers, and AdamW the rest;
            by default AdamW trains all. See `greenformers.train.optimizer`.
        warmup: Share of the steps that are warm-up, 0..1.
        decay: Factor of the learning rate after every step, in place of the cosine.
        weight_decay: Weight decay.
        clip: Largest norm of the gradient, to which it is clipped; 0 for no limit.
        seed: Seed of the order of the examples, of dropout and of masks.
        precision: Precision of the matrix products; "fp16" needs a GPU. Weights and optimiser stay float32.
        shard: Whether weights and optimiser state are spread over the processes (FSDP), where there are several.
        recompute: Whether activations within a layer are not stored but computed again in the backward pass.
        evaluate_every: Steps between evaluations; by default an epoch.
        log_every: Steps between entries of the loss; by default an epoch.
        save_every: Steps between checkpoints; by default an epoch.
        keep: Number of checkpoints to keep.
        patience: Evaluations without a better score after which training ends, with the weights of the best; None for
            no early stopping.
    """

    epochs: int = 40
    steps: int | None = None
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 2e-3
    muon_rate: float | None = None
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
        if self.muon_rate is not None and not self.muon_rate > 0:
            raise ValueError(f"muon_rate must be above 0, got {self.muon_rate}")
        if self.muon_rate is not None and self.shard:
            raise ValueError("shard must be off with muon_rate: Muon makes one update of a whole matrix")
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
            ValueError: The batch is larger than the training set.
        """
        steps = self.steps
        if steps is None:
            steps = self.epochs * Stream(objective, self.batch_size, 1, self.seed).steps_an_epoch
        return Stream(objective, self.batch_size, steps, self.seed)


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
        ValueError: The batch does not fit the training set or the processes.
    """
    if folder is None and schedule.patience is not None and not alone():
        raise ValueError("patience needs a folder where there are several processes: the best weights are read there")
    # Weights and moments that nobody could go on from are not written: of a small model they take as long as a step.
    keep = 0 if folder is None else schedule.keep
    with nullcontext(folder) if folder is not None else tempfile.TemporaryDirectory() as place:
        return _fit(
            model, objective, schedule, label=label, console=console, folder=Path(place), keep=keep, resume=resume,
            callbacks=callbacks,
        )  # fmt: skip


def _fit(
    model: PreTrainedModel, objective: Objective, schedule: Schedule, *, label: str, console: Console, folder: Path,
    keep: int, resume: bool, callbacks: tuple[TrainerCallback, ...],
) -> History:  # fmt: skip
    stream = schedule.stream(objective)
    watch, interruption = Watch(label, console), Interruption()
    pace = Pace(*(every or stream.steps_an_epoch for every in schedule.paces()))
    sharded = is_sharded(schedule.shard)
    if sharded:
        replace(schedule, shard=True)  # refuses what cannot be sharded
    arguments = trainer_arguments(schedule, stream, folder)
    # Pre-training uses no pooling.
    if getattr(getattr(model, "base_model", None), "pool", None) is not None:
        arguments.ddp_find_unused_parameters = True
    device = arguments.device  # reading this property initialises the process group
    if sharded and torch.distributed.is_initialized():
        shard(model, device)
    trainer = ResumableTrainer(
        model,
        arguments,
        stream,
        keep=keep,
        decay=schedule.decay,
        muon_rate=schedule.muon_rate,
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
    """Number of examples that a process computes at once.

    Args:
        schedule: Schedule with the batch size and the number of its parts.
        whole: Whether every process sees the whole batch, as the stages of a pipeline do.

    Raises:
        ValueError: The batch cannot be divided evenly.
    """
    # torchrun and accelerate set the number of processes; a single process uses all GPUs that it sees.
    processes = 1 if whole else int(os.environ.get("WORLD_SIZE", 0)) or torch.cuda.device_count() or 1
    shares = processes * schedule.accumulate
    if schedule.batch_size % shares:
        raise ValueError(f"batch must be a multiple of {shares}, processes x accumulate, got {schedule.batch_size}")
    return schedule.batch_size // shares


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
