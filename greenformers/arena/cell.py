"""One cell of a grid: a variant trained on a task from a seed, and judged on its test split.

A cell is a folder. It holds a run, as `greenformers train` makes them, `training`; where the network is pretrained, the
run that comes before, `pretraining`; and at its end `result.json`, or, where it could not be, `failed.json` with the
reason. A cell that was stopped goes on from the newest checkpoint of its runs.

Both runs together take as many steps as the training of a network that is not pretrained: half of them each.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from greenformers.arena.inputs import Inputs
from greenformers.arena.objectives import Classification, Restoration
from greenformers.arena.options import Grid
from greenformers.arena.protocol import Size, task_of
from greenformers.arena.variants import Variant
from greenformers.measure.device import accelerator
from greenformers.measure.limit import OutOfMemory, attempt
from greenformers.train import checkpoint, run
from greenformers.train.objective import Objective
from greenformers.train.setting import setting
from greenformers.train.settings import Training
from greenformers.train.task import Start, Task

PRETRAINING, TRAINING, RESULT, FAILED = "pretraining", "training", "result.json", "failed.json"
PRETRAINED = 0.5
"""Share of the steps of a pretrained cell that restore masked inputs."""

EVALUATIONS = 10
"""Evaluations on the validation split in a training, and checkpoints."""

LARGEST_BATCH = 64
"""Most test examples that are computed at a time."""


@dataclass(frozen=True)
class Settings(Training):
    """Settings of a run of a cell: those of any training, and the task. The help text of each documents it."""

    places: ClassVar[tuple[str, ...]] = ("init", "drawn")

    task_name: str = setting("listops", "Task.")
    size: str = setting("tiny", "Size of the task.")
    restores: bool = setting(False, "Restore masked inputs, in place of telling classes.")
    data: str | None = setting(None, "Folder of the folders of real data.")
    drawn: str = setting("data", "Folder of drawn data.")
    limit: int | None = setting(None, "Most examples of each split.")

    def task(self) -> Task:  # noqa: D102
        inputs = self.inputs()
        share = task_of(self.task_name).masked
        objective: Objective = Restoration(inputs, share) if self.restores else Classification(inputs)
        return Task(objective, inputs.tokenizer, self.start())

    def start(self) -> Start:  # noqa: D102
        init = None if self.init is None else Path(self.init)
        return Start(self.sizes(), self.seed, init, self.variant, Variant.of(self.variant).options)

    def sizes(self) -> dict[str, Any]:  # noqa: D102
        plain = Training.sizes(replace(self, variant="transformer", k=None))
        own = Variant.of(self.variant).slots(layers=self.layers, rank=self.rank, keeps=self.k)
        return plain | {"position": self.position} | own

    def inputs(self) -> Inputs:
        """The inputs of the task, of the newest call where that asked for the same."""
        return _inputs(self.task_name, self.size, self.data, self.drawn, self.limit)


@lru_cache(maxsize=1)
def _inputs(task: str, size: str, data: str | None, drawn: str, limit: int | None) -> Inputs:
    own = task_of(task)
    return own.inputs(own.sizes[size], None if data is None else Path(data), Path(drawn), limit)


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        task: Name of the task.
        variant: Name of the variant.
        seed: Seed of weights, order of the examples, dropout and masks.
        pretrained: Whether the network first restores masked inputs.
    """

    task: str
    variant: str
    seed: int
    pretrained: bool = False

    def __str__(self) -> str:
        return f"{self.task}, {self.variant}, seed {self.seed}{', self-pretrained' if self.pretrained else ''}"

    def folder(self, out: Path) -> Path:
        """The folder of the cell in that of a grid."""
        return folder_of(out, self.task, self.variant) / f"seed-{self.seed}{'-pretrained' if self.pretrained else ''}"

    def steps(self, grid: Grid) -> tuple[int, int]:
        """Steps of pre-training, 0 where there is none, and of training."""
        steps = grid.steps or self.size(grid).steps
        before = int(PRETRAINED * steps) if self.pretrained else 0
        return before, steps - before

    def size(self, grid: Grid) -> Size:
        """Size of the task."""
        return task_of(self.task).sizes[grid.size]

    def settings(self, grid: Grid, out: Path) -> dict[str, Settings]:
        """Settings of the runs of the cell, by the name of their folders, in their order."""
        before, after = self.steps(grid)
        if not before:
            return {TRAINING: self._settings(grid, out, after)}
        return {
            PRETRAINING: self._settings(grid, out, before, restores=True),
            TRAINING: self._settings(grid, out, after, init=str(self.folder(out) / PRETRAINING)),
        }

    def _settings(self, grid: Grid, out: Path, steps: int, **own: Any) -> Settings:
        size, task = self.size(grid), task_of(self.task)
        every = max(1, steps // EVALUATIONS)
        return Settings(
            variant=self.variant, rank=size.hidden // 4, k=size.keeps, hidden=size.hidden, layers=size.layers,
            heads=size.heads, feed_forward=size.feed_forward, position=task.position, pooling=size.pooling,
            dropout=size.dropout, steps=steps, batch=grid.batch or size.batch, learning_rate=size.learning_rate,
            # A share of the steps: of a pretrained cell, each run has a warm-up of half as many.
            warmup=size.warmup / size.steps, weight_decay=size.weight_decay,
            seed=self.seed, evaluate_every=every, log_every=every, save_every=every, task_name=self.task,
            size=grid.size, data=None if grid.data is None else str(grid.data.resolve()), drawn=str(out / "data"),
            limit=grid.limit, optimizer="adamw", **own,
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The end of a cell.

    Attributes:
        right: Which test examples the network gets right, in order.
        steps: Steps of pre-training and of training.
        parameters: Number of parameters.
    """

    right: list[bool]
    steps: tuple[int, int]
    parameters: int

    @property
    def accuracy(self) -> float:
        """Accuracy on the test split in percent."""
        return 100 * sum(self.right) / len(self.right)


def folder_of(out: Path, task: str, variant: str) -> Path:
    """The folder of the cells of a variant."""
    return out / task / variant.replace("/", "--").replace(":", "-")


def result_of(cell: Cell, out: Path) -> Result | None:
    """The result of a cell that ended well, else None."""
    file = cell.folder(out) / RESULT
    if not file.is_file():
        return None
    told = json.loads(file.read_text())
    return Result([mark == "1" for mark in told["right"]], tuple(told["steps"]), told["parameters"])


def failure_of(folder: Path) -> str | None:
    """The reason why the work of a folder could not be done, where it could not, else None."""
    file = folder / FAILED
    return json.loads(file.read_text())["reason"] if file.is_file() else None


def train(cell: Cell, grid: Grid, out: Path, console: Console) -> Result:
    """Train and judge a cell, or go on with it; its result is stored.

    Raises:
        ValueError: The folder holds a run with other settings.
        OSError: A file is missing, or the folder cannot be written.
        Stopped: A signal ended the training early; the same call goes on.
    """
    folder = cell.folder(out)
    for name, settings in cell.settings(grid, out).items():
        run.ensure(folder / name, settings, console)
    settings = cell.settings(grid, out)[TRAINING]
    model: Any = run.trained(folder / TRAINING, Settings)
    model.to(accelerator())
    objective = Classification(settings.inputs())
    right = objective.right(model, "test", min(LARGEST_BATCH, 4 * settings.batch)).tolist()
    result = Result(right, cell.steps(grid), sum(parameter.numel() for parameter in model.parameters()))
    told = asdict(result) | {"right": "".join("01"[mark] for mark in right), "accuracy": result.accuracy}
    checkpoint.replace(folder / RESULT, json.dumps(told, indent=1) + "\n")
    return result


def tried(folder: Path, work: Callable[[], Any]) -> str | None:
    """Do some work within the free memory; where it cannot be done, the reason is stored in its folder and returned.

    Args:
        folder: Folder of the work.
        work: Work to be done.

    Raises:
        Stopped: A signal ended the work early.
    """
    device = accelerator()
    try:
        attempt(work, device)
    except (OutOfMemory, ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.replace(folder / FAILED, json.dumps({"reason": reason}, indent=1) + "\n")
        return reason
    return None
