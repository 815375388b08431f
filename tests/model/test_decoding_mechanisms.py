"""Every mechanism with a causal form generates: from keys and values that are kept, or from a state of fixed size."""

from copy import deepcopy

import pytest
import torch
from networks import RANK, padding
from text_networks import PAD, causal, left, pair, tokens
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.cache_utils import DynamicCache

from greenformers.attention import Shape, attention_class, build, names
from greenformers.model.cache import StateLayer
from greenformers.train.callbacks import Update

B, N, NEW = 2, 7, 5
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def has_causal_form(name):
    try:
        build(name, Shape(1, 2, 3, causal=True))
    except ValueError:
        return False
    return True


CAUSAL = [name for name in names() if has_causal_form(name)]
STATES = [name for name in CAUSAL if build(name, Shape(1, 2, 3, causal=True)).can_step]
VARIANTS = {
    **{name: {"attention": name} for name in CAUSAL},
    "lrt, mixed dense": {"attention": "synthesizer_dense", "attention_options": {"mixed": True}, "rank": RANK},
    "mixed random": {"attention": "synthesizer_random", "attention_options": {"mixed": True}},
    "a state after keys": {"attention": ["full", "performer"]},
    "keys after a state": {"attention": ["linear_transformer", "synthesizer_random"]},
}


def generated(network, ids, mask, **options):
    options = {"max_new_tokens": NEW, "pad_token_id": PAD, "eos_token_id": None, "do_sample": False} | options
    return network.generate(ids, attention_mask=mask, **options)


def test_there_are_states():
    assert {"linear_transformer", "performer"} <= set(STATES)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_kept_changes_nothing(name, beams):
    network, ids, mask = causal(**VARIANTS[name]), tokens(B, N), left(padding(B, N)).long()
    cached, plain = (generated(network, ids, mask, use_cache=cache, num_beams=beams) for cache in (True, False))
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_on_the_left_changes_nothing(name):
    network, ids, mask = causal(**VARIANTS[name]), tokens(B, N), left(padding(B, N))
    together = generated(network, ids, mask.long())
    for row in range(B):
        alone = ids[row : row + 1, mask[row]]
        assert torch.equal(generated(network, alone, None)[0, alone.shape[1] :], together[row, N:])


WAYS = {
    "static": {"cache_implementation": "static"},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "assisted": {"assistant_model": causal(attention="sliding_window", dtype=torch.float32)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VARIANTS)
def test_other_ways_to_generate_write_the_same(name, way):
    """Assisted, tokens are guessed, read together, and those that were wrong taken back from the cache."""
    network, ids = causal(**VARIANTS[name], dtype=torch.float32), tokens(1, N).repeat(1, 2)
    plain, output = (generated(network, ids, torch.ones_like(ids), **more) for more in ({}, WAYS[way]))
    assert torch.equal(output, plain)


@pytest.mark.parametrize("name", STATES)
def test_a_state_goes_back_over_its_last_call(name):
    network, ids = causal(attention=name), tokens(B, N)
    cache = network(ids[:, :2], use_cache=True).past_key_values
    network(ids[:, 2:], past_key_values=cache, use_cache=True)
    cache.crop(-3)
    assert cache.get_seq_length() == N - 3
    out = network(ids[:, N - 3 :], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(out, network(ids).logits[:, N - 3 :], **CLOSE)
    with pytest.raises(ValueError, match="a state can take back 0 to 3 positions, those of the last call; got 4"):
        cache.crop(-4)


@pytest.mark.parametrize("name", STATES)
def test_a_state_stays_as_large_as_it_is(name):
    network = causal(attention=name)
    sizes = []
    for length in (1, 3, 11):
        past = network(tokens(B, length), use_cache=True).past_key_values
        assert isinstance(past, DynamicCache)
        assert past.get_seq_length() == length
        sizes.append([[x.shape for x in layer.state] for layer in past.layers])
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize("name", STATES)
@torch.no_grad()
def test_a_copied_cache_goes_its_own_way(name):
    network, ids, more = causal(attention=name), tokens(B, N), tokens(B, 2)
    past = network(ids, use_cache=True).past_key_values
    other = deepcopy(past)
    network(tokens(B, 3), past_key_values=other, use_cache=True)
    expected = network(torch.cat([ids, more], 1)).logits[:, N:]
    torch.testing.assert_close(network(more, past_key_values=past, use_cache=True).logits, expected, **CLOSE)


@pytest.mark.parametrize("name", STATES)
def test_in_the_decoder_of_an_encoder_decoder(name):
    network, ids, mask = pair(decoder_attention=name), tokens(B, N), padding(B, N).long()
    cached, plain = (generated(network, ids, mask, use_cache=cache) for cache in (True, False))
    assert torch.equal(cached, plain)


def test_a_cache_with_keys_is_refused():
    network, ids = causal(attention="performer"), tokens(B, N)
    filled = causal()(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="needs an empty plain cache, got GrowingLayer"):
        network(tokens(B, 1), past_key_values=filled)
    with pytest.raises(ValueError, match="takes no keys and values"):
        StateLayer().update(ids, ids)


def test_a_reset_cache_starts_anew():
    network, ids = causal(attention="linear_transformer"), tokens(B, N)
    out = network(ids, use_cache=True)
    out.past_key_values.reset()
    assert out.past_key_values.get_seq_length() == 0
    again = network(ids, past_key_values=out.past_key_values, use_cache=True)
    assert torch.equal(again.logits, out.logits)


def test_a_mechanism_without_keys_or_queries_has_no_map_for_them():
    projections = {name: set(causal(attention=name).decoder.layers[0].attention.projections) for name in CAUSAL}
    assert projections["synthesizer_random"] == {"v"}
    assert projections["synthesizer_dense"] == {"q", "v"}
    assert projections["performer"] == {"q", "k", "v"}
    mixed = causal(**VARIANTS["lrt, mixed dense"]).decoder.layers[0].attention.projections
    assert set(mixed) == {"q", "k", "v", "hidden"}
    assert attention_class("synthesizer_random").rank_option is None


def test_rows_are_drawn_anew_by_the_steps_of_training(tmp_path):
    network = causal(attention="performer", attention_options={"redraw": 2})
    before = network.decoder.layers[0].attention.mechanism.rows.clone()
    arguments = TrainingArguments(str(tmp_path), report_to=[])
    for step in (1, 2):
        Update().on_step_end(arguments, TrainerState(), TrainerControl(), model=network)
        after = network.decoder.layers[0].attention.mechanism.rows
        assert torch.equal(after, before) == (step == 1)


@pytest.mark.parametrize("name", ["performer", "synthesizer_random"])
def test_what_is_drawn_is_saved(name, tmp_path):
    options = {"trained": False} if name == "synthesizer_random" else {}
    network, ids = causal(attention=name, attention_options=options), tokens(B, N)
    network.save_pretrained(tmp_path)
    loaded = type(network).from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(loaded(ids).logits, network(ids).logits, **CLOSE)
