"""A changed network of `transformers`, saved and read again by plain `from_pretrained`: the same, bit by bit."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from fresh import chosen, read_again
from safetensors import safe_open
from transformers import PreTrainedModel, Trainer, TrainingArguments
from zoo import EVERYTHING, GENERATES, ZOO, difference, inputs, network, outputs

import greenformers
from greenformers.changes import Attention, Change, Int8, Layers, LowRank
from greenformers.changes._int8 import int8_of
from greenformers.changes._units import groups_of, ranks_of
from greenformers.checkpoint.structure import structure
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForSequenceClassification
from greenformers.solve.units import factors

TIED = ("bert", "roberta", "distilbert", "albert", "electra", "gpt2", "llama", "t5", "whisper")
DEEP = {"bert": "num_hidden_layers", "gpt2": "n_layer", "llama": "num_hidden_layers"}

LOW, INT8, FEWER = LowRank(keep=0.5, select=EVERYTHING), Int8(), Layers(2)
LINEAR = Attention("linear_transformer")
LINFORMER = Attention("linformer", options={"k": 4, "sharing": "layerwise"}, length=60)
WINDOW = Attention("sliding_window", options={"window": 2}, layers=(1,))
RECIPES: dict[str, list[Change]] = {
    **{f"{name} low": [LOW] for name in GENERATES},
    "bert low": [LOW],
    "bert linear": [LowRank(keep=0.5)],
    "bert int8": [INT8],
    "gpt2 attention": [LINEAR],
    "llama attention": [LINEAR],
    "bart across": [LINEAR.but(select=("*",))],
    "bert linformer": [LINFORMER],
    "roberta linformer": [LINFORMER],
    "bert window": [WINDOW],
    "gpt2 longer": [Attention("sliding_window", length=70)],
    "gpt2 low, int8": [LOW, INT8],
    "bert all": [FEWER, LINFORMER, LOW, INT8],
    "gpt2 all": [FEWER, LINEAR, LOW, INT8],
    "llama all": [LINEAR, FEWER, LOW, INT8],
}
"""Beside those of the contract test, which has every change on every network and two by two."""


def small(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = network(name).to(dtype)
    greenformers.compress(model, LOW)
    return model


def changed(case: str) -> PreTrainedModel:
    name = case.split()[0]
    model = network(name, **({DEEP[name]: 4} if name in DEEP and RECIPES[case] != [LOW] else {}))
    greenformers.compress(model, RECIPES[case])
    return model


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class Saved(NamedTuple):
    """A changed network, and the folder that it was saved to."""

    model: PreTrainedModel
    folder: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """Changed networks by their recipes, each made when it is first asked for."""

    @cache
    def save_case(case: str) -> Saved:
        with torch.random.fork_rng(devices=[]):
            model, folder = changed(case), tmp_path_factory.mktemp("saved")
        model.save_pretrained(folder)
        return Saved(model, folder)

    return save_case


@pytest.fixture(scope="module")
def fresh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, saved: Callable[[str], Saved]
) -> dict[str, dict[str, Any]]:
    """What networks do in a process that knows nothing but their folders: those of the cases of this run."""
    asked = [params["case"] for params in chosen(request, "test_a_fresh_process_reads_the_same_network")]
    models = ((case, case.split()[0], saved(case).model) for case in asked)
    return read_again(tmp_path_factory.mktemp("fresh"), models, python=True)


@pytest.mark.parametrize("case", RECIPES)
def test_a_fresh_process_reads_the_same_network(fresh: dict[str, Any], case: str) -> None:
    name, model, after = case.split()[0], fresh[case]["model"], fresh[case]["after"]
    assert after["difference"] == 0.0
    assert after["outputs"] >= 1
    assert after["keys"] == {}
    assert after["parameters"] == parameters(model)
    if RECIPES[case] == [LOW]:
        assert parameters(model) < parameters(network(name))
    if name in GENERATES:
        assert len(after["cached"][0]) >= 6
        # Inputs are rounded to 8 bits by the least and greatest of a call; calls differ with and without a cache.
        assert after["cached"] == after["uncached"] or int8_of(model)


@pytest.mark.parametrize("case", RECIPES)
def test_load_gives_it_back_and_so_once_more(saved: Callable[[str], Saved], case: str, tmp_path: Path) -> None:
    model, batch = saved(case).model, inputs(case.split()[0])
    described = structure(model).as_dict()
    assert described["order"] == [change.name() for change in RECIPES[case]]
    again = greenformers.load(saved(case).folder)
    assert type(again) is type(model)
    assert not again.training
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    assert structure(again).as_dict() == described
    # And once more: what was read can be written, over itself too.
    for _ in range(2):
        greenformers.save(again, tmp_path / "new")
    third = greenformers.load(tmp_path / "new")
    assert difference(outputs(third, batch), outputs(model, batch)) == 0.0
    assert third.state_dict().keys() == model.state_dict().keys()
    assert structure(third).as_dict() == described
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import transformers.quantizers.auto", "from transformers import AutoModel"])
def test_transformers_may_be_imported_first(first: str) -> None:
    script = (
        f"{first}\n"
        "import greenformers\n"
        "import transformers.quantizers.auto as auto\n"
        "assert {'greenformers'} <= set(auto.AUTO_QUANTIZER_MAPPING) & set(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_stay_tied(name: str, tmp_path: Path) -> None:
    model = small(name)
    model.save_pretrained(tmp_path / "plain")
    (group,) = groups_of(model)
    units = [model.get_submodule(path) for path in group]
    assert [len({id(part) for part in parts}) for parts in zip(*map(factors, units), strict=True)] == [1, 1]
    head = model.get_output_embeddings()
    assert head in units
    assert model.get_input_embeddings() in units
    with safe_open(tmp_path / "plain" / "model.safetensors", "pt") as file:
        stored = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    for name in ("decoder", "encoder"):
        assert sum(key in stored for path in group for key in (f"{path}.{name}", f"{path}.{name}.weight")) == 1
    assert sum(torch.Size(shape).numel() for shape in stored.values()) == parameters(model)
    # What learns in one place has learnt in the other, before and after a reload.
    again = greenformers.load(greenformers.save(model, tmp_path / "new"))
    units = [again.get_submodule(path) for path in group]
    assert [len({id(part) for part in parts}) for parts in zip(*map(factors, units), strict=True)] == [1, 1]
    assert parameters(again) == parameters(model)


@pytest.mark.parametrize(("name", "dtype"), [("bert", torch.float16), ("gpt2", torch.bfloat16), ("t5", torch.bfloat16)])
def test_half_precision_comes_back(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = small(name, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    model.save_pretrained(tmp_path)
    assert greenformers.load(tmp_path).dtype == dtype
    again = getattr(transformers, ZOO[name][1]).from_pretrained(tmp_path, dtype=dtype)
    batch = inputs(name)
    assert again.get_input_embeddings().decoder.dtype == dtype
    if name == "t5":  # transformers keeps a part of it in float32
        again = again.to(dtype)
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    close = difference(outputs(again.float(), batch), outputs(small(name), batch))
    assert close < 0.05 * max(part.abs().max().item() for part in outputs(again, batch))


@pytest.mark.parametrize("case", ["gpt2 low", "t5 low"])
def test_a_reloaded_network_can_be_cast(saved: Callable[[str], Saved], case: str) -> None:
    name, folder = case.split()[0], saved(case).folder
    model = getattr(transformers, ZOO[name][1]).from_pretrained(folder)
    expected = outputs(model, inputs(name))
    for cast in (model.half, model.bfloat16):
        assert difference(outputs(cast(), inputs(name)), expected) < 0.05 * max(x.abs().max().item() for x in expected)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not model.is_quantized


@pytest.mark.parametrize(
    ("case", "base"),
    [
        ("bert low", "BertModel"), ("bert linear", "BertModel"), ("gpt2 low", "GPT2Model"), ("llama low", "LlamaModel"),
        ("bert all", "BertModel"), ("gpt2 all", "GPT2Model"),
    ],
)  # fmt: skip
def test_a_head_may_go(saved: Callable[[str], Saved], case: str, base: str) -> None:
    more = {"add_pooling_layer": False} if "bert" in case else {}
    body = getattr(transformers, base).from_pretrained(saved(case).folder, **more)
    batch = inputs(case.split()[0])
    assert difference(outputs(body, batch)[:1], outputs(saved(case).model.base_model, batch)[:1]) == 0.0
    described = body.config.quantization_config.changes
    assert set(described["low_rank"]["ranks"]) == set(ranks_of(body))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_head_may_come(name: str, tmp_path: Path) -> None:
    base, head = {
        "bert": ("BertModel", "BertForMaskedLM"),
        "gpt2": ("GPT2Model", "GPT2LMHeadModel"),
        "t5": ("T5Model", "T5ForConditionalGeneration"),
    }[name]
    model = network(name, base)
    greenformers.compress(model, LOW)
    model.save_pretrained(tmp_path / "base")
    full, info = getattr(transformers, head).from_pretrained(tmp_path / "base", output_loading_info=True)
    assert all(key.startswith("cls.") for key in info["missing_keys"])
    # The head reads the table, which is low rank now, and so is the head.
    table, map_ = full.get_input_embeddings(), full.get_output_embeddings()
    assert map_.decoder.weight is table.decoder
    assert map_.encoder.weight is table.encoder
    batch = inputs(name)
    if name != "t5":  # whose body is no module by itself
        assert difference(outputs(full.base_model, batch)[:1], outputs(model, batch)[:1]) == 0.0
    full.save_pretrained(tmp_path / "full")
    again, info = type(full).from_pretrained(tmp_path / "full", output_loading_info=True)
    assert not any(info.values())
    assert difference(outputs(again, batch), outputs(full, batch)) == 0.0


@pytest.mark.parametrize("name", ["albert", "gpt2", "t5", "bart", "wav2vec2", "whisper", "clip"])
def test_merged_it_is_an_ordinary_network(name: str, tmp_path: Path) -> None:
    expected = small(name)
    model = greenformers.load(greenformers.save(expected, tmp_path / "small"))
    original, batch = network(name), inputs(name)
    assert greenformers.merge(model) == len(ranks_of(expected))
    assert difference(outputs(model, batch), outputs(expected, batch)) < 1e-5
    kinds = [{path: type(part).__name__ for path, part in each.named_modules()} for each in (model, original)]
    assert kinds[0] == kinds[1]
    assert parameters(model) == parameters(original)
    model.save_pretrained(tmp_path / "dense")
    described = json.loads((tmp_path / "dense" / "config.json").read_text())
    assert "quantization_config" not in described
    again, info = getattr(transformers, ZOO[name][1]).from_pretrained(tmp_path / "dense", output_loading_info=True)
    assert not any(info.values())
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0
    assert difference(outputs(greenformers.load(tmp_path / "dense"), batch), outputs(model, batch)) == 0.0


@pytest.mark.parametrize("recipe", [[LOW, INT8], [INT8, LINEAR]], ids=["low, int8", "int8, attention"])
def test_what_is_int8_cannot_be_merged_and_stays(recipe: list[Change]) -> None:
    model = network("bert")
    greenformers.compress(model, recipe)
    expected, described = outputs(model, inputs("bert")), structure(model).as_dict()
    with pytest.raises(
        ValueError, match="int8 weights cannot become dense again: merge the network before it is quantised"
    ):
        greenformers.merge(model)
    assert structure(model).as_dict() == described
    assert difference(outputs(model, inputs("bert")), expected) == 0.0


def test_merged_what_cannot_be_undone_stays(tmp_path: Path) -> None:
    model = network("bert", num_hidden_layers=4)
    greenformers.compress(model, [LOW, LINEAR, FEWER])
    expected, count = outputs(model, inputs("bert")), len(ranks_of(model))
    assert greenformers.merge(model) == count > 0
    assert structure(model).order == ["attention", "layers"]
    again = greenformers.load(greenformers.save(model, tmp_path / "merged"))
    assert difference(outputs(again, inputs("bert")), outputs(model, inputs("bert"))) == 0.0
    assert difference(outputs(model, inputs("bert")), expected) < 1e-5


def test_two_networks_of_one_configuration() -> None:
    first = network("bert")
    second = type(first)(first.config)
    greenformers.compress(first, 0.5)
    assert first.config.quantization_config.changes["low_rank"]["ranks"]
    assert first.base_model.config is first.config
    assert getattr(second.config, "quantization_config", None) is None


@pytest.mark.parametrize("case", ["gpt2 low"])
def test_a_reloaded_network_learns(saved: Callable[[str], Saved], case: str, tmp_path: Path) -> None:
    name = case.split()[0]
    model = greenformers.load(saved(case).folder)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    row = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}
    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=[row] * 4).train()
    moved = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert {key for key in before if key.endswith(("coder", "coder.weight"))} <= moved
    assert model.get_input_embeddings().decoder is model.get_output_embeddings().decoder.weight
    again = greenformers.load(greenformers.save(model, tmp_path / "trained"))
    assert difference(outputs(again, inputs(name)), outputs(model.eval(), inputs(name))) == 0.0


@pytest.mark.parametrize("case", ["bert low", "gpt2 low"])
def test_export_and_compile(saved: Callable[[str], Saved], case: str) -> None:
    model, batch = saved(case).model, inputs(case.split()[0]) | {"use_cache": False}
    expected = outputs(model, batch)[0]
    exported = torch.export.export(model, (), batch, strict=False).module()
    torch.testing.assert_close(exported(**batch).logits, expected)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(**batch).logits, expected)


@pytest.mark.parametrize("case", ["bert int8", "gpt2 low, int8", "gpt2 all"])
def test_int8_weights_stay_shared(saved: Callable[[str], Saved], case: str) -> None:
    again = greenformers.load(saved(case).folder)
    head, table = again.get_output_embeddings(), again.get_input_embeddings()
    if RECIPES[case] == [INT8]:
        assert head.quantised.dtype == torch.int8
        assert head.quantised is table.quantised
        assert head.scale is table.scale
    assert not any(part.requires_grad for part in again.parameters())
    stored = (saved(case).folder / "model.safetensors").stat().st_size
    size = sum(part.numel() * part.element_size() for part in again.parameters())
    assert stored < 1.2 * size + 20_000


@pytest.mark.parametrize("case", ["bert linformer"])
def test_layers_share_a_parameter_as_before(saved: Callable[[str], Saved], case: str) -> None:
    again = greenformers.load(saved(case).folder)
    mechanisms = [layer.attention.self.mechanism for layer in again.bert.encoder.layer]
    assert len({id(mechanism.E) for mechanism in mechanisms}) == 1
    assert again.config.max_position_embeddings == 60


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("change", [LowRank(), INT8], ids=["low", "int8"])
@pytest.mark.parametrize("kind", [GreenformerForCausalLM, GreenformerForSequenceClassification])
def test_layers_of_our_own_that_share_are_read_again(
    kind: type[PreTrainedModel], change: Change, tied: bool, tmp_path: Path
) -> None:
    """Their ties stayed those of dense layers, and a norm that they share was a guard: they could not be saved."""
    model = kind(GreenformerConfig(
        vocab_size=41, hidden_size=32, num_attention_heads=2, intermediate_size=64, num_hidden_layers=3,
        max_position_embeddings=12, depth="shared", shared="all", tie_word_embeddings=tied,
    )).eval()  # fmt: skip
    given, dense = {"input_ids": torch.arange(3, 13)[None]}, parameters(model)
    greenformers.compress(model, change)
    greenformers.save(model, tmp_path / "small")
    again = kind.from_pretrained(tmp_path / "small")
    assert parameters(again) == parameters(model)
    torch.testing.assert_close(again(**given).logits, model(**given).logits, rtol=0, atol=0)
    if change is not INT8:
        greenformers.merge(again)
        again.save_pretrained(tmp_path / "dense")
        assert parameters(kind.from_pretrained(tmp_path / "dense")) == dense


def test_changed_twice_it_is_marked_once(tmp_path: Path) -> None:
    model = network("bert")
    for select in ("*.query", "*.key"):
        greenformers.compress(model, LowRank(keep=0.5, select=(select,)))
    assert len(ranks_of(model)) == 4
    described = model.config.quantization_config
    assert described.order == ["low_rank"]
    assert described.changes["low_rank"]["ranks"] == ranks_of(model)
    again = greenformers.load(greenformers.save(model, tmp_path))
    assert outputs(again, inputs("bert"))[0].equal(outputs(model, inputs("bert"))[0])
