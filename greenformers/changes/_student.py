"""The loss of healing: distillation from a teacher on unlabelled examples. Hinton 2015, arXiv:1503.02531.

The loss is a weighted sum of parts, over positions that are no padding:

- logits: T^2 KL(p || p'), p = softmax(z / T) of the teacher and p' of the student;
- embeddings: 1 - cos of the sentence embeddings: means over positions, or as the model itself pools;
- hidden, attention, relations, similarities: see `greenformers.changes._losses`.

States of a narrower student have no coordinates in common with the teacher's: hidden states and embeddings are then
multiplied by matrices W that are learned along (Jiao 2020, arXiv:1909.10351, eq. 8), and begin as the best there are by
least squares. They are no part of the student that is left.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes import _losses as losses
from greenformers.changes._outputs import logits_of, sequence, states, token_mask
from greenformers.changes._recorded import Attended, noted
from greenformers.changes._teacher_cache import TAUGHT
from greenformers.data._pooling import pooling_of
from greenformers.data._tasks import Task, task_of
from greenformers.measure.quality import evaluating
from greenformers.train.bf16 import AttentionInFloat32, Precision, products, widened
from greenformers.train.callbacks import DivergedError

PARTS = ("logits", "hidden", "embeddings", "similarities", "attention", "relations")
ATTENDING, POOLED = ("attention", "relations"), ("embeddings", "similarities")
"""Parts that compare queries, keys and values, and parts that compare embeddings."""

WEIGHTS: dict[Task, dict[str, float]] = {
    "encoder": {"hidden": 1.0, "embeddings": 1.0},
    "classifier": {"logits": 1.0, "hidden": 1.0},
    "tagger": {"logits": 1.0, "hidden": 1.0},
    "answerer": {"logits": 1.0, "hidden": 1.0},
    "masked_lm": {"logits": 1.0, "hidden": 1.0},
    "causal_lm": {"logits": 1.0, "hidden": 1.0},
    "seq2seq": {"logits": 1.0, "hidden": 1.0},
    "ctc": {"logits": 1.0, "hidden": 1.0},
}
"""Weights of the parts of the loss, by the task of a model."""

NARROWER: dict[Task, dict[str, float]] = WEIGHTS | {"encoder": {"hidden": 1.0, "embeddings": 1.0, "similarities": 1.0}}
"""The same for a narrower student: its own embeddings are compared with each other, not those that W makes of them."""

SHALLOWER: dict[Task, dict[str, float]] = {"encoder": {"embeddings": 1.0, "similarities": 1.0}}
"""The same for a student of at most half of the layers, whatever their width: to move the states of those left costs
it, in few steps, more than it brings. Of MiniLM-L6 in 2 of 6 layers, pruned, 50 steps so make 94.3 % of Spearman of
92.3; with states 86 to 88 %. And one vector of each example is all that is asked of the teacher, which costs more than
a small student does. With more layers states bring more: in 5 of 6, pruned, 150 steps make 98.6 % of 97.4 by states,
and 98.3 with similarities too; by vectors alone 200 steps brought nothing. MiniLM-L6 in 3 of 6 layers agrees on 1,000
pairs, after 300 steps with a weight of similarities of 1, 3, 10 and 30, to 97.58, 97.56, 97.47 and 97.19 %; after 1,200
steps with 3 and 10 to 98.34 and 98.27 %."""


@dataclass(frozen=True)
class Given:
    """What a network gives to a batch, as far as the loss compares it.

    Attributes:
        logits: Its logits.
        stacks: The states after every layer of each stack, None where they are not kept; and the name of the stack.
        vectors: Embeddings of the examples (B, m).
        attended: What its layers attended with.
    """

    logits: Tensor | None
    stacks: Sequence[tuple[Sequence[Tensor | None], str]]
    vectors: Tensor | None
    attended: Sequence[Attended] = ()


FAR = -1e4
"""A logit of a position that is none."""

RIDGE = 1e-4
"""Share of the mean square of states that is added to each in least squares."""


class Student(nn.Module):
    """A network with the distance of its outputs from those of its teacher as loss.

    Args:
        model: The student.
        original: The teacher.
        weights: Weights of the parts of the loss, by name; by default those of the task of the teacher.
        temperature: Temperature T of the logits.
        layer_map: The teacher's layer for each of the student's, see `greenformers.changes._losses.layer_map`.
        seen: Batches by which the matrices W of a narrower student are made; none are needed for others.
        replace: Function that makes another batch of one that is learned from.
        precision: Precision of the products of matrices of both networks; the loss is computed in float32.

    Attributes:
        pooling: Pooling of the student, by which the embeddings of both are made.
    """

    accepts_loss_kwargs = False  # the Trainer gives no number of labels, and does not divide by it

    def __init__(
        self,
        model: PreTrainedModel,
        original: PreTrainedModel,
        weights: Mapping[str, float] | None,
        temperature: float,
        *,
        layer_map: Sequence[int] | None = None,
        seen: Iterable[Mapping[str, Tensor]] = (),
        replace: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__()
        self.precision = precision
        self.model, self.temperature, self.layer_map, self._replace = model, temperature, layer_map, replace
        self.pooling = pooling_of(model)
        self._original = (original,)  # in a tuple: not a part of this module
        self._depths: dict[str, int] = {}
        self.widening = nn.ModuleDict()
        self._widen(seen)
        self.weights = dict(weights or {}) or self._usual()
        for name in [] if self.weights.get("hidden") else [name for name in self.widening if name != "embeddings"]:
            del self.widening[name]
        if "embeddings" in self.widening and not self.weights.get("embeddings"):
            del self.widening["embeddings"]

    def _usual(self) -> dict[str, float]:
        """The weights of the parts of the loss, where none are given."""
        task = task_of(self.teacher)
        if self.layer_map is not None:  # which is of states
            return (NARROWER if self.widening else WEIGHTS)[task]
        depth, whole = (getattr(network.config, "num_hidden_layers", None) for network in (self.model, self.teacher))
        if task in SHALLOWER and depth is not None and whole is not None and 2 * depth <= whole:
            return SHALLOWER[task]
        return (NARROWER if self.widening else WEIGHTS)[task]

    @torch.no_grad()
    def _widen(self, batches: Iterable[Mapping[str, Tensor]]) -> None:
        """Make the matrices W, from the states of a narrower student to those of its teacher, by least squares."""
        sums: dict[str, list[Tensor]] = {}
        device = next(self.model.parameters()).device
        with evaluating(self.model), evaluating(self.teacher):
            for batch in batches:
                given = {name: x.to(device) for name, x in batch.items()}
                outs = [
                    states(network(**_typed(given, network), output_hidden_states=True))
                    for network in (self.model, self.teacher)
                ]
                stacks = [(x, y, stack) for (x, stack), (y, _) in zip(*outs, strict=True)]
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
        """The loss of a batch of keyword arguments, which both networks get.

        Arguments of which the name begins with `TAUGHT` hold what the teacher gives, which then is not asked.
        """
        recorded = {name.removeprefix(TAUGHT): batch.pop(name) for name in list(batch) if name.startswith(TAUGHT)}
        if self.training and self._replace is not None:
            batch = self._replace(batch)
        with torch.no_grad():
            theirs = self.given(self.teacher, batch) if not recorded else self._recalled(recorded)
        ours = self.given(self.model, batch)
        parts = [weight * self._part(name, ours, theirs, batch) for name, weight in self.weights.items() if weight]
        loss = torch.stack(parts).sum()
        if self.training and not bool(loss.isfinite()):
            raise DivergedError(f"the loss is {loss.item()}")
        return {"loss": loss}

    @cached_property
    def _halved(self) -> PreTrainedModel | None:
        """An encoder of texts as teacher, with all its numbers in bf16; None for other networks.

        On a CPU it takes half of the time that products in bf16 between weights and states in float32 take, which have
        to be cast: MiniLM-L6, 64 texts of 28 tokens, 60 and 125 ms.
        """
        if task_of(self.teacher) != "encoder" or self.teacher.main_input_name != "input_ids":
            return None
        return copy.deepcopy(self.teacher).eval().bfloat16()

    def given(self, network: PreTrainedModel, batch: Mapping[str, Tensor], precision: Precision | None = None) -> Given:
        """What a network gives to a batch, with products in a precision, by default that of training."""
        precision = precision or self.precision
        device = next(iter(batch.values())).device
        halved = self._halved if network is self.teacher and precision == "bf16" and device.type == "cpu" else None
        within: AbstractContextManager[Any] = AttentionInFloat32() if halved else products(precision, device)
        network = halved or network
        with noted() as attended, within, evaluating(network) if network is self.teacher else nullcontext():
            out = network(**_typed(batch, network), output_hidden_states=True)
        out, attended = widened((out, attended))
        stacks = states(out)
        vectors = None
        if any(self.weights.get(name) for name in POOLED):
            layers, stack = stacks[0]
            vectors = self.pooling(sequence(layers[-1]), token_mask(layers[-1], batch, stack))
        return Given(logits_of(out), stacks, vectors, attended)

    @property
    def can_be_kept(self) -> bool:
        """Whether what the loss needs of the teacher can be kept: not what it attends with."""
        return not any(self.weights.get(name) for name in ATTENDING)

    @property
    def compares_vectors(self) -> bool:
        """Whether one vector of each example is all that the loss needs of the teacher."""
        return all(name in POOLED for name, weight in self.weights.items() if weight)

    def outputs(self, row: Mapping[str, Tensor]) -> dict[str, str | int]:
        """What the loss needs of the teacher, by name, with its number of rows, or the argument that is as long.

        Args:
            row: An example, without the dimension of a batch.

        Raises:
            ValueError: The loss compares what is not kept.
        """
        attending = [name for name in ATTENDING if self.weights.get(name)]
        if attending:
            raise ValueError(
                f"what a teacher attends with is not kept: {' and '.join(attending)} must ask it each time"
            )
        device = next(self.model.parameters()).device
        batch = {name: x[None].to(device) for name, x in row.items()}
        with torch.no_grad(), evaluating(self.model):
            ours, theirs = (self.given(network, batch) for network in (self.model, self.teacher))
        self._depths = {stack: len(layers) - 1 for layers, stack in theirs.stacks}
        needed: dict[str, str | int] = {}

        def rows(x: Tensor, stack: str) -> str | int:
            argument = "labels" if stack == "decoder" and "labels" in row else next(iter(row))
            return argument if x.shape[1] == len(row[argument]) else x.shape[1]

        for (layers, stack), (wide, _) in zip(ours.stacks, theirs.stacks, strict=True):
            for _, at in self._layers(len(layers) - 1, len(wide) - 1) if self.weights.get("hidden") else ():
                x: Any = wide[at]
                needed[f"{stack}.{at}"] = rows(x, stack)
        if self.weights.get("logits") and theirs.logits is not None:
            needed["logits"] = rows(theirs.logits, "decoder") if theirs.logits.dim() == 3 else 1
        if any(self.weights.get(name) for name in POOLED):
            needed["vector"] = 1
        return needed

    @torch.no_grad()
    def ask(
        self, batch: Mapping[str, Tensor], needed: Mapping[str, Sequence[int]], precision: Precision
    ) -> dict[str, list[Tensor]]:
        """What the teacher gives to each example of a batch, by name, with so many rows of each, in this precision."""
        device = next(self.model.parameters()).device
        given = self.given(self.teacher, {name: x.to(device) for name, x in batch.items()}, precision)
        held: dict[str, Any] = {"logits": given.logits, "vector": given.vectors}
        held |= {f"{stack}.{at}": x for layers, stack in given.stacks for at, x in enumerate(layers)}
        split = {}
        for name, rows in needed.items():
            x = held[name] if held[name].dim() > 2 else held[name][:, None]
            split[name] = [value[:count].float() for value, count in zip(x, rows, strict=True)]
        return split

    def _recalled(self, recorded: Mapping[str, Tensor]) -> Given:
        """What the teacher gave, by the names of `outputs`."""
        stacks: dict[str, dict[int, Tensor]] = {}
        for name, x in recorded.items():
            stack, _, at = name.partition(".")
            if at:
                stacks.setdefault(stack, {})[int(at)] = x
        listed = [([held.get(at) for at in range(self._depths[stack] + 1)], stack) for stack, held in stacks.items()]
        vectors = recorded["vector"].squeeze(1) if "vector" in recorded else None
        return Given(recorded.get("logits"), listed, vectors)

    def _part(self, name: str, ours: Given, theirs: Given, batch: Mapping[str, Tensor]) -> Tensor:
        if name == "logits":
            if theirs.logits is None or ours.logits is None:
                raise ValueError(f"{type(self.teacher).__name__} has no logits to learn from")
            return self._logits(ours.logits, theirs.logits.view_as(ours.logits), batch)
        if name in ATTENDING:
            first: Any = ours.stacks[0][0][0]
            return self._attending(name, ours.attended, theirs.attended, token_mask(first, batch, "encoder"))
        if name == "hidden":
            distances = []
            for (x, stack), (y, _) in zip(ours.stacks, theirs.stacks, strict=True):
                mine, layers = x[0], self._layers(len(x) - 1, len(y) - 1)
                assert mine is not None
                widen = self._widened(stack, mine, next(part for part in y if part is not None))
                distances.append(losses.hidden(x, y, token_mask(mine, batch, stack), layers, widen))
            return torch.stack(distances).mean()
        assert ours.vectors is not None
        assert theirs.vectors is not None
        if name == "similarities":
            return losses.similarities(ours.vectors, theirs.vectors)
        vectors = self._widened("embeddings", ours.vectors, theirs.vectors)(ours.vectors)
        return (1 - F.cosine_similarity(vectors, theirs.vectors, dim=-1)).mean()

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
        if task_of(self.teacher) == "answerer":  # of the start and of the end, probabilities over the positions
            mask = token_mask(teacher_logits, batch, "encoder")
            student_logits, teacher_logits = (
                (x if mask is None else x.masked_fill(~mask[..., None], FAR)).mT.flatten(0, 1)
                for x in (student_logits, teacher_logits)
            )
        if teacher_logits.ndim == 3:  # of every position
            mask = token_mask(teacher_logits, batch, "decoder" if "labels" in batch else "encoder")
            student_logits, teacher_logits = (
                x.flatten(0, 1) if mask is None else x[mask] for x in (student_logits, teacher_logits)
            )
        kind = getattr(self.model.config, "problem_type", None)
        if student_logits.ndim == 2 and (student_logits.shape[1] == 1 or kind == "regression"):  # no probabilities
            return (student_logits - teacher_logits).float().square().mean()
        if student_logits.ndim == 2 and kind == "multi_label_classification":  # of each label there are two
            student_logits, teacher_logits = (
                torch.stack([x, torch.zeros_like(x)], -1).flatten(0, 1) for x in (student_logits, teacher_logits)
            )
        p, q = ((x / self.temperature).log_softmax(-1) for x in (teacher_logits, student_logits))
        return self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)


def _typed(batch: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """A batch with floating-point inputs of the network's type: a student is float32, its teacher may be narrower."""
    dtype = next(x.dtype for x in network.parameters() if x.is_floating_point())
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in batch.items()}
