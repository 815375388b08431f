"""An encoder-decoder that starts from a trained encoder: what is copied, and what it computes at first."""

import pytest
import torch
from networks import padding, stir
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2Model, RobertaConfig, RobertaModel

from greenformers.model.warm_start import warm_start_pair

B, M, N, PAD, START, END = 3, 43, 7, 1, 2, 3
SIZES = {
    "vocab_size": 37, "hidden_size": 15, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 31,
    "max_position_embeddings": 67, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": PAD,
}  # fmt: skip
MARKS = {"start_token_id": START, "end_token_id": END}


def encoder(cls=BertModel, **options):
    kind = RobertaConfig if cls is RobertaModel else BertConfig
    return stir(cls(kind(**SIZES | options))).eval()


@pytest.mark.parametrize("cls", [BertModel, BertForMaskedLM, RobertaModel])
def test_the_encoder_computes_the_same(cls):
    model, mask = encoder(cls), padding(B, M)
    ids = torch.randint(4, 37, (B, M)).masked_fill(~mask, PAD)
    pair = warm_start_pair(model, **MARKS)
    assert pair.config.type_vocab_size == 0
    assert not pair.training
    with torch.no_grad():
        expected = model.base_model(ids, mask.long()).last_hidden_state
        hidden = pair.encoder(ids, mask).last_hidden_state
    torch.testing.assert_close(hidden[mask], expected[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("layers", "sources"), [(None, [0, 1, 2, 3]), (2, [0, 2]), (3, [0, 1, 2]), (1, [0])])
def test_the_decoder_has_evenly_spaced_layers(layers, sources):
    model = encoder()
    pair = warm_start_pair(model, decoder_layers=layers, **MARKS)
    assert len(pair.decoder.layers) == len(sources)
    for layer, source in zip(pair.decoder.layers, sources, strict=True):
        theirs = model.encoder.layer[source]
        own = layer.attention.projections
        for role, name in (("q", "query"), ("k", "key"), ("v", "value")):
            assert torch.equal(own[role].weight, theirs.attention.self.get_submodule(name).weight)
        assert torch.equal(layer.attention.output.bias, theirs.attention.output.dense.bias)
        assert torch.equal(layer.feed_forward.up.weight, theirs.intermediate.dense.weight)
        assert torch.equal(layer.feed_forward.down.weight, theirs.output.dense.weight)
        assert torch.equal(layer.feed_forward_norm.weight, theirs.output.LayerNorm.weight)
        assert torch.equal(layer.cross_attention_norm.weight, torch.ones(15))  # new
    words = model.embeddings.word_embeddings.weight
    assert torch.equal(pair.score.weight, words)
    assert pair.score.weight is pair.decoder.embedding.word.weight is pair.encoder.embedding.word.weight
    assert torch.equal(pair.decoder.embedding.position.weight, pair.encoder.embedding.position.weight)


def test_a_decoder_that_attends_no_source_is_the_encoder_made_causal():
    """With a cross-attention that adds nothing, a token is scored by what the encoder computes of those before it."""
    model = encoder()
    pair = warm_start_pair(model, **MARKS)
    for layer in pair.decoder.layers:
        layer.cross_attention_norm = torch.nn.Identity()
        torch.nn.init.zeros_(layer.cross_attention.output.weight)
        torch.nn.init.zeros_(layer.cross_attention.output.bias)
    target = torch.randint(4, 37, (B, N))
    causal = torch.ones(N, N).tril()[None, None].log()
    with torch.no_grad():
        states = model(target, causal.expand(B, 1, N, N)).last_hidden_state
        expected = states @ model.embeddings.word_embeddings.weight.mT
        logits = pair(torch.randint(4, 37, (B, M)), decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("attention", "options"),
    [("bigbird", {"block": 8, "random": 1}), ("longformer", {"window": 5, "globals": 1}), ("linformer", {"k": 11})],
)
def test_a_sparse_encoder_for_longer_sources(attention, options):
    model = encoder()
    pair = warm_start_pair(model, length=150, attention=attention, attention_options=options, **MARKS)
    assert pair.config.attention == attention
    assert {*pair.config.per_layer("decoder_attention"), *pair.config.per_layer("cross_attention")} == {"full"}
    own = model.embeddings.position_embeddings.weight + model.embeddings.token_type_embeddings.weight[0]
    positions = pair.encoder.embedding.position.weight
    assert positions.shape == (150, 15)
    for place in (0, 66, 67, 133, 134, 149):
        assert torch.equal(positions[place], own[place % 67])
    ids = torch.randint(4, 37, (2, 150))
    out = pair(ids, labels=torch.randint(4, 37, (2, N)))
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert pair.encoder.layers[0].attention.projections.q.weight.grad.any()
    assert pair.generate(ids, max_new_tokens=3, num_beams=2).shape[0] == 2


def test_a_pair_is_saved_and_loaded(tmp_path):
    pair = warm_start_pair(encoder(), decoder_layers=2, attention="bigbird", attention_options={"block": 8}, **MARKS)
    pair.save_pretrained(tmp_path)
    again = type(pair).from_pretrained(tmp_path)
    ids, labels = torch.randint(4, 37, (2, M)), torch.randint(4, 37, (2, N))
    with torch.no_grad():
        assert torch.equal(again(ids, labels=labels).loss, pair(ids, labels=labels).loss)
    assert (again.generation_config.eos_token_id, again.config.decoder_start_token_id) == (END, START)


@pytest.mark.parametrize("layers", [0, 5])
def test_layers_out_of_range(layers):
    with pytest.raises(
        ValueError, match=rf"^decoder_layers must be in 1\.\.4, the layers of the encoder, got {layers}$"
    ):
        warm_start_pair(encoder(), decoder_layers=layers, **MARKS)


def test_other_models_are_refused():
    model = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=37, n_positions=32))
    with pytest.raises(ValueError, match=r"^model must be one of BertModel, .*; got GPT2Model$"):
        warm_start_pair(model, **MARKS)
