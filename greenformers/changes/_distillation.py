"""The examples of a distillation, some of them held out, and what the teacher gave to them."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes._student import Student
from greenformers.changes._teacher_cache import Ask, Asked, TeacherCache, digest
from greenformers.data._rows import SOUND, Batches, Rows
from greenformers.train.bf16 import Precision
from greenformers.train.objective import Batch, Example, Objective
from greenformers.train.processes import first_before_others
from greenformers.train.schedule import Schedule
from greenformers.train.stream import Stream

HELD_BYTES = 2**30
"""Most bytes of what a teacher gave that are held in memory."""

_NONE = torch.Generator()

BATCH = 16
"""Examples of which the teacher is asked at once."""

AT_ONCE = 64
"""Examples that are judged at once."""

VALID, HELD = 20, 256
"""One example in so many is held out, and no more than so many; on these the loss is evaluated, by which healing may
end early: of more it would be known no better, and take longer than the training."""


class Distillation(Objective):
    """Examples for distillation, of which one in `VALID` is held out, and no more than `HELD`.

    Args:
        rows: The examples as the network reads them.
        schedule: Schedule whose batch size the number of examples is checked against.

    Attributes:
        multiple: Number of which the lengths of batches of texts are multiples.

    Raises:
        ValueError: There are fewer than 2 examples, or too few for a batch.
    """

    metric = "distance"
    greater_is_better = False
    splits: ClassVar[tuple[str, ...]] = ("train", "valid")
    partial: ClassVar[bool] = True  # poolers, say, of which the loss compares nothing
    taught: TeacherCache | Asked | None
    multiple: int = 1

    def __init__(self, rows: Rows, schedule: Schedule | None = None) -> None:
        if len(rows) < 2:
            raise ValueError(f"healing needs at least 2 examples, got {len(rows)}")
        held = range(0, len(rows), max(VALID, -(-len(rows) // HELD)))
        self.places = {"train": [at for at in range(len(rows)) if at not in held], "valid": list(held)}
        self.all, self.taught = rows, None
        self.rows = {split: rows.at(places) for split, places in self.places.items()}
        lengths = self.rows["train"].lengths
        self.lengths = None if lengths is None else torch.tensor(lengths)
        if schedule is not None:
            Stream(self, schedule.batch_size, schedule.steps or 1, schedule.seed)  # raises where there are too few

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def example(self, split: str, index: int, source: torch.Generator) -> Example:
        place = self.places[split][index]
        taught = {} if self.taught is None or place not in self.taught else self.taught[place]
        return {**self.rows[split][index], **taught}

    def check_kept(self, student: Student) -> dict[str, str | int]:
        """See `Student.outputs`, for these examples.

        Raises:
            ValueError: What the teacher gives cannot be kept.
        """
        first = self.all[0]
        if any(name in first for name in SOUND):
            raise ValueError(
                "recordings of a batch are cut to the shortest, so what a teacher gives cannot be kept: leave out "
                "teacher_cache"
            )
        return student.outputs(first)

    def remember(self, student: Student, folder: Path, progress: Callable[[float], None]) -> TeacherCache:
        """Ask the teacher once for each example, and keep what it gives in a folder.

        Raises:
            ValueError: The folder holds something else, there is no room for it, or it cannot be kept.
        """
        needed = self.check_kept(student)
        rows = {name: [self._rows(count, at) for at in range(len(self.all))] for name, count in needed.items()}
        batches = Batches(self.all, BATCH).places
        with first_before_others():
            cache = TeacherCache(folder, digest(student.teacher, self.all, student.pooling), len(self.all))
            # What is kept is for trainings of any precision.
            cache.fill(list(rows), rows, self._asking(student, needed, "fp32"), batches, progress)
        self.taught = cache
        return cache

    def ask_once(self, student: Student, schedule: Schedule, taught: dict[Hashable, Any] | None) -> None:
        """Ask the teacher once for what is learned from again, as it is needed, where that has room in memory.

        That is what judges, at each evaluation; and all examples, where one vector of each is all that is learned, and
        there is more than one epoch or training. The teacher is asked for batches as those of the first epoch are, of
        which each is what is learned from next.
        """
        if not student.can_be_kept or any(name in self.all[0] for name in SOUND):
            return
        needed = student.outputs(self.all[0])
        ask = self._asking(student, needed, student.precision)
        again = (schedule.steps or 0) * schedule.batch_size > self.size("train")
        every = student.compares_vectors and (again or taught is not None)
        size, lengths, train = schedule.batch_size, self.all.lengths, self.places["train"]
        first = [train[at] for at in Stream(self, size, 1, schedule.seed).order(0).tolist()] if every else []
        others = sorted(
            {*range(len(self.all))} - {*first} if every else self.places["valid"],
            key=lambda at: 0 if lengths is None else lengths[at],
        )
        a_row = {name: x.nbytes / len(x) for name, (x,) in ask([0]).items()}
        asked = first + others
        if sum(a_row[name] * self._rows(count, at) for name, count in needed.items() for at in asked) > HELD_BYTES:
            return
        batches = [places[at : at + size] for places in (first, others) for at in range(0, len(places), size)]
        key = (size, schedule.seed, student.precision, *needed)
        held = taught.setdefault(key, {}) if taught is not None and every else {}
        self.taught = Asked(batches, ask, held)

    def _rows(self, count: int | str, at: int) -> int:
        """Rows that an example has of an output, by its number of them or by the argument that is as long."""
        return count if isinstance(count, int) else len(self.all[at][count])

    def _asking(self, student: Student, needed: Mapping[str, int | str], precision: Precision) -> Ask:
        """The function that asks the teacher for what the loss needs."""

        def ask(places: Sequence[int]) -> dict[str, list[Tensor]]:
            counts = {name: [self._rows(count, at) for at in places] for name, count in needed.items()}
            return student.ask(self.all.collate([self.all[at] for at in places], self.multiple), counts, precision)

        return ask

    def collate(self, examples: list[Example]) -> Batch:
        return self.rows["train"].collate(examples, self.multiple)

    def batches(self, count: int, size: int) -> Iterator[Batch]:
        """Batches of `size` of the first examples that are learnt from, up to `count`."""
        rows = self.rows["train"]
        for start in range(0, min(count, len(rows)), size):
            yield rows.collate([rows[at] for at in range(start, min(start + size, count, len(rows)))])

    def scored(self, batch: Batch) -> int:
        return len(next(iter(batch.values())))

    def config(self, **sizes: Any) -> Any:
        """Not available: the network has been built already.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a network that is healed has its configuration")

    def build(self, config: Any) -> PreTrainedModel:
        """Not available, see `config`.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a network that is healed has been built already")

    def evaluate(self, model: nn.Module, split: str, batch_size: int) -> dict[str, float]:
        """The loss on the examples that are held out, `AT_ONCE` at a time.

        It is that of batches: of others it would be another, before the first step and after the last.
        """
        del batch_size
        rows = self.rows[split]
        lengths = rows.lengths
        order = list(range(len(rows)))
        if lengths is not None:
            order.sort(key=lambda index: lengths[index])
        device, training = next(model.parameters()).device, model.training
        model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(order), AT_ONCE):
                places = order[start : start + AT_ONCE]
                batch = self.collate([self.example(split, place, _NONE) for place in places])
                loss = model(**{name: x.to(device) for name, x in batch.items()})["loss"]
                total += float(loss) * len(places)
        model.train(training)
        return {"distance": total / len(order)}
