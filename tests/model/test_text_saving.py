"""Language models and taggers, saved and loaded again: weights, ties and configuration."""

import json

import pytest
import torch
from networks import VOCABULARY, config, stir
from safetensors import safe_open
from text_networks import SHARED, SPECIAL, causal, pair
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
)

from greenformers.model import GreenformerConfig, GreenformerForMaskedLM, GreenformerForTokenClassification

IDS = torch.arange(26).view(2, 13) % VOCABULARY


def again(auto, network, folder):
    network.save_pretrained(folder)
    loaded, report = auto.from_pretrained(folder, output_loading_info=True)
    assert type(loaded) is type(network)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(loaded.state_dict(), network.state_dict(), atol=0, rtol=0)
    return loaded.eval()


def held(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("name", ["dense", "narrow lrt", "sinusoidal"])
def test_causal_lm(name, tmp_path):
    network = causal(name, torch.float32)
    loaded = again(AutoModelForCausalLM, network, tmp_path)
    assert torch.equal(loaded(IDS).logits, network(IDS).logits)
    assert loaded.score.weight is loaded.decoder.embedding.word.weight
    assert "score.weight" not in held(tmp_path)


@pytest.mark.parametrize("name", ["dense", "narrow lrt", "lrt+linformer", "attention of each layer"])
def test_seq2seq(name, tmp_path):
    network = pair(name, torch.float32)
    loaded = again(AutoModelForSeq2SeqLM, network, tmp_path)
    given = {"decoder_input_ids": IDS.flip(1)}
    assert torch.equal(loaded(IDS, **given).logits, network(IDS, **given).logits)
    words = loaded.encoder.embedding.word.weight
    assert loaded.score.weight is words
    assert loaded.decoder.embedding.word.weight is words
    assert not held(tmp_path) & {"score.weight", "decoder.embedding.word.weight"}


@pytest.mark.parametrize("name", ["transformer", "lrt+linformer", "layerwise"])
def test_token_classification(name, tmp_path):
    network = stir(GreenformerForTokenClassification(config(name, num_labels=5))).eval()
    loaded = again(AutoModelForTokenClassification, network, tmp_path)
    assert torch.equal(loaded(IDS).logits, network(IDS).logits)
    assert loaded(IDS).logits.shape[-1] == 5


def test_matrices_shared_over_layers_are_one_tensor_again(tmp_path):
    loaded = again(AutoModelForSeq2SeqLM, pair("linformer, layerwise", torch.float32), tmp_path)
    inner = {layer.attention.mechanism.E for layer in loaded.encoder.layers}
    cross = {layer.cross_attention.mechanism.E for layer in loaded.decoder.layers}
    assert (len(inner), len(cross), len(inner | cross)) == (1, 1, 2)
    assert {key for key in held(tmp_path) if key.endswith("mechanism.E")} == {
        "encoder.layers.0.attention.mechanism.E",
        "decoder.layers.0.cross_attention.mechanism.E",
    }


def test_untied_words_come_back_untied_but_shared_matrices_shared(tmp_path):
    network = pair("linformer, layerwise", torch.float32, tie_word_embeddings=False)
    loaded = again(AutoModelForSeq2SeqLM, network, tmp_path / "pair")
    words = {loaded.score.weight, loaded.encoder.embedding.word.weight, loaded.decoder.embedding.word.weight}
    assert len(words) == 3
    assert len({layer.attention.mechanism.E for layer in loaded.encoder.layers}) == 1
    assert len({layer.cross_attention.mechanism.E for layer in loaded.decoder.layers}) == 1
    masked = stir(GreenformerForMaskedLM(config("layerwise", tie_word_embeddings=False))).eval()
    loaded = again(AutoModelForMaskedLM, masked, tmp_path / "masked")
    assert loaded.decoder.weight is not loaded.encoder.embedding.word.weight
    assert len({layer.attention.mechanism.E for layer in loaded.encoder.layers}) == 1


EVERY_SLOT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 15,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "embedding_size": 11,
    "decoder_layers": 3,
    "decoder_attention": ["full", "full", "full"],
    "decoder_attention_options": [None, {"dropout": 0.3}, None],
    "cross_attention": ["linformer", "full", "linformer"],
    "cross_attention_options": [{"k": 3}, {}, SHARED],
    "rank": [None, 7, {"cross_q": 3, "output": None}, {"cross_output": 5}, 11],
    "sparse_prediction": True,
    "tie_word_embeddings": False,
    **SPECIAL,
    "eos_token_id": 11,
}


@pytest.mark.parametrize("loader", [GreenformerConfig, AutoConfig])
def test_every_slot_of_a_configuration(loader, tmp_path):
    original = GreenformerConfig(**EVERY_SLOT)
    original.save_pretrained(tmp_path)
    loaded = loader.from_pretrained(tmp_path)
    for name, value in EVERY_SLOT.items():
        assert getattr(loaded, name) == getattr(original, name) == value
    assert (loaded.is_encoder_decoder, GreenformerConfig().is_encoder_decoder) == (True, False)
    assert GreenformerConfig(**json.loads(original.to_json_string(use_diff=False))).to_dict() == original.to_dict()


def test_defaults_of_the_new_slots():
    c = GreenformerConfig()
    assert (c.embedding_size, c.decoder_layers, c.sparse_prediction, c.is_encoder_decoder) == (None, None, False, False)
    assert (c.decoder_attention, c.cross_attention) == ("full", "full")
    assert (c.decoder_attention_options, c.cross_attention_options, c.decoder_start_token_id) == (None, None, None)


def test_the_layers_a_slot_is_about():
    c = GreenformerConfig(num_hidden_layers=2, decoder_layers=3, rank=5, cross_attention="linformer")
    counted = {slot: len(c.per_layer(slot)) for slot in ("attention", "decoder_attention", "cross_attention", "rank")}
    assert counted == {"attention": 2, "decoder_attention": 3, "cross_attention": 3, "rank": 5}
    c = GreenformerConfig(**EVERY_SLOT)
    ranks = [[c.rank_of(layer, name) for name in ("q", "output", "cross_q", "cross_output")] for layer in range(5)]
    assert ranks == [[None] * 4, [7] * 4, [None, None, 3, None], [None, None, None, 5], [11] * 4]
