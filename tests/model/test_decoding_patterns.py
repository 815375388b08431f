"""Patterns narrower than the text generate as they read: from kept keys, token for token."""

import pytest
import torch
from networks import padding
from text_networks import PAD, causal, left, tokens

B, N, NEW = 2, 9, 12  # to 21 of 23 positions
CLOSE = {"atol": 1e-10, "rtol": 1e-10}

PATTERNS = {
    "sliding_window": {"window": 2},
    "sliding_window, dilated": {"window": 2, "dilation": (1, 3, 2)},
    "cascade": {"base": 2},
    "local_blocks": {"block": 4},
    "sparse_strided": {"stride": 4},
    "sparse_fixed": {"stride": 4, "summary": 1},
}

each_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def network_of(pattern):
    return causal(attention=pattern.partition(",")[0], attention_options=PATTERNS[pattern])


def generated(network, ids, mask, **options):
    return network.generate(
        ids, attention_mask=mask, max_new_tokens=NEW, pad_token_id=PAD, eos_token_id=None, do_sample=False,
        output_logits=True, return_dict_in_generate=True, **options,
    )  # fmt: skip


@each_pattern
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_generation_with_and_without_kept_keys_is_the_same(pattern, padded):
    network, ids = network_of(pattern), tokens(B, N)
    mask = left(padding(B, N)).long() if padded else torch.ones(B, N, dtype=torch.long)
    cached, plain = (generated(network, ids, mask, use_cache=cache) for cache in (True, False))
    assert torch.equal(cached.sequences, plain.sequences)
    torch.testing.assert_close(cached.logits, plain.logits, **CLOSE)


@each_pattern
def test_beams_with_and_without_kept_keys_are_the_same(pattern):
    network, ids = network_of(pattern), tokens(B, N)
    mask = torch.ones_like(ids)
    cached, plain = (generated(network, ids, mask, use_cache=cache, num_beams=3) for cache in (True, False))
    assert torch.equal(cached.sequences, plain.sequences)


@each_pattern
@pytest.mark.parametrize("steps", [(9, 1, 1, 1, 5), (1, 16), (4, 4, 4, 5), (13, 4)], ids=str)
@torch.no_grad()
def test_logits_piece_by_piece_are_those_of_the_whole_text(pattern, steps):
    network, ids = network_of(pattern), tokens(B, 17)
    past, logits = None, []
    for piece in ids.split(steps, 1):
        out = network(piece, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1), network(ids).logits, **CLOSE)


@each_pattern
@torch.no_grad()
def test_a_pattern_leaves_something_out(pattern):
    network, ids = network_of(pattern), tokens(B, N)
    assert not torch.equal(network(ids).logits, network_of_full_like(network)(ids).logits)


def network_of_full_like(network):
    """The same weights with full attention."""
    full = causal(attention="full")
    full.load_state_dict(network.state_dict())
    return full
