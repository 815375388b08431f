"""Finite and close to float64 in the shorter formats."""

import pytest
import torch
from cases import draw, each_kind_form, holes, unmasked

from greenformers.attention import Shape, build
from greenformers.attention._dense import attention_weights

# float32 without a mask is what most tests run in; float16 is checked on CUDA alone.
ON_CUDA = [(torch.float16, "cuda", masked) for masked in (False, True)] if torch.cuda.is_available() else []
each_dtype = pytest.mark.parametrize(
    ("dtype", "device", "masked"),
    [(torch.float32, "cpu", True), (torch.bfloat16, "cpu", False), (torch.bfloat16, "cpu", True), *ON_CUDA],
    ids=str,
)
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
}


@each_kind_form
@each_dtype
def test_finite_for_logits_of_1e4(row, causal, dtype, device, masked):
    module = row.build(causal=causal).to(device, dtype)
    mask = holes(11).to(device) if masked else None
    q, k, v = draw(11, 11)
    largest = (q @ k.mT).abs().max() / q.shape[-1] ** 0.5
    size = (1e4 / largest).sqrt()  # of q and k each
    tensors = [x.to(device, dtype).requires_grad_() for x in (size * q, size * k, v)]
    out = module(*tensors, mask)
    assert out.dtype == dtype
    assert out.isfinite().all()
    parameters = list(module.parameters())
    for grad in torch.autograd.grad(unmasked(out, mask).sum(), [*tensors, *parameters], materialize_grads=True):
        assert grad.isfinite().all()


@each_kind_form
@each_dtype
def test_close_to_float64(row, causal, dtype, device, masked):
    module = row.build(causal=causal).to(device, dtype)
    mask = holes(11).to(device) if masked else None
    q, k, v = (x.to(device) for x in draw(11, 11, dtype=dtype))
    out = module(q, k, v, mask)
    expected = module.double()(q.double(), k.double(), v.double(), mask)  # of the same, rounded numbers
    torch.testing.assert_close(unmasked(out, mask).double(), unmasked(expected, mask), **TOLERANCE[dtype])


@each_kind_form
def test_autocast_to_bfloat16(row, causal):
    module, mask = row.build(causal=causal), holes(11)
    tensors = [x.requires_grad_() for x in draw(11, 11, dtype=torch.float32)]
    everything = [*tensors, *module.parameters()]
    expected = module(*tensors, mask)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(*tensors, mask)
    torch.testing.assert_close(unmasked(out, mask).float(), unmasked(expected, mask), **TOLERANCE[torch.bfloat16])
    grads, expected_grads = (
        torch.autograd.grad(unmasked(y, mask).float().square().mean(), everything, materialize_grads=True)
        for y in (out, expected)
    )
    for grad, right in zip(grads, expected_grads, strict=True):
        size = right.abs().max().clamp(min=1e-12)  # they are small: as shares of the largest
        torch.testing.assert_close(grad.float() / size, right / size, rtol=5e-2, atol=5e-2)


def test_products_before_they_are_scaled_may_be_beyond_float16():
    q = torch.full((1, 1, 3, 64), 36.0).half()
    out = attention_weights(q, q, causal=True)
    torch.testing.assert_close(out[0, 0, 2], torch.full((3,), 1 / 3).half())


@pytest.mark.parametrize("name", ["transformer_xl", "compressive"])
def test_few_queries_do_not_see_hidden_keys_with_large_scores_in_float16(name):
    module = build(name, Shape(1, 4, 8, causal=True)).half().eval()
    with torch.no_grad():
        module.u.zero_()
        module.v.zero_()
        module.W_R.zero_()
    q, k = torch.full((1, 1, 4, 4), 200.0).half(), torch.full((1, 1, 4, 4), -50.0).half()
    k[:, :, 3] = 50.0  # a later key, of +20,000 where the others have -20,000
    v = torch.arange(4.0).half().view(1, 1, 4, 1).expand(-1, -1, -1, 4)
    torch.testing.assert_close(module(q, k, v)[0, 0, :3, 0], torch.tensor([0.0, 0.5, 1.0]).half())


def test_routing_counts_all_vectors_in_bfloat16():
    module = build("routing", Shape(1, 16, 4096), clusters=1, window=64).bfloat16().train()
    x = torch.randn(1, 1, 4096, 16).bfloat16()
    module(x, x, x)
    assert module.counts.dtype == torch.float32
    assert module.counts.sum() == 2 * 4096
    module.update_()


def test_causal_sinkhorn_sums_many_keys_of_float16():
    module, x = build("sinkhorn", Shape(1, 4, 16384, causal=True), noise=False).eval(), torch.randn(1, 1, 16384, 4) + 8
    assert module.half()(*[x.half()] * 3).isfinite().all()


@pytest.mark.parametrize(("causal", "sort"), [(True, "network"), (False, "products")])
def test_sinkhorn_sums_many_keys_under_autocast_to_float16(causal, sort):
    module = build("sinkhorn", Shape(1, 4, 16384, causal=causal), noise=False, sort=sort).eval()
    x = torch.randn(1, 1, 16384, 4) + 8
    with torch.autocast("cpu", torch.float16):
        assert module(x, x, x).isfinite().all()


@each_kind_form
def test_a_batch_of_nothing_gives_nothing(row, causal):
    """As the layers of a network do, whose texts all have ended."""
    tensors = [x.requires_grad_() for x in draw(11, 11, batch=0, dtype=torch.float32)]
    out = row.build(causal=causal)(*tensors)
    assert out.shape == tensors[0].shape
    out.sum().backward()
