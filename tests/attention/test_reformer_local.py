"""`local_blocks` beside the local attention of transformers' Reformer, with its projections."""

import pytest
import torch
from torch import nn

from greenformers.attention import Shape, build

HEADS, DIM, CHUNK = 3, 5, 4


def peer_and_ours(causal):
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LocalSelfAttention

    torch.manual_seed(0)
    config = ReformerConfig(
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        attention_head_size=DIM,
        local_attn_chunk_length=CHUNK,
        local_num_chunks_before=1,
        local_num_chunks_after=0,
        local_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
    )
    peer = LocalSelfAttention(config).eval()
    for projection in (peer.query, peer.key, peer.value):
        nn.init.normal_(projection.weight, std=0.5)
    module = build("local_blocks", Shape(HEADS, DIM, 24, causal=causal), block=CHUNK).eval()

    def ours(x, mask):
        split = (each(x).unflatten(2, (HEADS, DIM)).transpose(1, 2) for each in (peer.query, peer.key, peer.value))
        return module(*split, mask).transpose(1, 2).flatten(2)

    return peer, ours


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("length", [4, 24])
def test_equals_the_one_of_transformers(length, masked, causal):
    peer, ours = peer_and_ours(causal)
    x = torch.randn(2, length, HEADS * DIM)
    mask = torch.arange(length).expand(2, -1) % 7 != 3 if masked else None
    out, expected = ours(x, mask), peer(x, attention_mask=mask).hidden_states
    # In both directions its first chunk looks back to the last one.
    first = CHUNK if length > CHUNK and not causal else 0
    rows = torch.ones(2, length, dtype=torch.bool) if mask is None else mask.clone()
    rows[:, :first] = False
    torch.testing.assert_close(out[rows], expected[rows], rtol=1e-5, atol=1e-5)
    if first:
        assert (out - expected)[:, :first].abs().max() > 1e-3
