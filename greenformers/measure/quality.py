"""Accuracy, and whether a difference of two accuracies is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

IGNORED = -100  # the label by which Hugging Face marks a position that is not scored


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Percentage of labels that are predicted.

    Args:
        outputs: logits (..., C), or predicted classes (...) as whole numbers.
        labels: classes (...); positions labelled -100 are left out.

    Raises:
        ValueError: the shapes do not fit, a logit is nan, or there is no label.
    """
    return 100 * correct(outputs, labels).double().mean().item()


def correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Tell which labels are predicted: booleans (L,), one per label not -100. Arguments as in `accuracy`."""
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
        raise ValueError("logits must be numbers, got nan")
    return logits.argmax(-1)


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
        model: the model.
        dataset: dicts of one example each.
        batch_size: examples a batch.
        labels: the key of the labels in a batch.
        collate: makes a batch (a dict of tensors) of a list of examples; by default they are stacked.
        device: where batches go; by default where the model's first parameter is.

    Returns:
        Predicted classes (S, ...) and labels (S, ...), S examples in the order of the data set, on the CPU.

    Raises:
        ValueError: the data set is empty, the batches have no such labels, or a logit is nan.
    """
    if device is None:
        device = next(model.parameters()).device
    predictions, truths = [], []
    # Not inference_mode: what a model keeps from it (a table of positions, say) could not be trained with
    # later.
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
    """Evaluation mode in a `with` block; afterwards every module is in the mode it was in."""
    # Module by module: model.train() afterwards would also wake parts that were kept in evaluation mode.
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

    Only the examples that one of them gets right and the other wrong tell them apart. The interval is that of
    Bonett and Price 2012, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based
    on Paired Data", Journal of Educational and Behavioral Statistics 37(4). Unlike a bootstrap's, it has a
    width even where a and b agree on every example.

    Args:
        correct_a: (L,), whether a is right, by example (see `correct`).
        correct_b: (L,), whether b is right, in the same order.
        confidence: the share of such intervals that hold the true difference, between 0 and 1.

    Returns:
        The difference, and the low and high end of its interval; with 0 between them it is within noise.

    Raises:
        ValueError: the examples differ in number, there are none, or confidence is not between 0 and 1.
    """
    a, b = torch.as_tensor(correct_a, dtype=torch.bool), torch.as_tensor(correct_b, dtype=torch.bool)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"correct_a and correct_b must be of one length, got {tuple(a.shape)} and {tuple(b.shape)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    only_a, only_b, n = int((a & ~b).sum()), int((b & ~a).sum()), len(a)
    # One more example of each kind of disagreement: the adjustment.
    p_a, p_b = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = z * sqrt((p_a + p_b - (p_a - p_b) ** 2) / (n + 2))
    low, high = max(-1.0, p_a - p_b - half), min(1.0, p_a - p_b + half)
    return 100 * (only_a - only_b) / n, 100 * low, 100 * high
