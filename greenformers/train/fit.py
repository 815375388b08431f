"""Training one model on a data set, by the Hugging Face Trainer."""

import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import EvalPrediction

from greenformers.measure.quality import accuracy


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a model learns: AdamW, linear warm-up, then cosine decay to 0.

    Attributes:
        epochs: passes over the training set.
        batch_size: examples a step.
        learning_rate: at its highest.
        warmup: share of the steps spent warming up.
        weight_decay: of AdamW.
        seed: of the order of the examples and of dropout.
    """

    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 2e-3
    warmup: float = 0.1
    weight_decay: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup must be in 0..1, got {self.warmup}")


@dataclass(frozen=True)
class History:
    """What training left behind besides the trained model.

    Attributes:
        seconds: time in optimisation steps, data loading and evaluation left out.
        loss: (step, training loss in nats, averaged since the last entry).
        accuracy: (epoch, test accuracy in percent).
    """

    seconds: float
    loss: list[tuple[int, float]]
    accuracy: list[tuple[float, float]]


def fit(
    model: PreTrainedModel,
    train_set: Dataset[dict[str, Tensor]],
    test_set: Dataset[dict[str, Tensor]],
    schedule: Schedule,
    *,
    label: str,
    console: Console,
) -> History:
    """Train a classifier in place; the test set is scored after every epoch, never learnt from.

    Args:
        model: a model whose forward takes the items of the sets and returns `loss` and `logits`.
        train_set: examples to learn from.
        test_set: examples to score on.
        schedule: how long and how fast.
        label: of the progress bar.
        console: where the progress bar goes.
    """
    watch = _Watch(label, console)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=schedule.epochs,
            per_device_train_batch_size=schedule.batch_size,
            per_device_eval_batch_size=4 * schedule.batch_size,
            learning_rate=schedule.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=schedule.warmup,
            weight_decay=schedule.weight_decay,
            seed=schedule.seed,
            eval_strategy="epoch",
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=train_set,
            eval_dataset=test_set,
            compute_metrics=_accuracy,
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    log = trainer.state.log_history
    return History(
        watch.seconds,
        [(int(entry["step"]), entry["loss"]) for entry in log if "loss" in entry],
        [(entry["epoch"], entry["eval_accuracy"]) for entry in log if "eval_accuracy" in entry],
    )


def _accuracy(outcome: EvalPrediction) -> dict[str, float]:
    logits, labels = (torch.from_numpy(np.asarray(x)) for x in (outcome.predictions, outcome.label_ids))
    return {"accuracy": accuracy(logits, labels)}


class _Watch(TrainerCallback):
    """Progress bar, and the time that optimisation steps take."""

    def __init__(self, label: str, console: Console) -> None:
        self.seconds, self._start = 0.0, 0.0
        self._label = label
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )
        self._task = TaskID(0)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=state.max_steps, figures="")

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds += time.perf_counter() - self._start
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        logs = given["logs"]
        figures = [f"loss {logs['loss']:.3f}"] if "loss" in logs else []
        figures += [f"test {logs['eval_accuracy']:.1f} %"] if "eval_accuracy" in logs else []
        self._progress.update(self._task, figures=" ".join(figures))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress.stop()
