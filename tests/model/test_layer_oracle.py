"""The layer against other people's code, and low-rank layers against the dense layers they stand for."""

import pytest
import torch
from networks import HEADS, d, f, layer, padding
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from greenformers.lowrank.linear import LED

MAX_LEN = 601
SIZES = [(1, 1), (5, 13), (3, 101), (2, 257), (1, 601)]


def bert(block, activation="gelu", dtype=torch.float32):
    """transformers' BERT layer with the weights of `block`."""
    oracle = BertLayer(
        BertConfig(
            hidden_size=d,
            num_attention_heads=HEADS,
            intermediate_size=f,
            hidden_act=activation,
            attn_implementation="sdpa",
        )
    )
    pairs = [
        (oracle.attention.self.query, block.attention.projections["q"]),
        (oracle.attention.self.key, block.attention.projections["k"]),
        (oracle.attention.self.value, block.attention.projections["v"]),
        (oracle.attention.output.dense, block.attention.output),
        (oracle.attention.output.LayerNorm, block.attention_norm),
        (oracle.intermediate.dense, block.feed_forward.up),
        (oracle.output.dense, block.feed_forward.down),
        (oracle.output.LayerNorm, block.feed_forward_norm),
    ]
    copy_weights(pairs)
    assert sum(parameter.numel() for parameter in oracle.parameters()) == sum(
        target.weight.numel() + target.bias.numel() for target, _ in pairs
    )
    return oracle.to(dtype).eval()


def copy_weights(pairs):
    with torch.no_grad():
        for target, source in pairs:
            target.weight.copy_(source.weight)
            target.bias.copy_(source.bias)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("name", ["transformer", "lrt"])
def test_equals_berts_layer(name, activation, masked):
    block = layer(name, torch.float32, max_position_embeddings=MAX_LEN, hidden_act=activation)
    oracle = bert(block, activation)
    for B, N in SIZES:
        x = torch.randn(B, N, d)
        mask = padding(B, N) if masked else None
        with torch.no_grad():
            expected = oracle(x, None if mask is None else mask[:, None, None, :].expand(B, 1, N, N))
            torch.testing.assert_close(block(x, mask), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(block(x, mask).detach(), expected, atol=1e-5, rtol=1e-5)


def dense_twin(block, name):
    """The dense layer that `block`, whose linear layers are LEDs, stands for."""
    twin = layer(name, max_position_embeddings=MAX_LEN)
    state = {
        key: value
        for key, value in block.state_dict().items()
        if not key.endswith(("encoder.weight", "decoder.weight"))
    }
    state |= {f"{key}.weight": module.weight for key, module in block.named_modules() if isinstance(module, LED)}
    twin.load_state_dict(state)
    assert not any(isinstance(module, LED) for module in twin.modules())
    return twin


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("low_rank", "dense"), [("lrt", "transformer"), ("lrt+linformer", "linformer")])
def test_a_low_rank_layer_equals_the_dense_layer_of_its_weights(low_rank, dense, masked):
    block = layer(low_rank, max_position_embeddings=MAX_LEN)
    twin = dense_twin(block, dense)
    for B, N in SIZES:
        x, mask = torch.randn(B, N, d, dtype=torch.float64), padding(B, N) if masked else None
        torch.testing.assert_close(block(x, mask), twin(x, mask), atol=1e-12, rtol=1e-12)
        with torch.no_grad():
            torch.testing.assert_close(block(x, mask), twin(x, mask), atol=1e-12, rtol=1e-12)


def test_equals_torchs_pre_norm_encoder_layer():
    block = layer(residual="pre")
    oracle = nn.TransformerEncoderLayer(
        d, HEADS, f, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, layer_norm_eps=1e-12
    ).double()
    projections = block.attention.projections
    with torch.no_grad():
        oracle.self_attn.in_proj_weight.copy_(torch.cat([projections[name].weight for name in "qkv"]))
        oracle.self_attn.in_proj_bias.copy_(torch.cat([projections[name].bias for name in "qkv"]))
    copy_weights(
        [
            (oracle.self_attn.out_proj, block.attention.output),
            (oracle.linear1, block.feed_forward.up),
            (oracle.linear2, block.feed_forward.down),
            (oracle.norm1, block.attention_norm),
            (oracle.norm2, block.feed_forward_norm),
        ]
    )
    x, mask = torch.randn(5, 13, d, dtype=torch.float64), padding(5, 13)
    expected = oracle(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(block(x, mask), expected, atol=1e-12, rtol=1e-12)
