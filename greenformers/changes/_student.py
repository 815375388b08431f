"""The loss of healing: distillation from a teacher on unlabelled examples. Hinton 2015, arXiv:1503.02531.

The loss is a weighted sum, over positions that are no padding:

- logits: T^2 KL(p || p'), p = softmax(z / T) of the teacher and p' of the student;
- hidden: |h - h'|^2 after each layer, as a share of |h|^2 (Sun 2019, arXiv:1908.09355; Jiao 2019, arXiv:1909.10351);
  for an encoder-decoder the mean of its two stacks;
- embeddings: 1 - cos of the sentence embeddings: means over positions, or as the model itself pools;
- similarities: squared difference of the cosines of all pairs of these in a batch (Tung 2019, arXiv:1907.09682).

States of a narrower student have no coordinates in common with the teacher's: the cosines of all pairs of positions
take the place of `hidden`, and those of all pairs of texts that of `embeddings`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.data._pooling import pooling_of
from greenformers.data._rows import IGNORED
from greenformers.data._tasks import Task

PARTS = ("logits", "hidden", "embeddings", "similarities")
WEIGHTS: dict[Task, dict[str, float]] = {
    "encoder": {"hidden": 1.0, "embeddings": 1.0},
    "classifier": {"logits": 1.0, "hidden": 1.0},
    "masked_lm": {"logits": 1.0, "hidden": 1.0},
    "causal_lm": {"logits": 1.0, "hidden": 1.0},
    "seq2seq": {"logits": 1.0, "hidden": 1.0},
    "ctc": {"logits": 1.0, "hidden": 1.0},
}
"""Weights of the parts of the loss, by the task of a model."""

STATES = (("hidden_states", "encoder"), ("encoder_hidden_states", "encoder"), ("decoder_hidden_states", "decoder"))
"""Outputs that hold the states after every layer, and the stack that each belongs to."""


class DivergedError(ValueError):
    """A loss that is not finite."""


class Student(nn.Module):
    """A network with the distance of its outputs from those of its teacher as loss."""

    def __init__(
        self, model: PreTrainedModel, original: PreTrainedModel, weights: Mapping[str, float], temperature: float
    ) -> None:
        super().__init__()
        self.model, self.weights, self.temperature = model, weights, temperature
        self._pool = pooling_of(model)
        self._original = (original.eval(),)  # in a tuple: not a part of this module

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """The loss of a batch of keyword arguments, which both networks get."""
        given = {**batch, "output_hidden_states": True}
        with torch.no_grad():
            teacher_out = self._original[0](**given)
        student_out = self.model(**given)
        parts = [weight * self._part(name, student_out, teacher_out, batch) for name, weight in self.weights.items()]
        loss = torch.stack(parts).sum()
        if self.training and not bool(loss.isfinite()):
            raise DivergedError(f"the loss is {loss.item()}")
        return {"loss": loss}

    def _part(self, name: str, student_out: Any, teacher_out: Any, batch: Mapping[str, Tensor]) -> Tensor:
        if name == "logits":
            if getattr(teacher_out, "logits", None) is None:
                raise ValueError(f"{type(self._original[0]).__name__} has no logits to learn from")
            return self._logits(student_out.logits, teacher_out.logits, batch)
        stacks = [
            (ours, theirs, stack)
            for (ours, stack), (theirs, _) in zip(states(student_out), states(teacher_out), strict=True)
        ]
        if name == "hidden":
            distances = [hidden(ours, theirs, token_mask(theirs[0], batch, stack)) for ours, theirs, stack in stacks]
            return torch.stack(distances).mean()
        ours, theirs, stack = stacks[0]
        mask = token_mask(theirs[-1], batch, stack)
        student_vectors, teacher_vectors = (self._pool(sequence(layers[-1]), mask) for layers in (ours, theirs))
        if name == "embeddings" and student_vectors.shape == teacher_vectors.shape:
            return (1 - F.cosine_similarity(student_vectors, teacher_vectors, dim=-1)).mean()
        return similarities(student_vectors, teacher_vectors)

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


def similarities(ours: Tensor, theirs: Tensor) -> Tensor:
    """Mean squared difference of the cosines of all pairs of vectors (P, d') and of those of (P, d)."""
    ours, theirs = F.normalize(ours, dim=-1), F.normalize(theirs, dim=-1)
    return F.mse_loss(ours @ ours.T, theirs @ theirs.T)


def hidden(student_states: Sequence[Tensor], teacher_states: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Mean over the layers, the embedding included, of |h - h'|^2 / |h|^2; of similarities for a narrower student.

    Each layer of a student with fewer layers is compared with the one of its teacher at the same share of the depth
    (Sanh 2019, arXiv:1910.01108).
    """
    last = len(student_states) - 1
    total = student_states[0].new_zeros(())
    for index, ours in enumerate(student_states):
        theirs = teacher_states[index * (len(teacher_states) - 1) // last]
        if mask is not None:
            ours, theirs = ours[mask.bool()], theirs[mask.bool()]
        if ours.shape == theirs.shape:
            total = total + (ours - theirs).square().sum() / theirs.square().sum()
        else:
            total = total + similarities(ours.flatten(0, -2), theirs.flatten(0, -2))
    return total / len(student_states)


def sequence(x: Tensor) -> Tensor:
    """States as a sequence (B, N, d); those of an image are (B, d, H, W)."""
    return x.flatten(2).mT if x.dim() == 4 else x
