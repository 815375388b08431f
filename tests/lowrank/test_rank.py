from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greenformers.lowrank.rank import MULTIPLE, Point, hull, kept_energy, largest, rounded, spend, stable_rank, together

size = st.integers(1, 5000)
f64 = torch.float64


# one layer


@given(size, size)
def test_the_largest_rank_never_enlarges(m, n):
    rank = largest(m, n)
    assert 0 <= rank <= min(m, n)
    assert rank * (m + n) < m * n
    assert (rank + 1) * (m + n) >= m * n


@given(size, size, st.integers(0, 100))
def test_a_limit_lowers_the_largest_rank(m, n, limit):
    assert largest(m, n, limit) == min(largest(m, n), limit)


@pytest.mark.parametrize(
    ("m", "n", "rank"), [(768, 768, 383), (3072, 768, 614), (1, 1, 0), (1, 9, 0), (2, 2, 0), (3, 3, 1)]
)
def test_the_largest_rank(m, n, rank):
    assert largest(m, n) == largest(n, m) == rank


@given(st.floats(0, 3000), st.sampled_from([1, 8, 64]), st.integers(0, 2000))
def test_rounded_is_the_nearest_multiple_that_fits(rank, multiple, limit):
    nearest = rounded(rank, multiple, limit)
    if limit < 1:
        assert nearest is None
        return
    assert 1 <= nearest <= limit
    if limit < multiple:
        assert nearest == min(max(round(rank), 1), limit)
        return
    assert nearest % multiple == 0
    fitting = range(multiple, limit + 1, multiple)
    assert abs(nearest - rank) == min(abs(other - rank) for other in fitting)


@pytest.mark.parametrize(
    ("rank", "multiple", "limit", "expected"),
    [
        (11, 8, 100, 8),
        (13, 8, 100, 16),
        (1, 8, 100, 8),
        (99, 8, 100, 96),
        (500, 8, 100, 96),
        (3, 8, 5, 3),
        (0.2, 8, 5, 1),
    ],
)
def test_rounded(rank, multiple, limit, expected):
    assert rounded(rank, multiple, limit) == expected


def test_multiples_of_devices():
    assert MULTIPLE == {"cpu": 8, "cuda": 64}


@pytest.mark.parametrize(
    ("share", "rank"), [(0.1, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.875, 3), (0.9, 4), (1.0, 4), (1e-9, 1)]
)
def test_kept_energy(share, rank):
    assert kept_energy(torch.tensor([4.0, 2.0, 1.0, 1.0, 0.0], dtype=f64), share) == rank


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0.01, 1))
def test_kept_energy_is_the_smallest_rank_that_keeps_it(energies, share):
    energies = torch.tensor(sorted(energies, reverse=True), dtype=f64)
    rank, total = kept_energy(energies, share), energies.sum().item()
    assert 1 <= rank <= len(energies)
    assert energies[:rank].sum().item() >= share * total * (1 - 1e-11)
    assert rank == 1 or energies[: rank - 1].sum().item() < share * total


@pytest.mark.parametrize("share", [-0.1, 0, 1.01, float("nan")])
def test_a_share_of_energy_out_of_range(share):
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        kept_energy(torch.ones(3), share)


def test_stable_rank_of_known_matrices():
    assert stable_rank(torch.ones(7, dtype=f64)) == 7
    assert stable_rank(torch.tensor([5.0, 0, 0], dtype=f64)) == 1
    assert stable_rank(torch.zeros(3, dtype=f64)) == 0
    W = torch.randn(13, 17, dtype=f64)
    expected = (W.norm() / torch.linalg.matrix_norm(W, 2)).square().item()
    assert stable_rank(torch.linalg.svdvals(W).square()) == pytest.approx(expected)


# hulls


def points(*pairs):
    return [Point(rank, float(cost), float(error)) for rank, (cost, error) in enumerate(pairs, 1)]


def ranks(corners):
    return [point.choice for point in corners]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 9)], [1]),
        ([(1, 9), (2, 4), (3, 1), (4, 0)], [1, 2, 3, 4]),  # convex: all
        ([(1, 9), (2, 8), (3, 1)], [1, 3]),  # above the chord
        ([(1, 9), (2, 6), (3, 3), (4, 0)], [1, 4]),  # on the chord: no step of its own
        ([(1, 9), (2, 9), (3, 9)], [1]),  # nothing saved
        ([(1, 5), (2, 7), (3, 1)], [1, 3]),  # dearer and worse
        ([(1, 5), (1, 3), (2, 1)], [2, 3]),  # of the same cost the better
        ([(4, 0), (3, 1), (2, 4), (1, 9)], [4, 3, 2, 1]),  # in any order
        ([(1, 9), (2, 8.9), (3, 8), (4, 0)], [1, 4]),
        ([(2, 0), (1, 9), (5, 0)], [2, 1]),
    ],
)
def test_hull(pairs, expected):
    corners = hull(points(*pairs))
    assert sorted(ranks(corners)) == sorted(expected)
    assert [point.cost for point in corners] == sorted(point.cost for point in corners)


pairs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8)


@given(pairs)
def test_a_hull_is_below_all_points(pairs):
    offered = points(*pairs)
    corners = hull(offered)
    assert corners[0].cost == min(point.cost for point in offered)
    assert min(point.error for point in corners) == min(point.error for point in offered)
    for a, b in pairwise(corners):
        assert a.cost < b.cost
        assert a.error > b.error
        for point in offered:
            if a.cost <= point.cost <= b.cost:
                share = (point.cost - a.cost) / (b.cost - a.cost)
                assert point.error >= a.error + share * (b.error - a.error) - 1e-9


