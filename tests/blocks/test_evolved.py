"""The Evolved Transformer's cells against the paper, step by step."""

import pytest
import torch
import torch.nn.functional as F
from beartype import beartype
from jaxtyping import jaxtyped
from loops import (
    EXACT,
    attention,
    check,
    convolution,
    draw,
    each,
    feed_forward,
    holes,
    linear,
    make,
    norm,
    padded,
    separable,
)

from greenformers.lowrank.linear import LED
from greenformers.measure.flops import flops
from greenformers.measure.parameters import parameters


def relu(row):
    return row.clamp(min=0)


def swish(row):
    return row / (1 + torch.exp(-row))


def added(rows, more):
    return each(lambda x, y: x + y, rows, more)


def encoder_cell(block, rows):
    d = block.size.width
    first, step = block.first, block.convolutions
    y = each(lambda x: norm(block.first_norm, x), rows)
    rows = added(rows, each(lambda y: linear(first.value, y) / (1 + torch.exp(-linear(first.gate, y))), y))
    y = each(lambda x: norm(block.convolutions_norm, x), rows)
    left = each(lambda y: relu(linear(step.left, y)), y)
    right = each(lambda y: padded(relu(y), 4 * d), convolution(step.right, y))
    joined = each(lambda a, b: norm(step.norm, a + b), left, right)
    rows = added(rows, each(lambda y: padded(y, d), separable(step.last, joined)))
    y = each(lambda x: norm(block.attention_norm, x), rows)
    rows = added(rows, attention(block.attention, y))
    y = each(lambda x: norm(block.feed_forward_norm, x), rows)
    return added(rows, each(lambda y: feed_forward(block.feed_forward, y, relu), y))


def decoder_cell(block, rows, source=None):
    d = block.size.width
    first, step = block.first, block.convolutions
    y = each(lambda x: norm(block.first_norm, x), rows)
    rows = added(rows, attention(first.attention, y, causal=True))
    if source is not None:
        rows = added(rows, attention(first.cross_attention, y, source))
    y = each(lambda x: norm(block.convolutions_norm, x), rows)
    left, right = separable(step.left, y), separable(step.right, y)
    joined = each(lambda a, b: norm(step.norm, relu(a) + padded(b, 2 * d)), left, right)
    rows = added(rows, separable(step.last, joined))
    y = each(lambda x: norm(block.attention_norm, x), rows)
    rows = added(rows, attention(block.attention, y, causal=True))
    if source is not None:
        y = each(lambda x: norm(block.cross_attention_norm, x), rows)
        rows = added(rows, attention(block.cross_attention, y, source))
    y = each(lambda x: norm(block.feed_forward_norm, x), rows)
    return added(rows, each(lambda y: feed_forward(block.feed_forward, y, swish), y))


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("length", [1, 6, 13])
def test_the_encoder_cell(length, masked):
    check(make("evolved"), encoder_cell, draw(length), holes(length) if masked else None)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("length", [1, 6, 13])
def test_the_decoder_cell(length, masked):
    block = make("evolved", decoder=True)
    check(block, decoder_cell, draw(length), holes(length) if masked else None, (draw(5, seed=2), holes(5)))


def test_the_decoder_cell_without_an_encoder():
    check(make("evolved", causal=True), decoder_cell, draw(9), holes(9))


def test_other_kernels():
    check(make("evolved", encoder_kernels=[1, 5]), encoder_cell, draw(7))
    check(make("evolved", causal=True, decoder_kernels=[2, 5, 1]), decoder_cell, draw(7))


def test_kernels_reach_their_positions_and_no_others():
    """Step 2 alone: 1 + 4 on either side in the encoder cell; 10 and 6 before, each then 6, in the decoder cell."""
    y = draw(30, 1)
    for causal, first, last in ((False, 5, 5), (True, 16, 0)):
        step = make("evolved", causal=causal).convolutions
        seen = torch.autograd.functional.jacobian(lambda y, step=step: step(y, None, None).sum(-1), y)[0, :, 0].any(-1)
        for i, row in enumerate(seen):
            assert row.nonzero().flatten().tolist() == [j for j in range(30) if i - first <= j <= i + last]


def test_padding_is_zeroed_before_every_convolution():
    """Norms make something of zeros: their biases would be read by texts near the padding."""
    for causal in (False, True):
        block, x = make("evolved", causal=causal), draw(9)
        mask = F.pad(torch.ones(3, 9, dtype=torch.bool), (4, 5))
        out = block(F.pad(x, (0, 0, 4, 5)), mask)[0][:, 4:13]
        torch.testing.assert_close(out, block(x)[0], **EXACT)
        y = F.pad(x, (0, 0, 4, 5))
        leaking = block.convolutions(y, None, None)[:, 4:13]
        assert (leaking - block.convolutions(y, mask, None)[:, 4:13]).abs().max() > 0.1


