"""Every pattern is dense attention over whom its `sees` shows, at any length, across the edges of tiles of any size."""

from copy import deepcopy
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import CAUSAL, PATTERNS, dense, each_pattern, met, met_if, runs, seen, tiles

from greenformers.attention import Shape, build, cascade
from greenformers.attention._reference import pairs

f64 = torch.float64
some, fewer = settings(max_examples=10, deadline=None), settings(max_examples=5, deadline=None)


def outputs_and_gradients(function, tensors, key_mask):
    """Outputs of kept queries, and the gradients of a fixed mixture of them."""
    out = function()
    if key_mask is not None:
        out = out * key_mask[:, None, key_mask.shape[1] - out.shape[2] :, None]
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((weights * out).sum(), tensors, materialize_grads=True)]


def compare(run, dtype):
    """A run with the dense attention of its own contents in float64."""
    module, key_mask = run.build().to(dtype), run.key_mask()
    tensors = [x.detach().to(dtype).requires_grad_() for x in run.tensors()]
    with tiles(run.rows, run.size):
        got = outputs_and_gradients(lambda: module(*tensors, key_mask), [*tensors, *module.parameters()], key_mask)

    exact, exact_tensors = deepcopy(module).double(), [x.detach().double().requires_grad_() for x in tensors]
    everything = [*exact_tensors, *exact.parameters()]
    expected = outputs_and_gradients(lambda: dense(exact, *exact_tensors, key_mask), everything, key_mask)
    close = 1e-10 if dtype == f64 else 1e-5
    torch.testing.assert_close([x.double() for x in got], expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", PATTERNS)
@fewer
@given(data=st.data())
def test_visible_is_the_formula(name, data):
    run = data.draw(runs(name, causal=False, longest=40))
    formula = import_module(f"greenformers.attention.{name}").formula
    assert torch.equal(seen(run.build(), run.keys, run.keys)[0], pairs(formula, run.build(), run.keys, run.keys))


@each_pattern
@some
@given(data=st.data())
def test_outputs_and_every_gradient_are_those_of_dense_attention(name, causal, data):
    compare(data.draw(runs(name, causal=causal)), f64)


@each_pattern
@fewer
@given(data=st.data())
def test_and_in_single_precision(name, causal, data):
    compare(data.draw(runs(name, causal=causal)), torch.float32)


@pytest.mark.parametrize("name", CAUSAL)
@fewer
@given(data=st.data())
def test_fewer_queries_than_keys_are_the_last_positions(name, data):
    run = data.draw(runs(name, causal=True, decoding=True))
    compare(run, f64)

    module, (_, k, v), key_mask = run.build().double(), run.tensors(), run.key_mask()
    q = torch.randn_like(k)
    with torch.no_grad(), tiles(run.rows, run.size):
        last = module(q[:, :, run.keys - run.queries :], k, v, key_mask)
        whole = module(q, k, v, key_mask)
    torch.testing.assert_close(last, whole[:, :, run.keys - run.queries :], rtol=1e-12, atol=1e-12)


@each_pattern
@some
@given(data=st.data())
def test_each_visible_pair_is_met_once(name, causal, data):
    run = data.draw(runs(name, causal=causal, longest=60, decoding=causal, one_hot=True))
    module = run.build()
    for parameter in module.parameters():
        parameter.requires_grad_(False).zero_()
    with tiles(run.rows, run.size):
        weights = met(module, run.queries, run.keys)
    expected = met_if(seen(module, run.queries, run.keys))
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-12)


def test_the_window_of_a_cascade_does_not_end_with_the_usual_length():
    module = build("cascade", Shape(1, 4, 8), base=64).double()
    q, k, v = torch.randn(3, 1, 1, 32, 4, dtype=torch.float64).unbind()
    torch.testing.assert_close(module(q, k, v), cascade.reference(module, q, k, v))
