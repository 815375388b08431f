"""Decoder and encoder-decoder against transformers' GPT, GPT-2, BERT and BART with the same weights.

GPT and GPT-2 have no norm after the embedding: there ours is put out of the way. BERT as a decoder has one more block
before its scores, which is put out of the way too. BART is compared as it is.
"""

import pytest
import torch
from networks import HEADS, LAYERS, MAX_LEN, VOCABULARY, d, padding
from text_networks import DECODER_LAYERS, PAD, START, causal, left, pair, tokens
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

CLOSE = {"atol": 1e-10, "rtol": 1e-10}
B, M, N = 3, 17, 13


def copy(pairs):
    """Copy weights and biases, the dense forms of low-rank ones."""
    with torch.no_grad():
        for target, source in pairs:
            weight = source.weight.mT if type(target).__name__ == "Conv1D" else source.weight
            assert target.weight.shape == weight.shape
            target.weight.copy_(weight)
            if getattr(target, "bias", None) is not None:
                target.bias.copy_(source.bias)


def joined(*projections):
    """Several linear layers as one that gives their outputs side by side."""
    layer = nn.Linear(d, 3 * d, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([item.weight for item in projections]))
        layer.bias.copy_(torch.cat([item.bias for item in projections]))
    return layer


def gpt_options(**options):
    # The MLP of GPT is four times as wide as d.
    layers = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "intermediate_size": 4 * d}
    return layers | {"feed_forward": "dense"} | options


def gpt_pairs(ours, blocks):
    for layer, block in zip(ours.decoder.layers, blocks, strict=True):
        projections = layer.attention.projections
        yield block.attn.c_attn, joined(projections["q"], projections["k"], projections["v"])
        yield block.attn.c_proj, layer.attention.output
        yield block.mlp.c_fc, layer.feed_forward.up
        yield block.mlp.c_proj, layer.feed_forward.down
        yield block.ln_1, layer.attention_norm
        yield block.ln_2, layer.feed_forward_norm


def gpt2(name):
    """Pre-norm, causal."""
    ours = causal(name, residual="pre", position="learned", bias=True, **gpt_options())
    ours.decoder.embedding.norm = nn.Identity()
    sizes = {"n_embd": d, "n_layer": LAYERS, "n_head": HEADS, "n_positions": MAX_LEN, "vocab_size": VOCABULARY}
    oracle = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=START, eos_token_id=None)).double().eval()
    body = oracle.transformer
    embedding = ours.decoder.embedding
    copy([(body.wte, embedding.word), (body.wpe, embedding.position), (body.ln_f, ours.decoder.final_norm)])
    copy(gpt_pairs(ours, body.h))
    return ours, oracle


def gpt(name):
    """Post-norm, causal."""
    ours = causal(name, residual="post", position="learned", bias=True, **gpt_options())
    ours.decoder.embedding.norm = nn.Identity()
    sizes = {"n_embd": d, "n_layer": LAYERS, "n_head": HEADS, "n_positions": MAX_LEN, "vocab_size": VOCABULARY}
    oracle = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**sizes)).double().eval()
    body, embedding = oracle.transformer, ours.decoder.embedding
    copy([(body.tokens_embed, embedding.word), (body.positions_embed, embedding.position)])
    copy(gpt_pairs(ours, body.h))
    return ours, oracle


def bert_embedding_pairs(oracle, embedding):
    nn.init.zeros_(oracle.token_type_embeddings.weight)
    yield oracle.word_embeddings, embedding.word
    yield oracle.position_embeddings, embedding.position
    yield oracle.LayerNorm, embedding.norm


def bert_attention_pairs(oracle, attention, norm):
    projections = attention.projections
    yield oracle.self.query, projections["q"]
    yield oracle.self.key, projections["k"]
    yield oracle.self.value, projections["v"]
    yield oracle.output.dense, attention.output
    yield oracle.output.LayerNorm, norm


def bert(ours, layers, cross):
    oracle = BertLMHeadModel(
        BertConfig(
            hidden_size=d,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            intermediate_size=31,
            vocab_size=VOCABULARY,
            max_position_embeddings=MAX_LEN,
            is_decoder=True,
            add_cross_attention=cross,
        )
    )
    oracle = oracle.double().eval()
    oracle.cls.predictions.transform = nn.Identity()
    nn.init.zeros_(oracle.cls.predictions.decoder.bias)
    nn.init.zeros_(oracle.cls.predictions.bias)
    copy(bert_embedding_pairs(oracle.bert.embeddings, ours.decoder.embedding))
    for layer, block in zip(ours.decoder.layers, oracle.bert.encoder.layer, strict=True):
        copy(bert_attention_pairs(block.attention, layer.attention, layer.attention_norm))
        if cross:
            copy(bert_attention_pairs(block.crossattention, layer.cross_attention, layer.cross_attention_norm))
        copy(
            [
                (block.intermediate.dense, layer.feed_forward.up),
                (block.output.dense, layer.feed_forward.down),
                (block.output.LayerNorm, layer.feed_forward_norm),
            ]
        )
    return oracle


def bart_attention_pairs(oracle, attention):
    projections = attention.projections
    yield oracle.q_proj, projections["q"]
    yield oracle.k_proj, projections["k"]
    yield oracle.v_proj, projections["v"]
    yield oracle.out_proj, attention.output


