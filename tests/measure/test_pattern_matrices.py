"""Matrices of who sees whom, against the formulas in plain numbers."""

from importlib import import_module

import pytest
import torch

from greenformers.attention import Shape, build
from greenformers.measure.connectivity import CELLS, connectivity, patterns

OPTIONS = {
    "sliding_window": {"window": 3, "dilation": [1, 2]},
    "cascade": {"base": 2},
    "local_blocks": {"block": 5},
    "sparse_strided": {"stride": 4},
    "sparse_fixed": {"stride": 4, "summary": 1},
    "blockwise": {"blocks": 3},
    "longformer": {"window": 3, "globals": 2},
    "bigbird": {"block": 3, "random": 1},
    "etc": {"globals": 3, "radius": 2},
}


@pytest.mark.parametrize("name", patterns())
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_each_cell_is_filled_where_the_formula_says(name, causal):
    if causal and name in ("blockwise", "longformer", "bigbird", "etc"):
        pytest.skip("no causal form")
    length = 29
    pattern = connectivity(name, length, OPTIONS[name], heads=2, layers=2, causal=causal)
    assert [(head.layer, head.head) for head in pattern.heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    formula = import_module(f"greenformers.attention.{name}").formula
    for head in pattern.heads:
        module = build(name, Shape(2, 64, length, causal=causal, layer=head.layer, layers=2), **OPTIONS[name])
        expected = torch.tensor(
            [
                [formula(module, i, j, head.head, length) and not (causal and j > i) for j in range(length)]
                for i in range(length)
            ]
        )
        assert torch.equal(head.share.sum(0), expected.float())
        assert head.pairs == expected.sum()
    assert pattern.density == pytest.approx(sum(head.pairs for head in pattern.heads) / 4 / length**2)


def test_kinds_are_window_global_and_gathered():
    window, wide, gathered = connectivity("bigbird", 29, OPTIONS["bigbird"]).heads[0].share
    assert wide[0].all()
    assert wide[:, -1].all()
    assert not wide[5, 5]
    assert window[5, 5]
    assert gathered[3:-2].sum(1).eq(3).all()  # one block of three keys for each query that is not global
    assert connectivity("blockwise", 7, {}).heads[0].share[1:].sum() == 0


def test_a_long_matrix_is_drawn_in_cells_that_count_every_pair():
    length = CELLS * 2 + 6
    pattern = connectivity("sliding_window", length, {"window": 1})
    assert pattern.heads[0].share.shape == (3, 344, 344)  # three positions a cell
    assert pattern.heads[0].pairs == 3 * length - 2
    assert pattern.heads[0].share[0, 0, :3].tolist() == pytest.approx([7 / 9, 1 / 9, 0])
    assert pattern.heads[0].share[0, -1, -1] == 1  # one row and one column


def test_flops_are_those_of_a_layer_beside_dense_attention(monkeypatch):
    # The matrices, which take long, play no part.
    monkeypatch.setattr(import_module("greenformers.measure.connectivity"), "_of_head", lambda *_: None)
    pattern = connectivity("sliding_window", 4096, {"window": 128}, layers=2)
    assert pattern.dense == 4 * 4096**2 * 64
    assert pattern.flops[0] == pattern.flops[1]
    assert 8 < pattern.dense / pattern.flops[0] < 4096 / 257


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("linformer", {}, "pattern must be one of bigbird, .*sparse_strided; got 'linformer'"),
        ("cascade", {"length": 0}, r"length must be in 1\.\.16384, got 0"),
        ("cascade", {"length": 16385}, r"length must be in 1\.\.16384, got 16385"),
        ("cascade", {"layers": 0}, "layers must be at least 1, got 0"),
        ("cascade", {"heads": 0}, "heads must be at least 1, got 0"),
        ("cascade", {"options": {"bas": 1}}, "option must be of cascade, got bas: .*'bas'"),
        ("bigbird", {"causal": True}, "bigbird has no causal form"),
    ],
)
def test_what_cannot_be_drawn_is_refused(name, given, message):
    with pytest.raises(ValueError, match=message):
        connectivity(name, **{"length": 8, "options": {}} | given)
