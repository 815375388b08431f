"""Learning rates: warm-up, then a cosine or a factor a step."""

import math

import pytest
import torch

from greenformers.train.rates import learning_rates


def rates(steps: int, warmup: float, decay: float | None, again: int | None = None) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=2.0)
    schedule = learning_rates(optimizer, steps, warmup, decay, again)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


def test_a_cosine_after_the_warm_up():
    expected = [2 * step / 3 for step in range(3)]
    expected += [1 + math.cos(math.pi * step / 7) for step in range(7)]
    assert rates(10, 0.3, None) == pytest.approx(expected)


def test_a_factor_after_every_step():
    assert rates(6, 0.0, 0.5) == [2.0, 1.0, 0.5, 0.25, 0.125, 0.0625]
    assert rates(6, 0.5, 0.5) == pytest.approx([0, 2 / 3, 4 / 3, 2, 1, 0.5])
    assert rates(3, 0.0, 1.0) == [2.0, 2.0, 2.0]
    assert rates(1, 0.1, None) == rates(1, 0.1, 0.5) == [2.0], "the only step learns"


@pytest.mark.parametrize("decay", [None, 0.9])
def test_it_rises_again_from_a_step_on(decay: float | None):
    once, again = rates(60, 0.1, decay), rates(60, 0.1, decay, again=20)
    assert again[:20] == once[:20]
    assert again[20:23] == pytest.approx([once[20 + step] * (step + 1) / 3 for step in range(3)])  # 5 % of the steps
    assert again[23:] == once[23:]
