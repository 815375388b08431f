"""What a student loses against its teacher, part by part, over positions that are no padding.

- hidden: |h - W h'|^2 after each layer, as a share of |h|^2 (Sun 2019, arXiv:1908.09355; Jiao 2020, arXiv:1909.10351);
  W is learned where the student is narrower, else 1;
- attention: squared difference of the scores q k^T / sqrt(D) of each head (Jiao 2020, eq. 7);
- relations: KL of softmax(x x^T / sqrt(D_r)) for x of queries, keys and values of one layer, in as many parts of D_r
  coordinates as suit both (MiniLM v2, Wang 2021, arXiv:2012.15828, eq. 4 to 6);
- similarities: squared difference of the cosines of all pairs of texts in a batch (Tung 2019, arXiv:1907.09682).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from greenformers.changes._recorded import Attended

Layers = Sequence[tuple[int, int]]
"""Layers of a student, each with the one of its teacher that it learns from; 0 is the embedding."""


def layer_map(ours: int, theirs: int, chosen: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """The layers that learn, of a student with `ours` layers and a teacher with `theirs`: (0, 0) is the embedding.

    By default every one, from the teacher's at the same share of the depth (Sanh 2019, arXiv:1910.01108).

    Args:
        ours: Layers of the student.
        theirs: Layers of the teacher.
        chosen: The teacher's layer for each of the student's, that of its embedding first; -1 where it learns nothing.

    Raises:
        ValueError: There are too many or too few, or the teacher does not have such a layer.
    """
    if chosen is None:
        return [(at, at * theirs // max(1, ours)) for at in range(ours + 1)]
    if len(chosen) != ours + 1 or not all(-1 <= at <= theirs for at in chosen) or max(chosen) < 0:
        raise ValueError(
            f"layer_map must name a layer of the teacher in 0..{theirs}, or -1 for none, for each of {ours + 1}: the "
            f"embedding and {ours} layers; got {', '.join(map(str, chosen))}"
        )
    return [(at, other) for at, other in enumerate(chosen) if other >= 0]


def hidden(
    student_states: Sequence[Any],
    teacher_states: Sequence[Any],
    mask: Tensor | None,
    layers: Layers,
    widen: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """The mean over layers of |h - W h'|^2 / |h|^2; `widen` multiplies by W."""
    total = student_states[0].new_zeros(())
    for ours, theirs in layers:
        y = teacher_states[theirs]
        difference = widen(student_states[ours]) - y
        if mask is not None:  # to gather what is no padding takes longer, and its gradient five times as long
            difference, y = (z.masked_fill(~mask[..., None], 0) for z in (difference, y))
        total = total + difference.square().sum() / y.square().sum()
    return total / len(layers)


def attention(student: Sequence[Attended], teacher: Sequence[Attended], mask: Tensor | None, layers: Layers) -> Tensor:
    """The mean over layers of the squared difference of scores, at queries that are no padding and keys that they see.

    Raises:
        ValueError: Student and teacher differ in their number of heads.
    """
    total = student[0].q.new_zeros(())
    pairs = [(student[ours - 1], teacher[theirs - 1]) for ours, theirs in layers if ours and theirs]
    for ours, theirs in pairs:
        x, y = _scores(ours), _scores(theirs)
        if x.shape != y.shape:
            raise ValueError(
                f"attention is learned head by head: the student has {x.shape[1]} heads, the teacher {y.shape[1]}; "
                "relations need not be as many"
            )
        seen = _seen(theirs, mask, y)
        total = total + ((x - y).square() * seen).sum() / (seen.sum() * y.shape[1])
    return total / max(1, len(pairs))


def _scores(given: Attended) -> Tensor:
    keys = given.k.repeat_interleave(given.q.shape[1] // given.k.shape[1], 1)
    return given.scaling * given.q @ keys.mT


def _seen(given: Attended, mask: Tensor | None, scores: Tensor) -> Tensor:
    """1 where a query that is no padding sees a key, (B, 1, N, M), 0 elsewhere."""
    seen = scores.new_ones(len(scores), 1, *scores.shape[2:])
    if given.mask is not None:
        seen = seen * (given.mask if given.mask.dtype == torch.bool else given.mask >= 0)
    return seen if mask is None else seen * mask[:, None, :, None]


def relations(student: Attended, teacher: Attended, mask: Tensor | None, parts: int) -> Tensor:
    """The mean over queries, keys and values of the KL between relations of positions, in `parts` parts."""
    total = student.q.new_zeros(())
    for x, y in zip(student[:3], teacher[:3], strict=True):
        ours, theirs = _relations(x, parts), _relations(y, parts)
        seen = _seen(teacher, mask, theirs)
        hide = seen.amax(2, keepdim=True) == 0  # keys that nobody sees: padding
        if teacher.mask is not None:
            visible = teacher.mask if teacher.mask.dtype == torch.bool else teacher.mask >= 0
            hide = hide | ~visible
        ours, theirs = (part.masked_fill(hide, -1e4).log_softmax(-1) for part in (ours, theirs))
        rows = (theirs.exp() * (theirs - ours)).sum(-1)  # (B, parts, N)
        queries = seen.amax(-1).expand_as(rows)
        total = total + (rows * queries).sum() / queries.sum()
    return total / 3


def _relations(x: Tensor, parts: int) -> Tensor:
    """Relations x x^T / sqrt(D_r) (B, parts, N, N) of vectors (B, H, N, D), whose heads are joined and parted anew."""
    joined = x.transpose(1, 2).flatten(2)
    split = joined.unflatten(-1, (parts, -1)).transpose(1, 2)
    return split @ split.mT / math.sqrt(split.shape[-1])


def similarities(ours: Tensor, theirs: Tensor) -> Tensor:
    """Mean squared difference of the cosines of all pairs of vectors (P, d') and of those of (P, d)."""
    ours, theirs = F.normalize(ours, dim=-1), F.normalize(theirs, dim=-1)
    return F.mse_loss(ours @ ours.T, theirs @ theirs.T)
