"""A mechanism is an ordinary module: compiled, copied, saved, shared between layers, trained with dropout."""

import inspect
from copy import deepcopy

import pytest
import safetensors.torch
import torch
from cases import (
    FIRST,
    FORMS,
    draw,
    each_form,
    each_kind,
    each_kind_form,
    each_mechanism,
    each_row,
    form,
    holes,
    unmasked,
)
from rows import LAYERS
from torch import nn

MASK = holes(11)


# torch's own, where it traces an autograd.Function.
compiling = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")


def inputs():
    return draw(11, 11, dtype=torch.float32)


def redraw(module):
    """Other parameters than those it was built with."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))


@pytest.fixture
def compiler():
    """torch.compile of one whole graph, with room for every row: they share the code of one forward."""
    torch.compiler.reset()
    yield lambda module, backend: torch.compile(module, fullgraph=True, dynamic=False, backend=backend)
    torch.compiler.reset()


def compare_compiled(row, causal, compiler, cases):
    """By pairs of a backend and a mask."""
    module = row.build(causal=causal)
    tensors = [x.requires_grad_() for x in draw(7, 7, dtype=torch.float32)]
    everything = [*tensors, *module.parameters()]
    for backend, mask in cases:
        compiled = compiler(module, backend)
        results = []
        for call in (compiled, module):
            out = unmasked(call(*tensors, mask), mask)
            results.append((out, *torch.autograd.grad(out.square().sum(), everything, materialize_grads=True)))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


OWN_BACKWARD = {
    ("performer", False),
    ("linear_transformer", False),
    ("linear_transformer", True),
    *((name, False) for name in ("reformer", "sinkhorn", "routing", "transformer_xl")),
    *((name, False) for name in ("sliding_window", "sparse_fixed", "etc")),
}
"""Of each engine, and each kind of tiles, the forms whose gradients are not torch's; or that change buffers as they
run. Performer's in the causal form are those of `test_what_is_kept_of_earlier_keys_is_compiled_too`."""


# Of two forms of one code the causal one only where its backward pass is its own.
each_graph = pytest.mark.parametrize(
    ("row", "causal"),
    [
        form(
            *each,
            *(
                []
                if FIRST[each[0].name, each[1]] is each[0] and (not each[1] or (each[0].name, True) in OWN_BACKWARD)
                else [pytest.mark.slow]
            ),
        )
        for each in FORMS
    ],
)


@compiling
@each_graph
def test_compiles_to_one_graph(row, causal, compiler):
    if not row.compiles:
        pytest.skip("exempt")
    # The graph of the gradients takes as long again as that of the call: once for each backward pass of our own.
    backend = "aot_eager_default_partitioner" if (row.name, causal) in OWN_BACKWARD else "eager"
    if not row.causal:
        cases = [("eager", None), (backend, holes(7))]
    else:  # with a mask in one form and without it in the other, but where the mask says which position is which
        counts = row.name.startswith("synthesizer")
        cases = [(backend, holes(7) if counts or not causal else None)]
    compare_compiled(row, causal, compiler, cases)


@compiling
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own, at inductor's import
@each_form
def test_compiles_to_machine_code(row, causal, compiler):
    if not row.compiles:
        pytest.skip("exempt")
    compare_compiled(row, causal, compiler, [("inductor", None), ("inductor", holes(7))])


@each_kind_form
def test_a_deep_copy_is_equal_and_apart(row, causal):
    module = row.build(causal=causal)
    copied = deepcopy(module)
    out = module(*inputs(), MASK)
    assert torch.equal(copied(*inputs(), MASK), out)
    redraw(copied)
    assert torch.equal(module(*inputs(), MASK), out)


@each_row
def test_a_saved_module_comes_back(row, tmp_path):
    module, other = row.build(), row.build()
    redraw(module)
    out = module(*inputs(), MASK)
    if list(module.parameters()):
        assert not torch.equal(other(*inputs(), MASK), out)
    safetensors.torch.save_file(module.state_dict(), tmp_path / "mechanism.safetensors")
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "mechanism.safetensors"), strict=True)
    assert torch.equal(other(*inputs(), MASK), out)


def two_layers(row):
    layers = nn.ModuleList(row.build(layer=layer) for layer in range(LAYERS))
    layers[1].shared(layers[0])
    return layers


@each_row
def test_what_layers_share_is_one_tensor_named_as_shared_and_saved_once(row, tmp_path):
    layers = two_layers(row)
    first, second = (dict(layer.named_parameters()) for layer in layers)
    assert {name for name in second if second[name] is first.get(name)} == set(layers[1].shared_parameters)

    redraw(layers)
    safetensors.torch.save_model(layers, str(tmp_path / "layers.safetensors"))
    other = two_layers(row)
    safetensors.torch.load_model(other, tmp_path / "layers.safetensors")
    for layer, loaded in zip(layers, other, strict=True):
        assert torch.equal(loaded(*inputs(), MASK), layer(*inputs(), MASK))


@each_row
def test_new_parameters_are_made_in_place(row):
    module = row.build()
    before = dict(module.named_parameters())
    with torch.no_grad():
        for parameter in before.values():
            parameter.fill_(torch.nan)
    module.reset_parameters()
    for name, parameter in module.named_parameters():
        assert parameter is before[name]
        assert parameter.isfinite().all()
        assert parameter.std() > 0 or name in ("mix", "z", "b")  # shares of a mixture and spans start equal


@pytest.fixture
def with_dropout():
    """What builds a row with dropout."""

    def build(row, dropout):
        if "dropout" not in inspect.signature(type(row.build())).parameters:
            pytest.skip("no dropout")
        return row.build({"dropout": dropout})

    return build


@each_kind
def test_with_dropout_the_mean_over_draws_is_the_output_without(row, with_dropout):
    q, k, v = (x[:1] for x in inputs())
    example = (q, k, v + 2)
    many = [x.expand(1000, -1, -1, -1) for x in example]
    with torch.no_grad():
        out = with_dropout(row, 0.3).train()(*many)
        assert not torch.equal(out[:1], out[1:2])
        torch.testing.assert_close(out.mean(0, keepdim=True), row.build()(*example), rtol=0, atol=0.3)


@each_kind
def test_no_dropout_in_evaluation(row, with_dropout):
    assert torch.equal(with_dropout(row, 0.3).eval()(*inputs(), MASK), row.build()(*inputs(), MASK))


@each_mechanism
def test_dropout_is_a_probability(row, with_dropout):
    for dropout in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"dropout must be in \[0, 1\), got {dropout}"):
            with_dropout(row, dropout)
