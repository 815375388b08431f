"""The loss of healing: distillation from a teacher on unlabelled examples. Hinton 2015, arXiv:1503.02531.

The loss is a weighted sum of parts, over positions that are no padding:

- logits: T^2 KL(p || p'), p = softmax(z / T) of the teacher and p' of the student;
- embeddings: 1 - cos of the sentence embeddings: means over positions, or as the model itself pools;
- hidden, attention, relations, similarities: see `greenformers.changes._losses`.

States of a narrower student have no coordinates in common with the teacher's: hidden states and embeddings are then
multiplied by matrices W that are learned along (Jiao 2020, arXiv:1909.10351, eq. 8), and begin as the best there are by
least squares. They are no part of the student that is left.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes import _losses as losses
from greenformers.changes._recorded import Attended, noted
from greenformers.data._pooling import pooling_of
from greenformers.data._rows import IGNORED
from greenformers.data._tasks import Task, task_of
from greenformers.measure.quality import evaluating

PARTS = ("logits", "hidden", "embeddings", "similarities", "attention", "relations")
ATTENDING = ("attention", "relations")
"""Parts that compare queries, keys and values."""

WEIGHTS: dict[Task, dict[str, float]] = {
    "encoder": {"hidden": 1.0, "embeddings": 1.0},
    "classifier": {"logits": 1.0, "hidden": 1.0},
    "masked_lm": {"logits": 1.0, "hidden": 1.0},
    "causal_lm": {"logits": 1.0, "hidden": 1.0},
    "seq2seq": {"logits": 1.0, "hidden": 1.0},
    "ctc": {"logits": 1.0, "hidden": 1.0},
}
"""Weights of the parts of the loss, by the task of a model."""

NARROWER: dict[Task, dict[str, float]] = WEIGHTS | {"encoder": {"hidden": 1.0, "embeddings": 1.0, "similarities": 1.0}}
"""The same for a narrower student: its own embeddings are compared with each other, not those that W makes of them."""

STATES = (("hidden_states", "encoder"), ("encoder_hidden_states", "encoder"), ("decoder_hidden_states", "decoder"))
"""Outputs that hold the states after every layer, and the stack that each belongs to."""

Seen = tuple[Any, Sequence[Attended]]
"""The outputs of a network, and what its layers attended with."""

RIDGE = 1e-4
"""Share of the mean square of states that is added to each in least squares."""


class DivergedError(ValueError):
    """A loss that is not finite."""


class Student(nn.Module):
    """A network with the distance of its outputs from those of its teacher as loss.

    Args:
        model: The student.
        original: The teacher.
        weights: Weights of the parts of the loss, by name; by default those of the task of the teacher.
        temperature: Temperature T of the logits.
        layer_map: The teacher's layer for each of the student's, see `greenformers.changes._losses.layer_map`.
        seen: Batches by which the matrices W of a narrower student are made; none are needed for others.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        original: PreTrainedModel,
        weights: Mapping[str, float] | None,
        temperature: float,
        *,
        layer_map: Sequence[int] | None = None,
        seen: Iterable[Mapping[str, Tensor]] = (),
    ) -> None:
        super().__init__()
        self.model, self.temperature, self.layer_map = model, temperature, layer_map
        self._pool = pooling_of(model)
        self._original = (original.eval(),)  # in a tuple: not a part of this module
        self.widening = nn.ModuleDict()
        self._widen(seen)
        self.weights = dict(weights or {}) or (NARROWER if self.widening else WEIGHTS)[task_of(original)]
        for name in [] if self.weights.get("hidden") else [name for name in self.widening if name != "embeddings"]:
            del self.widening[name]
        if "embeddings" in self.widening and not self.weights.get("embeddings"):
            del self.widening["embeddings"]

    @torch.no_grad()
    def _widen(self, batches: Iterable[Mapping[str, Tensor]]) -> None:
        """Make the matrices W, from the states of a narrower student to those of its teacher, by least squares."""
        sums: dict[str, list[Tensor]] = {}
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            for batch in batches:
                given = {name: x.to(device) for name, x in batch.items()}
                outs = [network(**given, output_hidden_states=True) for network in (self.model, self.teacher)]
                stacks = _stacks(*outs)
                if all(ours[-1].shape[-1] == theirs[-1].shape[-1] for ours, theirs, _ in stacks):
                    return
                for ours, theirs, stack in stacks:
                    if ours[-1].shape[-1] == theirs[-1].shape[-1]:
                        continue
                    mask = token_mask(theirs[0], given, stack)
                    for at, other in self._layers(len(ours) - 1, len(theirs) - 1):
                        x, y = (sequence(z).double() for z in (ours[at], theirs[other]))
                        x, y = (z.flatten(0, 1) if mask is None else z[mask] for z in (x, y))
                        size = y.square().sum().sqrt()
                        x, y = x / size, y / size
                        for name in (stack, "embeddings") if stack == "encoder" and at == len(ours) - 1 else (stack,):
                            C, cross = x.T @ x, x.T @ y
                            before = sums.get(name)
                            sums[name] = [C, cross] if before is None else [before[0] + C, before[1] + cross]
        first = next(self.model.parameters())
        for name, (C, cross) in sums.items():
            ridge = RIDGE * C.diagonal().mean().clamp(min=torch.finfo(C.dtype).tiny)
            W = torch.linalg.solve(C + ridge * torch.eye(len(C), dtype=C.dtype, device=C.device), cross)
            layer = nn.Linear(W.shape[0], W.shape[1], bias=False, device=first.device, dtype=first.dtype)
            layer.weight.copy_(W.T)
            self.widening[name] = layer

    @property
    def teacher(self) -> PreTrainedModel:
        """The teacher."""
        return self._original[0]

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """The loss of a batch of keyword arguments, which both networks get."""
        given = {**batch, "output_hidden_states": True}
        with torch.no_grad(), noted() as of_teacher:
            teacher_out = self.teacher(**given)
        with noted() as of_student:
            student_out = self.model(**given)
        parts = [
            weight * self._part(name, (student_out, of_student), (teacher_out, of_teacher), batch)
            for name, weight in self.weights.items()
            if weight
        ]
        loss = torch.stack(parts).sum()
        if self.training and not bool(loss.isfinite()):
            raise DivergedError(f"the loss is {loss.item()}")
        return {"loss": loss}

    def _part(self, name: str, ours: Seen, theirs: Seen, batch: Mapping[str, Tensor]) -> Tensor:
        (student_out, of_student), (teacher_out, of_teacher) = ours, theirs
        if name == "logits":
            if getattr(teacher_out, "logits", None) is None:
                raise ValueError(f"{type(self.teacher).__name__} has no logits to learn from")
            return self._logits(student_out.logits, teacher_out.logits, batch)
        if name in ATTENDING:
            return self._attending(
                name, of_student, of_teacher, token_mask(states(teacher_out)[0][0][0], batch, "encoder")
            )
        stacks = _stacks(student_out, teacher_out)
        if name == "hidden":
            distances = [
                losses.hidden(
                    x, y, token_mask(y[0], batch, stack), self._layers(len(x) - 1, len(y) - 1),
                    self._widened(stack, x[0], y[0]),
                )
                for x, y, stack in stacks
            ]  # fmt: skip
            return torch.stack(distances).mean()
        x, y, stack = stacks[0]
        mask = token_mask(y[-1], batch, stack)
        student_vectors, teacher_vectors = (self._pool(sequence(layers[-1]), mask) for layers in (x, y))
        if name == "similarities":
            return losses.similarities(student_vectors, teacher_vectors)
        student_vectors = self._widened("embeddings", student_vectors, teacher_vectors)(student_vectors)
        return (1 - F.cosine_similarity(student_vectors, teacher_vectors, dim=-1)).mean()

    def _layers(self, ours: int, theirs: int) -> losses.Layers:
        return losses.layer_map(ours, theirs, self.layer_map)

    def _widened(self, name: str, ours: Tensor, theirs: Tensor) -> Callable[[Tensor], Tensor]:
        """The product with W for states of a narrower student; what it is given for others."""
        return (lambda x: x) if ours.shape[-1] == theirs.shape[-1] else self.widening[name]

    def _attending(
        self, name: str, ours: Sequence[Attended], theirs: Sequence[Attended], mask: Tensor | None
    ) -> Tensor:
        layers = self._layers(len(ours), len(theirs))
        if name == "attention":
            return losses.attention(ours, theirs, mask, layers)
        at, other = layers[-1]
        student, teacher = ours[at - 1], theirs[other - 1]
        widths = [x.shape[1] * x.shape[3] for x in (*student[:3], *teacher[:3])]
        return losses.relations(student, teacher, mask, math.gcd(teacher.q.shape[1], *widths))

    def _logits(self, student_logits: Tensor, teacher_logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        if teacher_logits.ndim == 3:  # of every position
            mask = token_mask(teacher_logits, batch, "decoder" if "labels" in batch else "encoder")
            student_logits, teacher_logits = (
                x.flatten(0, 1) if mask is None else x[mask] for x in (student_logits, teacher_logits)
            )
        p, q = ((x / self.temperature).log_softmax(-1) for x in (teacher_logits, student_logits))
        return self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)


