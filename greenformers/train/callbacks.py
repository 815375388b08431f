"""Callbacks of a training run: seeds, pace, early stopping, signals, progress."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers.attention import Attention
from greenformers.train.low_rank import decay_products
from greenformers.train.objective import Objective
from greenformers.train.stream import generator


class Reseed(TrainerCallback):
    """Dropout of step s is seeded by seed, s and process, so that a resumed run needs no state of a generator."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        torch.manual_seed(generator(self._seed, 3, state.global_step, args.process_index).initial_seed())


class Update(TrainerCallback):
    """After every step, attentions update the statistics that are not parameters: `Attention.update_`.

    Args:
        group: The processes that have the same network, and other examples of a step; None for all.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        self._group = group

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        model: nn.Module = context["model"]
        for module in model.modules():
            if isinstance(module, Attention):
                if torch.distributed.is_initialized():
                    for name in module.summed:
                        torch.distributed.all_reduce(getattr(module, name), group=self._group)
                module.update_()


class ProductDecay(TrainerCallback):
    """After every update, products of low-rank factors decay by weight decay, in place of the factors themselves.

    Nothing decays where the update was left out, as gradients of fp16 were not finite.
    """

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        optimizer = context["optimizer"]
        if not getattr(optimizer, "step_was_skipped", False):  # an attribute of accelerate's optimisers
            decay_products(context["model"], optimizer.param_groups[0]["lr"] * args.weight_decay)


class DivergedError(ValueError):
    """The loss of a training, or what it is judged by, became no number."""


def diverged(rate: float, steps: int, symptom: str, muon_rate: float | None = None) -> DivergedError:
    """The error of a training at a learning rate, and one of Muon where that trains matrices, after so many steps."""
    muon = "" if muon_rate is None else f", {muon_rate:g} of Muon"
    return DivergedError(
        f"training diverged at a learning rate of {rate:g}{muon}: {symptom} after {steps} steps; try a lower rate"
    )


class Finite(TrainerCallback):
    """Ends a training whose loss is no number any more, as its weights will not be again.

    Not one of fp16, where the loss of a step that is left out may be infinite.

    Args:
        muon_rate: Highest learning rate of Muon; None: AdamW trains all.
    """

    def __init__(self, muon_rate: float | None) -> None:
        self._muon_rate = muon_rate

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        loss = given["logs"].get("loss", 0.0)
        if not (math.isfinite(loss) or args.fp16):
            raise diverged(args.learning_rate, state.global_step, f"the loss is {loss:g}", self._muon_rate)


def better(score: float) -> float:
    """A score to choose by, where greater is better; NaN is the worst."""
    return -math.inf if math.isnan(score) else score


class Patience(TrainerCallback):
    """Early stopping: training ends when the deciding score has not improved for so many evaluations.

    Args:
        objective: Objective, which says which score decides.
        patience: Number of evaluations without a better score.
        improved: Function to call when the score is the best so far.
    """

    def __init__(self, objective: Objective, patience: int, improved: Callable[[], None]) -> None:
        self._name, self._sign = f"eval_{objective.metric}", 1 if objective.greater_is_better else -1
        self._patience, self._improved = patience, improved

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        scores = [better(self._sign * entry[self._name]) for entry in state.log_history if self._name in entry]
        best = scores.index(max(scores))
        if best == len(scores) - 1:
            self._improved()
        elif len(scores) - 1 - best >= self._patience:
            control.should_training_stop = True
            # From a checkpoint of this step a resumed run would not know that it is to end.
            control.should_save = False


class Pace(TrainerCallback):
    """Decides when to log, evaluate and save: every so many steps, and at the end.

    The loss is also logged at every checkpoint, so that a resumed run has the same curve.
    """

    def __init__(self, log: int, evaluate: int, save: int) -> None:
        self._log, self._evaluate, self._save = log, evaluate, save

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        step, end = state.global_step, state.global_step == state.max_steps
        control.should_evaluate = end or step % self._evaluate == 0
        control.should_save = end or step % self._save == 0
        control.should_log = control.should_save or step % self._log == 0


class Until(TrainerCallback):
    """Ends training after a step, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self._step:
            control.should_log = control.should_save = control.should_training_stop = True


class Interruption(TrainerCallback):
    """On SIGTERM and SIGINT, the run saves after the current step and ends.

    Attributes:
        signal: Number of the signal that came, None if none did; SIGTERM where it came to another process.
        heeded: Whether the run ended because of it.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.heeded = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals during training; a second SIGINT ends the run at once.

        One that came after the last step, when there was nothing to end, is passed on to who handled it before. In a
        thread, where Python lets nobody handle signals, they are left to the main thread.
        """
        numbers = (signal.SIGTERM, signal.SIGINT) if current_thread() is main_thread() else ()
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.signal is not None and not self.heeded:
            signal.raise_signal(self.signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if _anywhere(self.signal is not None) and state.global_step < state.max_steps:
            self.signal = signal.SIGTERM if self.signal is None else self.signal
            control.should_log = control.should_save = control.should_training_stop = self.heeded = True


def _anywhere(flag: bool) -> bool:
    """Whether the flag is true in any process: all of them must stop after the same step."""
    if not torch.distributed.is_initialized():
        return flag
    flags = torch.tensor(int(flag))
    if torch.distributed.get_backend() == "nccl":
        flags = flags.cuda()
    torch.distributed.all_reduce(flags)
    return bool(flags)


class Watch(TrainerCallback):
    """Progress bar, which goes with the block that it is entered for, and the time that optimisation steps take.

    Attributes:
        seconds: Time in optimisation steps, without data loading and evaluation.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            self._progress.start()
        self._task = self._progress.add_task(
            self._label, total=state.max_steps, completed=state.global_step, figures=""
        )

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
