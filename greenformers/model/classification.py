"""The loss of classification, by kind of problem: numbers, one class, or several labels at once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from greenformers.model.config import GreenformerConfig
from greenformers.model.loss import token_loss


def problem_of(config: GreenformerConfig, labels: Tensor) -> str:
    """The `problem_type` of the configuration; where that is None, the one that models of transformers assume.

    One label: "regression"; integers: "single_label_classification"; else "multi_label_classification".
    """
    if config.problem_type is not None:
        return config.problem_type
    if config.num_labels == 1:
        return "regression"
    return "single_label_classification" if _is_integer(labels) else "multi_label_classification"


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    config: GreenformerConfig,
    items: Tensor | int | None,
    ignored: int | None = None,
) -> Tensor:
    """Cross-entropy in nats, or the mean squared error of numbers.

    Args:
        logits: Scores (..., L) of L labels.
        labels: Classes (...) of "single_label_classification"; numbers (..., L) of "regression", (...) too where L is
            1; 0 or 1 for each label (..., L) of "multi_label_classification".
        config: Configuration with the kind of problem, see `problem_of`.
        items: Divisor of the sum; by default the number of labels.
        ignored: Label that counts as missing among numbers; among classes -100 always does.

    Raises:
        ValueError: The labels do not fit the kind of problem.
    """
    problem = problem_of(config, labels)
    if problem == "single_label_classification":
        if not _is_integer(labels):
            raise ValueError(f"labels must be integers where problem_type is {problem}, got {labels.dtype}")
        _check_shape(labels, logits.shape[:-1], problem)
        return token_loss(logits, labels.long(), items)
    if problem == "regression" and logits.shape[-1] == 1 and labels.dim() == logits.dim() - 1:
        labels = labels[..., None]
    _check_shape(labels, logits.shape, problem)
    if logits.element_size() < 4:
        logits = logits.float()
    numbers = labels.to(logits.dtype)
    if problem == "regression":
        errors = F.mse_loss(logits, numbers, reduction="none")
    else:
        errors = F.binary_cross_entropy_with_logits(logits, numbers, reduction="none")
    if ignored is not None:
        errors = errors[labels != ignored]
    return errors.sum() / (max(errors.numel(), 1) if items is None else items)


def _is_integer(labels: Tensor) -> bool:
    return not labels.is_floating_point() and labels.dtype != torch.bool


def _check_shape(labels: Tensor, shape: tuple[int, ...], problem: str) -> None:
    if labels.shape != shape:
        raise ValueError(f"labels must be {tuple(shape)} where problem_type is {problem}, got {tuple(labels.shape)}")
