"""A compressed network of `transformers`, saved and read again by plain `from_pretrained`: the same, bit by bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fresh import read_again
from safetensors import safe_open
from transformers import PreTrainedModel, Trainer, TrainingArguments
from zoo import GENERATES, ZOO, difference, everything, inputs, network, outputs

import greenformers
from greenformers.checkpoint.structure import ranks_of, ties_of

SELECTIONS = {"default": None, "everything": everything}
TIED = ("bert", "roberta", "distilbert", "albert", "electra", "gpt2", "llama", "t5", "whisper")


def small(name: str, select: Any = None, dtype: torch.dtype = torch.float32, **more: Any) -> PreTrainedModel:
    model = network(name, **more).to(dtype)
    greenformers.compress(model, 0.5, select=select)
    return model


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the networks did before they were saved, and in a process that knows nothing but their folders."""
    models = ((f"{name}-{what}", name, small(name, select)) for name in ZOO for what, select in SELECTIONS.items())
    return read_again(tmp_path_factory.mktemp("saved"), models)


@pytest.mark.parametrize("what", SELECTIONS)
@pytest.mark.parametrize("name", ZOO)
def test_a_fresh_process_reads_the_same_network(saved: dict[str, Any], name: str, what: str) -> None:
    before = saved[f"{name}-{what}"]
    after = before["after"]
    assert after["difference"] == 0.0
    assert after["outputs"] >= 1
    assert after["keys"] == {}
    assert after["parameters"] == parameters(before["model"]) < parameters(network(name))
    if name in GENERATES:
        assert after["cached"] == after["uncached"]
        assert len(after["cached"][0]) >= 6


