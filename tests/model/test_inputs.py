"""What tokenizers, collators and callers give besides tokens and their mask."""

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

from greenformers import attention
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForSeq2SeqLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)

SIZES = {
    "vocab_size": 50, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 16,
}  # fmt: skip
CLOSE = {"atol": 1e-9, "rtol": 1e-9}


def drawn(kind: type = GreenformerModel, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(GreenformerConfig(**SIZES | options)).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(1))


def can_be_causal(name: str) -> bool:
    try:
        drawn(GreenformerForCausalLM, attention=name)
    except ValueError:
        return False
    return True


def test_token_types_are_added_to_the_embeddings() -> None:
    network, ids = drawn(type_vocab_size=2), tokens(2, 7)
    types = (ids > 20).long()
    plain = network.embedding.word(ids) + network.embedding.token_type(types)
    expected = network.embedding.norm(network.embedding.position.embed(plain))
    torch.testing.assert_close(network.embedding(ids, types=types), expected, **CLOSE)
    torch.testing.assert_close(network(ids, token_type_ids=types * 0)[0], network(ids)[0], atol=0, rtol=0)
    assert (network(ids, token_type_ids=types)[0] - network(ids)[0]).abs().max() > 0.01


def test_token_types_that_a_network_does_not_have() -> None:
    """Tokenizers give zeros, which mean nothing."""
    network, ids = drawn(), tokens(2, 7)
    torch.testing.assert_close(network(ids, token_type_ids=ids * 0)[0], network(ids)[0], atol=0, rtol=0)
    with pytest.raises(ValueError, match=r"^token_type_ids must be in 0\.\.0 \(type_vocab_size\), got 1$"):
        network(ids, token_type_ids=ids * 0 + 1)
    with pytest.raises(ValueError, match=r"^token_type_ids must be \(2, 7\), got \(2, 3\)$"):
        network(ids, token_type_ids=ids[:, :3] * 0)


def test_a_token_type_that_is_out_of_range_is_the_one_named() -> None:
    network, ids = drawn(type_vocab_size=2), tokens(2, 7)
    with pytest.raises(ValueError, match=r"^token_type_ids must be in 0\.\.1 \(type_vocab_size\), got -1$"):
        network(ids, token_type_ids=ids * 0 - 1)
    assert network(ids[:0], token_type_ids=ids[:0])[0].shape == (0, 7, 12)


@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForCausalLM])
def test_tokens_out_of_range(kind: type) -> None:
    network, ids = drawn(kind), tokens(2, 7)
    with pytest.raises(ValueError, match=r"^input_ids must be in 0\.\.49 \(vocab_size\), got 50$"):
        network(torch.where(ids == ids[0, 3], 50, ids))
    with pytest.raises(ValueError, match=r"^input_ids must be in 0\.\.49 \(vocab_size\), got -100$"):
        network(torch.where(ids == ids[0, 3], -100, ids))
    with pytest.raises(ValueError, match=r"^input_ids must be whole numbers \(B, N\), got torch\.float32 \(2, 7\)$"):
        network(ids.float())


@pytest.mark.parametrize("form", [torch.bool, torch.uint8, torch.long, torch.float32])
@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForCausalLM])
def test_a_mask_of_keys_is_of_zeros_and_ones(kind: type, form: torch.dtype) -> None:
    """In one that is added to scores 0 stands for "keep": it is refused, not taken for its opposite."""
    network, ids, keep = drawn(kind), tokens(2, 7), torch.ones(2, 7, dtype=torch.bool)
    keep[1, 4:] = False
    torch.testing.assert_close(network(ids, keep.to(form))[0][keep], network(ids, keep)[0][keep], atol=0, rtol=0)
    for other in (-torch.inf, 0.5, 2.0, torch.nan):
        with pytest.raises(ValueError, match=rf"^attention_mask must be 1 where .* and 0 elsewhere, got {other}$"):
            network(ids, torch.zeros(2, 7).masked_fill(~keep, other))


def test_the_other_masks_are_of_zeros_and_ones() -> None:
    ids, added = tokens(2, 7), torch.zeros(2, 7).masked_fill(tokens(2, 7) > 20, -torch.inf)
    with pytest.raises(ValueError, match=r"^global_attention_mask must be 1 where .* got -inf$"):
        drawn(attention="longformer")(ids, global_attention_mask=added)
    pair = drawn(GreenformerForSeq2SeqLM, decoder_layers=1, pad_token_id=0, decoder_start_token_id=1)
    states = pair.encoder(ids)
    with pytest.raises(ValueError, match=r"^encoder_attention_mask must be 1 where .* got -inf$"):
        pair(encoder_outputs=states, attention_mask=added, decoder_input_ids=ids)
    with pytest.raises(ValueError, match=r"^attention_mask must be 1 where .* got -inf$"):
        pair(ids, decoder_input_ids=ids, decoder_attention_mask=added)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForCausalLM])
