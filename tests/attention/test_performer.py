"""What is Performer's own: its random features, what they estimate, and when they are drawn."""

import math
from copy import deepcopy
from dataclasses import replace
from itertools import combinations, count, pairwise

import pytest
import torch

from greenformers.attention import Shape, build
from greenformers.attention.performer import features

DIM = 8
SHAPE = Shape(heads=1, head_dim=DIM, max_len=16)


def pairs(size=1.0):
    """Three pairs of a query and a key, x and y after scaling by D^-1/4, with |x + y| = size.

    An estimate varies by about exp(size^2) - 1 of itself, with a long tail: what is large is not found in few draws.
    """
    q, sums = torch.randn(2, 3, DIM, generator=torch.Generator().manual_seed(3))
    return q, size * DIM**0.25 * sums / sums.norm(dim=1, keepdim=True) - q


def errors(draws, q, k, **options):
    """phi(q) phi(k) / exp(q k / sqrt(D)) - 1 for every draw of rows and every pair."""
    module = build("performer", SHAPE, redraw=1, **options)
    exact = torch.exp((q * k).sum(1) / math.sqrt(DIM))
    samples = []
    for _ in range(draws):
        module.update_()
        samples.append((features(module, q) * features(module, k)).sum(1) / exact - 1)
    return torch.stack(samples)


@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic"])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_estimate_has_no_bias(kernel, orthogonal):
    error = errors(200, *pairs(), kernel=kernel, orthogonal=orthogonal, features=64)
    assert (error.mean(0).abs() < 4 * error.std(0) / math.sqrt(len(error))).all()
    assert (error.std(0) < 0.5).all()


@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_error_falls_with_the_root_of_the_features(orthogonal):
    counts = (16, 64, 256, 1024)
    sizes = [errors(150, *pairs(), features=p, orthogonal=orthogonal).square().mean().sqrt() for p in counts]
    logs = [torch.tensor(counts).log(), torch.stack(sizes).log()]
    x, y = (each - each.mean() for each in logs)
    assert ((x * y).sum() / (x * x).sum()).item() == pytest.approx(-0.5, abs=0.1)


def test_orthogonal_rows_beat_independent_ones():
    orthogonal, independent = (errors(1500, *pairs(), features=DIM, orthogonal=each).var(0) for each in (True, False))
    assert orthogonal.mean() < 0.95 * independent.mean()


def test_rows_and_their_negatives_beat_as_many_rows_as_the_lemma_says():
    """Lemma 2, for as many features: the variance is 1 - exp(-|x + y|^2) of the other's."""
    q, k = pairs(0.5)
    hyperbolic, softmax = (
        errors(1500, q, k, features=16, orthogonal=False, kernel=kernel).var(0) for kernel in ("hyperbolic", "softmax")
    )
    expected = 1 - torch.exp(-((q + k) / DIM**0.25).square().sum(1))
    torch.testing.assert_close(hyperbolic / softmax, expected, rtol=0.3, atol=0)


def test_tends_to_full_attention():
    torch.manual_seed(0)
    q, k, v = (size * torch.randn(4, 1, 16, DIM) for size in (0.5, 0.5, 1))
    seeds = count()
    full = build("full", SHAPE)(q, k, v)

    def error(p):
        return (build("performer", SHAPE, features=p, seed=next(seeds))(q, k, v) - full).square().mean().sqrt()

    coarse, fine = error(64), error(16384)
    assert fine < 0.03
    assert fine < coarse / 8  # 16 by the root


def test_rows_are_orthogonal_in_blocks_and_as_long_as_normal_ones():
    torch.manual_seed(0)
    rows = build("performer", SHAPE, features=4003).rows
    block = rows[:DIM] / rows[:DIM].norm(dim=1, keepdim=True)
    torch.testing.assert_close(block @ block.mT, torch.eye(DIM), rtol=0, atol=1e-6)
    rest = rows[4000:] / rows[4000:].norm(dim=1, keepdim=True)
    torch.testing.assert_close(rest @ rest.mT, torch.eye(3), rtol=0, atol=1e-6)
    # chi^2 of D degrees: mean D, variance 2 D.
    squares = rows.square().sum(1)
    assert squares.mean().item() == pytest.approx(DIM, rel=0.03)
    assert squares.var().item() == pytest.approx(2 * DIM, rel=0.15)
    # In no direction more than in another.
    torch.testing.assert_close(rows.mean(0), torch.zeros(DIM), rtol=0, atol=0.07)
    torch.testing.assert_close(rows.mT @ rows / len(rows), torch.eye(DIM), rtol=0, atol=0.07)


