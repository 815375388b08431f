"""Schedules of the learning rate: linear warm-up, then a cosine down to 0, or the same factor after every step."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_cosine_schedule_with_warmup

AGAIN = 0.05
"""Share of the steps in which a rate rises again."""


def learning_rates(
    optimizer: Optimizer, steps: int, warmup: float, decay: float | None, again: int | None = None
) -> LambdaLR:
    """The learning rate scheduler of an optimiser.

    Args:
        optimizer: Optimiser, whose learning rate is the highest one.
        steps: Optimisation steps of the whole run.
        warmup: Share of the steps that are warm-up.
        decay: Factor after every step; None for the cosine.
        again: Number of steps after which the rate rises again, see `risen`; None: it does not.
    """
    rates = _falling(optimizer, steps, warmup, decay)
    if again is not None:
        before, start = rates.lr_lambdas[0], again
        rates.lr_lambdas = [lambda step: before(step) * risen(step, steps, start)] * len(rates.lr_lambdas)
    return rates


def risen(step: int, steps: int, start: int) -> float:
    """The share of its size to which a rate has risen again, linearly from step `start` on; 1 before it."""
    return 1.0 if step < start else min((step - start + 1) / max(AGAIN * steps, 1), 1.0)


def _falling(optimizer: Optimizer, steps: int, warmup: float, decay: float | None) -> LambdaLR:
    """Warm-up, then the cosine or the factor."""
    warmup_steps = min(math.ceil(steps * warmup), steps - 1)  # the last step, which may be the only one, learns
    if decay is None:
        return get_cosine_schedule_with_warmup(optimizer, warmup_steps, steps)
    factor = decay

    def share(step: int) -> float:
        return step / warmup_steps if step < warmup_steps else factor ** (step - warmup_steps)

    return LambdaLR(optimizer, share)