# budgets


def best(layers, budget):
    """Over all combinations."""
    fitting = (way for way in product(*layers) if sum(point.cost for point in way) <= budget)
    return min(sum(point.error for point in way) for way in fitting)


def cost(way):
    return sum(point.cost for point in way)


def error(way):
    return sum(point.error for point in way)


instances = st.lists(pairs, min_size=1, max_size=4)


@settings(max_examples=75)
@given(instances, st.integers(0, 16))
def test_spend_against_all_combinations(instance, at):
    layers = [points(*pairs) for pairs in instance]
    hulls = [hull(layer) for layer in layers]
    low, high = sum(way[0].cost for way in hulls), sum(way[-1].cost for way in hulls)
    budget = low + at / 16 * (high - low)  # exact in floats
    way = spend(layers, budget)
    assert all(point in layer for point, layer in zip(way, layers, strict=True))
    assert cost(way) <= budget * (1 + 1e-9)
    steps = [a.error - b.error for layer in hulls for a, b in pairwise(layer)]
    # Never further from the best than one step's saving.
    assert best(layers, budget) <= error(way) <= best(layers, budget) + max(steps, default=0)
    # With all that is useful paid for, the least error there is.
    assert error(spend(layers, high)) == sum(layer[-1].error for layer in hulls)


@settings(max_examples=75)
@given(instances)
def test_spend_is_optimal_at_budgets_that_end_at_a_step(instance):
    layers = [points(*pairs) for pairs in instance]
    hulls = [hull(layer) for layer in layers]
    budget = sum(layer[0].cost for layer in hulls)
    assert error(spend(layers, budget)) == best(layers, budget)
    steps = [((a.error - b.error) / (b.cost - a.cost), b.cost - a.cost) for layer in hulls for a, b in pairwise(layer)]
    for slope in sorted({slope for slope, _ in steps}, reverse=True):  # of equal steps any may come first
        paid = budget + sum(cost for other, cost in steps if other >= slope)
        assert error(spend(layers, paid)) == best(layers, paid)


def layer(m, n, energies):
    """Points as a weight offers them: every rank that makes it smaller, and staying dense."""
    energies = torch.as_tensor(energies, dtype=f64)
    dropped = [*energies.flip(0).cumsum(0).flip(0).tolist(), 0.0]
    offered = [Point(rank, rank * (m + n), dropped[rank]) for rank in range(1, largest(m, n) + 1)]
    return [*offered, Point(None, m * n, 0.0)]


def test_a_layer_of_full_rank_stays_dense_where_others_pay():
    flat, steep = layer(40, 40, [1.0] * 40), layer(40, 40, [100.0 * 0.5**i for i in range(40)])
    way = spend([flat, steep], 0.65 * 3200)
    assert way[0].choice is None
    assert 1 <= way[1].choice <= 19


def test_what_is_left_short_of_dense_is_spent_on_rank():
    """Flat spectra: every rank lies above the chord to dense, which three quarters do not pay for both."""
    way = spend([layer(40, 40, [1.0] * 40)] * 2, 0.72 * 3200)
    assert sorted((point.choice for point in way), key=str) == [8, None]
    assert cost(way) == 8 * 80 + 1600


def test_the_whole_budget_keeps_all_dense():
    layers = [layer(40, 40, [1.0] * 40), layer(24, 60, [0.9**i for i in range(24)])]
    assert ranks(spend(layers, 1600 + 1440)) == [None, None]


def test_equal_slopes_in_rounded_arithmetic():
    """Errors of equal steps, whose slopes differ by rounding: no step is paid for without the one before."""
    for scale in (0.1, 0.3, 1 / 3, 0.7):
        layers = [[Point(rank, rank * scale, (30 - rank) * 0.1 * scale) for rank in range(1, 31)] for _ in range(3)]
        for budget in (3 * scale, 10 * scale, 44 * scale, 90 * scale):
            way = spend(layers, budget)
            assert cost(way) <= budget * (1 + 1e-9)
            assert cost(way) == pytest.approx(budget)


def test_a_slower_factorisation_is_never_chosen():
    """Where time is the cost, two factors may take longer than the dense weight."""
    slow = [Point(8, 3.0, 5.0), Point(16, 4.0, 2.0), Point(None, 2.0, 0.0)]
    assert ranks(spend([slow], 10)) == [None]


def test_a_budget_below_the_lowest_ranks():
    layers = [layer(40, 40, [1.0] * 40)] * 2
    assert ranks(spend(layers, 160)) == [1, 1]
    with pytest.raises(ValueError, match=r"the budget must be at least 0\.050 of the dense layers'") as caught:
        spend(layers, 159)
    assert "\n" not in str(caught.value)


def test_no_layers():
    assert spend([], 1.0) == []


@given(st.lists(pairs, min_size=1, max_size=3))
def test_parts_together_are_the_hull_of_all_ways_to_choose_one_point_each(parts):
    offered = [points(*part) for part in parts]
    ways = [
        Point(way, sum(point.cost for point in way), sum(point.error for point in way)) for way in product(*offered)
    ]
    combined, expected = together(offered), hull(ways)
    # Points of the parts that lie on one line are steps of their own; the hull of all ways skips them.
    assert [(point.cost, point.error) for point in hull(combined)] == [(point.cost, point.error) for point in expected]
    for point in combined:
        chosen = [offered[place][choice - 1] for place, choice in enumerate(point.choice)]
        assert (point.cost, point.error) == (sum(at.cost for at in chosen), sum(at.error for at in chosen))
