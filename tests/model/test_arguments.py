"""Arguments reach the part of a network that they are of, fit each other, and are refused where nothing reads them."""

import inspect

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import greenformers
from greenformers import model
from greenformers.changes import Layers
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSeq2SeqLM,
    GreenformerModel,
)
from greenformers.model.memory import SegmentMemory
from greenformers.model.warm_start import warm_start, warm_start_pair

SIZES = {
    "vocab_size": 50, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 32,
    "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
PAIR = {"decoder_layers": 2, "decoder_start_token_id": 1}


def drawn(kind: type = GreenformerForCausalLM, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(GreenformerConfig(**SIZES | options)).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, 50, shape, generator=torch.Generator().manual_seed(1))


def written(network: torch.nn.Module, **options: object) -> Tensor:
    ids = tokens(2, 9)
    return network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, **options)


@torch.no_grad()
def test_one_further_token_of_spans_that_come_from_the_input() -> None:
    network, ids = (
        drawn(attention="adaptive_span", attention_options={"dynamic": True, "span": 32, "ramp": 2}),
        tokens(2, 9),
    )
    for layer in network.decoder.layers:
        layer.attention.mechanism.b.fill_(-2.0)
        layer.attention.mechanism.v.normal_()
    past = network(ids[:, :8], use_cache=True).past_key_values
    last = network(ids[:, 8:], past_key_values=past, use_cache=True).logits[:, 0]
    torch.testing.assert_close(last, network(ids).logits[:, 8])


def test_what_is_of_the_source_does_not_reach_the_decoder() -> None:
    ids, labels = tokens(2, 9), tokens(2, 5)
    network = drawn(GreenformerForSeq2SeqLM, type_vocab_size=2, **PAIR)
    plain = network(ids, labels=labels).logits
    torch.testing.assert_close(network(ids, labels=labels, token_type_ids=ids * 0).logits, plain)
    other = network(ids, labels=labels, token_type_ids=(ids > 25).long()).logits
    assert (other - plain).abs().max() > 1e-3
    torch.testing.assert_close(network(inputs_embeds=network.encoder.embedding.word(ids), labels=labels).logits, plain)
    torch.testing.assert_close(network(ids, labels=labels, decoder_position_ids=torch.arange(5)[None]).logits, plain)
    assert written(network, token_type_ids=ids * 0).equal(written(network))
    network = drawn(
        GreenformerForSeq2SeqLM, attention="longformer", attention_options={"window": 2, "globals": 0}, **PAIR
    )
    seen = network(ids, labels=labels, global_attention_mask=(ids > 25).long()).logits
    assert (seen - network(ids, labels=labels).logits).abs().max() > 1e-4


def test_a_reversible_stack_with_a_cache_has_the_same_gradients() -> None:
    network, ids, grads = drawn(residual="reversible"), tokens(2, 9), []
    for use_cache in (True, False):
        network.zero_grad()
        network(ids, labels=ids, use_cache=use_cache).loss.backward()
        grads.append(network.decoder.layers[0].attention.projections["q"].weight.grad.clone())
    torch.testing.assert_close(*grads)


def test_packed_texts_learn_by_exits() -> None:
    network, ids = drawn(depth="adaptive").train(), tokens(1, 9)
    apart = [network(part, labels=part).loss for part in (ids[:, :4], ids[:, 4:])]
    where = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    labels = ids.clone()
    labels[:, 4] = -100  # the first of a text follows none
    loss = network(ids, position_ids=where, labels=labels).loss
    torch.testing.assert_close(loss, (3 * apart[0] + 4 * apart[1]) / 7)


@pytest.mark.parametrize("position", ["alibi", "none"])
def test_the_last_batch_of_packed_texts_may_hold_one(position: str) -> None:
    network, ids = drawn(position=position), tokens(1, 9)
    out = network(ids, position_ids=torch.arange(9)[None]).logits
    assert out.equal(network(ids).logits)
    with pytest.raises(ValueError, match="position_ids must be None"):
        network(ids, position_ids=torch.arange(9)[None] + 1)


