"""A threshold that texts of which the loss is known show to be low enough, but not too low.

Thresholds are tried from the strictest on, by which nobody leaves, each at the same level: the first of which the texts
do not show that less than the share allowed is lost ends the search (fixed sequence testing; Angelopoulos 2021,
arXiv:2110.01052). So the loss of the one before it is below the share, but for one draw of the texts in twenty.

What n texts show of a mean loss E[L], L in [0, 1]: where L is 0 or 1, the exact binomial bound (Clopper 1934); else a
bet against E[L] >= a that starts with 1 and is worth, after each text,

    K_i = K_{i-1} (1 + w_i (a - L_i)),

where the stakes 0 <= w_i <= 1 / (1 - a) know the texts before only: to have made 20 of it is as likely as one in twenty
(Waudby-Smith & Ramdas 2020, arXiv:2010.09686; stakes as in its eq. 26, of variances).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from greenformers.changes._exit_modules import Rule

CONFIDENCE = 0.95

STEPS = 64
"""Thresholds 1 - 2^(-k / 4), k = 64 .. 0: from 1 - 1.5e-5 down to 0."""


def enough(lose: float) -> int:
    """The least number of texts that can show that less than a share is lost: if none of them loses anything."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-lose))


def shown(losses: Tensor, share: float) -> bool:
    """Whether n losses (n,) in [0, 1] show, with the confidence of 95 %, that less than a share is lost on average."""
    losses = losses.double()
    shows = _binomial if bool(((losses == 0) | (losses == 1)).all()) else _bet
    return shows(losses, share)


def upper(losses: Tensor) -> float:
    """The least share of which n losses (n,) show that less is lost on average, by bisection; 1 where none is."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if shown(losses, middle) else (middle, high)
    return high


def _binomial(losses: Tensor, share: float) -> bool:
    """Whether as few losses as there are would be rare if this share were lost: P(X <= k) <= 0.05."""
    count, lost = len(losses), int(losses.sum())
    k = torch.arange(lost + 1, dtype=torch.double)
    n = torch.tensor(float(count), dtype=torch.double)
    log_choose = (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()
    tail = torch.logsumexp(log_choose + k * math.log(share) + (n - k) * math.log1p(-share), 0)
    return tail.item() <= math.log(1 - CONFIDENCE)


def _bet(losses: Tensor, share: float) -> bool:
    """Whether a bet against this share makes 20 of 1."""
    goal, count = -math.log(1 - CONFIDENCE), torch.arange(1, len(losses) + 1, dtype=torch.double)
    mean = (0.5 + losses.cumsum(0)) / (count + 1)
    variance = (0.25 + (losses - mean).square().cumsum(0)) / (count + 1)
    before = torch.cat([torch.tensor([0.25], dtype=torch.double), variance[:-1]])
    stakes = (2 * goal / (len(losses) * before)).sqrt().clamp(max=1 / (1 - share))
    worth = torch.log1p((stakes * (share - losses)).clamp(min=-1)).cumsum(0)
    return bool((worth >= goal).any())


def choose(losses: Callable[[float], Tensor], lose: float) -> float | None:
    """The lowest threshold of the sequence that is shown to lose less than a share.

    Args:
        losses: Function from a threshold to the loss of each text (n,).
        lose: The share.

    Returns:
        The threshold; None where even the strictest is not shown to.
    """
    chosen = None
    for step in range(STEPS, -1, -1):
        threshold = 1 - 2 ** (-step / 4)
        if not shown(losses(threshold), lose):
            break
        chosen = threshold
    return chosen


def left_by(rule: Rule, scores: Tensor, classes: Tensor) -> Tensor:
    """The number of the exit by which each text leaves, (n,); that of the exits where it leaves by none.

    Args:
        rule: When a text leaves.
        scores: Scores (n, E) at the E exits.
        classes: Classes (n, E) that they tell.
    """
    count = scores.shape[1]
    places = torch.full((len(scores),), count)
    streak = torch.zeros(len(scores), dtype=torch.long)
    for place in range(count):
        same = classes[:, place] == classes[:, max(place - 1, 0)]
        streak = rule.streak(streak, scores[:, place], same)
        places[(places == count) & (streak >= rule.patience)] = place
    return places