def bart(name, **options):
    """Post-norm encoder-decoder; positions start at 2."""
    ours = pair(name, layer_norm_eps=1e-5, **options)
    oracle = BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=d,
            max_position_embeddings=MAX_LEN,
            encoder_layers=LAYERS,
            decoder_layers=DECODER_LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=31,
            decoder_ffn_dim=31,
            pad_token_id=PAD,
            decoder_start_token_id=START,
            bos_token_id=START,
            eos_token_id=ours.config.eos_token_id,
            forced_eos_token_id=None,
        )
    )
    oracle = oracle.double().eval()
    with torch.no_grad():
        oracle.model.shared.weight.copy_(ours.encoder.embedding.word.weight)
    for stack, half in ((ours.encoder, oracle.model.encoder), (ours.decoder, oracle.model.decoder)):
        with torch.no_grad():
            half.embed_positions.weight[2:] = stack.embedding.position.weight
        copy([(half.layernorm_embedding, stack.embedding.norm)])
        for layer, block in zip(stack.layers, half.layers, strict=True):
            copy(bart_attention_pairs(block.self_attn, layer.attention))
            copy(
                [
                    (block.self_attn_layer_norm, layer.attention_norm),
                    (block.fc1, layer.feed_forward.up),
                    (block.fc2, layer.feed_forward.down),
                    (block.final_layer_norm, layer.feed_forward_norm),
                ]
            )
            if stack is ours.decoder:
                copy(bart_attention_pairs(block.encoder_attn, layer.cross_attention))
                copy([(block.encoder_attn_layer_norm, layer.cross_attention_norm)])
    return ours, oracle


@pytest.mark.parametrize("name", ["dense", "lrt"])
@pytest.mark.parametrize("make", [gpt, gpt2])
def test_equals_gpt(make, name):
    ours, oracle = make(name)
    ids = tokens(B, N)
    out = oracle(ids, labels=ids)
    actual = ours(ids, labels=ids)
    torch.testing.assert_close(actual.logits, out.logits, **CLOSE)
    torch.testing.assert_close(actual.loss.float(), out.loss, atol=1e-6, rtol=1e-6)  # theirs is in float32


@pytest.mark.parametrize("how", [{}, {"num_beams": 3, "length_penalty": 0.7}])
def test_continues_as_gpt2_in_a_batch_padded_on_the_left(how):
    ours, oracle = gpt2("lrt")
    ids, mask = tokens(B, 7), left(padding(B, 7)).long()
    how = {"max_new_tokens": 11, "do_sample": False, "pad_token_id": PAD} | how
    expected = oracle.generate(ids, attention_mask=mask, **how)
    assert expected.shape == (B, 18)
    assert torch.equal(ours.generate(ids, attention_mask=mask, **how), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["dense", "lrt"])
def test_equals_bert_as_a_decoder(name, masked):
    ours = causal(name, position="learned", residual="post", feed_forward="dense", bias=True, embedding_norm=True)
    ids, mask = tokens(B, N), padding(B, N) | (not masked)
    expected = bert(ours, LAYERS, cross=False)(ids, attention_mask=mask.long()).logits
    torch.testing.assert_close(ours(ids, mask if masked else None).logits[mask], expected[mask], **CLOSE)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["dense", "lrt"])
def test_equals_bert_as_a_decoder_over_an_encoder(name, masked):
    ours = pair(name)
    source, mask = padding(B, M).flip(0) | (not masked), padding(B, N) | (not masked)
    target, memory = tokens(B, N), torch.randn(B, M, d, dtype=torch.float64)
    expected = bert(ours, DECODER_LAYERS, cross=True)(
        target,
        attention_mask=mask.long(),
        encoder_hidden_states=memory,
        encoder_attention_mask=source.long(),
    ).logits
    masks = (source, target, mask) if masked else (None, target, None)
    logits = ours(None, *masks, encoder_outputs=(memory,)).logits
    torch.testing.assert_close(logits[mask], expected[mask], **CLOSE)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["dense", "lrt"])
def test_equals_bart(name, masked):
    ours, oracle = bart(name)
    ids, labels = tokens(B, M), tokens(B, N)
    mask = padding(B, N) | (not masked)
    labels = labels.masked_fill(~mask, -100)
    given = {"attention_mask": padding(B, M).long(), "decoder_attention_mask": mask.long()} if masked else {}
    actual, expected = ours(ids, labels=labels, **given), oracle(ids, labels=labels, **given)
    torch.testing.assert_close(actual.logits[mask], expected.logits[mask], **CLOSE)
    torch.testing.assert_close(actual.loss, expected.loss, **CLOSE)


def test_equals_bart_in_float32():
    ours, oracle = bart("lrt")
    ours, oracle = ours.float(), oracle.float()
    ids, target = tokens(B, M), tokens(B, N)
    with torch.no_grad():
        expected = oracle(ids, decoder_input_ids=target).logits
        torch.testing.assert_close(ours(ids, decoder_input_ids=target).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("end", [None, 19])
@pytest.mark.parametrize("how", [{}, {"num_beams": 3, "length_penalty": 0.7, "num_return_sequences": 2}])
def test_translates_as_bart(how, end):
    ours, oracle = bart("lrt", eos_token_id=end)
    ids, mask = tokens(7, M), padding(7, M).long()
    how = {"max_new_tokens": 11, "do_sample": False, "return_dict_in_generate": True, "output_scores": True} | how
    expected, actual = (model.generate(ids, attention_mask=mask, **how) for model in (oracle, ours))
    assert torch.equal(actual.sequences, expected.sequences)
    for scores, expected_scores in zip(actual.scores, expected.scores, strict=True):
        torch.testing.assert_close(scores, expected_scores, **CLOSE)