def test_plain_products_and_layers_computed_again_exclude_each_other() -> None:
    network, ids = drawn(GreenformerForMaskedLM).train(), tokens(2, 9)
    network.set_attn_implementation("eager")
    network(ids, labels=ids).loss.backward()
    network.activation_checkpointing_enable()
    with pytest.raises(ValueError, match="attn_implementation must be sdpa with activation checkpointing"):
        network(ids, labels=ids)


def test_a_gpt2_may_get_attention_without_weights_to_drop() -> None:
    theirs = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=24, n_head=2, vocab_size=50, n_positions=64))
    assert warm_start(theirs, attention="linear_transformer").config.attention == "linear_transformer"
    mixed = warm_start(theirs, attention=["full", "linear_transformer"])
    assert mixed.decoder.layers[0].attention.mechanism.dropout == theirs.config.attn_pdrop > 0


def test_targets_are_of_whole_sources() -> None:
    network = drawn(GreenformerForSeq2SeqLM, **PAIR)
    with pytest.raises(ValueError, match="a multiple of the encoder's 4 sequences, got 2"):
        network(tokens(4, 9), decoder_input_ids=tokens(2, 6))


def test_places_in_a_cache() -> None:
    written(drawn(attention="transformer_xl", memory_length=5, num_hidden_layers=1))
    short = drawn(num_hidden_layers=4)
    greenformers.compress(short, Layers(2, by="bottom"))
    assert written(short).equal(written(short, use_cache=False))
    with pytest.raises(ValueError, match="a static cache has a place a layer"):
        drawn(block="lite").generate(tokens(2, 9), max_new_tokens=3, do_sample=False, cache_implementation="static")


def test_what_nothing_reads_is_refused() -> None:
    network = drawn(attention="transformer_xl", depth="universal")
    with pytest.raises(ValueError, match="a kind of depth takes no memory of segments"):
        network(tokens(2, 9), memory=SegmentMemory(4))
    for name, value in {"attention_options": {"no": 1}, "qk_norm": True, "num_key_value_heads": 1}.items():
        with pytest.raises(ValueError, match=f"{name} must be"):
            drawn(GreenformerModel, block="bp", **{name: value})
    with pytest.raises(ValueError, match="qk_norm must be False for SynthesizerRandom, which has no queries and keys"):
        drawn(GreenformerModel, attention="synthesizer_random", qk_norm=True)
    with pytest.raises(ValueError, match="cross_attention needs decoder_layers, which is None; got 'linformer'"):
        drawn(cross_attention="linformer")


@torch.no_grad()
def test_attention_that_reads_whole_sequences_keeps_no_cache() -> None:
    options = {"look_ahead": 2, "threshold": 9.0}
    network = drawn(attention="dacs", attention_options=options)
    assert not network.generation_config.use_cache
    assert written(network).equal(written(network, use_cache=False))
    with pytest.raises(ValueError, match="keeps no cache: use_cache must be False"):
        network(tokens(2, 9), use_cache=True)
    pair = {"cross_attention": "synthesizer_random", "cross_attention_options": {"mixed": True}}
    assert not drawn(GreenformerForSeq2SeqLM, **PAIR | pair).decoder.keeps_cache


def test_a_memory_of_shared_keys_is_compressed() -> None:
    network = drawn(
        attention="compressive", attention_options={"ratio": 2, "compressed": 4}, num_attention_heads=4,
        num_key_value_heads=2, qk_norm=True, num_hidden_layers=1,
    ).train()  # fmt: skip
    memory = SegmentMemory(4)
    for _ in range(3):
        out = network(tokens(2, 8), labels=tokens(2, 8), memory=memory)
        memory = out.memory
    assert out.loss.isfinite()


def test_global_positions_are_turned_too() -> None:
    network = drawn(
        GreenformerModel, attention="longformer", attention_options={"window": 2}, position="rotary",
        num_hidden_layers=1,
    )  # fmt: skip
    ids = tokens(1, 12)
    other = torch.cat([ids[:, :1], ids[:, 1:].flip(1)], 1)
    assert (network(ids).last_hidden_state - network(other).last_hidden_state)[:, 0].abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("attention", ["full", "sliding_window", "cascade", "local_blocks"])
