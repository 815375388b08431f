"""Schedules of the learning rate: linear warm-up, then a cosine down to 0, or the same factor after every step."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_cosine_schedule_with_warmup


def learning_rates(optimizer: Optimizer, steps: int, warmup: float, decay: float | None) -> LambdaLR:
    """The learning rate scheduler of an optimiser.

    Args:
        optimizer: Optimiser, whose learning rate is the highest one.
        steps: Optimisation steps of the whole run.
        warmup: Share of the steps that are warm-up.
        decay: Factor after every step; None for the cosine.
    """
    warmup_steps = math.ceil(steps * warmup)
    if decay is None:
        return get_cosine_schedule_with_warmup(optimizer, warmup_steps, steps)
    factor = decay

    def share(step: int) -> float:
        return step / warmup_steps if step < warmup_steps else factor ** (step - warmup_steps)

    return LambdaLR(optimizer, share)
