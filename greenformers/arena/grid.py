"""A grid of cells: planned, checked before any work, and run cell by cell, so that it can be stopped at any time.

A cell that ended is never trained again, one that was stopped goes on from its newest checkpoint, and one that cannot
be trained, for want of memory say, is left with its reason: the grid goes on, and `retry` tries those again. Several
processes, on as many machines as see its folder, share out the cells: who works on one holds its lock.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from greenformers.arena.baselines import baselines
from greenformers.arena.cell import (
    EVALUATIONS,
    FAILED,
    RESULT,
    Cell,
    Settings,
    failure_of,
    folder_of,
    result_of,
    train,
    tried,
)
from greenformers.arena.lock import AS_LONG_AS_IT_TAKES, LOCK, NOT_AT_ALL, claimed
from greenformers.arena.options import Grid
from greenformers.arena.probe import Probes
from greenformers.arena.protocol import task_of
from greenformers.arena.speed import LENGTHS_OF, speed, speed_of
from greenformers.arena.variants import ALL, BASELINE, WINDOW, Variant, every
from greenformers.arena.windows import control
from greenformers.train import checkpoint, run

WINDOWS = (5, 30)
"""Local windows that every task is trained with: of 11 and of 61 positions, as convolutions have reached MEGA with."""

BASELINES, PROBES = "baselines.json", "probes.json"
SPEED_SECONDS = 20
"""Steps that measuring a variant beside dense attention takes, about, for the time that is left."""


@dataclass(frozen=True)
class Plan:
    """A grid, with what follows from it.

    Attributes:
        grid: The grid.
        out: Folder of the grid.
        variants: Variants of each task that are trained for their own sake, the baseline first.
        controls: Name of the control beside each variant, by task; none where it would be the variant itself.
        unusable: Variants of `all` that cannot be used for a task, with the reason.
        probes: Costs and times of variants.
    """

    grid: Grid
    out: Path
    variants: dict[str, list[str]]
    controls: dict[str, dict[str, str]]
    unusable: dict[str, dict[str, str]]
    probes: Probes

    def trained(self, task: str) -> list[str]:
        """Every variant that is trained on a task, controls included."""
        return list(dict.fromkeys([*self.variants[task], *self.controls[task].values()]))

    @property
    def cells(self) -> list[Cell]:
        """All cells, seed after seed: stopped in between, some seeds are complete."""
        return [
            Cell(task, variant, seed, pretrained)
            for seed in range(self.grid.seeds)
            for task in self.grid.tasks
            for variant in self.trained(task)
            for pretrained in (False, True)
            if not pretrained or (self.grid.pretrain and variant in self.variants[task])
        ]

    @property
    def parts(self) -> "list[Part]":
        """All work of the grid, in its order."""
        cells: list[Part] = [_Training(cell, self) for cell in self.cells]
        first: list[Part] = [_Baselines(task, self) for task in self.grid.tasks]
        last: list[Part] = [_Speed(task, variant, self) for task in self.grid.tasks for variant in self.trained(task)]
        return first + cells + last


@dataclass(frozen=True)
class Part:
    """A part of the work of a grid, with a folder of its own."""

    @property
    def folder(self) -> Path:
        """Folder that its end is stored in."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether it ended well."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """Seconds that it takes, about."""
        raise NotImplementedError

    def work(self, about: dict[str, Any], console: Console) -> None:
        """Do it; its end is stored."""
        raise NotImplementedError

    @property
    def lock(self) -> Path:
        """File whose lock the process holds that works on it."""
        return self.folder / LOCK

    @property
    def timed(self) -> bool:
        """Whether it takes times: while it does, no other process is to work on the grid."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it could not be done, if so."""
        return failure_of(self.folder)

    @property
    def outcome(self) -> str:
        """What came of it, in words."""
        return "done"


@dataclass(frozen=True)
class _Training(Part):
    cell: Cell
    plan: Plan

    def __str__(self) -> str:
        return str(self.cell)

    @property
    def folder(self) -> Path:
        return self.cell.folder(self.plan.out)

    @property
    def ended(self) -> bool:
        return (self.folder / RESULT).is_file()

    @property
    def seconds(self) -> float:
        """Seconds of all steps and evaluations; a forward pass takes a third of a step."""
        grid, size = self.plan.grid, self.cell.size(self.plan.grid)
        most = grid.limit or 10**9
        valid, test = (min(most, count) for count in (size.examples or (0, 2_500, 25_000))[1:])
        runs = 2 if self.cell.pretrained else 1
        examples = (grid.batch or size.batch) * sum(self.cell.steps(grid)) + (runs * EVALUATIONS * valid + test) / 3
        return examples * self.plan.probes.seconds(self.cell.task, self.cell.variant)

    def work(self, about: dict[str, Any], console: Console) -> None:
        train(self.cell, self.plan.grid, self.plan.out, console)

    @property
    def outcome(self) -> str:
        result = result_of(self.cell, self.plan.out)
        return "" if result is None else f"{result.accuracy:.1f} %"


