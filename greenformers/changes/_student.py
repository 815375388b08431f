"""What healing learns: to say what the original says to unlabelled examples. Hinton 2015, arXiv:1503.02531.

The loss is a weighted sum, over positions that are no padding:

- logits: T^2 KL(p || p'), p = softmax(z / T) of the original and p' of the smaller one;
- hidden: |h - h'|^2 after each layer, as a share of |h|^2 (Sun 2019, arXiv:1908.09355; Jiao 2019, arXiv:1909.10351),
  of an encoder-decoder the mean of its two stacks;
- embeddings: 1 - cos of the sentence embeddings: means over positions, or as the model itself pools;
- similarities: squared difference of the cosines of all pairs of these in a batch (Tung 2019, arXiv:1907.09682).
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
"""Of the parts of the loss, by what a model is for."""

STATES = (("hidden_states", "encoder"), ("encoder_hidden_states", "encoder"), ("decoder_hidden_states", "decoder"))
"""Outputs that hold the states after every layer, and of which stack they are."""


class DivergedError(ValueError):
    """A loss that is not finite."""


class Student(nn.Module):
    """A network whose loss is how far it is from another one."""

    def __init__(
        self, model: PreTrainedModel, original: PreTrainedModel, weights: Mapping[str, float], temperature: float
    ) -> None:
        super().__init__()
        self.model, self.weights, self.temperature = model, weights, temperature
        self._pool = pooling_of(model)
        self._original = (original.eval(),)  # in a tuple: not a part of this module

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """The loss of a batch, the arguments of both networks."""
        given = {**batch, "output_hidden_states": True}
        with torch.no_grad():
            wanted = self._original[0](**given)
        found = self.model(**given)
        parts = [weight * self._part(name, found, wanted, batch) for name, weight in self.weights.items()]
        loss = torch.stack(parts).sum()
        if self.training and not bool(loss.isfinite()):
            raise DivergedError(f"the loss is {loss.item()}")
        return {"loss": loss}

    def _part(self, name: str, found: Any, wanted: Any, batch: Mapping[str, Tensor]) -> Tensor:
        if name == "logits":
            if getattr(wanted, "logits", None) is None:
                raise ValueError(f"{type(self._original[0]).__name__} has no logits to learn from")
            return self._logits(found.logits, wanted.logits, batch)
        stacks = [
            (ours, theirs, stack) for (ours, stack), (theirs, _) in zip(states(found), states(wanted), strict=True)
        ]
        if name == "hidden":
            each = [hidden(ours, theirs, kept(theirs[0], batch, stack)) for ours, theirs, stack in stacks]
            return torch.stack(each).mean()
        ours, theirs, stack = stacks[0]
        mask = kept(theirs[-1], batch, stack)
        one, other = (self._pool(sequence(layers[-1]), mask) for layers in (ours, theirs))
        if name == "embeddings":
            return (1 - F.cosine_similarity(one, other, dim=-1)).mean()
        one, other = F.normalize(one, dim=-1), F.normalize(other, dim=-1)
        return F.mse_loss(one @ one.T, other @ other.T)

    def _logits(self, found: Tensor, wanted: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        if wanted.ndim == 3:  # of every position
            mask = kept(wanted, batch, "decoder" if "labels" in batch else "encoder")
            found, wanted = (x.flatten(0, 1) if mask is None else x[mask] for x in (found, wanted))
        p, q = ((x / self.temperature).log_softmax(-1) for x in (wanted, found))
        return self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)


def states(out: Any) -> list[tuple[Sequence[Tensor], str]]:
    """The states after every layer, of each stack, and whether it is the encoder or the decoder."""
    held = [(getattr(out, name, None), stack) for name, stack in STATES]
    return [(layers, stack) for layers, stack in held if layers]


def kept(x: Tensor, batch: Mapping[str, Tensor], stack: str) -> Tensor | None:
    """Which positions of states (B, N, d) are no padding, (B, N); None where no mask is of this form.

    Images have none, and recordings of a batch are of one length.
    """
    if stack == "decoder":
        labels = batch.get("labels")
        mask = batch.get("decoder_attention_mask") if labels is None else labels != IGNORED
    else:
        mask = batch.get("attention_mask")
    return mask.bool() if mask is not None and mask.shape == x.shape[:2] else None


def hidden(found: Sequence[Tensor], wanted: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Mean over the layers, those of the embedding too, of |h - h'|^2 / |h|^2.

    Of fewer layers each is compared with the one at its share of the depth (Sanh 2019, arXiv:1910.01108).
    """
    last = len(found) - 1
    total = found[0].new_zeros(())
    for index, one in enumerate(found):
        other = wanted[index * (len(wanted) - 1) // last]
        if mask is not None:
            one, other = one[mask.bool()], other[mask.bool()]
        total = total + (one - other).square().sum() / other.square().sum()
    return total / len(found)


def sequence(x: Tensor) -> Tensor:
    """States as positions (B, N, d), also those of an image (B, d, H, W)."""
    return x.flatten(2).mT if x.dim() == 4 else x
