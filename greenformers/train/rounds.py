"""The rounds of a lottery ticket on the disk: what each one starts with, and what it leaves; see `train.lottery`.

`rounds/N` below the folder of a run holds the mask, the metrics and the scores of round N. While the run lasts,
`checkpoints/N` holds the checkpoints of round N, and `checkpoints/rewind` the state of training to go back to.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers._tensors import save_file
from greenformers.train import checkpoint
from greenformers.train.lottery import Lottery, Masked, Masks, dropped, everything, left, shuffled
from greenformers.train.stream import generator
from greenformers.train.task import Task

ROUNDS, MASK, SCORES = "rounds", "mask.safetensors", "scores.json"
LEFT = "weights_left"
"""Entry of the scores of a round: the share of the weights of linear layers that are left, in 0..1."""
_REWIND, _PROGRESS = "rewind", "trainer_state.json"


class Rounds:
    """The rounds of one run.

    Args:
        folder: Folder of the run.
        checkpoints: Folder for the checkpoints of all rounds.
        lottery: Number and kind of the rounds.
        task: Task of the run.
        steps: Steps of one training.
        writes: Whether this process writes; exactly one of several does.
    """

    def __init__(
        self, folder: Path, checkpoints: Path, lottery: Lottery, task: Task, steps: int, *, writes: bool
    ) -> None:
        self._folder, self._checkpoints, self._lottery, self._task = folder / ROUNDS, checkpoints, lottery, task
        self._step, self._writes = lottery.step(steps), writes
        # The worst mask follows from the dense network: no round is needed between.
        self._numbers = [0, lottery.rounds] if lottery.control == "worst" else list(range(lottery.rounds + 1))

    @property
    def unfinished(self) -> list[int]:
        """Numbers of the rounds still to be trained; the last one is among them as long as the run has not ended."""
        *earlier, last = self._numbers
        return [number for number in earlier if not (self.folder(number) / SCORES).exists()] + [last]

    def folder(self, number: int) -> Path:
        """The folder of what a round leaves."""
        return self._folder / str(number)

    def checkpoints(self, number: int) -> Path:
        """The folder of the checkpoints of a round."""
        return self._checkpoints / str(number)

    def network(self, number: int) -> PreTrainedModel:
        """The network that a round starts with. `callbacks` drop its weights, and checkpoints hold later steps.

        Raises:
            ValueError: All checkpoints of a round that goes back to a later step than 0 are damaged.
        """
        self.folder(number).mkdir(parents=True, exist_ok=True)
        start = self._task.start
        if self._rewinds(number) and checkpoint.newest(self.checkpoints(number), lambda _: None) is None:
            raise ValueError(f"round {number} cannot go on: all of its checkpoints are damaged")
        if self._redraws(number):
            # Any seed of the generator of numpy, which transformers seeds too.
            seed = int(torch.randint(2**32, (), generator=generator(start.seed, 5)))
            return replace(self._task, start=replace(start, seed=seed, init=None)).network()
        return self._task.network()

    def callbacks(self, number: int) -> tuple[TrainerCallback, ...]:
        """Callbacks of the training of a round."""
        if number:
            return (Masked(load_file(self.folder(number) / MASK)),)
        return (_Note(self.checkpoints(0), self._checkpoints / _REWIND, self._step),) if self._step else ()

    def end(self, number: int, network: PreTrainedModel, tensors: dict[str, Tensor], scores: dict[str, float]) -> None:
        """Write what a round leaves, and what the next one starts with.

        Args:
            number: Number of the round.
            network: The network of the round.
            tensors: Its trained weights.
            scores: Their scores.
        """
        masks = everything(network)
        total = left(masks)
        if number:
            masks = load_file(self.folder(number) / MASK)
        if self._writes and number != self._numbers[-1]:
            self._prepare(self._numbers[self._numbers.index(number) + 1], masks, tensors)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if self._writes:
            row = {LEFT: left(masks) / total, **scores}
            checkpoint.replace(self.folder(number) / SCORES, json.dumps(row, indent=1) + "\n")
            if number != self._numbers[-1]:
                shutil.rmtree(self.checkpoints(number), ignore_errors=True)

    @property
    def rows(self) -> dict[int, dict[str, float]]:
        """Scores of the rounds that have ended, and the share of weights left in each, by number."""
        paths = {number: self.folder(number) / SCORES for number in self._numbers}
        return {number: json.loads(path.read_text()) for number, path in paths.items() if path.exists()}

    def _redraws(self, number: int) -> bool:
        return self._lottery.control == "reinit" and number == self._lottery.rounds

    def _rewinds(self, number: int) -> bool:
        return number > 0 and self._step > 0 and not self._redraws(number)

    def _prepare(self, number: int, masks: Masks, tensors: dict[str, Tensor]) -> None:
        """Write mask and first checkpoint of the next round."""
        counts = self._lottery.counts(sum(mask.numel() for mask in masks.values()))
        masks = dropped(masks, tensors, left(masks) - counts[number], largest=self._lottery.control == "worst")
        if self._lottery.control == "random" and number == self._lottery.rounds:
            masks = shuffled(masks, self._task.start.seed)
        self.folder(number).mkdir(parents=True, exist_ok=True)
        save_file(masks, self.folder(number) / MASK)
        if self._rewinds(number):
            noted = self._checkpoints / _REWIND / f"step-{self._step}"
            if fault := checkpoint.damage(noted):
                raise ValueError(f"the checkpoint to go back to, {_REWIND}/{noted.name}, is damaged: {fault}")
            checkpoint.write(self.checkpoints(number), self._step, _copy(noted), keep=1)


class _Note(TrainerCallback):
    """Notes the state of training after one step."""

    def __init__(self, checkpoints: Path, folder: Path, step: int) -> None:
        self._checkpoints, self._folder, self._step = checkpoints, folder, step

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A run that was killed between its checkpoint and the copy goes on from here.
        self._copy(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self._step:
            control.should_log = control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._copy(state)

    def _copy(self, state: TrainerState) -> None:
        if state.global_step == self._step and state.is_world_process_zero:
            checkpoint.write(self._folder, self._step, _copy(self._checkpoints / f"step-{self._step}"), keep=1)


def _copy(source: Path) -> Callable[[Path], None]:
    """A function that writes the files of a checkpoint, without the log of the training that it comes from."""

    def fill(folder: Path) -> None:
        for file in source.iterdir():
            if file.name not in (_PROGRESS, checkpoint.MANIFEST):
                shutil.copyfile(file, folder / file.name)
        progress = TrainerState.load_from_json(str(source / _PROGRESS))
        progress.log_history = []
        progress.save_to_json(str(folder / _PROGRESS))

    return fill
