"""The path of accelerators, FlexAttention, gives what the tiles give; here on the CPU, as plain torch."""

import pickle
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pairs import CAUSAL, FORMS, met, met_if, seen
from torch.nn.attention.flex_attention import flex_attention

from greenformers.attention import Shape, _flex, _relative, adaptive_span, build
from greenformers.attention import full as full_module
from greenformers.position import Place
from greenformers.position import build as position

HEADS, DIM = 3, 16
OPTIONS = {
    "sliding_window": {"window": 5, "dilation": (1, 3, 2)},
    "cascade": {"base": 7},
    "local_blocks": {"block": 24},
    "sparse_strided": {"stride": 12},
    "sparse_fixed": {"stride": 12, "summary": 3},
    "longformer": {"window": 5, "globals": 4},
    "bigbird": {"block": 16, "random": 2, "padding": "batch"},
    "etc": {"globals": 5, "radius": 7, "clip": None},
}
"""Of all patterns but `blockwise`, which is dense within blocks."""

each_pattern = pytest.mark.parametrize(
    ("name", "causal"),
    [pytest.param(*form, id=f"{form[0]}{'-causal' * form[1]}") for form in FORMS if form[0] in OPTIONS],
)
each_padding = pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
# torch's own, where FlexAttention is not compiled.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def mechanism(name, causal=False, dim=DIM, **options):
    shape = Shape(heads=HEADS, head_dim=dim, max_len=400, causal=causal, layer=1, layers=2)
    return build(name, shape, **OPTIONS[name] | options)


def drawn(queries, keys, number=3):
    generator = torch.Generator().manual_seed(1)
    lengths = (queries, keys, keys, queries, keys, keys)[:number]
    return [torch.randn(2, HEADS, length, DIM, generator=generator) for length in lengths]


