"""The layout `pack-quantized`: written, read again, and read by the library whose layout it is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import folder
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel
from zoo import network

import greenformers
from greenformers import compress
from greenformers.changes import Bits, LowRank
from greenformers.changes._bits_layers import BitsLinear, Packed
from greenformers.checkpoint.pack_quantized import held_of, save_pack_quantized, tensors_of
from greenformers.checkpoint.pretrained import pretrained
from greenformers.solve.grid import Form, Grid

FORMS = [
    Form(4, "group", 16), Form(4, "group", 16, symmetric=True), Form(2, "group", 8), Form(8, "row"),
    Form(8, "row", symmetric=True), Form(4, "tensor"), Form(2, "tensor", symmetric=True), Form(4, "group", 24),
]  # fmt: skip


def packed(form: Form, m: int = 37, n: int = 48, scale: float = 1.0) -> Packed:
    W = scale * torch.randn(m, n, generator=torch.Generator().manual_seed(0))
    grid = Grid.of(W, form)
    return Packed.of(grid.round(W), grid)


def decompressed(tensors: dict[str, Tensor], form: Form) -> Tensor:
    """The weight as compressed-tensors reads it."""
    from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    strategy = {"group": "group", "row": "channel", "tensor": "tensor"}[form.per]
    group = form.group if form.per == "group" else None
    args = QuantizationArgs(num_bits=form.bits, symmetric=form.symmetric, strategy=strategy, group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight: Tensor = PackedQuantizationCompressor.decompress(dict(tensors), scheme)["weight"]
    return weight


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_library_itself_reads_the_same_weight(form: Form) -> None:
    held = packed(form)
    assert torch.equal(decompressed(tensors_of(held), form), held.rows())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e5])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_read_again_it_is_the_same_to_the_bit(form: Form, scale: float) -> None:
    held = packed(form, scale=scale)
    again = held_of(tensors_of(held), "layer")
    assert torch.equal(again.rows(), held.rows())
    assert torch.equal(again.q(), held.q())
    assert again.form.bits == form.bits


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_weight_of_one_row_is_read_again(form: Form) -> None:
    held = packed(replace(form, group=48), m=1)
    assert torch.equal(held_of(tensors_of(held), "layer").rows(), held.rows())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_of_other_libraries_in_half_precision_are_read_exactly(dtype: torch.dtype) -> None:
    form = Form(4, "group", 16)
    tensors = tensors_of(packed(form))
    tensors["weight_scale"] = tensors["weight_scale"].to(dtype)
    whole = {**tensors, "weight_scale": tensors["weight_scale"].float()}
    assert torch.equal(held_of(tensors, "layer").rows(), decompressed(whole, form))


def small(root: Path, name: str, cls: str, **options: Any) -> PreTrainedModel:
    model, _ = pretrained(str(folder(root, name, cls)))
    compress(model, Bits(by="rounding", group=4, **options))
    return model


def outputs(model: Any) -> Tensor:
    with torch.inference_mode():
        output: Tensor = model(torch.arange(3, 15).view(2, 6))[0]
        return output


@pytest.mark.parametrize(("name", "cls"), [("bert", "BertModel"), ("llama", "LlamaForCausalLM")])
@pytest.mark.parametrize("options", [{}, {"bits": 8, "symmetric": True}])
def test_a_network_is_the_same_wherever_it_is_read(tmp_path: Path, name: str, cls: str, options: Any) -> None:
    model = small(tmp_path, name, cls, **options)
    save_pack_quantized(model, tmp_path / "packed")
    for again in (greenformers.load(tmp_path / "packed"), pretrained(str(tmp_path / "packed"))[0]):
        assert torch.equal(outputs(again), outputs(model))
        layers = [layer for layer in again.modules() if isinstance(layer, BitsLinear)]
        assert len(layers) == sum(isinstance(layer, BitsLinear) for layer in model.modules()) - (name == "llama")
        assert not any(parameter.requires_grad for parameter in again.parameters())
    auto: Any = AutoModel if name == "bert" else AutoModelForCausalLM
    theirs = auto.from_pretrained(tmp_path / "packed")
    assert torch.allclose(outputs(theirs), outputs(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_several_forms_are_told_apart_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symmetric: bool
) -> None:
    options: dict[str, Any] = {"by": "rounding", "symmetric": symmetric}
    eight, four = Bits(8, group=4, **options), Bits(4, per="row", **options)

    def plan(_: Bits, __: Any, sites: Any, *___: Any) -> dict[str, Bits]:
        return {site.path: eight if "mlp" in site.path else four for site in sites}

    monkeypatch.setattr(Bits, "plan", plan)
    model, _ = pretrained(str(folder(tmp_path, "llama", "LlamaForCausalLM")))
    compress(model, four)
    if not symmetric:
        with pytest.raises(ValueError, match="layers of 2 forms must be symmetric"):
            save_pack_quantized(model, tmp_path / "packed")
        return
    save_pack_quantized(model, tmp_path / "packed")
    described = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    groups = [(group["weights"]["num_bits"], group["targets"][0]) for group in described["config_groups"].values()]
    assert sorted(groups) == [(4, "model.layers.0.self_attn.q_proj"), (8, "model.layers.0.mlp.gate_proj")]
    assert described["ignore"] == ["lm_head"]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    assert torch.allclose(outputs(theirs), outputs(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "cls", "changes", "message"),
    [
        ("bert", "BertModel", [Bits(8, by="rounding", select=("*embed*",))], None),
        ("gpt2", "GPT2LMHeadModel", [Bits(by="rounding", group=4)], "it is a Conv1D of transformers"),
        ("bert", "BertModel", [Bits(3, by="rounding", group=8)], "the layout holds 2 or 4 or 8 bits, and it has 3"),
        ("bert", "BertModel", [Bits(by="rounding", group=7)], "groups of 7 do not divide its .* inputs"),
        ("bert", "BertModel", [LowRank(keep=0.5), Bits(by="rounding", group=8)], "as low_rank has left"),
    ],
    ids=["embeddings", "gpt2", "3 bits", "groups", "low rank"],
)
def test_what_the_layout_cannot_hold_is_refused(
    tmp_path: Path, name: str, cls: str, changes: list[Any], message: str | None
) -> None:
    model, _ = pretrained(str(folder(tmp_path, name, cls)))
    compress(model, changes)
    with pytest.raises(ValueError, match=message or "no linear layer of few bits"):
        save_pack_quantized(model, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"weight_scale": torch.zeros(24, 2)}, "weight_scale of .* must be above 0"),
        ({"weight_scale": torch.ones(24, 5)}, "24x5 steps are none of a weight of"),
        ({"weight_shape": torch.tensor([10**9, 10**9])}, "is none of 2 or 4 or 8 bits"),
        ({"weight_shape": torch.tensor([24])}, "weight_shape of .* must be two sizes"),
        ({"weight_zero_point": torch.zeros(1, 1, dtype=torch.int32)}, "does not fit its steps: 1x1"),
        ({"weight_packed": None}, "lacks weight_packed"),
    ],
)
def test_damaged_tensors_are_refused(damage: dict[str, Tensor | None], message: str) -> None:
    tensors: dict[str, Any] = tensors_of(packed(Form(4, "group", 24), m=24)) | damage
    with pytest.raises(ValueError, match=message):
        held_of({name: x for name, x in tensors.items() if x is not None}, "layer")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"format": "float-quantized"}, "only the layout pack-quantized is read, not 'float-quantized'"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "asks for kv_cache_scheme"),
        ({"config_groups": {"0": {"weights": {"type": "float"}}}}, "weights must be whole numbers"),
        ({"config_groups": {"0": {"weights": {}, "input_activations": {"num_bits": 8}}}}, "asks for input_activations"),
    ],
)
def test_what_packed_weights_do_not_do_is_refused(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    save_pack_quantized(small(tmp_path, "bert", "BertModel"), tmp_path / "packed")
    config = tmp_path / "packed" / "config.json"
    described = json.loads(config.read_text())
    config.write_text(json.dumps(described | {"quantization_config": described["quantization_config"] | asked}))
    with pytest.raises(ValueError, match=message):
        greenformers.load(tmp_path / "packed")


def test_a_weight_that_is_missing_or_foreign_is_refused(tmp_path: Path) -> None:
    save_pack_quantized(small(tmp_path, "bert", "BertModel"), tmp_path / "packed")
    path = tmp_path / "packed" / "model.safetensors"
    weights = load_file(path)
    name = "encoder.layer.0.attention.self.query.bias"
    save_file({key: x for key, x in weights.items() if key != name}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"1 missing keys: {name}"):
        greenformers.load(tmp_path / "packed")


def test_only_the_files_of_the_index_are_read(tmp_path: Path) -> None:
    model = small(tmp_path, "bert", "BertModel")
    save_pack_quantized(model, tmp_path / "packed")
    save_file({"of.another.model": torch.ones(2)}, tmp_path / "packed" / "consolidated.safetensors")
    assert torch.equal(outputs(greenformers.load(tmp_path / "packed")), outputs(model))


def test_settings_of_generation_come_along(tmp_path: Path) -> None:
    model = network("llama", pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model.generation_config.update(eos_token_id=[2, 5], max_new_tokens=7)
    greenformers.compress(model, Bits(by="rounding", group=4))
    save_pack_quantized(model, tmp_path / "packed")
    again = greenformers.load(tmp_path / "packed").generation_config
    assert (again.eos_token_id, again.max_new_tokens) == ([2, 5], 7)
