"""Healing: a smaller network learns what the original says to unlabelled examples; the losses are `_student`'s."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import nn
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from greenformers.changes._student import WEIGHTS, DivergedError, Student, states
from greenformers.data._rows import Rows
from greenformers.data._tasks import kind_of_input, task_of
from greenformers.measure.quality import evaluating
from greenformers.train.checkpoint import newest_finite
from greenformers.train.fit import History, Schedule, fit
from greenformers.train.objective import Batch, Example, Objective
from greenformers.train.stream import Stream

DROPS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment")
"""What leaves out layers, or parts of a recording, in training."""

VALID = 20
"""One example in so many is not learnt from; by these healing ends early, and is told how it goes."""


def heal(
    model: PreTrainedModel,
    original: PreTrainedModel,
    examples: "Distillation",
    schedule: Schedule,
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float = 2.0,
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> History:
    """Train a compressed network, in place, to say what the original says.

    Args:
        model: the compressed one.
        original: what it was made from, or any network with the same outputs and inputs; not changed.
        examples: what both are shown.
        schedule: how many steps, of how many examples, at which learning rate.
        weights: of the parts of the loss; by default what suits the model.
        temperature: T of the logits.
        folder: where checkpoints go; none are made without it.
        resume: go on from the newest checkpoint of the folder.
        progress: called as work goes on.

    Returns:
        What was logged; "eval_distance" is the loss on the examples that are not learnt from.

    Raises:
        ValueError: a part of the loss that the model has no outputs for; or the loss is no longer finite.
    """
    student = Student(model, original, dict(weights or {}) or WEIGHTS[task_of(original)], temperature)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    try:
        with in_full(model):
            history = fit(
                student,  # type: ignore[arg-type]  # the Trainer takes any module
                examples, schedule, label="healing", console=Console(quiet=True), folder=folder, resume=resume,
                callbacks=(_Progress(progress),),
            )  # fmt: skip
    except DivergedError as error:
        model.load_state_dict(before)
        good = None if folder is None else newest_finite(folder)
        last = "" if good is None else f"; the last good checkpoint is {good}"
        raise ValueError(
            f"healing diverged at a learning rate of {schedule.learning_rate:g}: {error}; try a lower one{last}"
        ) from error
    model.eval()
    return history


@contextmanager
def in_full(model: PreTrainedModel) -> Iterator[None]:
    """In a `with` block every layer runs in training, and nothing is cut out of recordings.

    The student's states are compared with the teacher's layer by layer, and both are to hear the same.
    """
    holders: list[Any] = [
        *model.modules(),
        *{id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}.values(),
    ]
    before = [
        (holder, name, vars(holder)[name])
        for holder in holders
        for name in DROPS
        if isinstance(vars(holder).get(name), bool | float)
    ]
    for holder, name, value in before:
        setattr(holder, name, type(value)(0))
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


def check_teacher(model: Any, original: Any, examples: "Distillation", weights: Mapping[str, float]) -> None:
    """See that a network has what its teacher is asked for, of the same form, on one example.

    Raises:
        ValueError: it has not, or one of the two cannot be run on the examples.
    """
    batch = examples.rows["train"].collate([examples.rows["train"][0]])
    student, teacher = type(model).__name__, type(original).__name__
    seen = []
    for network in (model, original):
        try:
            with evaluating(network), torch.no_grad():
                seen.append(network(**batch, output_hidden_states=True))
        except Exception as error:  # whatever networks raise that need more than these
            why = " ".join(str(error).split())
            raise ValueError(f"{type(network).__name__} cannot be run on {', '.join(batch)} alone: {why}") from error
    found, wanted = seen
    weights = dict(weights) or WEIGHTS[task_of(original)]
    _check_states(student, found, wanted, batch, kind_of_input(original) == "text")
    parts: dict[str, list[Any]] = {"states": [states(out)[-1][0][-1] for out in (found, wanted)]}
    if weights.get("logits"):
        parts["logits"] = [getattr(out, "logits", None) for out in (found, wanted)]
    for name, (one, other) in parts.items():
        forms = ["none" if x is None else " x ".join(map(str, x.shape[1:])) for x in (one, other)]
        if one is None or other is None or one.shape != other.shape:
            raise ValueError(
                f"a {student} cannot learn from this {teacher}: of one example the {name} are {forms[0]} and {forms[1]}"
            )
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        loss = Student(model, original, weights, 1.0)(**batch)
        torch.autograd.grad(loss["loss"], learnt, allow_unused=True)
    except RuntimeError as error:
        raise ValueError(
            f"a {student} cannot be trained on the examples: {' '.join(str(error).split())[:200]}"
        ) from error


def _check_states(student: str, found: Any, wanted: Any, batch: Batch, texts: bool) -> None:
    """See that there are states of every layer, of texts one for each token."""
    ours, theirs = states(found), states(wanted)
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"a {student} gives no states of its layers, or not those of its teacher: it cannot be healed")
    if not texts:
        return
    for layers, stack in (*ours, *theirs):
        length = (batch["labels"] if stack == "decoder" and "labels" in batch else batch["input_ids"]).shape[1]
        if any(x.shape[1] != length for x in layers):
            raise ValueError(f"the states of a {student} have another length than its texts: it cannot be healed")


class _Progress(TrainerCallback):
    """Tells of every step."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress("healing", state.global_step / state.max_steps)


class Distillation(Objective):
    """Examples, of which one in `VALID` is held out.

    Args:
        rows: as the network reads them.
        schedule: how many are needed for a batch.

    Raises:
        ValueError: fewer than 2 examples, or too few for a batch.
    """

    metric = "distance"
    greater_is_better = False
    splits: ClassVar[tuple[str, ...]] = ("train", "valid")

    def __init__(self, rows: Rows, schedule: Schedule | None = None) -> None:
        if len(rows) < 2:
            raise ValueError(f"healing needs at least 2 examples, got {len(rows)}")
        held = range(0, len(rows), VALID)
        self.rows = {
            "train": rows.at([place for place in range(len(rows)) if place not in held]),
            "valid": rows.at(held),
        }
        lengths = self.rows["train"].lengths
        self.lengths = None if lengths is None else torch.tensor(lengths)
        if schedule is not None:
            Stream(self, schedule.batch_size, schedule.steps or 1, schedule.seed)  # which knows how many it needs

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def example(self, split: str, index: int, source: torch.Generator) -> Example:
        return dict(self.rows[split][index])

    def collate(self, examples: list[Example]) -> Batch:
        return self.rows["train"].collate(examples)

    def scored(self, batch: Batch) -> int:
        return len(next(iter(batch.values())))

    def config(self, **sizes: Any) -> Any:
        """Not available: the network is there.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a network that is healed has its configuration")

    def build(self, config: Any) -> PreTrainedModel:
        """Not available, see `config`.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a network that is healed is there")

    def evaluate(self, model: nn.Module, split: str, batch_size: int) -> dict[str, float]:
        """The loss on the examples held out."""
        rows = self.rows[split]
        lengths = rows.lengths
        order = list(range(len(rows)))
        if lengths is not None:
            order.sort(key=lambda index: lengths[index])
        device, training = next(model.parameters()).device, model.training
        model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(order), batch_size):
                places = order[start : start + batch_size]
                batch = rows.collate([rows[place] for place in places])
                loss = model(**{name: x.to(device) for name, x in batch.items()})["loss"]
                total += float(loss) * len(places)
        model.train(training)
        return {"distance": total / len(order)}