def test_vectors_and_positions_of_tokens(kind: type, position: str) -> None:
    network, ids = drawn(kind, position=position), tokens(2, 7)
    expected = network(ids)[0]
    torch.testing.assert_close(network(inputs_embeds=network.get_input_embeddings()(ids))[0], expected, **CLOSE)
    here = torch.arange(7)[None]
    torch.testing.assert_close(network(ids, position_ids=here)[0], expected, **CLOSE)
    moved = network(ids, position_ids=here + 3)[0]
    if position == "rotary":  # distances alone
        torch.testing.assert_close(moved, expected, **CLOSE)
    else:
        assert (moved - expected).abs().max() > 1e-3
    order = torch.tensor([3, 0, 6, 1, 2, 5, 4])
    if kind is GreenformerModel:  # a text in another order, each token with its place
        torch.testing.assert_close(network(ids[:, order], position_ids=order[None])[0], expected[:, order], **CLOSE)


def test_positions_out_of_range() -> None:
    ids = tokens(2, 7)
    with pytest.raises(ValueError, match=r"^position_ids must be in 0\.\.15, got 16$"):
        drawn()(ids, position_ids=torch.arange(10, 17)[None])
    with pytest.raises(ValueError, match=r"^position_ids must be at least 0, got -1$"):
        drawn(position="rotary")(ids, position_ids=torch.arange(-1, 6)[None])
    with pytest.raises(ValueError, match=r"^position_ids must be \(B, 7\), got \(1, 6\)$"):
        drawn()(ids, position_ids=torch.arange(6)[None])
    with pytest.raises(ValueError, match=r"^position_ids must be None: this network goes by distances"):
        drawn(position="alibi")(ids, position_ids=torch.arange(7)[None])


def test_unknown_inputs_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"^this network takes no 'mask'$"):
        drawn(GreenformerForSequenceClassification)(tokens(2, 7), mask=None)
    with pytest.raises(ValueError, match=r"^this network takes input_ids or inputs_embeds, got nothing$"):
        drawn()()


@pytest.mark.parametrize("name", attention.names())
def test_packed_texts_are_what_they_are_alone(name: str) -> None:
    network, texts = drawn(attention=name), [tokens(1, n) for n in (5, 1, 7)]
    expected = [network(text) for text in texts]
    lengths = torch.tensor([0, 5, 6, 13], dtype=torch.int32)
    out = network(torch.cat(texts, 1), cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, max_length_q=7, max_length_k=7)
    torch.testing.assert_close(out[0], torch.cat([each[0] for each in expected], 1), **CLOSE)
    torch.testing.assert_close(out[1], torch.cat([each[1] for each in expected]), **CLOSE)


@pytest.mark.parametrize("name", [name for name in attention.names() if can_be_causal(name)])
@pytest.mark.parametrize("says", ["lengths", "positions"])
def test_language_models_learn_from_packed_texts(name: str, says: str) -> None:
    """As transformers' collator packs them: the loss is that of the same texts with padding."""
    network, texts = drawn(GreenformerForCausalLM, attention=name), [tokens(n) for n in (5, 3, 7)]
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=says == "lengths", return_position_ids=True)
    batch = collate([{"input_ids": text.tolist()} for text in texts])
    ids, mask = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    labels = ids.masked_fill(mask == 0, -100)
    torch.testing.assert_close(network(**batch).loss, network(ids, mask, labels=labels).loss, **CLOSE)


def test_lengths_that_do_not_fit() -> None:
    network, ids = drawn(), tokens(1, 7)
    for lengths in ([0, 5], [1, 7], [0, 5, 5, 7], [0, 9, 7]):
        with pytest.raises(ValueError, match=r"^cu_seq_lens_q must rise from 0 to the length of the one row, 7, got "):
            network(ids, cu_seq_lens_q=torch.tensor(lengths))
    with pytest.raises(ValueError, match="must be the same"):
        network(ids, cu_seq_lens_q=torch.tensor([0, 7]), cu_seq_lens_k=torch.tensor([0, 3, 7]))
    with pytest.raises(ValueError, match="attention_mask must be None where texts are packed"):
        network(ids, torch.tensor([[1, 1, 1, 1, 1, 1, 0]]), cu_seq_lens_q=torch.tensor([0, 3, 7]))


def test_where_tokens_stand_behind_a_cache() -> None:
    network, ids = drawn(GreenformerForCausalLM), tokens(2, 7)
    past = network(ids[:, :4], use_cache=True).past_key_values
    out = network(ids[:, 4:], past_key_values=past, cache_position=torch.arange(4, 7))
    torch.testing.assert_close(out.logits, network(ids).logits[:, 4:], **CLOSE)
    with pytest.raises(ValueError, match=r"^cache_position must be 0 to 6, as the cache says; got \[1, "):
        network(ids, cache_position=torch.arange(1, 8))


