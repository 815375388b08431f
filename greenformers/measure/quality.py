"""Accuracy, and a test of whether the difference of two accuracies is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

IGNORED = -100
"""Label by which Hugging Face marks a position that is not scored."""


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Percentage of labels that are predicted.

    Args:
        outputs: Logits (..., C), or predicted classes (...) as whole numbers.
        labels: Classes (...); positions labelled -100 are left out.

    Raises:
        ValueError: Raised where the shapes do not fit, a logit is nan, or there is no label.
    """
    return 100 * correct(outputs, labels).double().mean().item()


def correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Tell which labels are predicted: booleans (L,), one for each label that is not -100.

    Args:
        outputs: Logits (..., C), or predicted classes (...) as whole numbers.
        labels: Classes (...); positions labelled -100 are left out.

    Raises:
        ValueError: Raised where the shapes do not fit, a logit is nan, or there is no label.
    """
    if outputs.shape == labels.shape and not outputs.is_floating_point():
        predictions = outputs
    elif outputs.shape[:-1] == labels.shape and outputs.is_floating_point():
        predictions = _classes(outputs)
    else:
        raise ValueError(
            f"outputs must be logits {tuple(labels.shape)} + (C,) or classes {tuple(labels.shape)}, "
            f"got {tuple(outputs.shape)} of {outputs.dtype}"
        )
    scored = labels != IGNORED
    if not scored.any():
        raise ValueError("there must be at least one label, got none")
    return (predictions == labels)[scored]


def _classes(logits: Tensor) -> Tensor:
    # argmax would take nan for the largest, and score a broken model by chance.
    if logits.isnan().any():
        raise NotANumberError("logits must be numbers, got nan")
    return logits.argmax(-1)


class NotANumberError(ValueError):
    """A model that is to be judged has outputs that are no numbers."""


def predict(
    model: nn.Module,
    dataset: Dataset[dict[str, Any]],
    batch_size: int = 32,
    *,
    labels: str = "labels",
    collate: Callable[[list[Any]], Any] | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Predict classes with a Hugging Face style model, to be scored by `accuracy(*predict(model, dataset))`.

    The model runs in evaluation mode, without gradients, and is left in the mode it was in. It is called with
    every entry of a batch except the labels, by keyword, and returns logits (B, ..., C) as attribute
    `logits`.

    Args:
        model: Model to predict with.
        dataset: Data set of examples, each a dict.
        batch_size: Examples in a batch.
        labels: Key of the labels in a batch.
        collate: Function that makes a batch, a dict of tensors, from a list of examples; by default they are stacked.
        device: Device that batches are moved to; by default that of the model's first parameter.

    Returns:
        Predicted classes (S, ...) and labels (S, ...), S examples in the order of the data set, on the CPU.

    Raises:
        ValueError: Raised where the data set is empty, the batches lack the labels, or a logit is nan.
    """
    if device is None:
        device = next(model.parameters()).device
    predictions, truths = [], []
    # Not inference_mode: tensors that a model stores in it, as its position encodings, could not be trained with later.
    with evaluating(model), torch.no_grad():
        for batch in DataLoader(dataset, batch_size=batch_size, collate_fn=collate):
            if labels not in batch:
                raise ValueError(f"the batches must have {labels!r}, got {sorted(batch)}")
            inputs = {name: value.to(device) for name, value in batch.items() if name != labels}
            predictions.append(_classes(model(**inputs).logits).cpu())
            truths.append(batch[labels])
    if not predictions:
        raise ValueError("the data set must have at least one example, got none")
    return torch.cat(predictions), torch.cat(truths)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In a `with` block, put a model into evaluation mode; afterwards every module is in the mode it was in."""
    # Module by module: model.train() afterwards would also train modules that were in evaluation mode before.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def paired_difference(
    correct_a: Tensor | Sequence[bool], correct_b: Tensor | Sequence[bool], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Compare accuracies on the same examples: a minus b with a confidence interval, in percentage points.

    Only the examples that one model gets right and the other wrong tell them apart. The interval is that of
    Bonett and Price 2012, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based
    on Paired Data", Journal of Educational and Behavioral Statistics 37(4). Unlike a bootstrap's, it has a
    width even where a and b agree on every example.

    Args:
        correct_a: Examples that model a gets right, booleans (L,), see `correct`.
        correct_b: Examples that model b gets right, booleans (L,), in the same order.
        confidence: Share of such intervals that hold the true difference, between 0 and 1.

    Returns:
        The difference, and the low and high end of its interval; where 0 lies between them, it is within noise.

    Raises:
        ValueError: Raised where the examples differ in number, there are none, or confidence is not between 0 and 1.
    """
    a, b = torch.as_tensor(correct_a, dtype=torch.bool), torch.as_tensor(correct_b, dtype=torch.bool)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"correct_a and correct_b must be of one length, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    only_a, only_b, n = int((a & ~b).sum()), int((b & ~a).sum()), len(a)
    # The adjustment of the interval: one more example of each kind of disagreement.
    p_a, p_b = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = z * sqrt((p_a + p_b - (p_a - p_b) ** 2) / (n + 2))
    low, high = max(-1.0, p_a - p_b - half), min(1.0, p_a - p_b + half)
    return 100 * (only_a - only_b) / n, 100 * low, 100 * high
