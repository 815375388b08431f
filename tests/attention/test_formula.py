"""Each mechanism is the function of its `reference`, in float64, at lengths around and off every block size."""

import ast
import inspect
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from cases import draw, each_code, each_form, each_kind, holes, unmasked
from rows import MAX_LEN, ROWS
from torch.func import functional_call

from greenformers.attention import _synthesizer, names

# N = M: one; below, at and above a window, off its multiples; at max_len. Then N != M.
LENGTHS = [(1, 1), (2, 2), (3, 3), (7, 7), (MAX_LEN, MAX_LEN), (7, 11), (1, 5), (7, 2)]


def lengths(row, causal):
    """Those that can be: causal attention needs a key for every query, which are those of the last positions."""
    return [(n, m) for n, m in LENGTHS if n == m or (n < m if causal else row.cross)]


def outputs_and_gradients(function, tensors, query_mask):
    """The kept outputs, and the gradients of a fixed mixture of them."""
    out = unmasked(function(), query_mask)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad((weights * out).sum(), tensors, materialize_grads=True)


@each_form
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_outputs_and_every_gradient_are_those_of_the_formula(row, causal, masked):
    for queries, keys in lengths(row, causal):
        module = row.build(causal=causal, cross=queries != keys and row.cross).double()
        key_mask = holes(keys) if masked else None
        query_mask = key_mask if queries == keys else None
        tensors = [x.requires_grad_() for x in draw(queries, keys)]
        everything = [*tensors, *module.parameters()]
        got, expected = (
            outputs_and_gradients(partial(function, *tensors, key_mask), everything, query_mask)
            for function in (module, partial(row.reference, module))
        )
        torch.testing.assert_close(
            got, expected, rtol=1e-10, atol=1e-12, msg=lambda m, at=(queries, keys): f"{at}: {m}"
        )


@each_form
def test_inputs_may_lie_in_memory_in_any_order(row, causal):
    """Positions next to each other, as a convolution gives them; and every second number of wider rows."""
    module, given, mask = row.build(causal=causal), draw(11, 11, dtype=torch.float32), holes(11)
    expected = outputs_and_gradients(partial(module, *(x.requires_grad_() for x in given)), given, None)
    for order in (lambda x: x.mT.contiguous().mT, lambda x: x.repeat_interleave(2, 3)[..., ::2]):
        tensors = [order(x.detach()).requires_grad_() for x in given]
        assert not any(x.is_contiguous() for x in tensors)
        got = outputs_and_gradients(partial(module, *tensors), tensors, None)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(module(*tensors, mask), module(*given, mask), rtol=1e-4, atol=1e-5)


@each_kind
def test_the_queries_own_mask_is_read_as_in_the_formula(row):
    """Where it is another than that of the keys; of a formula without one, no output depends on it."""
    queries = 7 if row.cross else 11
    module, (q, k, v) = row.build(cross=row.cross).double(), draw(queries, 11)
    key_mask, query_mask = holes(11), torch.arange(queries).expand(2, -1) % 5 != 1
    read = "query_mask" in inspect.signature(row.reference).parameters
    expected = row.reference(module, q, k, v, key_mask, **({"query_mask": query_mask} if read else {}))
    out = module(q, k, v, key_mask, query_mask=query_mask)
    torch.testing.assert_close(unmasked(out, query_mask), unmasked(expected, query_mask), rtol=1e-10, atol=1e-12)


@each_code
def test_gradients_are_those_of_finite_differences(row, causal):
    """Once for each code; those of the formula are automatic."""
    queries, keys = (2, 7) if row.cross else (7, 7)
    module, key_mask = row.build(causal=causal, cross=row.cross).double(), holes(keys)
    query_mask = None if row.cross else key_mask
    parameter_names = [name for name, _ in module.named_parameters()]
    tensors = [*draw(queries, keys), *(parameter.detach() for parameter in module.parameters())]

    def outputs(q, k, v, *parameters):
        given = dict(zip(parameter_names, parameters, strict=True))
        return unmasked(functional_call(module, given, (q, k, v, key_mask)), query_mask)

    # Along random directions: element by element would take a minute, and the formula has checked every element.
    assert torch.autograd.gradcheck(outputs, [x.clone().requires_grad_() for x in tensors], fast_mode=True)


def definitions(file):
    """What a file defines or imports at its top level, by name, in order: the node of each."""
    nodes = {}
    for node in ast.parse(Path(file.__file__).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign):
            nodes |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            nodes |= {alias.asname or alias.name: node for alias in node.names}
    return nodes


def used_by(name, nodes):
    """The nodes that a definition uses, itself among them, through other definitions of its file but classes."""
    used, names = {}, [name]
    while names:
        if (name := names.pop()) in nodes and name not in used and not isinstance(nodes[name], ast.ClassDef):
            used[name] = nodes[name]
            names += [node.id for node in ast.walk(nodes[name]) if isinstance(node, ast.Name)]
    return used


SHARED = {"transformer_xl": "_relative", "compressive": "_relative"}
"""Whose formula stands in an engine."""


@pytest.mark.parametrize("name", names())
def test_the_formula_comes_first_and_uses_nothing_of_the_fast_form(name):
    row = next(row for row in ROWS if row.name == name)
    first = list(inspect.signature(row.reference).parameters.values())[:5]
    assert [parameter.name for parameter in first] == ["mechanism", "q", "k", "v", "key_mask"]
    nodes = definitions(import_module(f"greenformers.attention.{SHARED.get(name, name)}"))
    mechanism = next(place for place, node in enumerate(nodes.values()) if isinstance(node, ast.ClassDef))
    assert list(nodes).index("reference") < mechanism

    used = used_by("reference", nodes)
    engines = {node.module.rpartition(".")[2] for node in used.values() if isinstance(node, ast.ImportFrom)}
    ours = {engine for engine in engines if engine.startswith("_")}
    assert ours <= {"_reference", "_contract", "_synthesizer"}
    if "_synthesizer" in ours:
        assert "synthesized" in used
    calls = [node.func for each in used.values() for node in ast.walk(each) if isinstance(node, ast.Call)]
    of_mechanism = [
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "mechanism"
    ]
    assert of_mechanism == (["extra_blocks"] if name == "bigbird" else [])  # what has been drawn


def test_the_formula_the_synthesizers_share_uses_nothing_of_the_fast_form():
    used = used_by("synthesized", definitions(_synthesizer))
    assert {"dot_products", "weighted_mean"} < used.keys()
    assert not used.keys() & {"dense_attention", "visible_keys", "rows_at"}
