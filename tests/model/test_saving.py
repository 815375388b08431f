"""Saved and loaded again, a network is the same to the bit, by its own class and by transformers' Auto classes."""

import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from networks import NETWORKS, VOCABULARY, config, stir
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from greenformers.model import (
    GreenformerConfig,
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)

IDS = torch.arange(26).view(2, 13) % VOCABULARY
OURS = {
    AutoModel: GreenformerModel,
    AutoModelForMaskedLM: GreenformerForMaskedLM,
    AutoModelForSequenceClassification: GreenformerForSequenceClassification,
}


def same(model, other):
    model.eval(), other.eval()
    with torch.no_grad():
        assert torch.equal(model(IDS)[0], other(IDS)[0])


@pytest.mark.parametrize("auto", OURS, ids=lambda auto: auto.__name__)
@pytest.mark.parametrize("name", NETWORKS)
def test_comes_back_to_the_bit(name, auto, tmp_path):
    network = stir(OURS[auto](config(name)))
    network.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    for loader in (auto, OURS[auto]):
        loaded, report = loader.from_pretrained(tmp_path, output_loading_info=True)
        assert type(loaded) is OURS[auto]
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        same(network, loaded)
    assert type(AutoConfig.from_pretrained(tmp_path)) is GreenformerConfig


@pytest.mark.parametrize("name", ["layerwise", "lrt layerwise"])
def test_shared_matrices_are_saved_once_and_shared_again(name, tmp_path):
    stir(GreenformerForMaskedLM(config(name))).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert [key for key in file.keys() if key.endswith("mechanism.E")] == [  # noqa: SIM118 - not a dictionary
            "encoder.layers.0.attention.mechanism.E"
        ]
    loaded = GreenformerForMaskedLM.from_pretrained(tmp_path)
    first, second = (layer.attention.mechanism.E for layer in loaded.encoder.layers)
    assert first is second
    assert loaded.decoder.weight is loaded.encoder.embedding.word.weight


@pytest.mark.parametrize("name", ["lrt+linformer", "layerwise"])
def test_base_and_head_load_from_each_other(name, tmp_path):
    head = stir(GreenformerForMaskedLM(config(name)))
    head.save_pretrained(tmp_path / "head")
    base = GreenformerModel.from_pretrained(tmp_path / "head")
    same(head.encoder, base)
    base.save_pretrained(tmp_path / "base")
    classifier, report = GreenformerForSequenceClassification.from_pretrained(
        tmp_path / "base", output_loading_info=True
    )
    same(base, classifier.encoder)
    assert set(report["missing_keys"]) == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("name", ["lrt+linformer", "layerwise"])
def test_a_deep_copy_is_equal_and_apart(name):
    network = stir(GreenformerForMaskedLM(config(name)))
    copied = deepcopy(network)
    same(network, copied)
    before = copied.state_dict()["encoder.layers.0.attention.output.bias"].clone()
    stir(network)
    assert torch.equal(copied.state_dict()["encoder.layers.0.attention.output.bias"], before)


FIRST = {
    "transformers": "BertModel",  # which needs the modules our layers are made of before the automatic classes
    "transformers.models.auto.modeling_auto": "AutoModelForCausalLM",
    "transformers.modeling_layers": "GradientCheckpointingLayer",
}
"""Modules of transformers that a program may ask for first, and what of them."""


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=() if name == "transformers" else pytest.mark.slow) for name in FIRST]
)
def test_what_is_first_wanted_of_transformers_changes_nothing(module):
    """A program of its own each: what has been imported before decides."""
    program = (
        "import greenformers\n"
        f"from {module} import {FIRST[module]}\n"
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        "AutoModelForCausalLM._model_mapping[type(AutoConfig.for_model('greenformer'))]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("attention", "options", "name"),
    [
        (["full", "adaptive_span", "adaptive_span"], None, "p"),
        (["full", "linformer", "linformer"], [None, *[{"k": 5, "sharing": "layerwise"}] * 2], "E"),
    ],
)
def test_layers_alike_share_wherever_the_first_of_them_is(attention, options, name, tmp_path):
    model = GreenformerModel(
        GreenformerConfig(
            vocab_size=13, hidden_size=8, num_attention_heads=2, intermediate_size=12, num_hidden_layers=3,
            max_position_embeddings=16, attention=attention, attention_options=options,
        )
    )  # fmt: skip
    model.save_pretrained(tmp_path)
    for network in (model, GreenformerModel.from_pretrained(tmp_path)):
        first, second = (layer.attention.mechanism for layer in network.layers[1:])
        assert getattr(first, name) is getattr(second, name)
