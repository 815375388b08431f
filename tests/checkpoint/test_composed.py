"""Changed models of every kind, saved and read again by plain `from_pretrained`: the same, bit by bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fresh import read_again
from transformers import PreTrainedModel
from zoo import difference, everything, inputs, network, outputs

import greenformers
from greenformers.changes.attention import swap_attention
from greenformers.changes.int8 import quantise
from greenformers.changes.layers import drop_layers
from greenformers.checkpoint.structure import mark, structure

DEEP = {"bert": "num_hidden_layers", "roberta": "num_hidden_layers", "gpt2": "n_layer", "llama": "num_hidden_layers"}
WRITES = ("gpt2", "llama", "bart", "t5")


def swap(model: PreTrainedModel, attention: str, **more: Any) -> None:
    swap_attention(model, attention, **more)


def drop(model: PreTrainedModel) -> None:
    drop_layers(model, 2)


def lower(model: PreTrainedModel) -> None:
    greenformers.compress(model, 0.5, select=everything)


def eight(model: PreTrainedModel) -> None:
    quantise(model)
    mark(model)


def steps(*done: Callable[[PreTrainedModel], None]) -> Callable[[PreTrainedModel], None]:
    def change(model: PreTrainedModel) -> None:
        for step in done:
            step(model)

    return change


def linear(model: PreTrainedModel) -> None:
    swap(model, "linear_transformer")


def linformer(model: PreTrainedModel) -> None:
    swap(model, "linformer", options={"k": 4, "sharing": "layerwise"}, length=60)


def window(model: PreTrainedModel) -> None:
    swap(model, "sliding_window", options={"window": 2}, layers=[1])


CHANGES: dict[str, tuple[str, Callable[[PreTrainedModel], None]]] = {
    **{f"{name}-int8": (name, eight) for name in ("bert", "albert", "gpt2", "llama", "bart", "t5", "vit", "wav2vec2")},
    **{f"{name}-drop": (name, drop) for name in DEEP},
    **{f"{name}-linear": (name, linear) for name in ("bert", "distilbert", "albert", "gpt2", "llama", "bart")},
    "bert-linformer": ("bert", linformer),
    "roberta-linformer": ("roberta", linformer),
    "bert-window": ("bert", window),
    "gpt2-window": ("gpt2", window),
    "gpt2-longer": ("gpt2", lambda model: swap(model, "sliding_window", length=70)),
    "bart-cross": ("bart", lambda model: swap(model, "linear_transformer", select="*")),
    "bert-low-int8": ("bert", steps(lower, eight)),
    "gpt2-low-int8": ("gpt2", steps(lower, eight)),
    "bert-drop-low": ("bert", steps(drop, lower)),
    "bert-swap-drop": ("bert", steps(linformer, drop)),
    "bert-drop-swap": ("bert", steps(drop, linformer)),
    "gpt2-swap-low": ("gpt2", steps(linear, lower)),
    "gpt2-low-swap": ("gpt2", steps(lower, linear)),
    "roberta-swap-int8": ("roberta", steps(linformer, eight)),
    "bert-all": ("bert", steps(drop, linformer, lower, eight)),
    "gpt2-all": ("gpt2", steps(drop, linear, lower, eight)),
    "llama-all": ("llama", steps(linear, drop, lower, eight)),
}


def made(what: str) -> PreTrainedModel:
    name, change = CHANGES[what]
    model = network(name, **({DEEP[name]: 4} if name in DEEP else {}))
    change(model)
    return model


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The models, and what they did in a process that knows nothing but their folders."""
    models = ((what, name, made(what)) for what, (name, _) in CHANGES.items())
    return read_again(tmp_path_factory.mktemp("saved"), models)


@pytest.mark.parametrize("what", CHANGES)
def test_a_fresh_process_reads_the_same_model(saved: dict[str, Any], what: str) -> None:
    model, after = saved[what]["model"], saved[what]["after"]
    assert after["difference"] == 0.0
    assert after["outputs"] >= 1
    assert after["keys"] == {}
    assert after["parameters"] == count(model)
    # Inputs are rounded to 8 bits by the least and greatest of a call, and calls differ with and without a cache.
    if CHANGES[what][0] in WRITES and not structure(model).int8:
        assert after["cached"] == after["uncached"]
    elif CHANGES[what][0] in WRITES:
        assert len(after["cached"][0]) >= 6


