"""Each mechanism is the function of its oracle, in float64, at lengths around and off every block size."""

import pytest
import torch
from cases import draw, each_form, holes, kept
from rows import MAX_LEN
from torch.func import functional_call

# N = M: one; below, at and above a window, off its multiples; below and at max_len. Then N != M.
LENGTHS = [(1, 1), (2, 2), (3, 3), (7, 7), (11, 11), (MAX_LEN, MAX_LEN), (7, 11), (1, 5), (7, 2)]


def skip_what_cannot_be(row, causal, queries, keys):
    if queries != keys and not row.cross:
        pytest.skip("no cross-attention")
    if causal and queries > keys:
        pytest.skip("causal attention needs a key for every query")


def outputs_and_gradients(function, tensors, query_mask):
    """The kept outputs, and the gradients of a fixed mixture of them."""
    out = kept(function(), query_mask)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad((weights * out).sum(), tensors, materialize_grads=True)


@each_form
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_outputs_and_every_gradient_are_those_of_the_formula(row, causal, queries, keys, masked):
    skip_what_cannot_be(row, causal, queries, keys)
    module = row.build(causal=causal, cross=queries != keys).double()
    key_mask = holes(keys) if masked else None
    query_mask = key_mask if queries == keys else None
    q, k, v = (x.requires_grad_() for x in draw(queries, keys))

    tensors = [q, k, v, *module.parameters()]
    got = outputs_and_gradients(lambda: module(q, k, v, key_mask), tensors, query_mask)
    expected = outputs_and_gradients(lambda: row.oracle(module, q, k, v, key_mask), tensors, query_mask)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@each_form
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_gradients_are_those_of_finite_differences(row, causal, masked):
    queries, keys = (2, 7) if row.cross else (7, 7)
    module = row.build(causal=causal, cross=row.cross).double()
    key_mask = holes(keys) if masked else None
    query_mask = None if row.cross else key_mask
    names = [name for name, _ in module.named_parameters()]
    tensors = [*draw(queries, keys), *(parameter.detach() for parameter in module.parameters())]

    def outputs(q, k, v, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return kept(functional_call(module, given, (q, k, v, key_mask)), query_mask)

    # Along random directions: element by element would take a minute, and the formula has checked every element.
    assert torch.autograd.gradcheck(outputs, [x.clone().requires_grad_() for x in tensors], fast_mode=True)
