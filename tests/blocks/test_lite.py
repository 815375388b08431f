"""Lite Transformer against the papers' formulas, and its convolution position by position."""

import pytest
import torch
import torch.nn.functional as F
from beartype import beartype
from jaxtyping import jaxtyped
from loops import EXACT, attention, check, draw, each, feed_forward, holes, linear, make, norm, window
from transformers import DynamicCache

from greenformers.blocks._convolution import Dynamic, in_tiles
from greenformers.lowrank.linear import LED
from greenformers.measure.flops import flops
from greenformers.measure.parameters import parameters
from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.model.cache import Past


def weights_of(convolution, row):
    """Those of the position, (h, K)."""
    if isinstance(convolution, Dynamic):
        scores = (convolution.of_position.weight @ row).view(convolution.heads, convolution.kernel)
    else:
        scores = convolution.weight
    return scores.exp() / scores.exp().sum(1, keepdim=True)


def mixed(convolution, rows):
    """Position by position: sum_k w_k x_{i + k}, with the weights of position i."""
    width, out = convolution.channels // convolution.heads, []
    zero = torch.zeros(convolution.channels, dtype=torch.float64)
    for i, row in enumerate(rows):
        if row is None:
            out.append(None)
            continue
        read, weights = window(rows, i, convolution.kernel, convolution.causal, zero), weights_of(convolution, row)
        channels = [
            sum(weights[c // width, k] * part[c] for k, part in enumerate(read)) for c in range(convolution.channels)
        ]
        out.append(torch.stack(channels))
    return out


def gated(branch, row):
    value = linear(branch.v, row)
    if not branch.gated:
        return value
    value, gate = value.chunk(2)
    return value / (1 + torch.exp(-gate))


def oracle(block, rows, source=None):
    half = block.size.width // 2
    far = attention(block.attention, each(lambda row: row[:half], rows), causal=block.size.causal)
    near = each(lambda row: gated(block.branch, row[half:]), rows)
    near = each(lambda row: linear(block.branch.output, row), mixed(block.branch.convolution, near))
    rows = each(lambda x, a, b: norm(block.attention_norm, x + torch.cat([a, b])), rows, far, near)
    if source is not None:
        read = attention(block.cross_attention, rows, source)
        rows = each(lambda x, y: norm(block.cross_attention_norm, x + y), rows, read)
    return each(lambda x: norm(block.feed_forward_norm, x + feed_forward(block.feed_forward, x, F.gelu)), rows)


@pytest.mark.parametrize("lightweight", [False, True], ids=["dynamic", "lightweight"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("length", [1, 4, 11])
def test_outputs_and_gradients_are_those_of_the_formulas(length, causal, masked, lightweight):
    """Also of texts of one position, and of fewer than the kernel has."""
    block = make("lite", causal=causal, kernels=[5], conv_heads=3, lightweight=lightweight)
    check(block, oracle, draw(length), holes(length) if masked else None)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_the_layer_of_a_decoder(masked):
    block = make("lite", 1, decoder=True, kernels=[3, 4])
    check(block, oracle, draw(6), holes(6) if masked else None, (draw(5, seed=2), holes(5)))


@pytest.mark.parametrize(
    ("n", "K", "tile"), [(1, 3, 32), (2, 7, 32), (31, 3, 8), (33, 31, 32), (64, 5, 32), (37, 1, 4)]
)
def test_tiles_are_the_sum_over_the_kernel(n, K, tile):
    weights, x = torch.randn(2, n, 3, K, dtype=torch.float64), torch.randn(2, n + K - 1, 3, 5, dtype=torch.float64)
    expected = sum(weights[..., k, None] * x[:, k : k + n] for k in range(K))
    torch.testing.assert_close(in_tiles(weights, x, tile), expected, **EXACT)


def test_kernels_are_those_of_the_paper_by_layer():
    deep = {"num_hidden_layers": 8}
    kernels = [make("lite", layer, given=deep).branch.convolution.kernel for layer in range(8)]
    assert kernels == [3, 7, 15, 31, 31, 31, 31, 31]


def test_a_kernel_reaches_its_positions_and_no_others():
    """With the attention silent; in the middle layer of three, 7 positions."""
    for causal in (False, True):
        block = make("lite", 1, causal=causal)
        for parameter in block.attention.output.parameters():
            torch.nn.init.zeros_(parameter)
        seen = torch.autograd.functional.jacobian(lambda x, block=block: block(x)[0].sum(-1), draw(20, 1))
        for i, row in enumerate(seen[0, :, 0].any(-1)):
            first, last = (i - 6, i) if causal else (i - 3, i + 3)
            assert row.nonzero().flatten().tolist() == [j for j in range(20) if first <= j <= last]


def test_padding_is_zeroed_behind_the_linear_layer():
    """Zeroed before it, as in the authors' code, its bias makes the padding something that texts near it read."""
    block, x = make("lite", kernels=[7]), draw(9)
    alone = block(x)[0]
    mask = F.pad(torch.ones(3, 9, dtype=torch.bool), (4, 5))
    longer = F.pad(x, (0, 0, 4, 5))
    torch.testing.assert_close(block(longer, mask)[0][:, 4:13], alone, **EXACT)
    branch, near = block.branch, longer.chunk(2, -1)[1]
    leaking = branch.output(branch.convolution(F.glu(branch.v(near))))
    assert (leaking[:, 4:13] - branch(near, mask, None)[:, 4:13]).abs().max() > 0.1


def test_weights_are_dropped_in_training_alone():
    block, x = make("lite", weight_dropout=0.5), draw(11)
    torch.manual_seed(0)
    assert not torch.equal(block.train()(x)[0], block(x)[0])
    assert torch.equal(block.eval()(x)[0], make("lite").eval()(x)[0])


def test_flops_are_those_of_the_paper():
    """With f = d: 2 d^2 + 2 N d, 1.5 d^2 + d h K + d K, 4 d^2; d K as d (K + T - 1), in tiles of T = 32."""
    d, h, N, K = 64, 4, 96, 7
    given = {"hidden_size": d, "num_attention_heads": h, "intermediate_size": d}
    block = make("lite", 1, given=given).float()
    x = torch.randn(2, N, d)
    expected = 2 * d**2 + 2 * N * d + 1.5 * d**2 + d * h * K + d * (K + 31) + 4 * d**2
    assert flops(lambda: block(x)) == 2 * N * expected
    block = make("lite", 1, given=given, lightweight=True)
    ungated = 2 * d**2 + 2 * N * d + d**2 + d * K + 4 * d**2
    assert flops(lambda: block.float()(x)) == 2 * N * ungated
    standard = 24 * d**2 + 4 * N * d
    assert expected < 0.45 * standard


def test_growth_is_that_of_attention_alone():
    block = make("lite").float()
    first, second, third, fourth = (flops(lambda n=n: block(torch.randn(2, n, 12))) for n in (64, 128, 192, 256))
    assert (third - second) - (second - first) == (fourth - third) - (third - second) == 2 * (2 * 12 * 64**2 * 2)


def test_low_rank():
    block = make("lite", given={"rank": 3})
    low = {path for path, module in block.named_modules() if isinstance(module, LED)}
    assert low == {
        *(f"attention.projections.{name}" for name in "qkv"), "attention.output", "branch.v", "branch.output",
        "feed_forward.up", "feed_forward.down",
    }  # fmt: skip
    assert parameters(block) < parameters(make("lite"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kernels": []}, r"kernels must have at least one entry, got \[\]"),
        ({"kernels": [0]}, "a kernel must have at least 1 position, got 0"),
        ({"kernels": [4]}, "a kernel must be odd where it reads both sides of a position, got 4"),
        ({"conv_heads": 4}, "conv_heads must divide the 6 channels of the convolution, got 4"),
        ({"conv_heads": 0}, "conv_heads must divide the 6 channels of the convolution, got 0"),
        ({"weight_dropout": 1.0}, r"weight_dropout must be in \[0, 1\), got 1.0"),
        ({"given": {"hidden_size": 14}}, "2 x 2 heads must divide 14"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make("lite", **options)


def test_shapes_in_signatures():
    block, x = make("lite", decoder=True), draw(7)
    forward = jaxtyped(typechecker=beartype)(type(block).forward)
    forward(block, x, holes(7), encoder_output=draw(5), encoder_mask=holes(5), past=None)
    convolution = block.branch.convolution
    jaxtyped(typechecker=beartype)(type(convolution).forward)(convolution, draw(7, width=6), None)


def test_the_state_of_a_convolution_is_its_last_inputs():
    cache, x = DynamicCache(), draw(9)
    past = Past(cache)
    pieces = [past.recent(0, x[:, start:end], 4) for start, end in ((0, 2), (2, 3), (3, 9))]
    whole = F.pad(x, (0, 0, 4, 0))
    for piece, (start, end) in zip(pieces, ((0, 2), (2, 3), (3, 9)), strict=True):
        assert torch.equal(piece, whole[:, start : end + 4])
    assert torch.equal(cache.layers[0].state.inputs, x[:, 5:])
    assert cache.get_seq_length() == 9
    cache.crop(-6)
    assert torch.equal(cache.layers[0].state.inputs, whole[:, 3:7])
    assert torch.equal(past.recent(0, x[:, 3:5], 4), whole[:, 3:9])
    assert past.recent(1, x, 0).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_near(dtype):
    block, x, mask = make("lite"), draw(11), holes(11)
    exact = block(x, mask)[0]
    out = block.to(dtype)(x.to(dtype), mask)[0]
    assert out.dtype == dtype
    assert (out.double() - exact)[mask].abs().max() < (0.2 if dtype == torch.bfloat16 else 1e-5)


def test_a_text_without_kept_positions_is_finite():
    block, x = make("lite"), draw(9).requires_grad_()
    mask = holes(9)
    mask[1] = False
    out = block(x, mask)[0]
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_experts_in_a_causal_block_are_causal() -> None:
    torch.manual_seed(0)
    options = {"experts": 4, "balance": 0.0, "z": 0.0}
    config = GreenformerConfig(
        vocab_size=20, hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=2,
        max_position_embeddings=16, block="lite", feed_forward="switch", feed_forward_options=options,
    )  # fmt: skip
    model = GreenformerForCausalLM(config).eval()
    ids = torch.randint(1, 20, (2, 12))
    other = torch.cat([ids[:, :7], ids[:, 7:].flip(1)], 1)
    # Products of other numbers of rows round differently.
    torch.testing.assert_close(model(ids).logits[:, :7], model(other).logits[:, :7])
    whole = model(ids).logits[:, -1]
    past = model(ids[:, :-1], use_cache=True).past_key_values
    torch.testing.assert_close(model(ids[:, -1:], past_key_values=past).logits[:, -1], whole)
    config.feed_forward_options = options | {"capacity": 1.0}
    bounded = GreenformerForCausalLM(config).eval()
    assert not bounded.generation_config.use_cache
    with pytest.raises(ValueError, match="keeps no cache: use_cache must be False"):
        bounded(ids, use_cache=True)
