"""Star-Transformer against its algorithm 1, written out one satellite and head at a time."""

import pytest
import torch
import torch.nn.functional as F
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from greenformers.blocks import Size, build, names
from greenformers.lowrank.linear import LED
from greenformers.measure.flops import flops

B, N, WIDTH, HEADS = 5, 11, 15, 3
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def size(**other):
    return Size(**{"width": WIDTH, "heads": HEADS, "hidden": 31, "max_len": 64} | other)


def make(steps=1, **other):
    """Layers in double, with parameters that are all at random."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(build("star", size(layer=i, layers=steps, **other)) for i in range(steps)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_(std=0.5)
    return layers


def draw(length=N):
    torch.manual_seed(1)
    return torch.randn(B, length, WIDTH, dtype=torch.float64)


def masks():
    """Holes anywhere; of the last two examples two positions, and one, are kept."""
    torch.manual_seed(2)
    mask = torch.rand(B, N) < 0.6
    mask[-2] = (torch.arange(N) == 2) | (torch.arange(N) == 9)
    mask[-1] = torch.arange(N) == 4
    return mask


def run(layers, x, mask=None):
    """h and, in front, s."""
    memory = None
    for layer in layers:
        x, memory = layer(x, mask, memory)
    return torch.cat([memory[:, :1], x], 1)


# The oracle. One example; only what is kept is there.


def norm(layer, row):
    centred = row - row.mean()
    return layer.weight * centred / torch.sqrt((centred**2).mean() + layer.eps) + layer.bias


def multi_att(projections, query, context):
    width = WIDTH // HEADS
    q = projections.q.weight @ query + projections.q.bias
    outputs = []
    for head in range(HEADS):
        own = slice(head * width, (head + 1) * width)
        keys = [(projections.k.weight @ c + projections.k.bias)[own] for c in context]
        values = [(projections.v.weight @ c + projections.v.bias)[own] for c in context]
        weights = [torch.exp(q[own] @ key / width**0.5) for key in keys]
        outputs.append(sum(weight / sum(weights) * value for weight, value in zip(weights, values, strict=True)))
    return projections.output.weight @ torch.cat(outputs) + projections.output.bias


def algorithm_1(layers, rows):
    e = h = list(rows)
    s, n = sum(e) / len(e), len(e)
    for layer in layers:
        h = [
            norm(
                layer.satellites_norm,
                F.relu(multi_att(layer.satellites, h[i], [h[(i - 1) % n], h[i], h[(i + 1) % n], e[i], s])),
            )
            for i in range(n)
        ]
        s = norm(layer.relay_norm, F.relu(multi_att(layer.relay, s, [s, *h])))
    return torch.stack([s, *h])


def unmasked(out, mask):
    return out if mask is None else out[F.pad(mask, (1, 0), value=True)]


@pytest.mark.parametrize("ranks", [{}, {"q": 3, "v": 2, "output": 5}], ids=["dense", "led"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("steps", [1, 3])
def test_outputs_and_gradients_are_those_of_the_algorithm(steps, masked, ranks):
    layers, x, mask = make(steps, ranks=ranks), draw().requires_grad_(), masks() if masked else None
    out = unmasked(run(layers, x, mask), mask)
    rows = [algorithm_1(layers, example if mask is None else example[mask[b]]) for b, example in enumerate(x)]
    expected = torch.cat(rows) if masked else torch.stack(rows)
    torch.testing.assert_close(out, expected, **EXACT)
    weights = torch.randn_like(out)
    leaves = [x, *layers.parameters()]
    actual = torch.autograd.grad((out * weights).sum(), leaves)
    for grad, expected_grad in zip(actual, torch.autograd.grad((expected * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(grad, expected_grad, **EXACT)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_rings(length):
    layers, x = make(2), draw(length)
    torch.testing.assert_close(run(layers, x), torch.stack([algorithm_1(layers, sequence) for sequence in x]), **EXACT)


def test_embeddings_are_handed_on_as_they_are():
    layers, x = make(2), draw()
    h, memory = layers[0](x)
    assert memory.shape == (B, 1 + N, WIDTH)
    assert torch.equal(memory[:, 1:], x)
    assert torch.equal(layers[1](h, None, memory)[1][:, 1:], x)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_the_ring_is_closed(masked):
    """With s and e held, a satellite depends on itself and its two neighbours, first and last being neighbours."""
    layer, x, mask = make()[0], draw(), masks() if masked else None
    memory = draw(1 + N)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x, mask, memory)[0].sum(-1), x)
    for b in range(B):
        places = range(N) if mask is None else mask[b].nonzero().flatten().tolist()
        for n, i in enumerate(places):
            seen = jacobian[b, i].any(-1).nonzero().tolist()
            ring = {places[n - 1], i, places[(n + 1) % len(places)]}
            assert seen == [[b, j] for j in sorted(ring)]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("shift", [1, 4])
def test_rotated_sequences_have_rotated_outputs(shift, masked):
    layers, x, mask = make(3), draw(), masks() if masked else None
    out = run(layers, x, mask)
    turned = None if mask is None else mask.roll(shift, 1)
    other = run(layers, x.roll(shift, 1), turned)
    expected = torch.cat([out[:, :1], out[:, 1:].roll(shift, 1)], 1)
    torch.testing.assert_close(unmasked(other, turned), unmasked(expected, turned), **EXACT)


def test_order_matters():
    layers, x = make(), draw()
    order = torch.tensor([1, 0, *range(2, N)])
    assert (run(layers, x[:, order])[:, 1:] - run(layers, x)[:, 1:][:, order]).abs().max() > 0.01


@pytest.mark.parametrize("content", [torch.nan, torch.inf, 1e30])
def test_contents_of_padding_change_nothing(content):
    layers, x, mask = make(3), draw(), masks()
    filled = x.masked_fill(~mask[..., None], content).requires_grad_()
    out = run(layers, filled, mask)
    assert out.isfinite().all()
    assert torch.equal(unmasked(out, mask), unmasked(run(layers, x, mask), mask))
    out.sum().backward()
    assert filled.grad.isfinite().all()
    assert not filled.grad[~mask].any()


def test_contents_of_padding_of_later_layers_change_nothing():
    layers, x, mask = make(2), draw(), masks()
    h, memory = layers[0](x, mask)
    expected = layers[1](h, mask, memory)
    hole = ~mask[..., None]
    spoiled = torch.cat([memory[:, :1], memory[:, 1:].masked_fill(hole, 7.0)], 1)
    out = layers[1](h.masked_fill(hole, torch.nan), mask, spoiled)
    assert torch.equal(out[0][mask], expected[0][mask])
    assert torch.equal(out[1][:, :1], expected[1][:, :1])


@pytest.mark.parametrize(("front", "back"), [(0, 17), (13, 0), (13, 17)])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_more_padding_changes_nothing(front, back, masked):
    layers, x, mask = make(3), draw(), masks() if masked else torch.ones(B, N, dtype=torch.bool)
    longer = F.pad(mask, (front, back))
    out = run(layers, F.pad(x, (0, 0, front, back), value=3.0), longer)
    torch.testing.assert_close(unmasked(out, longer), unmasked(run(layers, x, mask if masked else None), mask), **EXACT)


def test_nothing_kept():
    layers, x, mask = make(3), draw(), masks()
    mask[1] = False
    x.requires_grad_()
    out = run(layers, x, mask)
    assert out.isfinite().all()
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[1].any()


def test_dropout_is_of_what_attention_gives():
    layer, x = make(dropout=1.0)[0], draw()
    h, memory = layer.train()(x)
    torch.testing.assert_close(h, layer.satellites_norm.bias.expand_as(h), **EXACT)
    torch.testing.assert_close(memory[:, 0], layer.relay_norm.bias.expand(B, -1), **EXACT)
    assert not torch.allclose(layer.eval()(x)[0], h)


# How it is made.


def test_registered():
    assert "star" in names()
    assert type(build("star", size())).__name__ == "Star"


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ranks", [{}, {"k": 3, "v": 2}])
def test_projections_that_are_watched_are_called_and_give_the_same(ranks, masked):
    layers, x, mask, seen = make(2, ranks=ranks), draw(), masks() if masked else None, []
    expected = run(layers, x, mask)
    for layer in layers:
        layer.relay.k.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(run(layers, x, mask), expected, **EXACT)
    assert seen == [1, 1]


def test_ranks_are_of_satellites_and_relay():
    layer = build("star", size(ranks={"q": 3}))
    low = {path: part.rank for path, part in layer.named_modules() if isinstance(part, LED)}
    assert low == {"satellites.q": 3, "relay.q": 3}


def test_made_on_the_meta_device_it_is_filled_afterwards():
    with torch.device("meta"):
        layer = build("star", size())
    x, mask = torch.empty(B, N, WIDTH, device="meta"), torch.empty(B, N, dtype=torch.bool, device="meta")
    h, memory = layer(x, mask)
    assert layer(h, mask, memory)[0].shape == (B, N, WIDTH)
    layer.to_empty(device="cpu")
    for part in layer.modules():
        for parameter in part.parameters(recurse=False):
            torch.nn.init.constant_(parameter, torch.nan)
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert all(parameter.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_near(dtype):
    layers, x, mask = make(), draw(), masks()
    exact = run(layers, x, mask)
    out = run(layers.to(dtype), x.to(dtype), mask)
    assert out.dtype == dtype
    assert unmasked(out.double() - exact, mask).abs().max() < (0.2 if dtype == torch.bfloat16 else 1e-5)


def test_the_mean_of_many_is_exact_in_half_precision():
    """Their sum is beyond the largest number of float16."""
    x = torch.full((1, 2048, 2), 64.0, dtype=torch.float16)
    layer = build("star", Size(width=2, heads=1, hidden=2, max_len=2048)).half()
    mask = torch.ones(1, 2048, dtype=torch.bool)
    torch.testing.assert_close(layer(x, mask)[1][:, :1], layer(x)[1][:, :1])


def test_shapes_in_signatures():
    layer = make()[0]
    forward = jaxtyped(typechecker=beartype)(type(layer).forward)
    h, memory = forward(layer, draw(), masks())
    forward(layer, h, masks(), memory)
    with pytest.raises(TypeCheckError):
        forward(layer, draw(), masks()[:, 1:])


def test_growth_is_linear():
    layer = build("star", size())

    def work(length):
        x, memory = torch.randn(2, length, WIDTH), torch.randn(2, 1 + length, WIDTH)
        return flops(lambda: layer(x, torch.ones(2, length, dtype=torch.bool), memory))

    first, second, third = map(work, (64, 128, 192))
    assert third - second == second - first > 0


def test_no_causal_form():
    with pytest.raises(ValueError, match="star has no causal form: the relay sees all positions"):
        build("star", size(causal=True))


def test_a_memory_of_another_length():
    with pytest.raises(ValueError, match=r"memory must be \(5, 12, 15\).*, got \(5, 11, 15\)"):
        make()[0](draw(), None, draw())


def test_large_scores_in_float16():
    block = build("star", Size(width=64, heads=1, hidden=64, max_len=8))
    with torch.no_grad():
        for layer in (block.satellites.q, block.satellites.k):
            layer.weight.copy_(40 * torch.eye(64))
            layer.bias.zero_()
    assert block.half()(torch.ones(1, 4, 64).half())[0].isfinite().all()
