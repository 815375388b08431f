"""The Hugging Face Trainer with our order of examples, our judges and our checkpoints."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from greenformers.train import checkpoint, state
from greenformers.train.objective import Objective
from greenformers.train.stream import Stream, generator


class ResumableTrainer(Trainer):
    """Same weights to the bit, however often it was stopped: all that is random follows from seed and step.

    Args:
        model: what is trained.
        arguments: of the Trainer; `output_dir` holds the checkpoints.
        stream: the examples, in order.
        keep: how many checkpoints stay.
        callbacks: told of every event.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        arguments: TrainingArguments,
        stream: Stream,
        *,
        keep: int,
        callbacks: list[TrainerCallback],
    ) -> None:
        super().__init__(
            model,
            arguments,
            train_dataset=stream,
            data_collator=stream.objective.collate,
            callbacks=[Reseed(stream.seed), *callbacks],
        )
        self.remove_callback(PrinterCallback)
        self._stream, self._objective, self._keep = stream, stream.objective, keep

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add an entry to the log; an epoch is a pass over the training set, not the whole stream."""
        self.state.epoch = self.state.global_step / self._stream.steps_an_epoch
        super().log(logs, start_time)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:  # type: ignore[override]
        """Score the validation split, as the objective does; every process scores all of it."""
        scores = self._objective.evaluate(self.model, "valid", self.args.per_device_eval_batch_size)
        metrics = {f"eval_{name}": value for name, value in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        """Of a batch in parts, only the last part's backward pass sums the gradients over processes."""
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        whole = self.accelerator.unwrap_model(self.model_wrapped)
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        tensors, moments = state.weights(whole), state.optimizer_state(whole, optimizer)

        def fill(folder: Path) -> None:
            state.save(folder, tensors, moments, self.lr_scheduler, self.accelerator.scaler)
            self.state.save_to_json(str(folder / "trainer_state.json"))

        if self.is_world_process_zero():
            checkpoint.write(Path(self.args.output_dir), self.state.global_step, fill, self._keep)
        self.accelerator.wait_for_everyone()

    def save_best(self) -> None:
        """Keep the weights as the best so far."""
        tensors = state.weights(self.accelerator.unwrap_model(self.model_wrapped))
        if self.is_world_process_zero():
            state.save_weights(Path(self.args.output_dir) / "best", tensors)

    def load_best(self) -> None:
        """Go back to the best weights."""
        state.load_weights(Path(self.args.output_dir) / "best", self.accelerator.unwrap_model(self.model_wrapped))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        state.load_weights(Path(resume_from_checkpoint), self.model if model is None else model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
            parameters = dict(self.accelerator.unwrap_model(self.model_wrapped).named_parameters())
            state.load_optimizer(Path(checkpoint), parameters, optimizer)
            state.load_schedule(Path(checkpoint), self.lr_scheduler, optimizer, self.accelerator.scaler)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Done with the schedule."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Not needed: see `Reseed`."""


class Reseed(TrainerCallback):
    """Dropout of step s draws from a generator of seed, s and process: a resumed run needs no generator's state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        torch.manual_seed(generator(self._seed, 3, state.global_step, args.process_index).initial_seed())


class Patience(TrainerCallback):
    """Early stopping: end when the deciding score has not improved for so many evaluations.

    Args:
        objective: says which score decides.
        patience: evaluations without a better score.
        improved: called when the score is the best so far.
    """

    def __init__(self, objective: Objective, patience: int, improved: Callable[[], None]) -> None:
        self._name, self._sign = f"eval_{objective.metric}", 1 if objective.greater_is_better else -1
        self._patience, self._improved = patience, improved

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        scores = [self._sign * entry[self._name] for entry in state.log_history if self._name in entry]
        best = scores.index(max(scores))
        if best == len(scores) - 1:
            self._improved()
        elif len(scores) - 1 - best >= self._patience:
            control.should_training_stop = True


class Pace(TrainerCallback):
    """Says when to log, evaluate and save: every so many steps, and at the end.

    A checkpoint also ends a stretch of the loss curve, so that a resumed run has the same curve.
    """

    def __init__(self, log: int, evaluate: int, save: int) -> None:
        self._log, self._evaluate, self._save = log, evaluate, save

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        step, end = state.global_step, state.global_step == state.max_steps
        control.should_evaluate = end or step % self._evaluate == 0
        control.should_save = end or step % self._save == 0
        control.should_log = control.should_save or step % self._log == 0


class Interruption(TrainerCallback):
    """On SIGTERM and SIGINT, save after the step under way and end.

    Attributes:
        signal: the number of the signal that came, None if none did.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while training; a second SIGINT ends at once."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if _anywhere(self.signal is not None) and state.global_step < state.max_steps:
            control.should_log = control.should_save = control.should_training_stop = True


def _anywhere(flag: bool) -> bool:
    """True if it is so in any process: all of them must stop after the same step."""
    if not torch.distributed.is_initialized():
        return flag
    found = torch.tensor(int(flag))
    if torch.distributed.get_backend() == "nccl":
        found = found.cuda()
    torch.distributed.all_reduce(found)
    return bool(found)


class Watch(TrainerCallback):
    """Progress bar, and the time that optimisation steps take.

    Attributes:
        seconds: in optimisation steps, without data loading and evaluation.
    """

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
        if state.is_world_process_zero:
            self._progress.start()
        self._task = self._progress.add_task(self._label, total=state.max_steps, completed=state.global_step, figures="")

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.seconds += time.perf_counter() - self._start
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        names = ("loss", *(name for name in given["logs"] if name.startswith("eval_")))
        figures = [f"{name.removeprefix('eval_')} {given['logs'][name]:.4g}" for name in names if name in given["logs"]]
        if figures:
            self._progress.update(self._task, figures=" ".join(figures))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress.stop()