def states(out: Any) -> list[tuple[Sequence[Tensor], str]]:
    """The states after every layer of each stack, and the name of the stack, "encoder" or "decoder"."""
    held = [(getattr(out, name, None), stack) for name, stack in STATES]
    return [(layers, stack) for layers, stack in held if layers]


def _stacks(student_out: Any, teacher_out: Any) -> list[tuple[Sequence[Tensor], Sequence[Tensor], str]]:
    """The states of student and teacher of each stack, and its name."""
    return [
        (ours, theirs, stack)
        for (ours, stack), (theirs, _) in zip(states(student_out), states(teacher_out), strict=True)
    ]


def token_mask(x: Tensor, batch: Mapping[str, Tensor], stack: str) -> Tensor | None:
    """The positions of states (B, N, d) that are no padding, (B, N); None where no mask has this shape.

    Images have no mask, and recordings of a batch are of one length.
    """
    if stack == "decoder":
        labels = batch.get("labels")
        mask = batch.get("decoder_attention_mask") if labels is None else labels != IGNORED
    else:
        mask = batch.get("attention_mask")
    return mask.bool() if mask is not None and mask.shape == x.shape[:2] else None


def sequence(x: Tensor) -> Tensor:
    """States as a sequence (B, N, d); those of an image are (B, d, H, W)."""
    return x.flatten(2).mT if x.dim() == 4 else x
