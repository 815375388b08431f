"""Independent mechanisms against a loop over them, and what the public code of the paper does otherwise."""

import math

import pytest
import torch
import torch.nn.functional as F
from beartype import beartype
from jaxtyping import jaxtyped
from loops import EXACT, attention, check, draw, each, feed_forward, holes, linear, make, norm

from greenformers.lowrank.linear import LED
from greenformers.measure.flops import flops

COUNTS = {1: {}, 2: {}, 3: {"num_attention_heads": 6}}


def build(count=2, layer=1, *, communication_heads=2, **other):
    given = COUNTS.get(count, {}) | other.pop("given", {})
    return make("independent", layer, mechanisms=count, communication_heads=communication_heads, given=given, **other)


def communicate(parts, own, vectors, heads):
    """What mechanism `own` reads from all of them at one position."""
    out = []
    q = linear(parts[own].communication["q"], vectors[own])
    for head in range(heads):
        place = slice(32 * head, 32 * head + 32)
        keys = [linear(part.communication["k"], x)[place] for part, x in zip(parts, vectors, strict=True)]
        values = [linear(part.communication["v"], x)[place] for part, x in zip(parts, vectors, strict=True)]
        weights = [torch.exp(q[place] @ key / math.sqrt(32)) for key in keys]
        out.append(sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights))
    return linear(parts[own].communication["output"], torch.cat(out))


def oracle(block, rows):
    count, m = block.count, block.size.width // block.count
    xs = [each(lambda row, s=s: row[s * m : s * m + m], rows) for s in range(count)]
    if count > 1:
        e = [each(lambda x, s=s: torch.exp(block.w[s] @ x), xs[s]) for s in range(count)]
        shares = [each(lambda *all_of, s=s: all_of[s] / sum(all_of), *e) for s in range(count)]
    else:
        shares = [[1.0] * len(rows)]
    for s, part in enumerate(block.parts):
        read = attention(part.attention, xs[s], causal=block.size.causal)
        xs[s] = each(lambda x, c, y, part=part: norm(part.attention_norm, x + c * y), xs[s], shares[s], read)
    if count > 1:
        heads = block.parts[0].communication["q"].out_features // 32
        told = [each(lambda *v, s=s: communicate(block.parts, s, v, heads), *xs) for s in range(count)]
        for s, part in enumerate(block.parts):
            xs[s] = each(lambda x, y, part=part: norm(part.communication_norm, x + y), xs[s], told[s])
    for s, part in enumerate(block.parts):
        xs[s] = each(
            lambda x, part=part: norm(part.feed_forward_norm, x + feed_forward(part.feed_forward, x, F.gelu)), xs[s]
        )
    return each(lambda *parts: torch.cat(parts), *xs)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize(("count", "length"), [(1, 5), (2, 1), (2, 7), (3, 4)])
def test_outputs_and_gradients_are_those_of_a_loop_over_mechanisms(count, length, causal, masked):
    block = build(count, causal=causal, communication_heads=3)
    check(block, oracle, draw(length), holes(length) if masked else None)


def test_permuting_mechanisms_and_weights_permutes_outputs():
    block, x = build(3), draw(7)
    other, order = build(3), [2, 0, 1]
    for place, s in enumerate(order):
        other.parts[place].load_state_dict(block.parts[s].state_dict())
        other.w.data[place] = block.w.data[s]
    permuted = torch.cat([x.chunk(3, -1)[s] for s in order], -1)
    expected = torch.cat([block(x)[0].chunk(3, -1)[s] for s in order], -1)
    torch.testing.assert_close(other(permuted)[0], expected, **EXACT)


# What the public code of the paper does otherwise.


def silenced(block, *names):
    for part in block.parts:
        for name in names:
            for parameter in part.get_submodule(name).parameters():
                torch.nn.init.zeros_(parameter)
    return block


def test_each_mechanism_has_projections_of_its_own():
    """Not one set of q, k, v for all."""
    block, x = silenced(build(), "communication.output"), draw(7)
    before = block(x)[0]
    torch.nn.init.normal_(block.parts[1].attention.projections["v"].weight)
    after = block(x)[0]
    assert torch.equal(after[..., :6], before[..., :6])
    assert (after[..., 6:] - before[..., 6:]).abs().max() > 0.1
    names = {name for name, _ in block.parts[0].named_parameters()}
    assert {name for name, _ in block.parts[1].named_parameters()} == names
    held = [parameter for part in block.parts for parameter in part.parameters()]
    assert len({id(parameter) for parameter in held}) == 2 * len(names)


def test_the_second_attention_is_over_mechanisms_at_one_position():
    """Not over positions: with the first one silent, a position reads itself alone, and all mechanisms."""
    block, x = silenced(build(), "attention.output"), draw(7, 1)
    seen = torch.autograd.functional.jacobian(lambda x: block(x)[0], x)[0, :, :, 0] != 0  # (N, d, N, d)
    assert torch.equal(seen.any(3).any(1), torch.eye(7, dtype=torch.bool))
    between = seen.any(2).any(0).unflatten(0, (2, 6)).unflatten(2, (2, 6))
    assert between.any(3).any(1).all()


