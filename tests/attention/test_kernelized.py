"""What the mechanisms that are a feature map share: their recurrent form, and shifts of any size; and the peers."""

import pytest
import torch
from cases import draw, holes, unmasked
from rows import MAX_LEN, ROWS

from greenformers.attention import Shape, build
from greenformers.attention._kernelized import Kernelized

EXACT = {"rtol": 1e-10, "atol": 1e-12}
KERNELIZED = [row for row in ROWS if row.name in ("linear_transformer", "performer")]
each_map = pytest.mark.parametrize("row", KERNELIZED, ids=str)


def linear(**shape):
    return build("linear_transformer", Shape(heads=3, head_dim=5, max_len=13, **shape), feature_map="exp", chunk=4)


def in_pieces(module, q, k, v, mask, sizes):
    """What `step` gives, that many positions at a time, and the shapes of its states."""
    outs, state, shapes, at = [], None, set(), 0
    for size in sizes:
        here = slice(at, at + size)
        given = () if mask is None else (mask[:, here],)
        out, state = module.step(*(x[:, :, here] for x in (q, k, v)), state, *given)
        outs.append(out)
        shapes.add(tuple(x.shape for x in state))
        at += size
    return torch.cat(outs, 2), shapes


@each_map
@pytest.mark.parametrize("sizes", [(1,) * 11, (3, 1, 5, 2)], ids=["tokens", "pieces"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_steps_are_the_causal_form_with_its_gradients(row, sizes, masked):
    module = row.build(causal=True).double()
    assert module.can_step
    mask = holes(11) if masked else None
    tensors = [x.requires_grad_() for x in draw(11, 11)]
    out, shapes = in_pieces(module, *tensors, mask, sizes)
    assert len(shapes) == 1  # of fixed size
    results = [
        (unmasked(each, mask), *torch.autograd.grad(unmasked(each, mask).square().sum(), tensors))
        for each in (out, module(*tensors, mask))
    ]
    torch.testing.assert_close(*results, **EXACT)


@each_map
def test_steps_of_a_short_type_sum_in_float32(row):
    module = row.build(causal=True).bfloat16()
    out, state = module.step(*draw(3, 3, dtype=torch.bfloat16), None)
    assert out.dtype == torch.bfloat16
    assert {x.dtype for x in state} == {torch.float32}


@each_map
def test_without_a_causal_form_there_are_no_steps(row):
    assert not row.build().can_step


@each_map
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("chunk", [1, 3, 128])
def test_the_output_does_not_depend_on_the_chunk(row, causal, chunk):
    tensors = [x.requires_grad_() for x in draw(7, 11)]
    results = []
    for options in ({}, {"chunk": chunk}):
        out = row.build(options, causal=causal).double()(*tensors, holes(11))
        results.append((out, *torch.autograd.grad(out.square().sum(), tensors)))
    torch.testing.assert_close(*results, **EXACT)


@each_map
def test_fewer_queries_than_keys_are_the_last_ones(row):
    module, (q, k, v) = row.build(causal=True).double(), draw(MAX_LEN, MAX_LEN)
    torch.testing.assert_close(module(q[:, :, 6:], k, v), module(q, k, v)[:, :, 6:], **EXACT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")  # torch's own
def test_what_is_kept_of_earlier_keys_is_compiled_too():
    """More keys than queries: the backward pass begins with a state that is neither input nor output."""
    torch.compiler.reset()
    module = linear(causal=True)
    compiled = torch.compile(module, fullgraph=True, dynamic=False, backend="aot_eager")
    tensors = [x.requires_grad_() for x in draw(3, 8, dtype=torch.float32)]
    results = [torch.autograd.grad(each(*tensors).square().sum(), tensors) for each in (compiled, module)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


# Of the exponential of large numbers only ratios are of numbers that exist.


def by_steps(module):
    return lambda q, k, v: in_pieces(module, q, k, v, None, (3, 1, 5, 2))[0]


@pytest.mark.parametrize(
    ("attention", "causal"),
    [(linear(), False), (linear(causal=True), True), (by_steps(linear(causal=True)), True)],
    ids=["bidirectional", "causal", "steps"],
)
class TestLargeShifts:
    @pytest.mark.parametrize("shift", [-1e5, 1e5])
    def test_one_of_all_keys_cancels(self, attention, causal, shift):
        q, k, v = draw(11, 11)
        k = k.round(decimals=3)  # so that the sum is exact enough
        torch.testing.assert_close(attention(q, k + shift, v), attention(q, k, v), rtol=1e-9, atol=1e-9)

    def test_the_largest_takes_it_all(self, attention, causal):
        q, k, v = (x.requires_grad_() for x in draw(11, 11, dtype=torch.float32))
        rising = 1e4 * torch.arange(11.0)[:, None]
        last = v if causal else v[:, :, -1:].expand_as(v)
        for shifts, expected in ((rising, last), (-rising, v[:, :, :1].expand_as(v))):
            out = attention(q, k + shifts, v)
            torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
            assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.square().sum(), (q, k, v)))


@pytest.mark.parametrize("mechanism", ["linear_transformer", "performer"])
def test_a_chunk_out_of_range_is_refused(mechanism):
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        build(mechanism, Shape(3, 5, 13), chunk=0)


def test_a_feature_map_out_of_range_is_refused():
    with pytest.raises(ValueError, match="feature_map must be one of elu, exp; got 'relu'"):
        build("linear_transformer", Shape(3, 5, 13), feature_map="relu")


def test_the_base_has_no_feature_map():
    with pytest.raises(NotImplementedError):
        _ = Kernelized(Shape(3, 5, 13), chunk=4).phi


def test_elu_has_slope_1_at_0():
    """In the causal form, by steps, and bidirectional: phi(x) = elu(x) + 1 has one derivative there."""
    module = build("linear_transformer", Shape(3, 5, 13, causal=True))
    q, k, v = (x.requires_grad_() for x in draw(5, 5, dtype=torch.float32))
    zeros = torch.zeros_like(k).requires_grad_()
    results = [
        torch.autograd.grad(out.square().sum(), (q, zeros))
        for out in (module.step(q, zeros, v, None)[0], module(q, zeros, v))
    ]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_equals_linear_attention_transformer(masked):
    peer = pytest.importorskip("linear_attention_transformer.linear_attention_transformer")
    q, k, v = draw(11, 11, dtype=torch.float32)
    mask = holes(11) if masked else None
    module = build("linear_transformer", Shape(3, 5, 13, causal=True), feature_map="exp")
    expected = peer.causal_linear_attn(q, k, v.clone(), mask, bucket_size=1)
    torch.testing.assert_close(module(q, k, v, mask), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["linear_transformer", "performer"])
@pytest.mark.parametrize("length", [64, 65, 200])
def test_chunks_side_by_side_are_as_one_after_the_other(name, length):
    """Longer than a chunk of those that are computed at once; the state after them, too."""
    options = {"kernel": "relu"} if name == "performer" else {}
    shape = Shape(heads=2, head_dim=5, max_len=256, causal=True)
    torch.manual_seed(0)
    module = build(name, shape, **options).double()
    q, k, v = torch.randn(3, 1, 2, length, 5, dtype=torch.float64)
    mask = torch.rand(1, length) > 0.2
    outs, after = [], None
    for at in range(length):
        here = slice(at, at + 1)
        out, after = module.step(q[:, :, here], k[:, :, here], v[:, :, here], after, mask[:, here])
        outs.append(out)
    expected = torch.cat(outs, 2)
    torch.testing.assert_close(module(q, k, v, mask)[:, :, mask[0]], expected[:, :, mask[0]], **EXACT)
    output, state = module.step(q, k, v, None, mask)
    torch.testing.assert_close(output[:, :, mask[0]], expected[:, :, mask[0]], **EXACT)
    torch.testing.assert_close(state, after, **EXACT)
    # Fewer queries are those of the last positions, and no query at all leaves the state.
    for some in (0, 1, 7):
        output, state = module.step(q[:, :, length - some :], k, v, None, mask)
        torch.testing.assert_close(output, expected[:, :, length - some :], **EXACT)
        torch.testing.assert_close(state, after, **EXACT)
