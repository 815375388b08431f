"""The folder is the registry; shapes and inputs out of range are refused by value."""

import dataclasses
import inspect
import math
from pathlib import Path

import pytest
import torch
from beartype import beartype
from cases import BATCH, draw, each_mechanism, holes
from forked import told
from jaxtyping import TypeCheckError, jaxtyped
from rows import DIM, HEADS, MAX_LEN, ROWS

import greenformers.attention
from greenformers.attention import Attention, Shape, build, names
from greenformers.attention._contract import check_fit, check_lengths

FOLDER = Path(greenformers.attention.__file__).parent


def test_the_names_are_those_of_the_files():
    assert names() == sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))


def test_every_mechanism_has_a_row():
    assert {row.name for row in ROWS} == set(names())


def test_building_one_imports_no_other():
    program = """
import json
import sys

for module in [module for module in sys.modules if module.startswith("greenformers.attention")]:
    del sys.modules[module]  # what the server of processes has imported

from greenformers.attention import Shape, build, names

prefix = "greenformers.attention."
known, found = set(), {}
for name in names():
    build(name, Shape(2, 3, 5))
    files = {module.removeprefix(prefix) for module in sys.modules if module.startswith(prefix)}
    files = {file for file in files if not file.startswith("_")}
    found[name] = sorted(files - known)
    known |= files
print(json.dumps(found))
"""
    assert told(program) == {name: [name] for name in names()}


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"attention must be one of .*full, .*linformer, .*; got 'fulll'"):
        build("fulll", Shape(2, 3, 5))
    with pytest.raises(ValueError, match="got '_contract'"):
        build("_contract", Shape(2, 3, 5))


@pytest.mark.parametrize("name", names())
def test_an_option_it_does_not_take_is_refused(name):
    with pytest.raises(TypeError, match="dropuot"):
        build(name, Shape(2, 3, 5), dropuot=0.1)


@pytest.mark.parametrize("name", names())
def test_the_defaults_work_for_every_length(name):
    for max_len in (1, 2, 5, 129, 1000):
        x = torch.randn(1, 2, max_len, 3)
        assert build(name, Shape(2, 3, max_len))(x, x, x).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"max_len": -1}, "max_len must be at least 1, got -1"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"layer": 3, "layers": 3}, r"layer must be in 0\.\.2, got 3"),
        ({"layer": -1}, r"layer must be in 0\.\.0, got -1"),
    ],
)
def test_a_shape_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Shape(**{"heads": 2, "head_dim": 3, "max_len": 5} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 2.0}, r"heads must be a whole number, got 2\.0"),
        ({"head_dim": "3"}, "head_dim must be a whole number, got '3'"),
        ({"layer": True, "layers": 2}, "layer must be a whole number, got True"),
        ({"causal": "no"}, "causal must be true or false, got 'no'"),
    ],
)
def test_a_shape_of_another_type_is_refused(options, message):
    with pytest.raises(TypeError, match=message):
        Shape(**{"heads": 2, "head_dim": 3, "max_len": 5} | options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("linformer", {"k": 4.0}, r"k must be a whole number or several values or none, got 4\.0"),
        ("linformer", {"k": [1.5]}, r"k must be a whole number or several values or none, got \[1\.5\]"),
        ("linformer", {"k": True}, "k must be a whole number or several values or none, got True"),
        ("longformer", {"dilation": None}, "dilation must be a whole number or several values, got None"),
    ],
)
def test_an_option_of_another_type_is_refused(name, options, message):
    with pytest.raises(TypeError, match=f"^{name}: {message}$"):
        build(name, Shape(2, 3, 5), **options)


def test_an_option_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"^adaptive_span: penalty must be a finite number, got inf$"):
        build("adaptive_span", Shape(2, 3, 5), penalty=math.inf)


@pytest.mark.parametrize("name", names())
def test_a_batch_of_nothing(name):
    x, mask = torch.zeros(0, 2, 5, 3), torch.ones(0, 5, dtype=torch.bool)
    assert build(name, Shape(2, 3, 5)).eval()(x, x, x, mask).shape == x.shape


def test_a_shape_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Shape(2, 3, 5).heads = 4


