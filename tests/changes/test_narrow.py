"""A student of the network's own class: what it begins with, and what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_neurons import lively, texts
from transformers import AutoModel, BertModel, PreTrainedModel
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes import Heal, Layers, LowRank, Narrow
from greenformers.changes._class_sizes import built, sized
from greenformers.changes._student import Student
from greenformers.solve.head_dim import narrow_heads
from greenformers.solve.heads import heads
from greenformers.solve.hidden_width import hidden_width
from greenformers.solve.narrow import exchanged
from greenformers.solve.student import principal_states, turn

FOUR: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 4}


def compress(model: PreTrainedModel, name: str, *changes: Any) -> Any:
    return greenformers.compress(model, changes, calibration=texts() if name in ("bert", "llama") else [inputs(name)])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_all_directions_of_a_stream_that_norms_read_change_nothing(name: str) -> None:
    """Their weights are 1 in a fresh network; a norm that subtracts the mean finds none."""
    model, batch = network(name).double(), inputs(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "norm" in path or "ln_" in path:
                parameter.fill_(path.endswith("weight"))
    expected = outputs(model, batch)
    width = hidden_width(model, batch, shared=True)
    U, share = principal_states(model, width, [batch], 32)
    assert share == pytest.approx(1)
    if name == "gpt2":
        torch.testing.assert_close(U.sum(1), torch.zeros(32, dtype=torch.float64), rtol=0, atol=1e-9)
    with exchanged(model) as exchange:
        turn(exchange, width, U)
    assert difference(outputs(model, batch), expected) < 1e-5


def test_what_nothing_depends_on_goes() -> None:
    """Hidden coordinates, neurons and a group of heads at 0: the student without them computes the same."""
    model = lively("llama").float()
    dead = torch.tensor([1, 5, 8, 13, 20, 21, 30, 31])
    with torch.no_grad():
        model.model.embed_tokens.weight[:, dead] = 0
        for layer in model.model.layers:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight[dead] = 0
            layer.mlp.up_proj.weight[:12] = 0
            layer.self_attn.o_proj.weight[:, 16:] = 0
    before = [outputs(model, batch)[0] for batch in texts()]
    compress(model, "llama", Narrow(hidden=24, heads=2, neurons=32))
    assert (model.config.hidden_size, model.config.num_attention_heads) == (24, 2)
    assert (model.config.num_key_value_heads, model.config.intermediate_size) == (1, 32)
    for batch, expected in zip(texts(), before, strict=True):
        assert difference([outputs(model, batch)[0]], [expected]) < 5e-3 * expected.abs().max()


def test_heads_of_fewer_coordinates() -> None:
    """Those of each head at 0 go, and the scores are divided by the root of the number that is left."""
    model = network("bert")
    units = heads(model, inputs("bert"))
    alive = torch.tensor([*range(2, 14), *range(18, 30)])
    gone = torch.tensor([at for at in range(32) if at not in alive])
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            for part in (layer.attention.self.query, layer.attention.self.key, layer.attention.self.value):
                part.weight[gone], part.bias[gone] = 0, 0
            layer.attention.output.dense.weight[:, gone] = 0
    small = copy.deepcopy(model)
    for layer in units:
        narrow_heads(small, layer, 16, 12)
    scale = (12 / 16) ** 0.25
    for ours, theirs in zip(small.bert.encoder.layer, model.bert.encoder.layer, strict=True):
        torch.testing.assert_close(ours.attention.self.query.weight, scale * theirs.attention.self.query.weight[alive])
        torch.testing.assert_close(
            ours.attention.output.dense.weight, theirs.attention.output.dense.weight[:, alive] / scale
        )
        part = ours.attention.self
        part.attention_head_size, part.all_head_size, part.scaling = 12, 24, 12**-0.5
    assert difference(outputs(small, inputs("bert")), outputs(model, inputs("bert"))) < 1e-5


def test_random_weights_are_those_of_the_class() -> None:
    model = network("bert", "BertModel")
    config = sized(model.config, hidden=(32, 24), heads=(2, 2), neurons=(44, 32))
    expected = built(model, config, 7).state_dict()
    greenformers.compress(model, Narrow(hidden=24, start="random"), calibration=[inputs("bert")], seed=7)
    assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())
    again = network("bert", "BertModel")
    greenformers.compress(again, Narrow(hidden=24, start="random"), calibration=[inputs("bert")], seed=8)
    assert not torch.equal(again.encoder.layer[0].output.dense.weight, model.encoder.layer[0].output.dense.weight)


@pytest.mark.parametrize("start", ["pruned", "pca"])
def test_it_is_nearer_to_its_teacher_than_random_weights(start: str) -> None:
    teacher = lively("bert", cls="BertModel").float()
    distances = {}
    for begun in (start, "random"):
        small = copy.deepcopy(teacher)
        compress(small, "bert", Narrow(hidden=16, layers=1, heads=2, neurons=16, start=begun))
        learner = Student(small, teacher, {"hidden": 1.0}, 1.0, seen=texts())
        distances[begun] = learner.eval()(**inputs("bert", 9))["loss"].item()
    assert distances[start] < 0.8 * distances["random"]


def test_it_is_a_model_of_its_class(tmp_path: Path) -> None:
    """A class that transformers builds from the configuration alone, also where layers had gone before."""
    model = network("bert", **FOUR)
    model.cls.predictions.bias.requires_grad_(False)
    compress(model, "bert", Layers(3), Narrow(hidden=16, layers=2, neurons=20))
    assert [type(x) for x in (model, model.config)] == [type(network("bert")), type(network("bert").config)]
    assert not model.cls.predictions.bias.requires_grad
    config = json.loads(json.dumps(model.config.to_dict(), default=str))
    del config["quantization_config"]
    fresh = type(model)(type(model.config).from_dict(config))
    fresh.load_state_dict(model.state_dict())
    assert difference(outputs(fresh.eval(), inputs("bert")), outputs(model, inputs("bert"))) == 0
    described = model.config.quantization_config.as_dict()["changes"]
    assert described["layers"] == {"bert.encoder.layer": [0, 3]}
    assert described["narrow"]["layers"] == {"bert.encoder.layer": [0, 2]}
    assert described["narrow"]["hidden"] == (32, 16)
    greenformers.save(model, tmp_path / "small")
    assert isinstance(AutoModel.from_pretrained(tmp_path / "small"), BertModel)


@pytest.mark.parametrize(("layers", "weights"), [(None, {}), (2, {"hidden": 1.0})])
def test_it_is_healed(layers: int | None, weights: dict[str, float]) -> None:
    examples = [{"input_ids": row} for row in inputs("bert", 40)["input_ids"]]
    model = network("bert", "BertModel", **FOUR)
    report = greenformers.compress(
        model, [Narrow(hidden=16, layers=layers), Heal(40, batch_size=8, learning_rate=3e-3, weights=weights)],
        examples=examples, calibration=[inputs("bert")],
    )  # fmt: skip
    log = [entry["eval_distance"] for entry in report.steps[1].report.log if "eval_distance" in entry]
    assert log[-1] < log[0]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("bert", Narrow(hidden=40), r"hidden coordinates of a student must be in 1\.\.32, .* there are; got 40"),
        ("bert", Narrow(hidden=32, neurons=44), "a student must be smaller than BertForMaskedLM, in one of its sizes"),
        ("bert", Narrow(hidden=24, heads=1), "heads must be of 2 for 24 hidden coordinates; got 1"),
        ("bert", Narrow(hidden=25), "hidden coordinates of a student must be divided by its heads"),
        ("bert", Narrow(neurons=45), r"neurons of a student must be in 1\.\.44"),
        ("llama", Narrow(hidden=24, heads=3), "heads must be a multiple of 2, which share keys and values; got 3"),
        ("t5", Narrow(hidden=24, heads=1), "T5ForConditionalGeneration reads its heads and neurons elsewhere too"),
        ("bert", Narrow(hidden=24, layers=3), r"layers to keep must be in 1\.\.1, of 2; got 3"),
        ("clip", Narrow(hidden=24), "CLIPModel has several hidden widths"),
        ("wav2vec2", Narrow(hidden=24), "builds of these sizes other weights than are left of it"),
    ],
)  # fmt: skip
def test_refusals_leave_everything_as_it_was(name: str, change: Narrow, said: str) -> None:
    model = network(name)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=said):
        greenformers.compress(model, change, calibration=[inputs(name)])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert "quantization_config" not in model.config.to_dict()


def test_options_out_of_range() -> None:
    for wrong, said in (
        ({"hidden": 0}, "hidden of a student must be at least 1, got 0"),
        ({"start": "best"}, "start of a student must be of pruned, pca, random; got 'best'"),
        ({"layers_by": "run"}, "layers_by chooses among layers: give their number too"),
        ({"layers": 2, "layers_by": "best"}, "layers by must be of even"),
    ):
        with pytest.raises(ValueError, match=said):
            Narrow(**wrong)
    with pytest.raises(ValueError, match="narrow cannot follow low_rank, which makes another network than its class"):
        greenformers.compress(network("bert"), [LowRank(0.5), Narrow()], calibration=[inputs("bert")])
    with pytest.raises(ValueError, match="a student of half the width needs examples to calibrate with"):
        greenformers.compress(network("bert"), Narrow())


def test_angles_of_positions_stay_float32() -> None:
    model = network("llama")
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()  # as from_pretrained(dtype=torch.bfloat16) gives it
    student: Any = built(model, sized(model.config, hidden=(32, 24), heads=(4, 4), neurons=(44, 32)), 0)
    assert student.lm_head.weight.dtype == torch.bfloat16
    assert student.model.rotary_emb.inv_freq.dtype == torch.float32


def test_what_was_frozen_stays_so_by_its_new_number() -> None:
    model: Any = network("bert", num_hidden_layers=4, num_attention_heads=4)
    model.bert.encoder.layer[1].requires_grad_(False)
    model.bert.encoder.layer[3].requires_grad_(False)
    greenformers.compress(model, Narrow(hidden=16, layers=2), calibration=[inputs("bert")])
    first, second = model.bert.encoder.layer  # 0 and 3
    assert all(parameter.requires_grad for parameter in first.parameters())
    assert not any(parameter.requires_grad for parameter in second.parameters())
