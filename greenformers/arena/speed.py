"""Steps a second and peak memory of a variant beside dense attention, both timed in turns on the same batch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from greenformers.arena.cell import TRAINING, Cell, folder_of
from greenformers.arena.objectives import Classification
from greenformers.arena.options import Grid
from greenformers.arena.probe import drawn, network
from greenformers.arena.protocol import task_of
from greenformers.arena.variants import BASELINE
from greenformers.measure.costs import Subject, costs
from greenformers.measure.device import accelerator
from greenformers.measure.record import Record, append, read, with_ratios

BENCHMARK = "arena"
SPEED = "speed.jsonl"
METRICS = ("parameters", "train_step", "peak_memory_training")
REPEATS = 5
LENGTHS_OF = "text"
"""Task whose network is timed at other lengths, on one sequence, as the published table has texts of bytes."""


def speed(task: str, variant: str, grid: Grid, out: Path, about: dict[str, Any]) -> None:
    """Measure a variant on a batch of a task, and where the task is that of texts, at other lengths too.

    The records of both are stored in the folder of the variant, whose name is "beside" in their settings.

    Args:
        task: Name of the task.
        variant: Name of the variant.
        grid: Grid, with the size and the lengths.
        out: Folder of the grid.
        about: Context of the records.

    Raises:
        ValueError: The variant cannot be used.
        OSError: A file is missing, or the folder cannot be written.
    """
    settings = Cell(task, variant, 0).settings(grid, out)[TRAINING]
    objective, size = Classification(settings.inputs()), task_of(task).sizes[grid.size]
    batch = min(settings.batch, objective.size("train"))
    rows = objective.collate([objective.example("train", at, torch.Generator()) for at in range(batch)])
    setting = {"task": task, "size": grid.size, "at": "step", "length": size.length, "batch": batch}
    build = partial(network, task, grid=grid)
    records = _beside_dense(variant, build, rows["input_ids"], rows.get("attention_mask"), setting, about)
    for length in grid.lengths if task == LENGTHS_OF else ():
        setting = {"task": task, "size": grid.size, "at": "length", "length": length, "batch": 1}
        build = partial(network, task, grid=grid, length=length)
        records += _beside_dense(variant, build, drawn(1, length), None, setting, about)
    folder = folder_of(out, task, variant)
    folder.mkdir(parents=True, exist_ok=True)
    # Written under another name first: a file that is there is whole.
    unfinished = folder / f"unfinished-{SPEED}"
    unfinished.unlink(missing_ok=True)
    append(unfinished, records)
    unfinished.replace(folder / SPEED)


def speed_of(task: str, variant: str, out: Path) -> list[Record] | None:
    """The stored records of a variant on a task; None where it has not been measured."""
    file = folder_of(out, task, variant) / SPEED
    return read(file) if file.is_file() else None


def _beside_dense(
    variant: str,
    build: Callable[[str], Any],
    ids: Tensor,
    mask: Tensor | None,
    setting: dict[str, Any],
    about: dict[str, Any],
) -> list[Record]:
    """The records of a variant and of dense attention beside it, with ratios."""
    device = accelerator()
    labels = torch.zeros(len(ids), dtype=torch.long, device=device)
    # The networks that are timed have the ids of bytes; words have fewer.
    batch = {"input_ids": ids.to(device), "attention_mask": None if mask is None else mask.to(device)}

    def forward(model: Any) -> Callable[[], Tensor]:
        return lambda: model(**batch, labels=labels).loss

    models = {name: build(name).to(device) for name in dict.fromkeys([BASELINE, variant])}
    subjects = {name: Subject(model, forward(model)) for name, model in models.items()}
    measured = costs(subjects, METRICS, benchmark=BENCHMARK, setting=setting, repeats=REPEATS, about=about)
    # Dense attention is timed again beside each variant, under the load of that time: only these two are compared.
    setting = setting | {"beside": variant}
    return with_ratios([replace(record, setting=setting) for record in measured], to=BASELINE)
