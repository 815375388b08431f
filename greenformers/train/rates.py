"""The learning rate, step by step: linear warm-up, then a cosine down to 0, or the same factor after every step."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_cosine_schedule_with_warmup


def learning_rates(optimizer: Optimizer, steps: int, warmup: float, decay: float | None) -> LambdaLR:
    """Scheduler of an optimiser.

    Args:
        optimizer: its learning rate is the highest one.
        steps: of the whole run.
        warmup: share of them spent warming up.
        decay: factor after every step; None for the cosine.
    """
    rising = math.ceil(steps * warmup)
    if decay is None:
        return get_cosine_schedule_with_warmup(optimizer, rising, steps)
    factor = decay

    def share(step: int) -> float:
        return step / rising if step < rising else factor ** (step - rising)

    return LambdaLR(optimizer, share)
