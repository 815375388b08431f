"""What the language model heads share: which positions are scored, and the loss of the scores."""

import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.model.config import GreenformerConfig

IGNORED = -100
"""The label of a position where no token is asked for; transformers' convention."""


class Scoring:
    """A model whose `score` is the output matrix; transformers asks for it under these names."""

    score: nn.Module

    def get_output_embeddings(self) -> nn.Module:
        """The map from vectors to scores of tokens."""
        return self.score

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the map from vectors to scores of tokens."""
        self.score = new_embeddings


def asked_for(x: Tensor, labels: Tensor | None, config: GreenformerConfig) -> tuple[Tensor, Tensor | None]:
    """With `sparse_prediction` and labels, only the positions that have a label: (n, d) and (n,).

    In masked language modelling they are 15 % of all, and a score of the whole vocabulary costs as much as layers do.
    """
    if labels is None or not config.sparse_prediction:
        return x, labels
    kept = labels != IGNORED
    return x[kept], labels[kept]


def token_loss(logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """Cross-entropy in nats over the labels that are not -100; 0 where there is none.

    Args:
        logits: (..., V).
        labels: (...), -100 where none is asked for.
        items: what the sum is divided by; by default the number of labels. A batch that is spread over processes
            or steps has the loss of the whole batch only if all parts divide by the labels of the whole.
    """
    labels = labels.flatten()
    if logits.element_size() < 4:
        logits = logits.float()  # a sum over a vocabulary loses too much in half precision
    total = F.cross_entropy(logits.flatten(0, -2), labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if items is None else items)


def with_auxiliary(
    loss: Tensor | None, auxiliary: Tensor | None, labels: Tensor | None, items: Tensor | int | None
) -> Tensor | None:
    """The loss of a task, and that of its mechanisms; of a part of a batch its share by labels: the parts add up.

    Args:
        loss: of the task; None where there are no labels.
        auxiliary: of the mechanisms; None where there is none.
        labels: of the task, -100 where none is asked for.
        items: labels of the whole batch, where this is a part of it.
    """
    if loss is None or auxiliary is None or labels is None:
        return loss
    share = 1.0 if items is None else (labels != IGNORED).sum() / items
    return loss + share * auxiliary.to(loss.dtype)


def narrow(config: GreenformerConfig) -> nn.Module:
    """From d to the width of the embeddings, which score the tokens."""
    if config.embedding_size in (None, config.hidden_size):
        return nn.Identity()
    return nn.Linear(config.hidden_size, config.embedding_size)
