"""Movement pruning in healing: gradients, the schedule, exact shares, and a run that was stopped."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from models import sentences, tokenizer
from test_heal import given, network, pair
from zoo import network as of_zoo

import greenformers
from greenformers.changes import Heal, Int8, LowRank, Sparse
from greenformers.changes._movement import Moving, share_at
from greenformers.solve.sparse_linear import SparseLinear, sparse_layers

PRUNING = Heal(steps=12, batch_size=16, learning_rate=3e-3, movement=0.25)


def test_gradients_of_weights_and_scores_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    W, x, y = torch.randn(3, 4).double(), torch.randn(6, 4).double(), torch.randn(6, 3).double()
    move = Moving(W)
    with torch.no_grad():
        move.scores.copy_(torch.tensor([[3.0, 1, 2, 1], [0, 5, 1, -1], [9, -2, 1, 0]]))
    move.share = 0.5
    stays = [[1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 0, 0]]  # six of twelve: 9, 5, 3, 2, and the first two of the four ones
    W.requires_grad_()
    loss = 0.5 * (x @ move(W).T - y).square().sum()
    loss.backward()
    assert W.grad is not None
    assert move.scores.grad is not None
    for i in range(3):
        pruned = [W[i, j].item() * stays[i][j] for j in range(4)]
        for j in range(4):
            # dL/dW'_ij = sum over examples of (W'_i x - y_i) x_j
            gradient = sum(
                (sum(pruned[k] * x[t, k].item() for k in range(4)) - y[t, i].item()) * x[t, j].item() for t in range(6)
            )
            assert W.grad[i, j].item() == pytest.approx(gradient * stays[i][j], abs=1e-12)
            assert move.scores.grad[i, j].item() == pytest.approx(gradient * W[i, j].item(), abs=1e-12)


def test_the_share_falls_as_a_cubic_between_warm_up_and_the_last_fifth() -> None:
    shares = [share_at(step, 100, 0.1) for step in range(100)]
    assert shares[:11] == [1.0] * 11
    assert shares[45] == pytest.approx(0.1 + 0.9 * 0.5**3)
    assert shares[80:] == [0.1] * 20
    assert shares == sorted(shares, reverse=True)


def test_exactly_the_share_is_left_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    original = network()
    whole, again = (copy.deepcopy(original) for _ in range(2))
    report = PRUNING.apply(whole, given(original, tmp_path))
    total = sum(layer.weight.numel() for _, layer in sparse_layers(whole))
    assert f"; {total // 4:,} of {total:,} weights of linear layers kept, by movement" in report.summary
    for _, layer in sparse_layers(whole):
        assert isinstance(layer, SparseLinear)
        assert int(layer.weight.count_nonzero()) == layer.weight.numel() // 4
    # Not those that were largest before: scores have moved.
    first, before = whole.encoder.layer[0].output.dense.weight, original.encoder.layer[0].output.dense.weight
    largest = before.abs().flatten().argsort(descending=True)[: before.numel() // 4]
    assert 0.1 < first.flatten()[largest].count_nonzero().item() / len(largest) < 0.95
    newest = max(tmp_path.glob("step-*"), key=lambda path: int(path.name[5:]))
    newest.rename(tmp_path / "gone")  # as if it had been killed before
    PRUNING.apply(again, given(original, tmp_path))
    for weight, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, other)


def test_a_run_that_diverges_leaves_the_network_as_it_was() -> None:
    small, original = pair()
    before = {name: x.clone() for name, x in small.state_dict().items()}
    with pytest.raises(ValueError, match="healing diverged"):
        PRUNING.but(learning_rate=1e25).apply(small, given(original))
    after = small.state_dict()
    assert after.keys() == before.keys()
    assert all(x.equal(before[name]) for name, x in after.items())


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"movement must be a share in \(0, 1\), got 1"):
        Heal(movement=1.0)
    with pytest.raises(ValueError, match=r"noise must be a share in \(0, 1\), got 2"):
        Heal(aware=True, noise=2)
    with pytest.raises(ValueError, match="noise is of aware healing: set aware too"):
        Heal(noise=0.1)
    with pytest.raises(ValueError, match="movement and aware exclude each other"):
        Heal(movement=0.5, aware=True)
    with pytest.raises(ValueError, match="movement and patience exclude each other"):
        Heal(movement=0.5, patience=2)
    texts: dict[str, Any] = {"texts": sentences(20), "tokenizer": tokenizer("bert")}
    magnitude = Sparse(by="magnitude")
    with pytest.raises(ValueError, match="movement cannot follow sparse, whose zeros stay: use one of the two"):
        greenformers.compress(of_zoo("bert"), [magnitude, PRUNING.but(batch_size=2)], **texts)
    with pytest.raises(ValueError, match="low_rank cannot follow sparse, whose zeros it would fill"):
        greenformers.compress(of_zoo("bert"), [PRUNING.but(batch_size=2), LowRank(0.5, solver="svd")], **texts)
    quantised = of_zoo("bert")
    greenformers.compress(quantised, Int8())
    with pytest.raises(ValueError, match="heal cannot follow int8"):
        greenformers.compress(quantised, PRUNING.but(batch_size=2), **texts)