def test_transformers_may_be_imported_first() -> None:
    script = (
        "import transformers.quantizers.auto as auto\n"
        "assert 'greenformers' not in auto.AUTO_QUANTIZER_MAPPING\n"
        "import greenformers\n"
        "assert {'greenformers'} <= set(auto.AUTO_QUANTIZER_MAPPING) & set(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("name", ZOO)
def test_save_and_load_give_it_back(saved: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = saved[f"{name}-everything"]["model"]
    again = greenformers.load(greenformers.save(model, tmp_path / "new"))
    assert type(again) is type(model)
    assert not again.training
    batch = inputs(name)
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    assert ranks_of(again) == ranks_of(model)
    assert ties_of(again) == ties_of(model)
    # And once more: what was read can be written, over itself too.
    third = greenformers.load(greenformers.save(again, tmp_path / "new"))
    assert difference(outputs(third, batch), outputs(model, batch)) == 0.0
    assert third.state_dict().keys() == model.state_dict().keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_stay_tied(saved: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = saved[f"{name}-everything"]["model"]
    (group,) = ties_of(model)
    units = [model.get_submodule(path) for path in group]
    assert len({id(unit.decoder) for unit in units}) == len({id(unit.encoder) for unit in units}) == 1
    head = model.get_output_embeddings()
    assert head in units
    assert model.get_input_embeddings() in units
    with safe_open(saved[f"{name}-everything"]["folder"] / "model.safetensors", "pt") as file:
        stored = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    assert sum(f"{path}.decoder" in stored for path in group) == 1
    assert sum(f"{path}.encoder" in stored for path in group) == 1
    assert sum(torch.Size(shape).numel() for shape in stored.values()) == parameters(model)
    # What learns in one place has learnt in the other, before and after a reload.
    again = greenformers.load(greenformers.save(model, tmp_path / "new"))
    units = [again.get_submodule(path) for path in group]
    assert len({id(unit.decoder) for unit in units}) == len({id(unit.encoder) for unit in units}) == 1
    assert parameters(again) == parameters(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_half_precision_comes_back(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = small(name, everything, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    model.save_pretrained(tmp_path)
    assert greenformers.load(tmp_path).dtype == dtype
    again = getattr(transformers, ZOO[name][1]).from_pretrained(tmp_path, dtype=dtype)
    batch = inputs(name)
    assert again.get_input_embeddings().decoder.dtype == dtype
    if name == "t5":  # transformers keeps a part of it in float32
        again = again.to(dtype)
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    close = difference(outputs(again.float(), batch), outputs(small(name, everything), batch))
    assert close < 0.05 * max(part.abs().max().item() for part in outputs(again, batch))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_reloaded_network_can_be_cast(saved: dict[str, Any], name: str) -> None:
    folder = saved[f"{name}-everything"]["folder"]
    model = getattr(transformers, ZOO[name][1]).from_pretrained(folder)
    expected = outputs(model, inputs(name))
    for cast in (model.half, model.bfloat16):
        assert difference(outputs(cast(), inputs(name)), expected) < 0.05 * max(x.abs().max().item() for x in expected)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not model.is_quantized


@pytest.mark.parametrize(("name", "base"), [("bert", "BertModel"), ("gpt2", "GPT2Model"), ("llama", "LlamaModel")])
@pytest.mark.parametrize("what", SELECTIONS)
def test_a_head_may_go(saved: dict[str, Any], name: str, base: str, what: str) -> None:
    before = saved[f"{name}-{what}"]
    more = {"add_pooling_layer": False} if name == "bert" else {}
    body = getattr(transformers, base).from_pretrained(before["folder"], **more)
    batch = inputs(name)
    assert difference(outputs(body, batch), outputs(before["model"].base_model, batch)) == 0.0
    assert set(body.config.quantization_config.ranks) == set(ranks_of(body))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_head_may_come(name: str, tmp_path: Path) -> None:
    base, head = {
        "bert": ("BertModel", "BertForMaskedLM"),
        "gpt2": ("GPT2Model", "GPT2LMHeadModel"),
        "t5": ("T5Model", "T5ForConditionalGeneration"),
    }[name]
    model = network(name, base)
    greenformers.compress(model, 0.5, select=everything)
    model.save_pretrained(tmp_path / "base")
    full, info = getattr(transformers, head).from_pretrained(tmp_path / "base", output_loading_info=True)
    assert all(key.startswith("cls.") for key in info["missing_keys"])
    # The head reads the table, which is low rank now, and so is the head.
    table, map_ = full.get_input_embeddings(), full.get_output_embeddings()
    assert map_.decoder is table.decoder
    assert map_.encoder is table.encoder
    batch = inputs(name)
    if name != "t5":  # whose body is no module by itself
        assert difference(outputs(full.base_model, batch)[:1], outputs(model, batch)[:1]) == 0.0
    full.save_pretrained(tmp_path / "full")
    again, info = type(full).from_pretrained(tmp_path / "full", output_loading_info=True)
    assert not any(info.values())
    assert difference(outputs(again, batch), outputs(full, batch)) == 0.0


@pytest.mark.parametrize("name", ZOO)
def test_merged_it_is_an_ordinary_network(saved: dict[str, Any], name: str, tmp_path: Path) -> None:
    expected = saved[f"{name}-everything"]["model"]
    model, original, batch = greenformers.load(saved[f"{name}-everything"]["folder"]), network(name), inputs(name)
    assert greenformers.merge(model) == len(ranks_of(expected))
    assert difference(outputs(model, batch), outputs(expected, batch)) < 1e-5
    kinds = [{path: type(part).__name__ for path, part in one.named_modules()} for one in (model, original)]
    assert kinds[0] == kinds[1]
    assert parameters(model) == parameters(original)
    model.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    assert "quantization_config" not in described
    again, info = getattr(transformers, ZOO[name][1]).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    with pytest.raises(ValueError, match="does not describe a compressed network"):
        greenformers.load(tmp_path)


def test_two_networks_of_one_configuration() -> None:
    first = network("bert")
    second = type(first)(first.config)
    greenformers.compress(first)
    assert first.config.quantization_config.ranks
    assert first.base_model.config is first.config
    assert getattr(second.config, "quantization_config", None) is None


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_reloaded_network_learns(saved: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = greenformers.load(saved[f"{name}-everything"]["folder"])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    row = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}
    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=[row] * 4).train()
    moved = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert {key for key in before if key.endswith(("decoder", "encoder"))} <= moved
    assert model.get_input_embeddings().decoder is model.get_output_embeddings().decoder
    again = greenformers.load(greenformers.save(model, tmp_path / "trained"))
    assert difference(outputs(again, inputs(name)), outputs(model.eval(), inputs(name))) == 0.0


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_export_and_compile(saved: dict[str, Any], name: str) -> None:
    model, batch = saved[f"{name}-everything"]["model"], inputs(name) | {"use_cache": False}
    expected = outputs(model, batch)[0]
    exported = torch.export.export(model, (), batch, strict=False).module()
    torch.testing.assert_close(exported(**batch).logits, expected)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(**batch).logits, expected)
