"""The base of language model heads: the positions that are scored, and the loss of the scores."""

from collections.abc import Callable
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.attention._aligned import is_traced
from greenformers.depth import Depth
from greenformers.model.config import GreenformerConfig

IGNORED = -100
"""Label of positions that are left out of the loss, as in transformers."""


class Scoring:
    """A model whose `score` is its output embedding, which transformers reads under these names."""

    score: nn.Module

    def get_output_embeddings(self) -> nn.Module:
        """The linear layer from vectors to scores of tokens."""
        return self.score

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the linear layer from vectors to scores of tokens."""
        self.score = new_embeddings


def up_to_last_label(labels: Tensor) -> Tensor:
    """Mask of labels (B, N), True up to the last one of each row: those left out before it may be a prompt."""
    return (labels != IGNORED).flip(1).cumsum(1).flip(1) > 0


def asked_for(x: Tensor, labels: Tensor | None, config: GreenformerConfig) -> tuple[Tensor, Tensor | None]:
    """Select the positions that have a label, (n, d) and (n,), with `sparse_prediction` and labels; else all.

    In masked language modelling they are 15 % of all, and scoring the whole vocabulary costs as much as layers do.
    """
    if labels is None or not config.sparse_prediction:
        return x, labels
    labelled = labels != IGNORED
    return x[labelled], labels[labelled]


def token_loss(logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """Cross-entropy in nats over the labels that are not -100; 0 where there is none.

    Args:
        logits: Scores (..., V).
        labels: Right tokens (...), -100 at positions without a label.
        items: Divisor of the sum; by default the number of labels. For a batch spread over processes or steps, the
            number of labels of the whole batch: losses of the parts then add up to that of the whole.

    Raises:
        ValueError: A label is none of the V, nor -100.
    """
    labels = labels.flatten()
    if labels.device.type == "cpu" and not is_traced(labels):
        others = labels[((labels < 0) | (labels >= logits.shape[-1])) & (labels != IGNORED)]
        if others.numel():
            raise ValueError(f"labels must be in 0..{logits.shape[-1] - 1} or {IGNORED}, got {others[0].item()}")
    if logits.element_size() < 4:
        logits = logits.float()  # a sum over a vocabulary loses too much in half precision
    total = F.cross_entropy(logits.flatten(0, -2), labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if items is None else items)


def exit_loss(
    depth: Depth | None,
    out: Any,
    labels: Tensor | None,
    score: Callable[[Tensor], Tensor],
    items: Tensor | int | None,
) -> Tensor | None:
    """The loss of all exits of a kind of depth that has them, in training; None elsewhere and without labels.

    Args:
        depth: Kind of depth of the decoder.
        out: Output of the decoder.
        labels: Right tokens (B, N), -100 at positions without a label.
        score: Function from states to scores of tokens.
        items: Divisor of the sum, as of `token_loss`.
    """
    if depth is None or labels is None or out.exits is None:
        return None
    loss: Tensor = cast(Any, depth).loss_of(out.exits, labels, labels != IGNORED, score, items)
    return loss


def with_auxiliary(
    loss: Tensor | None, auxiliary: Tensor | None, labels: Tensor | None, items: Tensor | int | None
) -> Tensor | None:
    """The loss of a task plus that of mechanisms, which counts by the share of labels in this part of the batch.

    Args:
        loss: Loss of the task; None without labels.
        auxiliary: Loss of the mechanisms; None where there is none.
        labels: Labels of the task, -100 at positions without a label.
        items: Number of labels of the whole batch, where this is a part of it.
    """
    if loss is None or auxiliary is None or labels is None:
        return loss
    share = 1.0 if items is None else (labels != IGNORED).sum() / items
    return loss + share * auxiliary.to(loss.dtype)


def narrow(config: GreenformerConfig) -> nn.Module:
    """The linear layer from d to the width of the embeddings, which score the tokens."""
    if config.embedding_size in (None, config.hidden_size):
        return nn.Identity()
    return nn.Linear(config.hidden_size, config.embedding_size)
