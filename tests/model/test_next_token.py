"""One token more on top of a cache goes a way of its own through a layer: the same numbers, and never unseen."""

import pickle
from copy import deepcopy

import pytest
import torch
from text_networks import causal, left, tokens
from transformers.cache_utils import DynamicCache

from greenformers.model.cache import GrowingLayer, StateLayer

PROMPT, MORE = 9, 4
GOES = {
    "full": {},
    "window": {"attention": "sliding_window", "attention_options": {"window": 3}},
    "linear": {"attention": "linear_transformer"},
    "performer": {"attention": "performer"},
    "two kinds": {"attention": ["sparse_strided", "linear_transformer"]},
    "low rank": {"rank": 5},
    "shared keys": {"num_key_value_heads": 1},
    "shared keys of a state": {"num_key_value_heads": 1, "attention": "linear_transformer"},
    "dense feed-forward, learned positions": {"feed_forward": "dense", "position": "learned", "bias": True},
    "parts of heads turned": {"position": "rotary", "position_options": {"share": 0.5, "interleaved": True}},
    "rms": {"norm": "rms"},
}
STAYS = {
    "post-norm": {"residual": "post"},
    "normalised queries": {"qk_norm": True},
    "positions that add to scores": {"position": "alibi"},
    "no projection of queries": {"attention": "synthesizer_random"},
}


def continued(model, ids, mask=None):
    """Logits of the last tokens, one after the other on top of a cache of those before, and the cache."""
    cache, outs = DynamicCache(), []
    with torch.no_grad():
        for first, end in [(0, PROMPT), *((at, at + 1) for at in range(PROMPT, ids.shape[1]))]:
            given = None if mask is None else mask[:, :end]
            outs.append(model(ids[:, first:end], given, past_key_values=cache, use_cache=True).logits[:, -1:])
    return torch.cat(outs, 1), cache


def ways(cache):
    return [held.way is not None and held.way[1] is not None for held in cache.layers]


def watched(model):
    """The same network, each layer of which goes the way of all inputs: something wants to see its parts called."""
    model = deepcopy(model)
    for layer in model.decoder.layers:
        layer.attention.output.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("name", GOES)
def test_the_same_numbers(name, masked):
    model, ids = causal(**GOES[name]), tokens(3, PROMPT + MORE)
    mask = left(torch.arange(PROMPT + MORE)[None] < torch.tensor([[13], [8], [5]])) if masked else None
    logits, cache = continued(model, ids, mask)
    assert all(ways(cache))
    expected, other = continued(watched(model), ids, mask)
    assert not any(ways(other))
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", STAYS)
def test_what_is_of_another_kind_goes_the_way_of_all_inputs(name):
    assert not any(ways(continued(causal(**STAYS[name]), tokens(2, PROMPT + MORE))[1]))


@pytest.mark.parametrize("attention", ["full", "linear_transformer"])
def test_hooks_see_every_token(attention):
    model, seen = causal(attention=attention), []
    inner = model.decoder.layers[1].feed_forward.down
    inner.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[1]))
    continued(model, tokens(2, PROMPT + MORE))
    assert seen == [PROMPT] + [1] * MORE


def test_gradients_and_training_go_the_way_of_all_inputs():
    model, ids = causal(), tokens(2, PROMPT + 1)
    _, cache = continued(model, ids[:, :PROMPT])
    logits = model(ids[:, PROMPT:], past_key_values=cache, use_cache=True).logits
    assert logits.requires_grad
    assert not any(ways(cache))


def test_weights_that_change_are_read():
    """A cache of before still knows the way, which reads the weights of now: other numbers, other tensors."""
    model, ids = causal(), tokens(2, PROMPT + MORE)
    _, cache = continued(model, ids)
    with torch.no_grad():
        first, second = model.decoder.layers[0].attention, model.decoder.layers[1].feed_forward
        first.output.weight.mul_(2)
        second.down.weight = torch.nn.Parameter(3 * second.down.weight)
        token = ids[:, :1]
        again = deepcopy(cache)
        logits = model(token, past_key_values=cache, use_cache=True).logits
        expected = watched(model)(token, past_key_values=again, use_cache=True).logits
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ["full", "linear_transformer"])
@pytest.mark.parametrize("copied", [deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_copy_of_a_cache_has_no_part_of_the_network(attention, copied):
    model, ids = causal(attention=attention), tokens(2, PROMPT + MORE)
    cache = continued(model, ids)[1]
    assert {type(held) for held in cache.layers} <= {GrowingLayer, StateLayer}
    if attention == "linear_transformer" and copied is not deepcopy:
        for held in cache.layers:
            held.again = None  # how to take back the last call is a function, which nobody can pickle
    other = copied(cache)
    assert not any(ways(other))
    with torch.no_grad():
        logits, expected = (model(ids[:, :1], past_key_values=each, use_cache=True).logits for each in (other, cache))
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    other.reset()
    assert not any(ways(other))