@dataclass(frozen=True)
class _Baselines(Part):
    task: str
    plan: Plan

    def __str__(self) -> str:
        return f"{self.task}, trivial baselines"

    @property
    def folder(self) -> Path:
        return self.plan.out / self.task

    @property
    def ended(self) -> bool:
        file = self.folder / BASELINES
        return file.is_file() and json.loads(file.read_text()).get("inputs") == _which_inputs(self.task, self.plan)

    @property
    def seconds(self) -> float:
        return 30.0

    def work(self, about: dict[str, Any], console: Console) -> None:
        right = baselines(_inputs(self.task, self.plan), root=task_of(self.task).root)
        self.folder.mkdir(parents=True, exist_ok=True)
        marks = {name: "".join("01"[mark] for mark in own.tolist()) for name, own in right.items()}
        told = {"inputs": _which_inputs(self.task, self.plan), "right": marks}
        checkpoint.replace(self.folder / BASELINES, json.dumps(told, indent=1) + "\n")

    @property
    def outcome(self) -> str:
        own = baselines_of(self.task, self.plan.out)
        return ", ".join(f"{name} {100 * sum(right) / len(right):.1f} %" for name, right in own.items())


@dataclass(frozen=True)
class _Speed(Part):
    task: str
    variant: str
    plan: Plan

    def __str__(self) -> str:
        return f"{self.task}, {self.variant}, speed and memory"

    @property
    def folder(self) -> Path:
        return folder_of(self.plan.out, self.task, self.variant)

    @property
    def ended(self) -> bool:
        records = speed_of(self.task, self.variant, self.plan.out)
        if records is None or self.task != LENGTHS_OF:
            return records is not None
        at = {record.setting["length"] for record in records if record.setting["at"] == "length"}
        return set(self.plan.grid.lengths) <= at

    @property
    def seconds(self) -> float:
        batch = self.plan.grid.batch or task_of(self.task).sizes[self.plan.grid.size].batch
        each = sum(self.plan.probes.seconds(self.task, name) for name in (BASELINE, self.variant))
        return SPEED_SECONDS / 2 * batch * each

    @property
    def lock(self) -> Path:
        return self.plan.out / LOCK

    @property
    def timed(self) -> bool:
        return True

    def work(self, about: dict[str, Any], console: Console) -> None:
        speed(self.task, self.variant, self.plan.grid, self.plan.out, about)


def baselines_of(task: str, out: Path) -> dict[str, list[bool]]:
    """Which test examples each baseline of a task is right for, by its name; none where they are not known yet."""
    file = out / task / BASELINES
    if not file.is_file():
        return {}
    return {name: [mark == "1" for mark in told] for name, told in json.loads(file.read_text())["right"].items()}


def planned(grid: Grid, out: Path, *, stored: bool = True) -> Plan:
    """The plan of a grid. Every variant is built and run on every task, so that what cannot be is refused here.

    Args:
        grid: The grid.
        out: Folder of the grid.
        stored: Whether counted costs and times are kept in the folder.

    Raises:
        ValueError: There is no such task or variant, a variant cannot be used for a task, or the folder holds cells
            with other settings.
        OSError: Data are missing.
    """
    for task in grid.tasks:
        task_of(task).check(grid.data)
    names = [name for given in grid.variants for name in (every() if given == ALL else [given])]
    names = list(dict.fromkeys([BASELINE, *names, *(WINDOW.format(size) for size in WINDOWS if grid.controls)]))
    for name in names:
        Variant.of(name)
    probes = Probes(grid, out / PROBES if stored or (out / PROBES).is_file() else None)
    unusable = {task: _unusable(task, names, probes) for task in grid.tasks}
    asked = {task: [name for name in own if name in grid.variants] for task, own in unusable.items()}
    if refused := [f"{name} on {task}: {unusable[task][name]}" for task, own in asked.items() for name in own]:
        raise ValueError(f"variants must be usable for every task; {'; '.join(refused)}")
    variants = {task: [name for name in names if name not in unusable[task]] for task in grid.tasks}
    controls = {task: _controls(task, own, probes) if grid.controls else {} for task, own in variants.items()}
    plan = Plan(grid, out, variants, controls, unusable, probes)
    _check_folders(plan)
    return plan