@pytest.mark.parametrize("what", CHANGES)
def test_load_gives_it_back_and_so_once_more(saved: dict[str, Any], what: str, tmp_path: Path) -> None:
    model, batch = saved[what]["model"], inputs(CHANGES[what][0])
    again = greenformers.load(saved[what]["folder"])
    assert type(again) is type(model)
    assert not again.training
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    assert structure(again).to_dict() == structure(model).to_dict()
    third = greenformers.load(greenformers.save(again, tmp_path / "new"))
    assert difference(outputs(third, batch), outputs(model, batch)) == 0.0
    assert third.state_dict().keys() == model.state_dict().keys()
    assert structure(third).to_dict() == structure(model).to_dict()


@pytest.mark.parametrize("what", ["bert-int8", "gpt2-int8", "gpt2-low-int8", "gpt2-all"])
def test_numbers_of_8_bits_stay_one(saved: dict[str, Any], what: str) -> None:
    again = greenformers.load(saved[what]["folder"])
    head, table = again.get_output_embeddings(), again.get_input_embeddings()
    if "low" not in what and "all" not in what:
        assert head.weight.dtype == table.weight.dtype == torch.int8
        assert head.weight is table.weight
        assert head.scale is table.scale
    assert not any(part.requires_grad for part in again.parameters())
    stored = (saved[what]["folder"] / "model.safetensors").stat().st_size
    bytes_ = sum(part.numel() * part.element_size() for part in again.parameters())
    assert stored < 1.2 * bytes_ + 20_000


def test_layers_share_a_parameter_as_before(saved: dict[str, Any]) -> None:
    again = greenformers.load(saved["bert-linformer"]["folder"])
    mechanisms = [layer.attention.self.mechanism for layer in again.bert.encoder.layer]
    assert len({id(mechanism.E) for mechanism in mechanisms}) == 1
    assert again.config.max_position_embeddings == 60


@pytest.mark.parametrize(("name", "base"), [("bert-all", "BertModel"), ("gpt2-all", "GPT2Model")])
def test_a_head_may_go(saved: dict[str, Any], name: str, base: str) -> None:
    more = {"add_pooling_layer": False} if "bert" in name else {}
    body = getattr(transformers, base).from_pretrained(saved[name]["folder"], **more)
    batch = inputs(CHANGES[name][0])
    assert difference(outputs(body, batch)[:1], outputs(saved[name]["model"].base_model, batch)[:1]) == 0.0


def spoil(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        for key in keys[:-1]:
            described = described[key]
        described[keys[-1]] = value

    return change


PLACE = "bert.encoder.layer.0.attention.self"
MADE = {"name": "linformer", "options": {}, "shape": {"heads": 2, "head_dim": 16, "max_len": 60}}


@pytest.mark.parametrize(
    "change",
    [
        spoil("attention", value=[PLACE]),
        spoil("attention", value={PLACE: "linformer"}),
        spoil("attention", PLACE, value={"name": "linformer"}),
        spoil("attention", PLACE, "name", value="os.system"),
        spoil("attention", PLACE, "name", value="../linformer"),
        spoil("attention", PLACE, "name", value=3),
        spoil("attention", PLACE, "options", value={"nothing": 1}),
        spoil("attention", PLACE, "options", value={"k": "many"}),
        spoil("attention", PLACE, "options", value={"k": -1}),
        spoil("attention", PLACE, "options", value=[]),
        spoil("attention", PLACE, "shape", value={}),
        spoil("attention", PLACE, "shape", "heads", value=0),
        spoil("attention", PLACE, "shape", "heads", value="two"),
        spoil("attention", PLACE, "shape", "max_len", value=17),
        spoil("attention", "bert.nowhere", value=MADE),
        spoil("attention", PLACE, "shape", "width", value=1),
        spoil("int8", value="all"),
        spoil("int8", value={"bert": 8}),
        spoil("int8", value=[3]),
        spoil("int8", value=["bert.nowhere"]),
        spoil("int8", value=["bert.encoder.layer.0.output.LayerNorm"]),
        spoil("int8", value=[]),
        spoil("layers", value="0"),
        spoil("layers", value=[-1]),
        spoil("layers", value=[0.5]),
        spoil("layers", value=[True]),
    ],
)
def test_damaged_descriptions_are_refused(
    saved: dict[str, Any], tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    folder = Path(shutil.copytree(saved["bert-all"]["folder"], tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r".+") as caught:
        greenformers.load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800
