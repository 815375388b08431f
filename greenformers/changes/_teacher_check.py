"""Checks, before the work, that a student can learn from a teacher."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from greenformers.changes._distillation import Distillation
from greenformers.changes._outputs import logits_of, states
from greenformers.changes._student import Student
from greenformers.changes._while_learning import attending
from greenformers.data._tasks import kind_of_input
from greenformers.measure.quality import evaluating
from greenformers.train.objective import Batch


def check_teacher(
    model: Any,
    original: Any,
    examples: Distillation,
    weights: Mapping[str, float],
    layer_map: Sequence[int] | None = None,
    *,
    cached: bool = False,
) -> None:
    """Check on one example that a student has the outputs of its teacher that the loss compares, of the same shape.

    Raises:
        ValueError: It does not, or one of the two cannot be run on the examples.
    """
    example = examples.rows["train"].collate([examples.rows["train"][0]])
    device = next(model.parameters()).device
    batch = {name: x.to(device) for name, x in example.items()}
    student, teacher = type(model).__name__, type(original).__name__
    seen = []
    for network in (model, original):
        try:
            with evaluating(network), torch.no_grad():
                seen.append(network(**batch, output_hidden_states=True))
        except Exception as error:  # whatever networks raise that need more than these
            why = " ".join(str(error).split())
            raise ValueError(f"{type(network).__name__} cannot be run on {', '.join(batch)} alone: {why}") from error
    student_out, teacher_out = seen
    _check_states(student, student_out, teacher_out, batch, kind_of_input(original) == "text")
    parts: dict[str, list[Any]] = {"states": [states(out)[-1][0][-1] for out in (student_out, teacher_out)]}
    learner = Student(model, original, weights, 1.0, layer_map=layer_map, seen=[batch])
    if layer_map is not None and not any(learner.weights.get(name) for name in ("hidden", "attention", "relations")):
        raise ValueError(
            "a layer map is of hidden states, attention or relations, of which none is learnt: "
            f"weights must name one, got {', '.join(learner.weights)}"
        )
    if cached:
        examples.check_kept(learner)
    if learner.weights.get("logits"):
        parts["logits"] = [logits_of(out) for out in (student_out, teacher_out)]
    for name, (ours, theirs) in parts.items():
        forms = ["none" if x is None else " x ".join(map(str, x.shape[1:])) for x in (ours, theirs)]
        shared = -1 if name == "states" else None  # the states of a narrower student have fewer coordinates
        if ours is None or theirs is None or ours.shape[:shared] != theirs.shape[:shared]:
            raise ValueError(
                f"a {student} cannot learn from this {teacher}: of one example the {name} are {forms[0]} and {forms[1]}"
            )
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with attending(learner):
            loss = learner(**batch)
        if learnt:  # beside weights that were rounded nothing is, before there are adapters
            torch.autograd.grad(loss["loss"], learnt, allow_unused=True)
    except RuntimeError as error:
        raise ValueError(
            f"a {student} cannot be trained on the examples: {' '.join(str(error).split())[:200]}"
        ) from error


def _check_states(student: str, student_out: Any, teacher_out: Any, batch: Batch, texts: bool) -> None:
    """Check that there are states of every layer, and for texts one for each token."""
    ours, theirs = states(student_out), states(teacher_out)
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"a {student} gives no states of its layers, or not those of its teacher: it cannot be healed")
    if not texts:
        return
    for layers, stack in (*ours, *theirs):
        length = (batch["labels"] if stack == "decoder" and "labels" in batch else batch["input_ids"]).shape[1]
        if any(x.shape[1] != length for x in layers):
            raise ValueError(f"the states of a {student} have another length than its texts: it cannot be healed")
