"""The network of a variant on a task before any training: whether it can be, what it costs, how long its steps take."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from greenformers.arena.cell import Cell
from greenformers.arena.options import Grid
from greenformers.arena.protocol import task_of
from greenformers.arena.variants import Variant
from greenformers.measure.flops import flops
from greenformers.measure.limit import OutOfMemory, attempt
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification
from greenformers.train import checkpoint
from greenformers.train.stream import generator

VOCABULARY, CLASSES, FIRST = 261, 10, 5
"""Sizes of the network that is probed: bytes and special ids; the first id that is not special."""

TOGETHER = 4
"""Most examples in a step that is timed."""


def network(task: str, variant: str, grid: Grid, length: int | None = None) -> PreTrainedModel:
    """The untrained network of a variant on a task, with the vocabulary of bytes.

    Args:
        task: Name of the task.
        variant: Name of the variant.
        grid: Grid, with the size.
        length: Longest sequence; None for that of the task.

    Raises:
        ValueError: The variant cannot be, or not at these sizes.
    """
    settings = next(iter(Cell(task, variant, 0).settings(grid, Path()).values()))
    length = length or task_of(task).sizes[grid.size].length
    shape = {"vocab_size": VOCABULARY, "num_labels": CLASSES, "max_position_embeddings": length, "pad_token_id": 0}
    try:
        config = GreenformerConfig(**shape | settings.sizes())
        set_seed(0)
        return GreenformerForSequenceClassification(config)
    except TypeError as error:
        # A value of the wrong type is an option's: sizes are ours.
        if not Variant.of(variant).options:
            raise
        raise ValueError(str(error)) from error


def drawn(batch: int, length: int) -> Tensor:
    """Ids (batch, length) by chance, none of them special."""
    return torch.randint(FIRST, VOCABULARY, (batch, length), generator=generator(0, length))


def step(model: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> None:
    """A forward and a backward pass of a classification."""
    labels = torch.zeros(len(ids), dtype=torch.long)
    model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
    model.zero_grad(set_to_none=True)


@dataclass
class Probes:
    """FLOPs and times of variants on tasks, each counted or timed once.

    Attributes:
        grid: Grid, with the size.
        path: File that they are stored in; None for none.
    """

    grid: Grid
    path: Path | None = None
    _figures: dict[str, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            self._figures = json.loads(self.path.read_text())

    def flops(self, task: str, variant: str) -> int:
        """FLOPs of a forward pass on one sequence of full length.

        Raises:
            ValueError: The variant cannot be used for the task.
        """
        key = f"FLOPs, {self.grid.size}, {task}, {variant}"
        if key not in self._figures:
            self._store(key, _tried(lambda: self._counted(task, variant)))
        return int(self._figures[key])

    def seconds(self, task: str, variant: str) -> float:
        """Seconds of a step, for each of its examples of full length.

        Raises:
            ValueError: The variant cannot be used for the task: it cannot be built, or run on padded sequences.
        """
        key = f"seconds, {self.grid.size}, {task}, {variant}"
        if key not in self._figures:
            self._store(key, _tried(lambda: self._timed(task, variant)))
        return self._figures[key]

    def _counted(self, task: str, variant: str) -> int:
        model, length = network(task, variant, self.grid).eval(), task_of(task).sizes[self.grid.size].length
        ids = drawn(1, length)
        return flops(lambda: model(input_ids=ids))

    def _timed(self, task: str, variant: str) -> float:
        size = task_of(task).sizes[self.grid.size]
        batch = min(TOGETHER, self.grid.batch or size.batch)
        ids, mask = drawn(batch, size.length), None
        if task_of(task).pads:
            mask = torch.ones_like(ids)
            mask[-1, -size.length // 4 :] = 0
        model = network(task, variant, self.grid).train()
        step(model, ids, mask)
        start = time.perf_counter()
        step(model, ids, mask)
        return (time.perf_counter() - start) / batch

    def _store(self, key: str, value: float) -> None:
        self._figures[key] = value
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.replace(self.path, json.dumps(self._figures, indent=1) + "\n")


def _tried(work: Callable[[], float]) -> float:
    """What a function gives.

    Raises:
        ValueError: There is no memory for it, or the variant cannot be run.
    """
    try:
        return attempt(work, torch.device("cpu"))
    except (OutOfMemory, RuntimeError) as error:
        raise ValueError(" ".join(str(error).split())) from error