def padding(keys):
    return torch.arange(keys) < torch.tensor([keys, keys - keys // 3])[:, None]


@pytest.fixture
def on_kernel(monkeypatch):
    """Makes a mechanism take the path of accelerators."""
    return lambda module: monkeypatch.setattr(module, "by_kernel", lambda *_: True)


@pytest.fixture
def untraced(monkeypatch):
    """Calls of FlexAttention are traced once a call, most of the time they take; not where masks have been already."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def compare(module, on_kernel, *inputs, **more):
    expected = module(*inputs, **more)
    on_kernel(module)
    torch.testing.assert_close(module(*inputs, **more), expected, rtol=1e-5, atol=1e-5)
    assert len(module._masks) == 1


@each_pattern
def test_equals_the_tiles(name, causal, on_kernel):
    compare(mechanism(name, causal), on_kernel, *drawn(140, 140), padding(140))


@each_pattern
@pytest.mark.usefixtures("untraced")
def test_equals_the_tiles_of_a_short_sequence(name, causal, on_kernel):
    compare(mechanism(name, causal), on_kernel, *drawn(45, 45))


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("name", CAUSAL)
def test_of_the_last_queries(name, on_kernel):
    compare(mechanism(name, causal=True), on_kernel, *drawn(21, 45), padding(45))


@pytest.mark.usefixtures("untraced")
@each_padding
def test_equals_the_tiles_of_blocks_after_extra_globals(padded, on_kernel):
    module = mechanism("bigbird", block=8, extra_globals=5)
    compare(module, on_kernel, *drawn(101, 101), padding(101) if padded else None)


@pytest.mark.usefixtures("untraced")
@each_padding
@pytest.mark.parametrize("given", [False, True], ids=["first positions", "global mask"])
@pytest.mark.parametrize("number", [3, 6], ids=["one projection", "two projections"])
def test_equals_the_tiles_with_global_positions(number, given, padded, on_kernel):
    module, tensors = mechanism("longformer"), drawn(45, 45, number)
    more = dict(zip(module.projections[3:], tensors[3:], strict=False))
    if given:
        more["global_mask"] = torch.stack([torch.arange(45) % 9 == 2, torch.arange(45) == 3])
    compare(module, on_kernel, *tensors[:3], padding(45) if padded else None, **more)


@pytest.mark.usefixtures("untraced")
def test_lengths_have_masks_of_their_own_which_are_kept(on_kernel):
    module = mechanism("bigbird", block=4)
    inputs = [drawn(length, length) for length in (29, 61, 29)]
    expected = [module(*x) for x in inputs]
    on_kernel(module)
    torch.testing.assert_close([module(*x) for x in inputs], expected, rtol=1e-5, atol=1e-5)
    assert len(module._masks) == 2


def test_narrow_heads_are_left_to_the_tiles():
    assert mechanism("sliding_window").by_kernel(SimpleNamespace(is_cuda=True, shape=(2, 3, 11, 16)))
    assert not mechanism("sliding_window").by_kernel(SimpleNamespace(is_cuda=True, shape=(2, 3, 11, 8)))


@pytest.mark.usefixtures("untraced")
def test_masks_made_in_inference_serve_training(on_kernel):
    module = mechanism("bigbird", block=4)
    on_kernel(module)
    with torch.inference_mode():
        module(*drawn(61, 61))
    (mask,) = module._masks.values()
    assert not mask.kv_num_blocks.is_inference()
    assert not any(x.is_inference() for x in module._prepared.values() if x is not None)


@pytest.mark.usefixtures("untraced")
def test_few_masks_are_kept(on_kernel, monkeypatch):
    monkeypatch.setattr("greenformers.attention._block_sparse.LENGTHS", 3)
    module = mechanism("bigbird", block=4)
    on_kernel(module)
    for length in (20, 24, 28, 32, 36):
        module(*drawn(length, length))
    assert [sizes[0] for sizes in module._masks] == [20, 24, 28], "two blocks of four see all, and are no part of it"


@pytest.mark.usefixtures("untraced")
def test_a_mechanism_that_has_run_is_copied_and_saved(monkeypatch):
    module, inputs = mechanism("bigbird", block=4), drawn(29, 29)
    monkeypatch.setattr(type(module), "by_kernel", lambda *_: True)
    out = module(*inputs)
    assert torch.equal(deepcopy(module)(*inputs), out)
    assert torch.equal(pickle.loads(pickle.dumps(module))(*inputs), out)


def test_labels_and_dropout_are_left_to_the_tiles():
    on_accelerator = SimpleNamespace(is_cuda=True, shape=(2, 3, 11, 16))
    assert mechanism("etc").by_kernel(on_accelerator)
    assert not mechanism("etc", clip=2).by_kernel(on_accelerator)
    dropping = mechanism("cascade", dropout=0.1)
    assert not dropping.train().by_kernel(on_accelerator)
    assert dropping.eval().by_kernel(on_accelerator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own, at inductor's import
@each_pattern
def test_the_block_mask_drops_nothing_visible(name, causal, on_kernel, monkeypatch):
    """Compiled, a block that the mask leaves out is not looked at; the weights of equal scores show what is met."""
    length = 304
    module = mechanism(name, causal, dim=length)
    torch.compiler.reset()
    monkeypatch.setattr(_flex, "flex_attention", torch.compile(flex_attention, dynamic=False))
    on_kernel(module)
    weights = met(module, length, length, torch.float32)
    torch.testing.assert_close(weights, met_if(seen(module, length, length)).float(), rtol=1e-5, atol=1e-6)
    (mask,) = module._masks.values()
    if name in ("sliding_window", "cascade", "local_blocks", "longformer", "etc"):
        looked_at = mask.kv_num_blocks + mask.full_kv_num_blocks
        assert looked_at.sum() < HEADS * looked_at.shape[-1] ** 2


@pytest.mark.usefixtures("untraced")
@each_padding
@pytest.mark.parametrize(
    ("causal", "queries", "keys"), [(True, 45, 45), (True, 21, 45), (False, 45, 45)], ids=["causal", "memory", ""]
)
def test_scores_by_distance_are_those_of_the_tiles(causal, queries, keys, padded, monkeypatch):
    shape = Shape(heads=HEADS, head_dim=DIM, max_len=400, causal=causal)
    module = build("transformer_xl", shape)
    with torch.no_grad():
        module.u.normal_()
        module.v.normal_()
    mask = padding(keys) if padded else None
    inputs = drawn(queries, keys)
    with torch.no_grad():  # FlexAttention has no gradient on the CPU; benchmarks/device.py compares those of a GPU
        expected = module(*inputs, mask)
        monkeypatch.setattr(_relative, "on_gpu", lambda _: True)
        monkeypatch.setattr(_flex, "TABLE", 2 * HEADS * 90 * 16)  # of a few queries
        monkeypatch.setattr(_flex, "ROWS", 16)
        torch.testing.assert_close(module(*inputs, mask), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("untraced")
@each_padding
@pytest.mark.parametrize("name", ["alibi", "huang", "t5"])
@pytest.mark.parametrize(
    ("causal", "queries", "keys"), [(True, 45, 45), (True, 21, 45), (False, 45, 45)], ids=["causal", "memory", ""]
)
def test_positions_in_scores_are_those_of_the_tiles(name, causal, queries, keys, padded, monkeypatch):
    full = build("full", Shape(heads=HEADS, head_dim=DIM, max_len=45, causal=causal))
    kind = position(name, Place(HEADS * DIM, HEADS, DIM, 45, causal=causal))
    inputs = (*drawn(queries, keys), padding(keys) if padded else None)
    with torch.no_grad():
        expected = full(*inputs, relative=kind)
        monkeypatch.setattr(full_module, "on_gpu", lambda _: True)
        monkeypatch.setattr(_flex, "TABLE", 2 * HEADS * 90 * 16)  # of a few queries
        monkeypatch.setattr(_flex, "ROWS", 16)
        torch.testing.assert_close(full(*inputs, relative=kind), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("untraced")
@each_padding
@pytest.mark.parametrize("position_term", [False, True], ids=["spans alone", ""])
@pytest.mark.parametrize(
    ("causal", "queries", "keys"), [(True, 75, 75), (True, 21, 75), (False, 75, 75)], ids=["causal", "memory", ""]
)
def test_spans_are_those_of_the_tiles(position_term, causal, queries, keys, padded, monkeypatch):
    shape = Shape(heads=HEADS, head_dim=DIM, max_len=75, causal=causal)
    module = build("adaptive_span", shape, span=30, ramp=5, position_term=position_term)
    inputs = (*drawn(queries, keys), padding(keys) if padded else None)
    with torch.no_grad():
        module.z.copy_(torch.tensor([0.0, 0.3, 0.6]))
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
        expected = module(*inputs)
        monkeypatch.setattr(adaptive_span, "on_gpu", lambda _: True)
        monkeypatch.setattr(_flex, "TABLE", 2 * HEADS * 150 * 16)  # of a few queries
        monkeypatch.setattr(_flex, "ROWS", 16)
        torch.testing.assert_close(module(*inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padded", [True, False], ids=["padded", ""])
def test_layers_and_lengths_share_what_is_compiled(padded, monkeypatch):
    """One form for the first length, one for all others, of all layers."""
    torch.compiler.reset()
    _flex._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=(counted := Counted())))
    monkeypatch.setattr(_flex, "kernel", lambda _: _flex._compiled())
    layers = [mechanism("sliding_window", causal=True) for _ in range(3)]
    for layer in layers:
        monkeypatch.setattr(layer, "by_kernel", lambda *_: True)
    for length in (140, 270, 150):
        for layer in layers:
            layer(*drawn(length, length), padding(length) if padded else None)
    _flex._compiled.cache_clear()
    assert counted.graphs == 2


class Counted:
    graphs = 0

    def __call__(self, graph, _):
        self.graphs += 1
        return graph
