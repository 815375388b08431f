"""Int8 layers with static ranges: the formula, ranges from texts, and what ONNX Runtime and OpenVINO make of them."""

from pathlib import Path
from typing import Any

import onnx
import openvino
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from zoo import network

import greenformers
from greenformers._torch import has_vnni
from greenformers.changes import Int8, LowRank
from greenformers.changes._int8 import quantise
from greenformers.changes._int8_linear import Int8Linear
from greenformers.export.network import Network
from greenformers.export.static_int8 import StaticInt8Linear, input_ranges, smoothing, static
from greenformers.export.write import FORMATS, Checked, reader, write
from greenformers.lowrank.linear import LED

FORMS = ["openvino", "onnx"]
VNNI = pytest.mark.skipif(
    not has_vnni(), reason="without VNNI the runtimes' int8 sums overflow, and the files are refused"
)


@pytest.fixture(scope="module")
def small() -> PreTrainedModel:
    """An encoder of low rank with int8 weights, whose attention looks at its keys."""
    model = network("bert", "BertModel", num_hidden_layers=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    greenformers.compress(model, [LowRank(keep=0.5), Int8()])
    return model


@pytest.fixture(scope="module")
def files(small: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checked]:
    """Its files for both runtimes: their folder, and how they differ from it."""
    folder = tmp_path_factory.mktemp("files")
    return folder, write(small, folder, FORMS, calibration=texts(), length=16)


def texts(count: int = 40) -> list[dict[str, torch.Tensor]]:
    """Batches of random tokens, each of a length of its own."""
    draw = torch.Generator().manual_seed(3)
    return [{"input_ids": torch.randint(3, 53, (2, 3 + at % 17), generator=draw)} for at in range(count)]


def channels(low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranges of seven channels, the widest from low to high."""
    share = torch.tensor([0.3, 1.0, 0.9, 0.5, 0.1, 0.7, 1.0])
    return low * share, high * share


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(("low", "high"), [(-1.3, 2.9), (0.5, 2.0), (-3.0, -1.0)])
def test_the_formula(low: float, high: float, smooth: bool, bias: bool) -> None:
    layer = Int8Linear.of(torch.randn(5, 7), nn.Parameter(torch.randn(5)) if bias else None)
    s = torch.rand(7) + 0.5 if smooth else torch.ones(7)
    static_layer = StaticInt8Linear(layer, *channels(low, high), s if smooth else None)
    x = 2 * torch.randn(2, 3, 7)
    least, greatest = channels(low, high)
    start = min(min((least[n] / s[n]).item() for n in range(7)), 0.0)
    end = max(max((greatest[n] / s[n]).item() for n in range(7)), 0.0)
    step = (end - start) / 255
    zero = round(-start / step)
    rows = [[(layer.weight[m, n] * s[n]).item() for n in range(7)] for m in range(5)]
    rounded = [[round(w * 127 / max(map(abs, row))) * max(map(abs, row)) / 127 for w in row] for row in rows]
    expected = torch.zeros(2, 3, 5, dtype=torch.float64)
    for b in range(2):
        for i in range(3):
            for m in range(5):
                for n in range(7):
                    q = min(max(round(x[b, i, n].item() / s[n].item() / step) + zero, 0), 255)
                    expected[b, i, m] += step * (q - zero) * rounded[m][n]
    if layer.bias is not None:
        expected += layer.bias
    torch.testing.assert_close(static_layer(x).double(), expected, rtol=1e-4, atol=1e-4)
    inside = (x / s).clamp(start, end)
    exact = inside @ torch.tensor(rounded).T + (0 if layer.bias is None else layer.bias)
    assert (static_layer(x) - exact).abs().max() <= step / 2 * torch.tensor(rounded).abs().sum(1).max() + 1e-5


def test_channels_with_large_values_are_smoothed() -> None:
    weight, x = torch.randn(40, 64), torch.randn(500, 64)
    x[:, 3] *= 30
    low, high = x.amin(0), x.amax(0)
    s = smoothing(weight, low, high)
    assert s is not None
    layer = Int8Linear.of(weight, None)
    off = [(StaticInt8Linear(layer, low, high, given)(x) - x @ weight.T).square().mean() for given in (None, s)]
    assert off[1] * 5 < off[0]
    for n in (3, 7):  # eq. 4
        largest = max(abs(value.item()) for value in x[:, n])
        assert s[n].item() == pytest.approx(largest**0.8 / max(abs(w.item()) for w in weight[:, n]) ** 0.2, rel=1e-4)
    # Channels that are alike gain nothing, and channels of zeros are no division by 0.
    assert smoothing(weight, low.clamp(min=-3), high.clamp(max=3)) is None
    assert smoothing(weight, torch.zeros(64), torch.zeros(64)) is None
    assert smoothing(torch.zeros(40, 64), low, high) is None
    low[5], high[5], weight[:, 9] = 0, 0, 0
    s = smoothing(weight, low, high)
    assert s is not None
    assert s.isfinite().all()
    assert (s > 0).all()


def test_a_first_factor_divides_for_the_second_one() -> None:
    low = LED(16, 24, 8)
    with torch.no_grad():
        low.encoder.weight[2] *= 20
    x, model = torch.randn(300, 16), nn.Sequential(low)
    quantise(model)
    ranges = input_ranges(model, [{"input": x}])
    twin: Any = static(model, ranges)[0]
    assert twin.encoder.quantised is low.encoder.quantised
    assert twin.decoder.inverse is None
    s = low.encoder.scale / twin.encoder.scale
    assert s[2] == s.max()
    assert s.max() > 5 * s.median()
    exact = low.decoder.weight * s
    assert (twin.decoder.scale[:, None] * twin.decoder.quantised - exact).abs().max() <= exact.abs().max() / 253
    first, second = (StaticInt8Linear(low.get_submodule(name), *ranges[f"0.{name}"]) for name in ("encoder", "decoder"))
    right = x @ low.encoder.weight.T @ low.decoder.weight.T + low.bias
    assert 2 * (twin(x) - right).square().mean() < (second(first(x)) + low.bias - right).square().mean()


def test_layers_with_the_same_inputs_share_the_division() -> None:
    model = network("bert", "BertModel", num_hidden_layers=1)
    with torch.no_grad():
        model.embeddings.LayerNorm.weight[4] = 50
    greenformers.compress(model, Int8())
    twin = static(model, input_ranges(model, texts()))
    attention = twin.encoder.layer[0].attention.self
    factors = [layer.inverse for layer in (attention.query, attention.key, attention.value)]
    assert all(isinstance(factor, torch.Tensor) and factor.equal(factors[0]) for factor in factors)


def test_ranges_are_the_least_and_the_greatest(small: PreTrainedModel) -> None:
    seen: list[torch.Tensor] = []
    path = "encoder.layer.0.intermediate.dense.encoder"
    handle = small.get_submodule(path).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    ranges = input_ranges(small, texts())
    handle.remove()
    values = torch.cat([x.flatten(0, -2) for x in seen])
    low, high = ranges[path]
    assert low.equal(values.amin(0))
    assert high.equal(values.amax(0))
    assert len(ranges) == sum(isinstance(module, Int8Linear) for module in small.modules())
    assert not any(module._forward_pre_hooks for module in small.modules())


def test_the_twin_shares_weights_and_leaves_the_model(small: PreTrainedModel) -> None:
    before = dict(small.named_modules())
    twin = static(small, input_ranges(small, texts()))
    assert dict(small.named_modules()) == before
    pairs = [
        (module, small.get_submodule(path))
        for path, module in twin.named_modules()
        if isinstance(module, StaticInt8Linear)
    ]
    plain = [(ours, theirs) for ours, theirs in pairs if ours.quantised is theirs.quantised]
    assert 1 < len(plain) < len(pairs)
    assert all(ours.inverse is None for ours, _ in plain)
    assert all(ours.bias is theirs.bias for ours, theirs in pairs)


@VNNI
def test_both_runtimes_give_what_torch_gives(small: PreTrainedModel, files: tuple[Path, Checked]) -> None:
    folder, checked = files
    assert all(checked.differences[name] <= checked.allowed[name] for name in FORMS)
    twin, model = Network(static(small, input_ranges(small, texts()))), Network(small)
    ids, mask, types = model.batch(4, 11, "left")
    with torch.no_grad():
        right, dynamic = twin(ids, mask, types)[mask.bool()], model(ids, mask, types)[mask.bool()]
    largest = right.abs().max()
    for form in FORMS:
        run = reader(form, folder, model.inputs, exact=True)
        outputs, unmasked = (run(ids, given, types)[mask.bool()] for given in (mask, torch.ones_like(mask)))
        assert (outputs - right).abs().max() <= checked.allowed[form] * largest
        assert (unmasked - right).abs().max() > checked.allowed[form] * largest  # so that a lost mask would show
        # Not one outlier but the outputs as a whole are those of the model.
        assert torch.nn.functional.cosine_similarity(outputs, dynamic, dim=-1).mean() > 0.98


@VNNI
def test_a_text_does_not_depend_on_its_batch(small: PreTrainedModel, files: tuple[Path, Checked]) -> None:
    run = reader("onnx", files[0], Network(small).inputs)
    ids, mask, types = Network(small).batch(5, 12, "right")
    alone = [run(*(given[at : at + 1, : int(mask[at].sum())] for given in (ids, mask, types)))[0] for at in range(5)]
    together = run(ids, mask, types)
    for at, text in enumerate(alone):
        torch.testing.assert_close(together[at, : len(text)], text, rtol=1e-4, atol=1e-4)


@VNNI
def test_weights_are_stored_as_integers(small: PreTrainedModel, files: tuple[Path, Checked]) -> None:
    folder, _ = files
    named = [(path, module) for path, module in small.named_modules() if isinstance(module, Int8Linear)]
    layers = [module for path, module in named if not path.startswith("pooler")]  # whose output is not that of the file
    numbers = sum(layer.quantised.numel() for layer in layers)
    graph = onnx.load(folder / FORMATS["onnx"]).graph
    stored = sum(
        torch.tensor(tensor.dims).prod().item()
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    )
    assert stored >= numbers
    assert (folder / "openvino" / "openvino_model.bin").stat().st_size < 1.3 * (folder / FORMATS["onnx"]).stat().st_size
    request = (
        openvino.Core().compile_model(folder / FORMATS["openvino"], "CPU", {"PERF_COUNT": True}).create_infer_request()
    )
    names = Network(small).inputs
    request.infer({name: given.numpy() for name, given in zip(names, Network(small).batch(2, 8), strict=True)})
    kinds = [node.exec_type for node in request.get_profiling_info() if node.node_type == "FullyConnected"]
    assert len(kinds) == len(layers)
    assert all(kind.lower().endswith("i8") for kind in kinds), kinds


def test_without_texts_it_is_refused_before_work(small: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"openvino and onnx run int8 layers in integers by ranges .* give some \(--texts"
    ):
        write(small, tmp_path / "out", ["openvino", "onnx", "torch"])
    assert list(tmp_path.iterdir()) == []
    assert write(small, tmp_path / "out", ["torch"], length=16).differences["torch"] == 0