def test_dropout_of_attention_weights() -> None:
    network = drawn(attention=["full", "nystromformer"], attention_options=[{"dropout": 0.0}, None])
    assert network.config.attention_dropout == 0
    network = drawn(attention_dropout=0.25, attention_options=[{"dropout": 0.0}, None])
    assert [layer.attention.mechanism.dropout for layer in network.layers] == [0.0, 0.25]
    with pytest.raises(ValueError, match=r"^attention_dropout must be 0 for performer, which has no attention weights"):
        drawn(attention="performer", attention_dropout=0.1)
    with pytest.raises(ValueError, match=r"^attention_dropout must be in \[0, 1\), got 1"):
        drawn(attention_dropout=1)


def test_plain_products_in_place_of_fused_kernels() -> None:
    """`attn_implementation` "eager": the same, with second derivatives."""
    ids = tokens(2, 7)
    network, eager = drawn(), drawn(attn_implementation="eager")
    torch.testing.assert_close(eager(ids)[0], network(ids)[0], **CLOSE)
    vectors = network.get_input_embeddings()(ids).detach().requires_grad_()

    def second(model: torch.nn.Module) -> Tensor:
        (first,) = torch.autograd.grad(model(inputs_embeds=vectors)[0].square().sum(), vectors, create_graph=True)
        return torch.autograd.grad(first.square().sum(), vectors)[0]

    assert second(eager).isfinite().all()
    with pytest.raises(RuntimeError, match="not implemented"):
        second(network)


@pytest.mark.parametrize("name", ["full", "performer", "sliding_window", "transformer_xl"])
def test_no_more_than_learned_positions_end_a_text(name: str) -> None:
    """Rotary positions and distances go on: the longest sequence sets defaults alone."""
    network, ids = drawn(GreenformerForCausalLM, attention=name), tokens(1, 40)
    assert network(ids).logits.isfinite().all()
    with pytest.raises(ValueError, match=r"^length must be in 1\.\.16, got 40$"):
        drawn(GreenformerForCausalLM, attention="full", position="learned")(ids)
    with pytest.raises(ValueError, match=r"^the number of (keys|queries) must be in 1\.\.16, got 40$"):
        drawn(GreenformerForCausalLM, attention="synthesizer_random", position="none")(ids)


def pairs_of(mask: Tensor) -> Tensor:
    """A mask of keys as one of queries and keys."""
    return mask[:, None, None].expand(-1, 1, mask.shape[1], -1)


@pytest.mark.parametrize("form", [torch.bool, torch.long, torch.float64])
@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForCausalLM])
def test_a_mask_of_queries_and_keys(kind: type, form: torch.dtype) -> None:
    network, ids, mask = drawn(kind), tokens(2, 7), torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    pairs = pairs_of(mask)
    if kind is GreenformerForCausalLM:
        pairs = pairs & torch.ones(7, 7, dtype=torch.bool).tril()
    expected = network(ids, mask)[0]
    if form.is_floating_point:
        given = torch.zeros(pairs.shape, dtype=form).masked_fill(~pairs, torch.finfo(form).min)
    else:
        given = pairs.to(form)
    torch.testing.assert_close(network(ids, given)[0][mask], expected[mask], **CLOSE)


def test_a_mask_of_queries_and_keys_says_all() -> None:
    """A prefix that sees itself whole, before a text that sees what is before it."""
    network, ids = drawn(GreenformerForCausalLM), tokens(1, 7)
    pairs = torch.ones(7, 7, dtype=torch.bool).tril()
    pairs[:3, :3] = True
    changed = ids.clone()
    changed[0, 2] = (ids[0, 2] + 1) % 50
    before, after = (network(x, pairs[None, None]).logits for x in (ids, changed))
    assert (before - after)[0, 0].abs().max() > 1e-6
    behind = pairs.clone()
    behind[:, 2] = False
    before, after = (network(x, behind[None, None]).logits for x in (ids, changed))
    torch.testing.assert_close(before[:, 3:], after[:, 3:], **CLOSE)


def test_a_mask_of_queries_and_keys_that_has_no_place() -> None:
    ids, pairs = tokens(2, 7), torch.ones(2, 1, 7, 7)
    with pytest.raises(ValueError, match=r"^Performer takes no mask of queries and keys: it must be \(B, M\)"):
        drawn(attention="performer")(ids, pairs)
    with pytest.raises(ValueError, match=r"^pairs must be \(2, 1 or 3, 7, 7\), got \(2, 2, 7, 7\)$"):
        drawn()(ids, torch.ones(2, 2, 7, 7))
    with pytest.raises(ValueError, match=r"^a mask of queries and keys is for layers of attention one after the other"):
        drawn(residual="reversible")(ids, pairs)
