"""Several sequences of the decoder for each memory are as so many memories, for every mechanism of cross-attention."""

import pytest
import torch
from networks import RANK, config, d, padding, stir
from text_networks import DECODER_LAYERS, SPECIAL, pair, tokens
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from greenformers.attention import Shape, attention_class, build, names
from greenformers.model.attention import CrossAttention
from greenformers.model.decoder_layer import DecoderLayer

B, W, N, M = 2, 3, 5, 11
CLOSE = {"atol": 1e-11, "rtol": 1e-10}


def has_cross_form(name):
    if attention_class(name).mixes_queries:
        return False
    try:
        return build(name, Shape(1, 2, 3, cross=True)).projections == ("q", "k", "v")
    except ValueError:
        return False


CROSS = [name for name in names() if has_cross_form(name)]
APART = [name for name in CROSS if attention_class(name).queries_apart]
VARIANTS = {
    **{name: (name, None) for name in CROSS},
    "linformer of 7": ("linformer", {"k": 7}),
    "linformer, no sharing": ("linformer", {"k": 7, "sharing": "none"}),
    "linformer, one matrix": ("linformer", {"k": 7, "sharing": "key_value"}),
    **{f"linformer, {kind}": ("linformer", {"k": 7, "projection": kind}) for kind in ("mean", "max", "convolution")},
    "linear_transformer, exp": ("linear_transformer", {"feature_map": "exp"}),
    "linear_transformer in chunks": ("linear_transformer", {"chunk": 2}),
    "performer, hyperbolic": ("performer", {"kernel": "hyperbolic"}),
    "performer, relu": ("performer", {"kernel": "relu", "chunk": 3}),
}
each_variant = pytest.mark.parametrize("name", VARIANTS)
masked = pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])


def settings(name, **options):
    mechanism, given = VARIANTS[name]
    slots = {"cross_attention": mechanism, "cross_attention_options": given}
    return config(decoder_layers=DECODER_LAYERS, **SPECIAL | slots | options)


def cross(name, **options):
    return stir(CrossAttention(settings(name, **options), 1).double()).eval()


def inputs(masked, length=N):
    x = torch.randn(B * W, length, d, dtype=torch.float64)
    memory = torch.randn(B, M, d, dtype=torch.float64)
    return x, memory, padding(B, M) if masked else None


def repeated(x):
    return None if x is None else x.repeat_interleave(W, 0)


def test_mechanisms_of_both_kinds():
    assert set(CROSS) == {"dacs", "full", "linear_transformer", "linformer", "performer"}
    assert CROSS == APART


@masked
@pytest.mark.parametrize("length", [1, M])
@each_variant
def test_rows_are_as_so_many_memories(name, length, masked):
    block = cross(name)
    x, memory, mask = inputs(masked, length)
    expected = block.mix(x, repeated(memory), repeated(mask))
    out = block.mix(x, memory, mask)
    assert out.shape == x.shape
    torch.testing.assert_close(out, expected, **CLOSE)
    alone = [block.mix(x[row : row + 1], memory[row // W, None], None if mask is None else mask[row // W, None])
             for row in range(B * W)]  # fmt: skip
    torch.testing.assert_close(out, torch.cat(alone), **CLOSE)


@masked
@each_variant
def test_gradients_of_rows(name, masked):
    block = cross(name, rank=RANK)
    x, memory, mask = inputs(masked)
    leaves = [x.requires_grad_(), memory.requires_grad_(), *block.parameters()]
    g = torch.randn(B * W, N, d, dtype=torch.float64)
    grads = torch.autograd.grad(block.mix(x, memory, mask), leaves, g, allow_unused=True)
    plain = block.mix(x, repeated(memory), repeated(mask))
    expected = torch.autograd.grad(plain, leaves, g, allow_unused=True)
    for grad, expected_grad in zip(grads, expected, strict=True):
        assert (grad is None) == (expected_grad is None)
        if grad is not None:
            torch.testing.assert_close(grad, expected_grad, **CLOSE)


@masked
@each_variant
@torch.no_grad()
def test_rows_with_a_cache(name, masked):
    """Of a whole layer: what the cache keeps of the memory is there once where queries are apart."""
    layer = stir(DecoderLayer(settings(name), 0).double()).eval()
    x, memory, mask = inputs(masked)
    ours, theirs = (EncoderDecoderCache(DynamicCache(), DynamicCache()) for _ in range(2))
    for piece in x.split([2, 1, 1, 1], 1):
        out = layer(piece, memory, None, mask, past_key_values=ours)
        expected = layer(piece, repeated(memory), None, repeated(mask), past_key_values=theirs)
        torch.testing.assert_close(out, expected, **CLOSE)
    keys = ours.cross_attention_cache.layers[0].keys
    assert keys.shape[0] == (B if VARIANTS[name][0] in APART else B * W)
    torch.testing.assert_close(repeated(keys) if len(keys) == B else keys, theirs.cross_attention_cache.layers[0].keys)


@pytest.mark.parametrize("name", CROSS)
def test_rows_of_a_whole_decoder(name):
    mechanism, given = VARIANTS[name]
    decoder = pair(cross_attention=mechanism, cross_attention_options=given).decoder
    _, memory, mask = inputs(True)
    ids, ids_mask = tokens(B * W, N), padding(B * W, N)
    out = decoder(ids, ids_mask, memory, mask).last_hidden_state
    expected = decoder(ids, ids_mask, repeated(memory), repeated(mask)).last_hidden_state
    torch.testing.assert_close(out, expected, **CLOSE)


@masked
@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name][0] in APART])
def test_queries_are_apart(name, masked):
    """What one query gets is changed by itself alone, at N = M too."""
    block = cross(name)
    for length in (N, M):
        x, memory, mask = inputs(masked, length)
        # Of one projected key every query gets the same.
        mask = torch.arange(M) < torch.tensor([[M], [7]]) if masked else None
        for row, place in ((0, 0), (W, 2), (B * W - 1, length - 1)):
            other = x.clone()
            other[row, place] = 1e3 * torch.randn(d, dtype=torch.float64)
            changed = (block.mix(other, memory, mask) - block.mix(x, memory, mask)).abs().amax(2) > 1e-11
            assert changed.nonzero().tolist() == [[row, place]]


def test_nystromformer_is_refused():
    """Its queries depend on one another, also on later ones."""
    given = {"cross_attention": "nystromformer", "cross_attention_options": {"landmarks": 2}}
    with pytest.raises(ValueError, match="cross_attention of a decoder cannot be Nystromformer"):
        CrossAttention(config(decoder_layers=DECODER_LAYERS, **SPECIAL | given), 1)


@pytest.mark.parametrize("name", ["full", "linear_transformer", "linformer of 7", "performer"])
def test_the_memorys_padding_hides_no_query(name):
    """Where there are as many queries as keys, the mask is still the keys'."""
    block = cross(name)
    x, memory, _ = inputs(False, M)
    mask = padding(B, M).flip(0)
    memory = torch.cat([memory, torch.randn(B, 1, d, dtype=torch.float64)], 1)
    expected = block.mix(x, memory, torch.cat([mask, torch.zeros(B, 1, dtype=torch.bool)], 1))
    torch.testing.assert_close(block.mix(x, memory[:, :M], mask), expected, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CROSS)
def test_types(name, dtype):
    block = cross(name).to(dtype)
    x, memory, mask = inputs(True)
    out = block.mix(x.to(dtype), memory.to(dtype), mask)
    assert out.dtype == dtype
    expected = block.mix(x.to(dtype), repeated(memory).to(dtype), repeated(mask))
    tolerance = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(out, expected, **tolerance)
