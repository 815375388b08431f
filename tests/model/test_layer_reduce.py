"""Linformer in rank space: keys and values are shortened before their last factor, and nothing changes."""

import pytest
import torch
from networks import HEADS, MAX_LEN, K, d, layer, padding
from plain_layer import plain

from greenformers.attention.linformer import Linformer

SHARINGS = ("none", "headwise", "key_value", "layerwise")
RANKS = {
    "dense": None,
    "low-rank": 7,
    "dense k, LED v": {"v": 3},
    "LED k, dense v": {"k": 5},
    "different ranks": {"q": 2, "k": 5, "v": 3},
    "dense q": {"k": 5, "v": 5},
}
SIZES = [(1, 1), (3, 2), (5, K), (5, 13), (31, MAX_LEN)]


def block_of(ranks, **options):
    return layer("linformer", rank=RANKS[ranks], attention_options={"k": K} | options)


def compare(block, masked):
    for B, N in SIZES:
        x = torch.randn(B, N, d, dtype=torch.float64, requires_grad=True)
        mask = padding(B, N) if masked else None
        expected = plain(block, x, mask)
        leaves = [x, *block.parameters()]
        out = block(x, mask)
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
        g = torch.randn_like(x)
        torch.testing.assert_close(
            torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g), atol=1e-11, rtol=1e-11
        )
        with torch.no_grad():
            torch.testing.assert_close(block(x, mask), expected.detach(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("ranks", RANKS)
def test_equals_the_mechanism_on_projected_keys_and_values(ranks, sharing, masked):
    compare(block_of(ranks, sharing=sharing), masked)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("projection", ["mean", "max", "convolution"])
def test_equals_it_for_other_projections(projection, masked):
    compare(block_of("different ranks", projection=projection), masked)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_equals_it_for_a_k_of_each_head(sharing, masked):
    compare(block_of("low-rank", k=[[7, 11, 3]] * 2, sharing=sharing), masked)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_the_layer_shortens_wherever_the_mechanism_can(sharing, monkeypatch):
    block = block_of("low-rank", sharing=sharing)
    calls = []

    def record(name):
        whole = getattr(Linformer, name)
        monkeypatch.setattr(
            Linformer, name, lambda self, *args, **options: calls.append(name) or whole(self, *args, **options)
        )

    for name in ("forward", "attend"):
        record(name)
    block(torch.randn(5, 13, d, dtype=torch.float64))
    assert calls == (["forward"] if sharing == "none" else ["attend"])
    assert block.attention.mechanism.shape.heads == HEADS