def test_independent_rows_are_not_orthogonal():
    rows = build("performer", SHAPE, features=DIM, orthogonal=False).rows
    assert (rows @ rows.mT).fill_diagonal_(0).abs().max() > 0.1


def test_rows_are_drawn_again_after_so_many_steps_and_only_then():
    module = build("performer", SHAPE, redraw=3)
    drawn = [module.rows.clone()]
    for _ in range(6):
        module.update_()
        drawn.append(module.rows.clone())
    changed = [not torch.equal(before, after) for before, after in pairwise(drawn)]
    assert changed == [False, False, True, False, False, True]
    assert not torch.equal(drawn[3], drawn[6])


def test_processes_and_continued_trainings_draw_the_same():
    module = build("performer", SHAPE, redraw=2)
    module.update_()
    copied, loaded = deepcopy(module), build("performer", SHAPE, redraw=2)
    loaded.load_state_dict(module.state_dict())
    before = module.rows.clone()
    for each in (module, copied, loaded):
        torch.manual_seed(torch.seed())
        each.update_()
    assert not torch.equal(module.rows, before)
    assert torch.equal(copied.rows, module.rows)
    assert torch.equal(loaded.rows, module.rows)


def test_never_drawn_again_where_not_wanted():
    module = build("performer", SHAPE, redraw=None)
    before = module.rows.clone()
    for _ in range(1001):
        module.update_()
    assert torch.equal(module.rows, before)


def test_layers_and_seeds_have_rows_of_their_own():
    which = [(0, 0), (1, 0), (0, 7), (1, 7)]
    rows = [build("performer", replace(SHAPE, layers=2, layer=layer), seed=seed).rows for layer, seed in which]
    assert torch.equal(build("performer", replace(SHAPE, layers=2, layer=1), seed=7).rows, rows[-1])
    assert not any(torch.equal(a, b) for a, b in combinations(rows, 2))


@pytest.mark.parametrize(("dim", "features"), [(1, 1), (2, 2), (5, 10), (64, 256), (128, 640)])
def test_the_number_of_features_is_about_d_log_d(dim, features):
    assert build("performer", Shape(1, dim, 16)).features == features


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "features must be at least 1, and even for 'hyperbolic', got 0"),
        ({"features": 7, "kernel": "hyperbolic"}, "features must be at least 1, and even for 'hyperbolic', got 7"),
        ({"kernel": "exp"}, "kernel must be one of softmax, hyperbolic, relu; got 'exp'"),
        ({"redraw": 0}, "redraw must be at least 1 step, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build("performer", SHAPE, **options)


def test_no_default_is_odd_where_it_must_be_even():
    for dim in range(1, 14):
        build("performer", Shape(1, dim, 16), kernel="hyperbolic")


@pytest.mark.filterwarnings("ignore")  # the peer's, at its import
def test_the_future_leaks_in_performer_pytorch_and_not_here(capsys):
    peer = pytest.importorskip("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    theirs = peer.FastAttention(dim_heads=DIM, nb_features=32, causal=True)
    ours = build("performer", Shape(1, DIM, 16, causal=True), features=32)
    q, k, v = (torch.randn(1, 1, 16, DIM) for _ in range(3))
    other = k.clone()
    other[:, :, 8:] *= 10
    leaks = [(each(q, other, v) - each(q, k, v))[:, :, :8].abs().max().item() for each in (theirs, ours)]
    assert leaks[0] > 1e-3
    assert leaks[1] == 0.0
    capsys.readouterr()
