"""Keys and values that are kept: texts read token by token or in pieces give what one pass gives."""

from copy import deepcopy

import pytest
import torch
from networks import MAX_LEN, padding
from text_networks import causal, left, pair, tokens
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache, Fp8QuantizedLayer, StaticCache

from greenformers.model.cache import GrowingLayer

B, M, N = 3, 17, 13
PIECES = {"tokens": [1] * N, "pieces": [5, 1, 4, 3], "a long rest": [1, 12]}
CLOSE = {"atol": 1e-12, "rtol": 1e-12}


def in_pieces(network, ids, mask, lengths, **given):
    """Logits of `ids`, read in pieces on top of a cache."""
    past, logits, place = None, [], 0
    for length in lengths:
        piece, so_far = ids[:, place : place + length], None if mask is None else mask[:, : place + length]
        out = network(piece, so_far, past_key_values=past, use_cache=True, **given)
        past, place = out.past_key_values, place + length
        logits.append(out.logits)
        assert past.get_seq_length() == place
    return torch.cat(logits, 1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", ["dense", "narrow lrt", "sinusoidal"])
def test_a_text_in_pieces(name, pieces, masked):
    network, ids = causal(name, residual="pre"), tokens(B, N)
    mask = left(padding(B, N)) if masked else None
    expected = network(ids, mask).logits
    torch.testing.assert_close(in_pieces(network, ids, mask, PIECES[pieces]), expected, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(in_pieces(network, ids, mask, PIECES[pieces]), expected.detach(), **CLOSE)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pieces", ["tokens", "pieces"])
@pytest.mark.parametrize(
    "name", ["dense", "lrt+linformer", "linformer, no sharing", "linformer, layerwise", "attention of each layer"]
)
def test_a_target_in_pieces(name, pieces, masked):
    network, ids, target = pair(name), tokens(B, M), tokens(B, N)
    mask, target_mask = (padding(B, M), left(padding(B, N))) if masked else (None, None)
    expected = network(ids, mask, target, target_mask).logits
    memory, past, logits, place = network.encoder(ids, mask), None, [], 0
    for length in PIECES[pieces]:
        so_far = None if target_mask is None else target_mask[:, : place + length]
        piece = target[:, place : place + length]
        out = network(None, mask, piece, so_far, encoder_outputs=memory, past_key_values=past, use_cache=True)
        past, place = out.past_key_values, place + length
        logits.append(out.logits)
        memory = (torch.full_like(memory[0], torch.nan),)  # read once, by the first piece
    torch.testing.assert_close(torch.cat(logits, 1), expected, **CLOSE)


@pytest.mark.parametrize("name", ["dense", "lrt"])
def test_a_right_padded_prompt_is_continued(name):
    network, ids, mask = causal(name), tokens(B, N), padding(B, N)
    more = tokens(B, 2)
    past = network(ids, mask, use_cache=True).past_key_values
    logits = network(more, torch.cat([mask, torch.ones(B, 2, dtype=torch.bool)], 1), past).logits
    for i in range(B):
        alone = network(torch.cat([ids[i : i + 1, mask[i]], more[i : i + 1]], 1)).logits
        torch.testing.assert_close(logits[i], alone[0, -2:], **CLOSE)


def test_a_cache_is_given_back_only_where_asked_for():
    network, ids = causal(), tokens(B, N)
    assert network(ids).past_key_values is None
    assert network(ids, use_cache=False).past_key_values is None
    assert isinstance(network(ids, use_cache=True).past_key_values, DynamicCache)
    both = pair()
    assert both(ids, decoder_input_ids=ids).past_key_values is None
    out = both(ids, decoder_input_ids=ids, use_cache=True)
    assert isinstance(out.past_key_values, EncoderDecoderCache)


def test_keys_of_a_shortened_source_are_kept_short():
    network, ids = pair("linformer"), tokens(B, M)
    past = network(ids, decoder_input_ids=ids[:, :3], use_cache=True).past_key_values
    assert {layer.keys.shape[2] for layer in past.cross_attention_cache.layers} == {13}
    assert {layer.keys.shape[2] for layer in past.self_attention_cache.layers} == {3}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_logits_to_keep(count):
    network, ids = causal("narrow embedding"), tokens(B, N)
    torch.testing.assert_close(network(ids, logits_to_keep=count).logits, network(ids).logits[:, -count:], **CLOSE)
    torch.testing.assert_close(network(ids, logits_to_keep=0).logits, network(ids).logits, atol=0, rtol=0)


def test_a_cache_may_fill_the_network_but_no_more():
    network, ids = causal(position="learned"), tokens(B, MAX_LEN)
    past = network(ids[:, :-1], use_cache=True).past_key_values
    torch.testing.assert_close(network(ids[:, -1:], None, past).logits[:, 0], network(ids).logits[:, -1], **CLOSE)
    with pytest.raises(ValueError, match=r"^length must be in 1..23, got 24$"):
        network(ids[:, -1:], None, past)


def test_a_layer_that_grows_is_what_a_layer_that_copies_is():
    """Whatever is done to it between two calls: it is never written where something else stands."""

    def steps(layer):
        cache, seen = DynamicCache(), []
        cache.layers.append(layer)

        def see(*both):
            seen.append([x.detach().clone() for x in both])

        k, v = torch.randn(2, 3, 4, 200, 5, generator=torch.Generator().manual_seed(0))
        cache.update(k[:, :, :7], v[:, :, :7], 0)
        see(*cache.update(k[:, :, 7:8], v[:, :, 7:8], 0))
        copy = deepcopy(cache)
        cache.crop(-3)
        see(*cache.update(k[:, :, 8:12], v[:, :, 8:12], 0))
        see(*copy.update(k[:, :, 12:14], v[:, :, 12:14], 0))
        cache.reorder_cache(torch.tensor([2, 0, 0]))
        see(*cache.update(k[:, :, 20:100], v[:, :, 20:100], 0))
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([5, 1, 3]))
        see(*cache.update(k[:, :, 100:101], v[:, :, 100:101], 0))
        with torch.inference_mode():
            see(*cache.update(k[:, :, 101:102], v[:, :, 101:102], 0))
        see(*cache.update(k[:, :, 102:104], v[:, :, 102:104], 0))
        with torch.enable_grad():
            grown = cache.update(k[:, :, 104:105].clone().requires_grad_(), v[:, :, 104:105], 0)
            grown[0].sum().backward()
        see(*grown)
        see(*cache.update(k[:, :, 105:106], v[:, :, 105:106], 0))
        cache.reset()
        see(*cache.update(k[:, :, 5:9], v[:, :, 5:9], 0))
        return seen

    with torch.no_grad():
        for ours, theirs in zip(steps(GrowingLayer()), steps(DynamicLayer()), strict=True):
            assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_new_keys_are_written_behind_the_others():
    network, ids = causal(), tokens(2, 9)
    with torch.no_grad():
        cache = network(ids[:, :5], use_cache=True).past_key_values
        at = cache.layers[0].keys.data_ptr()
        for position in range(5, 9):
            network(ids[:, position : position + 1], past_key_values=cache, use_cache=True)
    assert cache.layers[0].keys.data_ptr() == at
    assert type(cache.layers[0]) is GrowingLayer


def test_only_what_is_asked_for_goes_through_the_last_layer():
    network, ids = causal(), tokens(2, 9)
    whole = network(ids, use_cache=True)
    few = network(ids, use_cache=True, logits_to_keep=2)
    torch.testing.assert_close(few.logits, whole.logits[:, -2:])
    for layer, whole_layer in zip(few.past_key_values.layers, whole.past_key_values.layers, strict=True):
        torch.testing.assert_close(layer.keys, whole_layer.keys)
    rows = []
    network.decoder.layers[-1].feed_forward.register_forward_hook(lambda *given: rows.append(given[2].shape[1]))
    network(ids, use_cache=True, logits_to_keep=2)
    assert rows == [2]
    hidden = network(ids, use_cache=True, logits_to_keep=2, output_hidden_states=True).hidden_states
    assert [each.shape[1] for each in hidden] == [9] * len(hidden)


@pytest.mark.parametrize("attention", ["full", "sliding_window"])
def test_a_cache_of_eight_bits(attention):
    network, ids = causal(attention=attention).float(), tokens(2, 9)
    out = network.generate(
        ids, max_new_tokens=5, return_dict_in_generate=True, output_logits=True,
        cache_implementation="quantized", cache_config={"backend": "fp8"},
    )  # fmt: skip
    assert {type(layer) for layer in out.past_key_values.layers} == {Fp8QuantizedLayer}
    whole = network(out.sequences).logits[:, 8:-1]
    assert 0 < (torch.stack(out.logits, 1) - whole).abs().max() < 0.1 * whole.abs().max()


def test_a_state_is_not_for_a_cache_of_eight_bits():
    network, ids = causal(attention="performer").float(), tokens(2, 9)
    with pytest.raises(ValueError, match="a mechanism with a state needs an empty plain cache, got Fp8QuantizedLayer"):
        network.generate(ids, max_new_tokens=2, cache_implementation="quantized", cache_config={"backend": "fp8"})


@pytest.mark.parametrize("masked", [False, True])
def test_a_static_cache_may_have_more_room_than_the_source(masked):
    network, ids, target = pair(decoder_layers=2), tokens(2, 9), tokens(2, 5)
    given = {"attention_mask": torch.arange(9) < torch.tensor([[9], [6]])} if masked else {}
    cache = EncoderDecoderCache(*(StaticCache(config=network.config, max_cache_len=length) for length in (8, 64)))
    with torch.no_grad():
        parts = [
            network(ids, decoder_input_ids=part, past_key_values=cache, use_cache=True, **given).logits
            for part in target.split([3, 2], 1)
        ]
        torch.testing.assert_close(torch.cat(parts, 1), network(ids, decoder_input_ids=target, **given).logits)


@pytest.mark.parametrize("source", [17, 5], ids=["shorter than its source", "longer"])
def test_keys_of_linformer_in_a_static_cache(source):
    network, ids, target = pair("linformer", decoder_layers=2), tokens(2, source), tokens(2, 3)
    cache = EncoderDecoderCache(
        *(StaticCache(config=network.config, max_cache_len=length) for length in (8, source)),
    )  # fmt: skip
    with torch.no_grad():
        out = network(ids, decoder_input_ids=target, past_key_values=cache, use_cache=True).logits
        torch.testing.assert_close(out, network(ids, decoder_input_ids=target).logits)