def test_the_heads_of_the_first_attention():
    def heads(d, H):
        given = {"hidden_size": d, "num_attention_heads": H}
        block = make("evolved", causal=True, given=given)
        return [part.mechanism.shape.heads for part in (block.first.attention, block.attention)]

    assert heads(12, 2) == [4, 2]
    assert heads(48, 8) == [16, 8]
    assert heads(48, 12) == [16, 12]
    with pytest.raises(ValueError, match="heads of a block's attention must divide its width 12, got 8"):
        heads(12, 4)


def test_weights_are_as_many_as_in_the_paper():
    """21.5 d^2 and 28.5 d^2, without biases, norms and the few weights of depthwise convolutions; f = 4 d."""
    d = 96

    def matrices(**kind):
        block = make("evolved", given={"hidden_size": d, "intermediate_size": 4 * d, "num_attention_heads": 4}, **kind)
        rest = sum(p.numel() for name, p in block.named_parameters() if p.dim() < 2 or "depthwise" in name)
        return parameters(block) - rest

    assert matrices() == 21.5 * d**2
    assert matrices(decoder=True) == 28.5 * d**2


def test_flops_are_two_a_weight_and_position():
    d, N = 32, 24
    given = {"hidden_size": d, "intermediate_size": 4 * d, "num_attention_heads": 4}
    block, x = make("evolved", given=given).float(), torch.randn(2, N, d)
    assert flops(lambda: block(x)) == 2 * N * (43 * d**2 + 4 * N * d + 2 * 9 * 4 * d)
    block = make("evolved", given=given, decoder=True).float()
    source = torch.randn(2, N, d)
    count = flops(lambda: block(x, encoder_output=source))
    assert count == 2 * N * (57 * d**2 + 16 * N * d + 2 * (11 + 7 + 2 * 7) * d)


def test_growth_is_that_of_attention_alone():
    block = make("evolved").float()
    first, second, third = (flops(lambda n=n: block(torch.randn(2, n, 12))) for n in (64, 128, 192))
    assert (third - second) - (second - first) == 2 * (4 * 12 * 64**2 * 2)


def test_the_network_may_choose_the_activation():
    kinds = [type(make("evolved", causal=causal).feed_forward.activation).__name__ for causal in (False, True)]
    assert kinds == ["ReLU", "SiLUActivation"]
    chosen = [make("evolved", causal=causal, given={"hidden_act": "gelu"}) for causal in (False, True)]
    assert {type(block.feed_forward.activation).__name__ for block in chosen} == {"GELUActivation"}


def test_low_rank():
    low = {path for path, module in make("evolved", given={"rank": 3}).named_modules() if isinstance(module, LED)}
    assert {"first.value", "first.gate", "convolutions.left", "convolutions.last.pointwise", "attention.output"} <= low
    low = make("evolved", decoder=True, given={"rank": {"down": 3, "cross_q": 2}})
    assert {path for path, module in low.named_modules() if isinstance(module, LED)} == {
        "convolutions.left.pointwise", "convolutions.right.pointwise", "convolutions.last.pointwise",
        "first.cross_attention.projections.q", "cross_attention.projections.q", "feed_forward.down",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"encoder_kernels": [3]}, r"encoder_kernels must be 2 numbers, got \[3\]"),
        ({"decoder_kernels": [3, 3]}, r"decoder_kernels must be 3 numbers, got \[3, 3\]"),
        ({"encoder_kernels": [4, 9]}, "a kernel must be odd where it reads both sides of a position, got 4"),
        ({"causal": True, "decoder_kernels": [0, 7, 7]}, "a kernel must have at least 1 position, got 0"),
        ({"given": {"hidden_size": 15, "num_attention_heads": 3}}, "must be even, got 15"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make("evolved", **options)


def test_shapes_in_signatures():
    block = make("evolved", decoder=True)
    forward = jaxtyped(typechecker=beartype)(type(block).forward)
    forward(block, draw(7), holes(7), encoder_output=draw(5), encoder_mask=holes(5), past=None)
    step = make("evolved").convolutions.right
    jaxtyped(typechecker=beartype)(type(step).forward)(step, draw(7), None)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_near(dtype, causal):
    block, x, mask = make("evolved", causal=causal), draw(11), holes(11)
    exact = block(x, mask)[0]
    out = block.to(dtype)(x.to(dtype), mask)[0]
    assert out.dtype == dtype
    far = (out.double() - exact)[mask].abs().max() / exact[mask].abs().max()
    assert far < (0.05 if dtype == torch.bfloat16 else 1e-6)