def carried_out(
    plan: Plan,
    about: dict[str, Any],
    console: Console,
    told: Callable[[str], None],
    *,
    retry: bool = False,
) -> list[str]:
    """Do all work of a plan that is not done; returns a line for each part that could not be.

    Args:
        plan: The plan.
        about: Context of the records of speed and memory.
        console: Console that shows the progress of trainings.
        told: Function that is called with a line on each part that ended.
        retry: Whether parts that could not be done are tried again.

    Raises:
        Stopped: A signal ended the work early; the same call goes on.
    """
    parts = plan.parts
    if retry:
        for part in parts:
            if not part.ended:
                (part.folder / FAILED).unlink(missing_ok=True)
    left = [part for part in parts if not part.ended and part.failure is None]
    told(
        f"{len(parts) - len(left)} of {len(parts)} parts are done; about {words_of(sum(p.seconds for p in left))} left"
    )
    start, expected = time.monotonic(), 0.0
    # First those that nobody works on; then those that others did, after whom something may be left to do; times last.
    taken_up = [(part, NOT_AT_ALL) for part in left if not part.timed]
    for part, seconds in [*taken_up, *((part, AS_LONG_AS_IT_TAKES) for part in left)]:
        with claimed(part.lock, seconds) as ours:
            if not ours or part.ended or part.failure is not None:
                continue
            began = time.monotonic()
            reason = tried(part.folder, partial(part.work, about, console))
        expected += part.seconds
        # The parts so far say by how much the estimates are wrong on this machine, now.
        pace = (time.monotonic() - start) / expected
        rest = [later for later in left if not later.ended and later.failure is None]
        outcome = part.outcome if reason is None else f"not done: {reason}"
        taken = f"{time.monotonic() - began:.0f} s"
        told(
            f"{len(parts) - len(rest)}/{len(parts)} {part}: {outcome}, {taken}; about "
            f"{words_of(sum(later.seconds for later in rest) * pace)} left"
        )
    return [f"{part}: {part.failure}" for part in parts if not part.ended and part.failure is not None]


def words_of(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _unusable(task: str, names: list[str], probes: Probes) -> dict[str, str]:
    """The variants that cannot be used for a task, with the reason."""
    reasons = {}
    for name in names:
        try:
            probes.flops(task, name)
            probes.seconds(task, name)
        except ValueError as error:
            reasons[name] = str(error)
    return reasons


def _controls(task: str, names: list[str], probes: Probes) -> dict[str, str]:
    length = task_of(task).sizes[probes.grid.size].length
    windows = [name for name in names if name == BASELINE or name in map(WINDOW.format, WINDOWS)]
    controls = {name: control(name, length, partial(probes.flops, task)) for name in names if name not in windows}
    for name in set(controls.values()):
        probes.seconds(task, name)
    return controls


def _check_folders(plan: Plan) -> None:
    """Raise ValueError where a cell has a run with other settings, which could not go on."""
    for cell, name, settings in _runs(plan):
        folder = cell.folder(plan.out) / name
        if not (folder / run.SETTINGS).is_file():
            continue
        stored = run.settings_of(folder, Settings)
        if differs := settings.differs(stored):
            key = differs[0]
            raise ValueError(
                f"{plan.out} holds {cell} with {key} {vars(stored)[key]}, now {vars(settings)[key]}: choose another "
                "folder, or the same options"
            )


def _runs(plan: Plan) -> Iterator[tuple[Cell, str, Settings]]:
    for cell in plan.cells:
        for name, settings in cell.settings(plan.grid, plan.out).items():
            yield cell, name, settings


def _inputs(task: str, plan: Plan) -> Any:
    return _settings(task, plan).inputs()


def _which_inputs(task: str, plan: Plan) -> dict[str, Any]:
    """What says which inputs a task has in a grid."""
    settings = _settings(task, plan)
    return {"size": settings.size, "data": settings.data, "limit": settings.limit}


def _settings(task: str, plan: Plan) -> Settings:
    return next(iter(Cell(task, BASELINE, 0).settings(plan.grid, plan.out).values()))