def test_channels_of_a_mechanism_are_neighbours():
    """Not interleaved: without communication, a mechanism reads its own m channels, and of others their share."""
    block, x = silenced(build(), "communication.output"), draw(7, 1)
    torch.nn.init.zeros_(block.w)  # equal shares
    seen = torch.autograd.functional.jacobian(lambda x: block(x)[0], x).abs().amax((0, 1, 3, 4))
    own = torch.zeros(12, 12, dtype=torch.bool)
    own[:6, :6] = own[6:, 6:] = True
    assert torch.equal(seen > 0, own)


# The competition.


def test_shares_add_up_to_one_and_turn_attention_off():
    block, x = build(3), draw(7)
    c = block.competition(x)
    torch.testing.assert_close(c.sum(-1), torch.ones(3, 7, dtype=x.dtype), **EXACT)
    assert torch.equal(build(1).competition(x), torch.ones(3, 7, 1, dtype=x.dtype))
    block, x = build(), draw(7)
    # A mechanism that always loses attends nothing: what others say of positions does not reach it.
    sure = torch.cat([x[..., :6] * 0 + 1, x[..., 6:]], -1)
    torch.nn.init.constant_(block.w[0].data, 200.0)
    assert block.competition(sure)[..., 1].max() < 1e-100
    seen = torch.autograd.functional.jacobian(lambda x: silenced(block, "communication.output")(x)[0], sure[:1])
    assert seen[0, 3, 6:, 0, 4, 6:].abs().max() < 1e-50 < seen[0, 3, :6, 0, 4, :6].abs().max()


def test_outermost_layers_are_standard():
    def counts(layers, **options):
        given = {"num_hidden_layers": layers}
        return [make("independent", layer, given=given, **options).count for layer in range(layers)]

    assert counts(6) == [1, 1, 2, 2, 2, 1]
    assert counts(4) == [1, 1, 2, 1]
    assert counts(3) == [2, 2, 2]
    assert counts(3, first=1) == [1, 2, 2]
    assert counts(5, first=0, last=2) == [2, 2, 2, 1, 1]
    assert not any("communication" in name for name, _ in make("independent", first=1).named_parameters())


def test_flops_are_those_of_the_paper():
    d, f, N, count, heads = 48, 96, 20, 2, 2
    given = {"hidden_size": d, "intermediate_size": f}
    x = torch.randn(2, N, d)
    expected = (8 * d**2 + 4 * d * f) // count + 4 * N * d + 256 * d * heads
    block = build(given=given).float()
    assert flops(lambda: block(x)) == 2 * N * expected
    standard = make("independent", first=1, given=given).float()
    assert flops(lambda: standard(x)) == 2 * N * (8 * d**2 + 4 * d * f + 4 * N * d)


def test_growth_is_that_of_attention_alone():
    block = build().float()
    first, second, third = (flops(lambda n=n: block(torch.randn(2, n, 12))) for n in (64, 128, 192))
    assert (third - second) - (second - first) == 2 * (4 * 12 * 64**2 * 2)


def test_low_rank():
    low = {path for path, module in build(given={"rank": 3}).named_modules() if isinstance(module, LED)}
    assert {path.removeprefix("parts.0.") for path in low if path.startswith("parts.0.")} == {
        *(f"attention.projections.{name}" for name in "qkv"), "attention.output",
        "feed_forward.up", "feed_forward.down",
    }  # fmt: skip
    assert len(low) == 12


def test_it_is_filled_where_it_was_built_without_storage():
    with torch.device("meta"):
        block = build()
    block = block.to_empty(device="cpu")
    torch.nn.init.constant_(block.w, torch.nan)
    block.reset_parameters()
    assert 0 < block.w.abs().max() < 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mechanisms": 0}, "mechanisms must divide the 2 heads, got 0"),
        ({"mechanisms": 4}, "mechanisms must divide the 2 heads, got 4"),
        ({"communication_heads": 0}, "communication_heads must be at least 1, got 0"),
        ({"first": -1}, "first must be at least 0, got -1"),
        ({"last": -2}, "last must be at least 0, got -2"),
        ({"given": {"intermediate_size": 1}}, "mechanisms must be at most the inner width 1, got 2"),
        (
            {"given": {"num_attention_heads": 6, "num_key_value_heads": 3}},
            "num_key_value_heads of 6 must be as many of",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make("independent", **options)


def test_shapes_in_signatures():
    block = build()
    jaxtyped(typechecker=beartype)(type(block).forward)(block, draw(7), holes(7), past=None)
    assert jaxtyped(typechecker=beartype)(type(block).competition)(block, draw(7)).shape == (3, 7, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_near(dtype):
    block, x, mask = build(), draw(11), holes(11)
    exact = block(x, mask)[0]
    out = block.to(dtype)(x.to(dtype), mask)[0]
    assert out.dtype == dtype
    assert (out.double() - exact)[mask].abs().max() < (0.3 if dtype == torch.bfloat16 else 1e-5)
