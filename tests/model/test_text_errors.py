"""What decoders and encoder-decoders do not take."""

import pytest
import torch
from networks import K, config, d
from text_networks import DECODER_LAYERS, LINFORMER, SPECIAL, causal, pair, tokens

from greenformers.attention import names
from greenformers.model import GreenformerForCausalLM, GreenformerForSeq2SeqLM

B, M, N = 3, 17, 13


def causal_lm(**options):
    GreenformerForCausalLM(config(**options))


def seq2seq(**options):
    GreenformerForSeq2SeqLM(config(**{"decoder_layers": DECODER_LAYERS} | SPECIAL | options))


LINFORMER_DECODER = {"decoder_attention": "linformer", "decoder_attention_options": {"k": K}}
NO_FORM = "linformer has no causal form: E and F mix all positions"
UNKNOWN = f"must be one of {', '.join(names())}; got"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (causal_lm, LINFORMER, NO_FORM),
        (seq2seq, LINFORMER_DECODER, NO_FORM),
        (seq2seq, {"decoder_attention": ["full", "full", "linformer"]}, NO_FORM),
        (causal_lm, {"decoder_layers": 3}, "a causal language model has no encoder: no decoder_layers, got 3"),
        (causal_lm, {"input_features": 2}, "a decoder needs a vocab_size, got None"),
        (seq2seq, {"decoder_layers": None}, "an encoder-decoder needs decoder_layers, got None"),
        (seq2seq, {"pad_token_id": None}, "an encoder-decoder needs pad_token_id, got None"),
        (seq2seq, {"decoder_start_token_id": None}, "an encoder-decoder needs decoder_start_token_id, got None"),
        (seq2seq, {"input_features": 2}, "an encoder-decoder needs vocab_size, got None"),
        (seq2seq, {"decoder_layers": 0}, "decoder_layers must be at least 1, got 0"),
        (seq2seq, {"embedding_size": 0}, "embedding_size must be at least 1, got 0"),
        (seq2seq, {"cross_attention": "crossformer"}, f"cross_attention {UNKNOWN} 'crossformer'"),
        (seq2seq, {"cross_attention": ["full", "ful", "full"]}, f"cross_attention {UNKNOWN} 'ful'"),
        (seq2seq, {"decoder_attention": "fool"}, f"decoder_attention {UNKNOWN} 'fool'"),
        (seq2seq, {"cross_attention": ["full"] * 2}, "cross_attention must have one entry a layer, 3, got 2"),
        (seq2seq, {"decoder_attention": ["full"] * 5}, "decoder_attention must have one entry a layer, 3, got 5"),
        (seq2seq, {"cross_attention_options": [{}]}, "cross_attention_options must have one entry a layer, 3, got 1"),
        (
            seq2seq,
            {"decoder_attention_options": [None] * 7},
            "decoder_attention_options must have one entry a layer, 3, got 7",
        ),
        (seq2seq, {"attention": ["full"] * 3}, "attention must have one entry a layer, 2, got 3"),
        (seq2seq, {"rank": [7, 7, 7]}, "rank must have one entry a layer, 5, got 3"),
        (causal_lm, {"rank": [7] * 3}, "rank must have one entry a layer, 2, got 3"),
        (causal_lm, {"cross_attention": ["full"]}, "cross_attention needs decoder_layers, which is None; got ['full']"),
        (seq2seq, {"rank": {"cross_q": 16}}, "rank must be in 1..15 for a 15 x 15 linear layer, got 16"),
    ],
)
def test_of_a_configuration(make, options, message):
    with pytest.raises(ValueError, match=message.partition(" ")[0]) as caught:
        make(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.ones(B, N + 1)}, "attention_mask must be (3, 13), got (3, 14)"),
        ({"attention_mask": torch.ones(1, N)}, "attention_mask must be (3, 13), got (1, 13)"),
        ({"attention_mask": torch.ones(B, N, N)}, "attention_mask must be (3, 13), got (3, 13, 13)"),
        (
            {"encoder_hidden_states": torch.ones(B, M, d, dtype=torch.float64)},
            "encoder_hidden_states must not be given to this decoder",
        ),
    ],
)
def test_of_a_causal_lm(given, message):
    with pytest.raises(ValueError, match="must") as caught:
        causal()(tokens(B, N), **given)
    assert str(caught.value) == message


def test_a_mask_must_count_what_the_cache_holds():
    network, ids = causal(), tokens(B, N)
    past = network(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="attention_mask") as caught:
        network(ids[:, :1], torch.ones(B, 1), past)
    assert str(caught.value) == "attention_mask must be (3, 14), got (3, 1)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.ones(B, M - 1)}, "attention_mask must be (3, 17), got (3, 16)"),
        ({"decoder_attention_mask": torch.ones(B, M)}, "attention_mask must be (3, 13), got (3, 17)"),
        ({"decoder_input_ids": None}, "decoder_input_ids or labels must be given, got neither"),
    ],
)
def test_of_an_encoder_decoder(given, message):
    with pytest.raises(ValueError, match="must") as caught:
        pair()(**{"input_ids": tokens(B, M), "decoder_input_ids": tokens(B, N)} | given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.ones(B, M - 1)}, "encoder_attention_mask must be (3, 17), got (3, 16)"),
        ({"attention_mask": torch.ones(1, M)}, "encoder_attention_mask must be (3, 17), got (1, 17)"),
    ],
)
@pytest.mark.parametrize("name", ["dense", "lrt+linformer", "linformer, no sharing"])
def test_of_an_encoder_decoder_that_has_the_source(name, given, message):
    memory = (torch.ones(B, M, d, dtype=torch.float64),)
    with pytest.raises(ValueError, match="must") as caught:
        pair(name)(decoder_input_ids=tokens(B, N), encoder_outputs=memory, **given)
    assert str(caught.value) == message


def test_a_decoder_over_an_encoder_needs_its_output():
    with pytest.raises(ValueError, match=r"^encoder_hidden_states must be given to this decoder$"):
        pair().decoder(tokens(B, N))


@pytest.mark.parametrize("make", [causal, pair])
def test_a_misspelt_mask_is_not_ignored(make):
    with pytest.raises(TypeError, match="attention_maks"):
        make()(tokens(B, N), attention_maks=torch.ones(B, N))
