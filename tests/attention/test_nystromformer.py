"""What is Nystromformer's own: its limit, its landmarks, its inverse, its options; and the peers."""

import pytest
import torch
from cases import draw, holes, unmasked
from torch import nn

from greenformers.attention import Shape, build

SHAPE = Shape(heads=3, head_dim=5, max_len=13)
ONE = Shape(heads=1, head_dim=8, max_len=12)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# of float32, eps times 530, the condition of A: what rounding gains in the inverse
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 6e-5), (torch.float64, 1e-8)])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_with_a_landmark_for_each_position_it_is_full_attention(dtype, tolerance, masked):
    q, k, v = draw(11, 11, dtype=dtype, seed=7)
    mask = holes(11) if masked else None
    module = build("nystromformer", SHAPE, landmarks=11, iterations=20)
    out, expected = (unmasked(each(q, k, v, mask), mask) for each in (module, build("full", SHAPE)))
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


def test_landmarks_without_a_kept_position_are_left_out():
    q, k, v = draw(12, 12)
    mask = torch.arange(12).sub(5.5).abs() > 3  # the two in the middle of four segments are masked
    out = build("nystromformer", SHAPE, landmarks=4)(q, k, v, mask.expand(2, -1))[:, :, mask]
    others = build("nystromformer", SHAPE, landmarks=2)(*(x[:, :, mask] for x in (q, k, v)))
    torch.testing.assert_close(out, others, rtol=1e-12, atol=1e-12)


def test_landmarks_are_64_unless_the_sequence_is_shorter():
    assert [build("nystromformer", Shape(3, 5, length)).landmarks for length in (63, 64, 65)] == [63, 64, 64]


def test_a_convolution_keeps_the_variance():
    torch.manual_seed(0)
    kernel = build("nystromformer", Shape(64, 5, 13), convolution=9).kernel
    assert kernel.square().sum(1).mean().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"landmarks": 0}, r"landmarks must be in 1\.\.13 \(the longest sequence\), got 0"),
        ({"landmarks": 14}, r"landmarks must be in 1\.\.13 \(the longest sequence\), got 14"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"convolution": 2}, "convolution must be odd and at least 1, got 2"),
        ({"convolution": -1}, "convolution must be odd and at least 1, got -1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build("nystromformer", SHAPE, **options)


def test_a_convolution_needs_a_value_for_every_query():
    with pytest.raises(ValueError, match="convolution needs a value for every query, got 11 and 7"):
        build("nystromformer", SHAPE, convolution=3)(*draw(7, 11, dtype=torch.float32))


@pytest.fixture
def peer():
    """nystrom-attention with four landmarks, and what makes q, k and v as it does and ends as it does."""
    package = pytest.importorskip("nystrom_attention")
    torch.manual_seed(0)
    return package.NystromAttention(dim=8, dim_head=8, heads=1, num_landmarks=4, residual_conv_kernel=3)


def ours_for(peer, x, mask=None):
    """The output of our mechanism between the peer's projections."""
    module = build("nystromformer", ONE, landmarks=4, convolution=3)
    with torch.no_grad():
        module.kernel.copy_(peer.res_conv.weight.view(1, 3))
    q, k, v = (each[:, None] for each in peer.to_qkv(x).chunk(3, -1))
    return peer.to_out(module(q, k, v, mask)[:, 0])


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_equals_nystrom_attention_for_one_head_of_one_example(peer, masked):
    x = 2 * torch.randn(1, 12, 8)
    mask = torch.arange(12)[None] % 4 != 1 if masked else None  # every segment keeps some
    out, expected = ours_for(peer, x, mask), peer(x, mask=mask)
    torch.testing.assert_close(*(each if mask is None else each[mask] for each in (out, expected)), **CLOSE)


def test_an_example_gets_what_it_gets_alone_and_the_peer_gives_it_something_else(peer):
    x = torch.tensor([1.0, 8.0])[:, None, None] * torch.randn(2, 12, 8)
    torch.testing.assert_close(ours_for(peer, x)[:1], ours_for(peer, x[:1]), rtol=1e-6, atol=1e-6)
    assert (peer(x)[:1] - peer(x[:1])).abs().max() > 1e-3


def test_equals_the_one_of_transformers():
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    torch.manual_seed(0)
    config = NystromformerConfig(
        hidden_size=15,
        num_attention_heads=3,
        num_landmarks=4,
        segment_means_seq_len=12,
        conv_kernel_size=3,
        attention_probs_dropout_prob=0.0,
    )
    peer = NystromformerSelfAttention(config)
    peer.init_option = "exact"  # per matrix; the configuration's own way to ask for it fails
    for projection in (peer.query, peer.key):
        nn.init.normal_(projection.weight, std=0.5)
    module = build("nystromformer", SHAPE, landmarks=4, convolution=3)
    with torch.no_grad():
        module.kernel.copy_(peer.conv.weight.view(3, 3))
    x = torch.randn(2, 12, 15)
    q, k, v = (each(x).unflatten(2, (3, 5)).transpose(1, 2) for each in (peer.query, peer.key, peer.value))
    torch.testing.assert_close(module(q, k, v).transpose(1, 2).flatten(2), peer(x)[0], **CLOSE)


def test_a_mask_of_queries_alone_is_obeyed():
    module = build("nystromformer", Shape(2, 5, 13), landmarks=5).double()
    q, k, v = torch.randn(3, 1, 2, 13, 5, dtype=torch.float64).unbind()
    mask = torch.ones(1, 13, dtype=torch.bool)
    mask[:, 3] = False
    other = q.clone()
    other[:, :, 3] += 10
    given = module(q, k, v, query_mask=mask)[:, :, mask[0]]
    torch.testing.assert_close(module(other, k, v, query_mask=mask)[:, :, mask[0]], given)
    torch.testing.assert_close(module(q, k, v, torch.ones_like(mask), query_mask=mask)[:, :, mask[0]], given)
