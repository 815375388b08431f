"""Factors next to attention that are folded into keys and values: the same numbers as without, where it is cheaper."""

import pytest
import torch
from networks import HEADS, K, d, layer, padding
from plain_layer import plain

from greenformers.model import block as blocks
from greenformers.model.folded import WIDEST

LONG = 101
RANKS = {
    "low": 2,
    "different": {"q": 2, "k": 4, "v": 3, "output": 1},
    "dense keys": {"q": 2, "v": 3, "output": 2},
    "dense keys and values": {"q": 1, "output": 1},
}


@pytest.fixture
def calls(monkeypatch):
    """The lengths of texts that were folded."""
    seen, whole = [], blocks.folded
    monkeypatch.setattr(blocks, "folded", lambda block, x, mask: seen.append(x.shape[1]) or whole(block, x, mask))
    return seen


def made(**options):
    return layer("lrt+linformer", max_position_embeddings=LONG, **options)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_layer_computes_the_same(ranks, residual, masked, calls):
    block = made(rank=RANKS[ranks], residual=residual)
    x, mask = torch.randn(3, LONG, d, dtype=torch.float64), padding(3, LONG) if masked else None
    expected = plain(block, x, mask).detach()
    assert not calls
    with torch.no_grad():
        torch.testing.assert_close(block(x, mask), expected, atol=1e-12, rtol=1e-12)
    assert calls


@pytest.mark.parametrize("options", [{"num_key_value_heads": 1}, {"bias": False}])
def test_fewer_heads_of_keys_and_no_biases(options, calls):
    block = made(rank=2, **options)
    x, mask = torch.randn(3, LONG, d, dtype=torch.float64), padding(3, LONG)
    expected = block(x, mask).detach()  # with gradients nothing is folded
    assert not calls
    with torch.no_grad():
        torch.testing.assert_close(block(x, mask), expected, atol=1e-12, rtol=1e-12)
    assert calls


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_any_content_changes_no_text_and_a_text_may_be_empty(side, calls):
    block = made(rank=2)
    x, mask = torch.randn(3, LONG, d, dtype=torch.float64), padding(3, LONG)
    mask[2] = False
    mask = mask.flip(1) if side == "left" else mask
    with torch.no_grad():
        zeros, others = (block(x.masked_fill(~mask[..., None], value), mask) for value in (0.0, torch.nan))
        torch.testing.assert_close(others[mask], zeros[mask], atol=0, rtol=0)
        torch.testing.assert_close(block(x, mask)[2], plain(block, x, mask)[2], atol=1e-12, rtol=1e-12)
    assert calls


def test_only_where_it_is_cheaper_and_nothing_is_to_be_seen_or_turned(calls):
    x = torch.randn(1, LONG, d)

    def run(name, **options):
        calls.clear()
        block = layer(name, torch.float32, **{"max_position_embeddings": 2000} | options)
        with torch.no_grad():
            block(x)
        return len(calls)

    assert run("lrt+linformer", rank=2) == 1
    assert run("lrt+linformer", rank=15) == 0, "codes are much longer than the vectors of a head"
    assert run("linformer") == run("lrt", rank=2) == 0, "no codes, and too many keys"
    assert run("lrt+linformer", rank={"k": 2, "v": 2, "output": 2}) == 0
    assert run("lrt+linformer", rank=2, attention_options={"k": [[K, 5, 3]] * 2}) == 0, "keys hidden from some heads"
    wide = {"rank": 2, "attention_options": {"k": WIDEST // HEADS + 1}}
    assert run("lrt+linformer", **wide) == 0, "scores of a slice would leave the cache"
    block = layer("lrt+linformer", torch.float32, rank=2, max_position_embeddings=2000)
    with torch.no_grad():
        calls.clear()
        for part in (block.attention.output, block.attention.projections["q"].encoder):
            seen = []
            handle = part.register_forward_hook(lambda *_, seen=seen: seen.append(1))
            block(x)
            handle.remove()
            assert seen, "what is watched is called"
            assert not calls
