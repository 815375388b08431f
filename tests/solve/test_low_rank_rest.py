"""Rounded weights with a product of two narrow ones, beside the formula, and the ways to spend bytes on weights."""

from functools import partial

import pytest
import torch
from test_neurons import lively, texts
from torch import Tensor

from greenformers.solve import low_rank_rest
from greenformers.solve.bit_points import BITS, Way, bit_points
from greenformers.solve.gptq import gptq
from greenformers.solve.grid import Form
from greenformers.solve.low_rank_rest import corrected
from greenformers.solve.sparsify import damped
from greenformers.solve.walk import sites
from greenformers.solve.watch import trace

FORM = Form(2, "group", 8)


def case() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(200, 24, generator=draw).double() @ torch.randn(24, 24, generator=draw).double()
    return torch.randn(16, 24, generator=draw).double(), x.T @ x


def test_the_product_is_the_truncated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    W, C = case()
    monkeypatch.setattr(low_rank_rest, "TURNS", 1)
    rounded = partial(gptq, C=C, form=FORM)
    (q, grid), *factors = corrected(W, C, 4, lambda x: rounded(x))
    assert q.equal(rounded(W)[0])
    L, R = (of.values(numbers).double() for numbers, of in factors)
    H = damped(C)
    S = torch.linalg.cholesky(H)  # any root gives the same product
    U, z, Vh = torch.linalg.svd((W - grid.values(q)) @ S)
    expected = (U[:, :4] * z[:4]) @ Vh[:4] @ torch.linalg.inv(S)
    assert ((L @ R - expected).norm() / expected.norm()).item() < 0.02  # they are rounded to 8 bits


def test_turns_lose_less_and_less() -> None:
    W, C = case()
    H = damped(C)

    def lost(turns: int) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(low_rank_rest, "TURNS", turns)
            weight, left, right = corrected(W, C, 4, lambda x: gptq(x, C, FORM))
        Q, L, R = (of.values(numbers).double() for numbers, of in (weight, left, right))
        D = W - Q - L @ R
        return ((D @ H) * D).sum().item()

    q, grid = gptq(W, C, FORM)
    D = W - grid.values(q)
    alone, first, third = ((D @ H) * D).sum().item(), lost(1), lost(3)
    assert third <= first < alone


def test_ways_to_hold_a_weight_cost_bytes_and_lose_what_was_measured() -> None:
    model, batches = lively("bert", torch.float32), texts(3)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    chosen = [site for kind in ("linear", "embedding") for site in sites(model, kind)][:8]
    linear = [site for site in chosen if site.kind == "linear"]
    points = bit_points(
        model, chosen, trace(model, linear, batches[0]), batches, lambda bits: Form(bits, "group", 16),
        lambda site, way: site.dense * way.bits // 8 + way.rank * (site.m + site.n),
    )  # fmt: skip
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
    assert points.keys() == {site.path for site in chosen}
    for site in chosen:
        of = {point.choice: point for point in points[site.path]}
        for bits in BITS:
            assert of[Way(bits, 0)].cost == site.dense * bits // 8
        assert [of[Way(bits, 0)].error for bits in BITS] == sorted(
            (of[Way(bits, 0)].error for bits in BITS), reverse=True
        )
        assert of[Way(2, 0)].error > of[Way(8, 0)].error
        ranks = [way.rank for way in of if way.bits == 2]
        assert len(ranks) == 1 if site.kind == "embedding" else ranks == sorted(set(ranks))
        assert [of[Way(2, rank)].error for rank in ranks] == sorted((of[Way(2, r)].error for r in ranks), reverse=True)