def test_one_further_token_with_shared_keys(attention: str) -> None:
    small = {"sliding_window": {"window": 3}, "cascade": {"base": 3}, "local_blocks": {"block": 3}}
    network = drawn(
        attention=attention, attention_options=small.get(attention), num_attention_heads=4, num_key_value_heads=2
    )
    ids = tokens(2, 14)
    past = network(ids[:, :13], use_cache=True).past_key_values
    last = network(ids[:, 13:], past_key_values=past, use_cache=True).logits[:, 0]
    torch.testing.assert_close(last, network(ids).logits[:, 13])


@pytest.mark.parametrize(
    "more",
    [
        {"feed_forward": ["dense"] * 3 + ["switch"] * 2, "feed_forward_options": [None] * 3 + [{"jitter": 0.0}] * 2},
        {"depth": "universal", "depth_options": {"tau": 1.0}},
    ],
    ids=["switch", "universal"],
)
def test_padding_of_labels_is_neither_routed_nor_pondered_over(more: dict[str, object]) -> None:
    network = drawn(GreenformerForSeq2SeqLM, **PAIR | more).train()
    if network.decoder.depth is not None:
        torch.nn.init.normal_(network.decoder.depth.weight)
    labels = tokens(2, 5)
    longer = torch.cat([labels, labels.new_full((2, 20), -100)], 1)
    torch.testing.assert_close(network(tokens(2, 9), labels=longer).loss, network(tokens(2, 9), labels=labels).loss)


def test_a_decoder_beside_blocks_has_positions() -> None:
    network = drawn(GreenformerForSeq2SeqLM, block="bp", **PAIR)
    assert network.decoder.embedding.position is not None
    first, second = torch.tensor([[1, 5, 6, 7, 8]]), torch.tensor([[1, 7, 5, 6, 8]])
    last = [network(tokens(1, 9), decoder_input_ids=ids).logits[:, -1] for ids in (first, second)]
    assert (last[0] - last[1]).abs().max() > 1e-3
    assert drawn(GreenformerForSeq2SeqLM, block="bp", attention_dropout=0.1, **PAIR).config.attention_dropout == 0.1
    shared = drawn(GreenformerForSeq2SeqLM, block="star", depth="shared", **PAIR).decoder.layers
    assert shared[0].feed_forward.up.weight is shared[1].feed_forward.up.weight


def test_vectors_of_the_target_in_place_of_its_tokens() -> None:
    network, ids, target = drawn(GreenformerForSeq2SeqLM, **PAIR), tokens(2, 9), tokens(2, 5)
    plain = network(ids, decoder_input_ids=target).logits
    vectors = network.decoder.embedding.word(target)
    torch.testing.assert_close(network(ids, decoder_inputs_embeds=vectors).logits, plain)


@pytest.mark.parametrize(
    "kind",
    [
        "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "MultipleChoice",
        "SentenceEmbedding", "Seq2SeqLM",
    ],
)  # fmt: skip
def test_the_trainer_hands_on_which_positions_are_global(kind: str) -> None:
    """It drops columns that `forward` does not name."""
    named = inspect.signature(getattr(model, f"GreenformerFor{kind}").forward).parameters
    assert {"global_attention_mask", "token_type_ids"} <= named.keys()


def test_codes_of_steps_do_not_drown_the_tokens() -> None:
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 128, "initializer_range": None}
    network = GreenformerForCausalLM(GreenformerConfig(**sizes, depth="universal", position="rotary")).eval()
    states = torch.nn.functional.normalize(network.decoder(tokens(1, 32)).last_hidden_state[0], dim=-1)
    assert (states @ states.T).mean() < 0.7


def test_a_pair_of_a_trained_encoder_drops_as_it_does() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    pair = warm_start_pair(BertModel(BertConfig(**sizes, intermediate_size=32)), start_token_id=1, end_token_id=2)
    layer = pair.decoder.layers[0]
    assert layer.attention.mechanism.dropout == layer.cross_attention.mechanism.dropout == 0.1


def test_norm_and_bias_of_blocks() -> None:
    block = drawn(GreenformerModel, block="bp", norm="rms", bias=False).layers[0].block
    assert type(block.attention_norm) is not torch.nn.LayerNorm
    assert block.q.bias is None
    for options, said in (
        ({"shared": "attention"}, "shared needs layers"),
        ({"block_options": {"no": 1}}, "block_options"),
    ):
        with pytest.raises(ValueError, match=said):
            drawn(GreenformerModel, **options)
