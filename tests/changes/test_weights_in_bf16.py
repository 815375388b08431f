"""Weights in bfloat16: what is rounded and what is not, what is written, and when a search tries it."""

import pytest
import torch
from contract import check_same, snapshot
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes import Bfloat16, Given, Heal, Int8
from greenformers.checkpoint.load import load
from greenformers.measure.parameters import bytes_of
from greenformers.search.space import Space


def test_weights_are_rounded_and_angles_of_positions_are_not() -> None:
    model = network("llama")
    before = {path: x.clone() for path, x in model.state_dict().items()}
    angles = model.model.rotary_emb.inv_freq.clone()
    size, expected = bytes_of(model), outputs(model, inputs("llama"))
    report = Bfloat16().apply(model, Given(example=inputs("llama")))
    assert bytes_of(model) == size / 2
    torch.testing.assert_close(
        dict(model.state_dict()), {path: x.bfloat16() for path, x in before.items()}, rtol=0, atol=0
    )
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(model.model.rotary_emb.inv_freq, angles)
    scale = max(part.abs().max().item() for part in expected)
    assert 0 < difference(outputs(model, inputs("llama")), expected) < 0.02 * scale
    assert all(unit.after == unit.before / 2 and 0 < (unit.lost or 0) < 2**-8 for unit in report.units)


def test_it_is_written_as_a_plain_model_and_read_again(tmp_path) -> None:
    model = network("bert")
    greenformers.compress(model, [Bfloat16()])
    folder = greenformers.save(model, tmp_path / "small")  # without its report
    for again in (load(folder), type(model).from_pretrained(folder)):
        assert again.dtype == torch.bfloat16
        assert difference(outputs(again, inputs("bert")), outputs(model, inputs("bert"))) == 0
    assert "import greenformers" not in (folder / "README.md").read_text()
    with pytest.raises(ValueError, match=r"the weights of .* are in bfloat16 already"):
        greenformers.compress(load(folder), [Bfloat16()])


def test_a_network_that_takes_inputs_of_floats_alone_is_left_as_it_was() -> None:
    model = network("wav2vec2")
    before = snapshot(model)
    with pytest.raises(ValueError, match="does not run with weights in bfloat16"):
        greenformers.compress(model, [Bfloat16()], example=inputs("wav2vec2"))
    check_same(before, snapshot(model))
    with pytest.raises(ValueError, match=r"reads input_values, .* needs an example batch"):
        Bfloat16().check(model, [], Given())


def test_it_is_tried_in_torch_on_machines_that_multiply_in_it(monkeypatch) -> None:
    model, given = network("bert"), Given(calibration=[inputs("bert", 8)])

    def labels(runtime: str) -> set[str]:
        slots = Space.of(model, given, length=8, causal=False, runtime=runtime).slots
        return {change.label for slot in slots for change in slot}

    monkeypatch.setattr("greenformers.search.space.kinds", lambda: [Bfloat16, Int8])
    monkeypatch.setattr("greenformers.train.bf16.quickest", lambda: "bf16")
    assert "bf16" in labels("torch")
    assert "bf16" not in labels("openvino")
    assert not Heal.suited(texts=64, before=(), following=(Bfloat16(),)).aware
    monkeypatch.setattr("greenformers.train.bf16.quickest", lambda: "fp32")
    assert "bf16" not in labels("torch")