MISFITS = {
    "heads": (lambda q, k, v: (q[:, 1:], k, v, None), "q must have 3 heads of 5, got 2 of 5"),
    "width": (lambda q, k, v: (q[..., 1:], k, v, None), "q must have 3 heads of 5, got 3 of 4"),
    "k": (lambda q, k, v: (q, k[:, :, 1:], v, None), r"k and v must be \(2, 3, M, 5\), got \(2, 3, 10, 5\)"),
    "v": (lambda q, k, v: (q, k, v[..., 1:], None), r"k and v must be .* got \(2, 3, 11, 5\) and \(2, 3, 11, 4\)"),
    "batch": (lambda q, k, v: (q[:1], k, v, None), r"k and v must be \(1, 3, M, 5\)"),
    "mask length": (
        lambda q, k, v: (q, k, v, torch.ones(2, 10, dtype=torch.bool)),
        r"key_mask must be a bool tensor \(2, 11\)",
    ),
    "mask type": (lambda q, k, v: (q, k, v, torch.ones(2, 11)), r"key_mask must be a bool tensor.*torch\.float32"),
    "no keys": (lambda q, k, v: (q, k[:, :, :0], v[:, :, :0], None), "the number of keys must be at least 1, got 0"),
}


@pytest.mark.parametrize("check", [check_lengths, check_fit])
@pytest.mark.parametrize(("change", "message"), MISFITS.values(), ids=MISFITS)
def test_inputs_that_do_not_fit_are_found(check, change, message):
    inputs, shape = draw(11, 11), Shape(HEADS, DIM, MAX_LEN)
    check(*inputs, None, shape)
    check(*inputs, holes(11), shape)
    with pytest.raises(ValueError, match=message):
        check(*change(*inputs), shape)


@each_mechanism
def test_inputs_that_do_not_fit_are_refused(row):
    module, inputs = row.build(), draw(11, 11, dtype=torch.float32)
    for change, message in MISFITS.values():
        with pytest.raises(ValueError, match=message):
            module(*change(*inputs))


@each_mechanism
def test_masks_of_queries_that_do_not_fit_are_refused(row):
    module, inputs = row.build(), draw(11, 11, dtype=torch.float32)
    for mask in (torch.ones(2, 10, dtype=torch.bool), torch.ones(2, 11)):
        with pytest.raises(ValueError, match=r"query_mask must be a bool tensor \(2, 11\)"):
            module(*inputs, None, query_mask=mask)


@each_mechanism
def test_only_what_is_learned_by_position_ends_a_text(row):
    module, given = row.build().double().eval(), draw(14, 14)
    if not module.bounded:
        torch.testing.assert_close(module(*given), row.reference(module, *given, None))
        return
    with pytest.raises(ValueError, match=rf"number of keys must be in 1\.\.{MAX_LEN}, got 14"):
        module(*given)


@each_mechanism
def test_causal_queries_without_a_key_are_refused(row):
    if not (row.causal and row.cross):
        pytest.skip("no causal form, or as many queries as keys")
    with pytest.raises(ValueError, match="at least as many keys as queries, got 5 and 7"):
        row.build(causal=True, cross=True)(*draw(7, 5, dtype=torch.float32))


@pytest.mark.parametrize("name", names())
def test_the_signature_is_the_slots(name):
    """Any further input is by keyword and has a default."""

    def parameters(mechanism):
        return list(inspect.signature(mechanism.forward).parameters.values())

    expected, got = parameters(Attention(Shape(2, 3, 5))), parameters(build(name, Shape(2, 3, 5)))
    assert [str(parameter) for parameter in got[: len(expected)]] == [str(parameter) for parameter in expected]
    assert all(extra.kind == extra.KEYWORD_ONLY and extra.default is not extra.empty for extra in got[len(expected) :])


@each_mechanism
def test_the_shapes_of_the_signature_hold(row):
    """The jaxtyping shapes of forward, run: right ones pass, and a wrong one is found before any computation."""
    queries = 7 if row.cross else 11
    module = row.build(cross=row.cross)
    forward = jaxtyped(typechecker=beartype)(type(module).forward)
    q, k, v = draw(queries, 11, dtype=torch.float32)
    key_mask, query_mask = holes(11), holes(queries)
    assert forward(module, q, k, v).shape == (BATCH, HEADS, queries, DIM)
    assert forward(module, q, k, v, key_mask, query_mask=query_mask).shape == q.shape
    for wrong in (
        {"q": q[0]},
        {"q": q[..., 1:]},
        {"k": k[:, 1:]},
        {"v": v[:, :, 1:]},
        {"key_mask": key_mask[:, 1:]},
        {"key_mask": key_mask.float()},
        {"query_mask": query_mask[:, 1:]},
    ):
        with pytest.raises(TypeCheckError):
            forward(module, **{"q": q, "k": k, "v": v, "key_mask": key_mask, "query_mask": query_mask} | wrong)


def test_what_the_base_cannot_do_it_says():
    base = Attention(Shape(2, 3, 5))
    x = torch.randn(1, 2, 5, 3)
    with pytest.raises(NotImplementedError):
        base(x, x, x)
    with pytest.raises(NotImplementedError, match="Attention has no linear reduction"):
        base.reduce(x[0], role="k")
    with pytest.raises(NotImplementedError, match="Attention has no linear reduction"):
        base.attend(x, x, x)
    assert not base.can_reduce
