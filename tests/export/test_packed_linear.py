"""Layers of few bits in files of ONNX Runtime and OpenVINO: the same numbers, which stay packed."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from zoo import inputs, network

import greenformers
from greenformers.changes import Bits, LowRank
from greenformers.changes._bits_layers import BitsLinear, Packed
from greenformers.export.compare import Comparison
from greenformers.export.network import Network, examples
from greenformers.export.packed_linear import Blocks, PackedLinear, packed
from greenformers.export.write import FORMATS, write
from greenformers.solve.grid import Form, Grid

FORMS = [
    Form(1, "group", 32, symmetric=True), Form(1.58, "row", symmetric=True), Form(2, "group", 16), Form(3, "tensor"),
    Form(4, "group", 64), Form(4, "group", 128, symmetric=True), Form(5, "group", 48), Form(8, "row"),
]  # fmt: skip


def held_of(form: Form, m: int = 11, n: int = 200) -> Packed:
    n -= n % form.group if form.per == "group" else 0
    W = torch.randn(m, n, generator=torch.Generator().manual_seed(0))
    grid = Grid.of(W, form)
    return Packed.of(grid.round(W), grid)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_blocks_hold_the_same_weight(form: Form) -> None:
    held = held_of(form)
    blocks = Blocks(held)
    assert torch.equal(blocks.rows(torch.arange(held.m)), held.rows())
    at = torch.tensor([[3, 0], [3, 7]])
    assert torch.equal(blocks.rows(at), held.rows(at))
    assert form.group_of(held.n) % blocks.block == 0 or form.group_of(held.n) == held.n


def test_scales_of_inputs_and_a_product_that_is_added() -> None:
    held = held_of(Form(4, "group", 32))
    held.inputs = torch.nn.Parameter(torch.rand(held.n) + 0.5, requires_grad=False)
    scaled = BitsLinear(held, None)
    left, right = held_of(Form(8, "row"), n=5), held_of(Form(8, "row"), m=5, n=192)
    added = BitsLinear(held_of(Form(4, "group", 32)).with_product(left, right), torch.nn.Parameter(torch.randn(11)))
    x = torch.randn(3, 192)
    for layer in (scaled, added):
        torch.testing.assert_close(PackedLinear(layer, Blocks(layer.held))(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bert", {"bits": 4, "by": "gptq", "group": 16, "rank": 2}),
        pytest.param("bert", {"bits": 8, "by": "awq", "per": "row"}, marks=pytest.mark.slow),
        pytest.param("gpt2", {"bits": 1.58, "by": "rounding", "group": 16}, marks=pytest.mark.slow),
    ],
)
def test_files_keep_them_packed(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    cls, layers = {"bert": ("BertModel", "num_hidden_layers"), "gpt2": ("GPT2LMHeadModel", "n_layer")}[name]
    model = network(name, cls, **{layers: 1, "intermediate_size" if name == "bert" else "n_inner": 48})
    calibration = None if options["by"] == "rounding" else [inputs(name)]
    greenformers.compress(model, Bits(**options), calibration=calibration)
    checked = write(model, tmp_path, ["onnx", "openvino"], length=8)
    assert max(checked.differences.values()) < 1e-5
    graph = onnx.load(tmp_path / FORMATS["onnx"]).graph
    operators = [node for node in graph.node if node.op_type == "MatMulNBits"]
    linear = [path for path, layer in model.named_modules() if isinstance(layer, BitsLinear)]
    products = len([path for path in linear if "pooler" not in path])  # which gives nothing to the hidden states
    assert len(operators) == products * (3 if "rank" in options else 1)
    assert not [value for value in graph.initializer if value.data_type == onnx.TensorProto.FLOAT and
                torch.Size(value.dims).numel() > 60 * 32]  # fmt: skip
    assert checked.cached is (name == "gpt2")
    held = {value.name for value in graph.initializer}
    assert all({*node.input[1:]} <= held for node in operators)  # and nothing that is computed, which OpenVINO refuses


def test_openvino_is_compared_without_rounding_inputs_to_8_bits(tmp_path: Path) -> None:
    """As it does by itself beside weights of few bits, in groups of 32 numbers and more."""
    model = network("bert", "BertModel", num_hidden_layers=1, hidden_size=64, intermediate_size=256)
    greenformers.compress(model, Bits(by="rounding", group=32))
    assert max(write(model, tmp_path, ["openvino"], length=8).differences.values()) < 1e-5


def test_both_factors_of_a_low_rank_layer() -> None:
    """In the copy for files no change knows them again: what compares a file with it must not ask."""
    model = network("bert", "BertModel", num_hidden_layers=1)
    greenformers.compress(model, [LowRank(rank=16), Bits(by="rounding", group=16)])
    twin = Network(packed(model))
    assert sum(isinstance(layer, PackedLinear) for layer in twin.modules()) == 5 + 2 * 2  # square ones stay dense
    Comparison(twin, examples(twin, 8))("openvino", lambda *batch: Network(model)(*batch))


def test_groups_that_are_no_blocks_are_refused_before_work_begins(tmp_path: Path) -> None:
    model = network("bert", "BertModel", num_hidden_layers=1)
    greenformers.compress(model, Bits(by="rounding", group=8, select=("*.query",)))
    with pytest.raises(ValueError, match=r"onnx and openvino hold groups of a multiple of 16 inputs, got 8"):
        write(model, tmp_path / "out", ["onnx"], length=8)
    assert not (tmp_path / "out").exists()
    assert max(write(model, tmp_path, ["program"], length=8).differences.values()) < 1e-5


def test_the_network_stays_as_it_was_and_weights_that_are_shared_stay_so() -> None:
    model = network("gpt2")
    greenformers.compress(model, Bits(by="rounding", group=16))
    twin = packed(model)
    assert any(isinstance(part, BitsLinear) for part in model.modules())
    assert twin.get_input_embeddings().blocks is twin.get_output_embeddings().blocks  # type: ignore[union-attr]
