"""Training of one model over several processes, a stage each, with the same events and checkpoints as `fit`."""

from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from greenformers import _heap
from greenformers.measure.quality import NotANumberError
from greenformers.model.loss import IGNORED
from greenformers.train import checkpoint, state
from greenformers.train.callbacks import Finite, Interruption, Pace, Reseed, Update, Watch, diverged
from greenformers.train.fit import History, trainer_arguments
from greenformers.train.objective import Batch, Objective
from greenformers.train.pipeline import Pipeline
from greenformers.train.schedule import Schedule
from greenformers.train.stream import Stream


def fit_pipeline(
    model: PreTrainedModel,
    objective: Objective,
    schedule: Schedule,
    micro_batches: int,
    *,
    stages: int | None = None,
    label: str,
    console: Console,
    folder: Path,
    resume: bool = False,
    callbacks: tuple[TrainerCallback, ...] = (),
) -> History:
    """Train a model in place; afterwards every process has the whole trained model.

    Args:
        model: A model that the objective has built, the same in every process.
        objective: The objective that the model is trained for.
        schedule: How long and how fast the model is trained; patience, accumulate, shard, precision, optimizer and
            low_rank_training must be the defaults.
        micro_batches: Number of parts of a batch that are in the pipeline at once.
        stages: Number of stages; None: as many as processes, else as many replicas as processes over stages.
        label: Label of the progress bar.
        console: Console that shows the progress bar.
        folder: Folder of the checkpoints, which `fit` reads too.
        resume: Whether to go on from the newest whole checkpoint of the folder, if there is one.
        callbacks: Further callbacks, called at every event.

    Raises:
        ValueError: The model or the schedule cannot be divided into stages.
    """
    watch, interruption = Watch(label, console), Interruption()
    start = checkpoint.newest(folder, console.print) if resume else None
    run = _Run(model, objective, schedule, micro_batches, stages, folder, start)
    with watch, interruption.listening(), _heap.page_reuse():
        run.train([watch, interruption, *callbacks, Finite(None)])
    state.put_weights(state.weights(run.pipeline.gather()[0]), model)
    progress = run.progress
    stopped = interruption.signal if interruption.heeded else None
    return History(watch.seconds, progress.log_history, run.stream.steps_an_epoch, progress.global_step, stopped)


class _Run:
    """The loop over steps, with the events of the Trainer's callbacks."""

    def __init__(
        self,
        model: PreTrainedModel,
        objective: Objective,
        schedule: Schedule,
        micro_batches: int,
        stages: int | None,
        folder: Path,
        start: Path | None,
    ) -> None:
        self.objective, self.schedule, self.folder = objective, schedule, folder
        self.stream: Stream = schedule.stream(objective)
        self.arguments: TrainingArguments = trainer_arguments(schedule, self.stream, folder, whole=True)
        self.longest = model.config.max_position_embeddings
        device = self.arguments.device  # reading this property initialises the process group
        if start is not None:
            state.load_weights(start, model)
        if schedule.recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        self.pipeline = Pipeline(model, schedule, self.stream.steps, micro_batches, stages, device)
        self.progress = TrainerState(max_steps=self.stream.steps)
        if start is not None:
            self.progress = TrainerState.load_from_json(str(start / "trainer_state.json"))
            state.load_optimizer(start, self.pipeline.own, self.pipeline.optimizer)
            state.load_schedule(start, self.pipeline.rates, self.pipeline.optimizer, None)
        self.progress.is_world_process_zero = self.pipeline.rank == 0
        self.control = TrainerControl()
        self._loss, self._since = 0.0, self.progress.global_step

    def train(self, callbacks: list[TrainerCallback]) -> None:
        """Train for all remaining steps, or until a callback stops the run."""
        pipeline, schedule = self.pipeline, self.schedule
        pace = Pace(*(every or self.stream.steps_an_epoch for every in schedule.paces()))
        own = [DefaultFlowCallback(), Reseed(schedule.seed), Update(pipeline.equals), pace]
        events = CallbackHandler([*own, *callbacks], pipeline.stage, None, pipeline.optimizer, pipeline.rates)
        arguments = (self.arguments, self.progress, self.control)
        events.on_train_begin(*arguments)
        while self.progress.global_step < self.stream.steps and not self.control.should_training_stop:
            events.on_step_begin(*arguments)
            batch = self._batch(self.progress.global_step)
            rate = float(pipeline.rates.get_last_lr()[0])  # of this step
            self._loss += pipeline.step(batch, self.objective.scored(batch))
            self.progress.global_step += 1
            events.on_step_end(*arguments)
            self._follow(events, rate)
        events.on_train_end(*arguments)

    def _batch(self, step: int) -> Batch:
        """The examples of one step. All stages expect one shape, so texts are padded to the model's longest."""
        places = range(step * self.stream.batch, (step + 1) * self.stream.batch)
        batch = self.objective.collate([self.stream[place] for place in places])
        if "attention_mask" not in batch:
            return batch
        short = self.longest - batch["attention_mask"].shape[1]
        fill = {"labels": IGNORED}
        return {
            name: F.pad(value, (0, short), value=fill.get(name, 0)) if value.dim() == 2 else value
            for name, value in batch.items()
        }

    def _follow(self, events: CallbackHandler, rate: float) -> None:
        control, progress = self.control, self.progress
        if control.should_log:
            steps = progress.global_step - self._since
            self._log(events, {"loss": self._loss / steps, "learning_rate": rate})
            self._loss, self._since = 0.0, progress.global_step
        if control.should_evaluate or control.should_save:
            whole, moments = self.pipeline.gather()
            if control.should_evaluate:
                try:
                    scores = self.objective.evaluate(whole, "valid", 4 * self.schedule.batch_size)
                except NotANumberError as error:
                    raise diverged(self.schedule.learning_rate, progress.global_step, "outputs are nan") from error
                self._log(events, {f"eval_{name}": value for name, value in scores.items()})
            if control.should_save and progress.is_world_process_zero:
                self._save(state.weights(whole), moments)
            torch.distributed.barrier()
        control.should_log = control.should_evaluate = control.should_save = False

    def _save(self, tensors: dict[str, torch.Tensor], moments: dict[str, torch.Tensor]) -> None:
        def fill(folder: Path) -> None:
            state.save(folder, tensors, moments, self.pipeline.rates, None)
            self.progress.save_to_json(str(folder / "trainer_state.json"))

        checkpoint.write(self.folder, self.progress.global_step, fill, self.schedule.keep)

    def _log(self, events: CallbackHandler, entry: dict[str, float]) -> None:
        progress = self.progress
        progress.epoch = progress.global_step / self.stream.steps_an_epoch
        progress.log_history.append({**entry, "epoch": progress.epoch, "step": progress.global_step})
        events.on_log(self.arguments, progress, self.control, entry)
