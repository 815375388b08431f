"""Networks that are probably too slow are told by those that were timed."""

import itertools
import random
from math import exp

from greenformers.search.network_speeds import LEARNT, hopeful
from greenformers.search.trials import Trial

COUNTS = (4, 3, 5)


def speed(genes: tuple[int, ...]) -> float:
    """Of values whose order says nothing."""
    return exp(sum((0.9, -0.7, 0.2, -0.1, 0.5)[(gene + part) % 5] for part, gene in enumerate(genes)))


def trials(count: int) -> list[Trial]:
    rows = random.Random(0).sample([*itertools.product(*map(range, COUNTS))], count)
    too_slow = [Trial(genes, 1, speed(genes), refused="too slow") for genes in rows]
    return [*too_slow, Trial((0, 0, 0), 1, refused="it cannot be built")]


def test_what_is_fast_enough_is_tried_and_what_is_too_slow_hardly_ever() -> None:
    may_be_fast = hopeful(trials(25), COUNTS, 2.0)
    rows = [*itertools.product(*map(range, COUNTS))]
    fast, slow = ([genes for genes in rows if (speed(genes) >= 2) == enough] for enough in (True, False))
    assert 5 < len(fast) < len(rows) / 2
    assert sum(map(may_be_fast, fast)) > 0.8 * len(fast)
    assert sum(map(may_be_fast, slow)) < 0.1 * len(slow)


def test_by_few_nothing_is_told() -> None:
    assert all(map(hopeful(trials(LEARNT - 1), COUNTS, 99.0), itertools.product(*map(range, COUNTS))))
