"""Another attention in the place of a pretrained model's own: what changes, and what must not."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from zoo import ENCODER, difference, inputs, network, outputs

import greenformers
from greenformers.changes import Attention
from greenformers.changes._attention_interface import swapped
from greenformers.changes._places import places, swap_attention
from greenformers.model import GreenformerConfig, GreenformerForMaskedLM
from greenformers.model.positions import extend, reach

TEXTS = ("bert", "roberta", "distilbert", "albert", "gpt2", "llama")
CAUSAL = ("gpt2", "llama")


def batch(side: str = "right", length: int = 12) -> dict[str, Tensor]:
    """Two texts, the second one shorter by 4 at a side."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, slice(-4, None) if side == "right" else slice(4)] = 0
    return {"input_ids": inputs("bert", length=length)["input_ids"], "attention_mask": mask}


@torch.no_grad()
def logits(model: PreTrainedModel, given: dict[str, Tensor]) -> Tensor:
    return model(**given).logits


def unpadded(model: PreTrainedModel, given: dict[str, Tensor]) -> Tensor:
    return logits(model, given)[given["attention_mask"].bool()]


def swap(name: str, attention: str, **more: Any) -> PreTrainedModel:
    model = network(name)
    swap_attention(model, attention, **more)
    return model


@pytest.mark.parametrize("name", TEXTS)
def test_full_attention_is_the_models_own(name: str) -> None:
    model, original = swap(name, "full"), network(name)
    assert model.state_dict().keys() == original.state_dict().keys()
    assert difference(outputs(model, inputs(name))[:1], outputs(original, inputs(name))[:1]) < 1e-5
    for side in ("left", "right"):
        torch.testing.assert_close(unpadded(model, batch(side)), unpadded(original, batch(side)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("select", [None, "*", ["*.encoder_attn"], ["*encoder.layers*.self_attn"]])
def test_full_attention_in_both_stacks_and_across(select: Any) -> None:
    model, original = network("bart"), network("bart")
    mechanisms = swap_attention(model, "full", select=select)
    cross = "model.decoder.layers.0.encoder_attn"
    own = {"model.encoder.layers.0.self_attn", "model.decoder.layers.0.self_attn"}
    if select is None:
        assert mechanisms.keys() == own
    if select == "*":
        assert mechanisms.keys() == own | {cross}
    assert all(mechanisms[path].shape["cross"] == (path == cross) for path in mechanisms)
    assert all(mechanisms[path].shape["causal"] == ("decoder.layers.0.self" in path) for path in mechanisms)
    given = inputs("bart", length=12) | {"attention_mask": batch("right")["attention_mask"]}
    torch.testing.assert_close(logits(model, given), logits(original, given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["vit", "wav2vec2"])
def test_models_that_read_no_tokens_need_an_example(name: str) -> None:
    given = inputs(name)
    with pytest.raises(ValueError, match="give an example of these"):
        swap_attention(network(name), "full", length=100)
    with pytest.raises(ValueError, match="give a length"):
        swap_attention(network(name), "full", example=given)
    model = swap(name, "full", example=given, length=100)
    assert len(list(swapped(model))) == 1
    torch.testing.assert_close(logits(model, given), logits(network(name), given), atol=1e-5, rtol=1e-5)
    other = swap(name, "linear_transformer", example=given, length=100)
    assert difference([logits(other, given)], [logits(model, given)]) > 1e-5


@pytest.mark.parametrize(
    ("name", "attention", "options"),
    [
        ("roberta", "sliding_window", {"window": 3}), ("roberta", "linformer", {"k": 5}), ("roberta", "full", {}),
        ("roberta", "linear_transformer", {}), ("gpt2", "sliding_window", {"window": 3}), ("gpt2", "full", {}),
        ("gpt2", "linear_transformer", {}), ("llama", "linear_transformer", {}),
    ],
)  # fmt: skip
def test_padding_does_not_leak(name: str, attention: str, options: dict[str, Any]) -> None:
    model = swap(name, attention, options=options)
    for side in ("left", "right"):
        given = batch(side)
        other = given | {"input_ids": torch.where(given["attention_mask"].bool(), given["input_ids"], 3)}
        assert not other["input_ids"].equal(given["input_ids"])
        output = unpadded(model, given)
        assert output.isfinite().all()
        # roberta counts positions by what is no padding token: none of these is.
        assert output.equal(unpadded(model, other))


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        *(("gpt2", name) for name in ("full", "sliding_window", "linear_transformer", "sparse_strided", "performer")),
        ("llama", "linear_transformer"),
    ],
)
def test_causal_ones_do_not_see_the_future(name: str, attention: str) -> None:
    model, given = swap(name, attention), inputs(name, length=12)["input_ids"]
    other = torch.cat([given[:, :7], 55 - given[:, 7:]], 1).clamp(max=52)
    scores, other_scores = logits(model, {"input_ids": given}), logits(model, {"input_ids": other})
    torch.testing.assert_close(scores[:, :7], other_scores[:, :7], atol=1e-5, rtol=1e-5)
    assert (scores[:, 7:] - other_scores[:, 7:]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_layers_not_named_stay(name: str) -> None:
    model, original = network(name), network(name)
    mechanisms = swap_attention(model, "sliding_window", layers=[1], options={"window": 1})
    assert [path for path, _, _ in swapped(model)] == list(mechanisms)
    assert len(mechanisms) == 1
    assert any(part == "1" for part in next(iter(mechanisms)).split("."))
    for side in ("left", "right"):
        given = batch(side) | {"output_hidden_states": True}
        with torch.no_grad():
            states, expected = model(**given).hidden_states, original(**given).hidden_states
        there = given["attention_mask"].bool()
        torch.testing.assert_close(states[1][there], expected[1][there], atol=1e-6, rtol=1e-5)
        assert (states[2][there] - expected[2][there]).abs().max() > 1e-4


def test_an_option_and_a_window_as_wide_as_the_input() -> None:
    wide = swap("bert", "sliding_window", options={"window": 30})
    torch.testing.assert_close(unpadded(wide, batch()), unpadded(network("bert"), batch()), atol=1e-5, rtol=1e-5)


def test_what_is_swapped_can_be_swapped_again() -> None:
    model = swap("bert", "linformer", options={"k": 4, "sharing": "layerwise"})
    assert any("mechanism" in name for name in model.state_dict())
    swap_attention(model, "full")
    torch.testing.assert_close(unpadded(model, batch()), unpadded(network("bert"), batch()), atol=1e-5, rtol=1e-5)
    assert model.state_dict().keys() == network("bert").state_dict().keys()


def test_parameters_that_layers_share_are_one() -> None:
    model = swap("bert", "linformer", options={"k": 4, "sharing": "layerwise"})
    first, second = (mechanism for _, _, mechanism in swapped(model))
    assert first.E is second.E
    assert [place.causal for place in places(model)] == [False, False]


def own(kind: str, **options: Any) -> PreTrainedModel:
    model_class = getattr(transformers, kind)
    return model_class(model_class.config_class(**options)).eval()


LLAMA = ENCODER | {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
OTHERS: dict[str, Any] = {
    "mistral": lambda: own("MistralForCausalLM", **LLAMA, sliding_window=4),
    "deberta": lambda: own("DebertaV2Model", **ENCODER),
    "mpnet": lambda: own("MPNetModel", **ENCODER),
}
HAS_ITS_OWN = "takes the name of an attention and never calls it|has an attention of its own"


@pytest.mark.parametrize(
    ("name", "attention", "more", "message"),
    [
        ("mistral", "full", {}, "a pattern of the model's own|has a window"),
        ("t5", "full", {"length": 40}, "has a position bias|its mask is a bias|" + HAS_ITS_OWN),
        ("deberta", "full", {}, HAS_ITS_OWN),
        ("mpnet", "full", {}, HAS_ITS_OWN),
        ("gpt2", "linformer", {}, "linformer has no causal form"),
        ("bart", "sliding_window", {"select": ("*.encoder_attn",)}, "cross"),
        ("bert", "routing", {}, "has a loss of its own"),
        ("gpt2", "compressive", {}, "needs a segment memory|has a loss of its own"),
        ("bert", "nothing", {}, "attention must be one of .*; got 'nothing'"),
        ("bert", "full", {"layers": (2,)}, r"layers must be in 0\.\.1, got 2"),
        ("bert", "full", {"layers": (-1,)}, r"layers must be in 0\.\.1, got -1"),
        ("bert", "full", {"layers": ()}, "no layer is chosen"),
        ("bert", "full", {"select": ("decoder.*",)}, r"'decoder\.\*' matches none of 'bert"),
        ("bert", "full", {"length": 0}, "length must be at least 1, got 0"),
        ("bert", "sliding_window", {"options": {"window": 0}}, "window must be"),
        (
            "bert",
            "sliding_window",
            {"options": {"width": 3}},
            "^sliding_window has no option 'width', it has window, dilation, dropout$",
        ),
        ("bert", "linformer", {"options": {"k": 100}, "length": 64}, "k must be in 1..64"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    name: str, attention: str, more: dict[str, Any], message: str
) -> None:
    model = OTHERS[name]() if name in OTHERS else network(name)
    given = inputs(name if name in ("t5", "bart") else "bert")
    before, chosen = copy.deepcopy(model.state_dict()), model.config._attn_implementation
    expected = outputs(model, given)[0]
    with pytest.raises(ValueError, match=message):
        greenformers.compress(model, Attention(attention, **more))
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(after[key].equal(value) for key, value in before.items())
    assert model.config._attn_implementation == chosen
    assert all(part.config._attn_implementation == chosen for part in model.modules() if hasattr(part, "config"))
    assert getattr(model.config, "quantization_config", None) is None
    assert outputs(model, given)[0].equal(expected)
    assert not model.training


def test_training_goes_on_as_it_was() -> None:
    model = network("bert").train()
    swap_attention(model, "linformer", options={"k": 4})
    assert all(part.training for part in model.modules())
    loss = model(**batch(), labels=batch()["input_ids"]).loss
    loss.backward()
    assert all(mechanism.E.grad.abs().sum() > 0 for _, _, mechanism in swapped(model))


@pytest.mark.parametrize(
    ("name", "table", "offset"),
    [
        ("bert", "bert.embeddings.position_embeddings", 0),
        ("roberta", "roberta.embeddings.position_embeddings", 2),
        ("bart", "model.encoder.embed_positions", 2),
        ("gpt2", "transformer.wpe", 0),
    ],
)
def test_positions_go_on_by_copies(name: str, table: str, offset: int) -> None:
    model, original = network(name), network(name)
    before = reach(model)
    rows = original.get_submodule(table).weight
    assert before == len(rows) - offset
    with pytest.raises((IndexError, RuntimeError)):
        logits(original, inputs(name, length=60))
    extend(model, 100)
    assert reach(model) == 100
    longer = model.get_submodule(table).weight
    assert len(longer) == 100 + offset
    assert all(longer[offset + p].equal(rows[offset + p % before]) for p in range(100))
    assert logits(model, inputs(name)).equal(logits(original, inputs(name)))
    assert logits(model, inputs(name, length=100)).isfinite().all()


def test_rotary_positions_need_no_table() -> None:
    model, before = network("llama"), copy.deepcopy(network("llama").state_dict())
    swap_attention(model, "full", length=64)
    assert model.config.max_position_embeddings == reach(model) == 64
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(
        logits(model, inputs("llama", length=64)), logits(network("llama"), inputs("llama", length=64)),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip


def test_swapped_models_take_longer_inputs() -> None:
    model = swap("bert", "linformer", length=64, options={"k": 8})
    assert logits(model, inputs("bert", length=64)).shape == (2, 64, 53)
    # Nothing of `full` goes by length: what is longer than was said is as right as what is not.
    given = inputs("llama", length=65)
    short, long = (logits(swap("llama", "full", length=length), given) for length in (64, 65))
    assert short.equal(long)


WRITES: dict[str, Any] = {"do_sample": False, "min_new_tokens": 9, "max_new_tokens": 9}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_in_place_of_the_keys(name: str) -> None:
    model, ids = swap(name, "linear_transformer"), inputs(name)["input_ids"]
    mask = {"attention_mask": torch.ones_like(ids)}
    sizes = []
    for count in (3, 20):
        generation = model.generate(ids, **mask, **WRITES | {"min_new_tokens": count, "max_new_tokens": count},
                               return_dict_in_generate=True)  # fmt: skip
        layers = generation.past_key_values.layers
        assert generation.past_key_values.get_seq_length() == 7 + count - 1
        sizes.append([part.shape for layer in layers for part in layer.state])
    assert sizes[0] == sizes[1]
    assert len(layers) == 2
    uncached = model.generate(ids, **mask, **WRITES, use_cache=False)
    assert model.generate(ids, **mask, **WRITES).equal(uncached)
    beams = model.generate(ids, **mask, **WRITES, num_beams=3)
    assert beams.equal(model.generate(ids, **mask, **WRITES, num_beams=3, use_cache=False))


@pytest.mark.parametrize(
    ("name", "attention"),
    [*(("gpt2", name) for name in ("linear_transformer", "sliding_window", "full")), ("llama", "linear_transformer")],
)
def test_a_left_padded_batch_writes_what_single_rows_write(name: str, attention: str) -> None:
    model, given = swap(name, attention), batch("left")
    together = model.generate(**given, **WRITES)
    alone = model.generate(given["input_ids"][1:, 4:], attention_mask=torch.ones(1, 8, dtype=torch.long), **WRITES)
    assert together[1, 12:].equal(alone[0, 8:])
    assert together.equal(model.generate(**given, **WRITES, use_cache=False))


def test_some_layers_keep_a_state_and_others_keys() -> None:
    model, ids = swap("gpt2", "linear_transformer", layers=[1]), inputs("gpt2")["input_ids"]
    written = [
        model.generate(ids, attention_mask=torch.ones_like(ids), **WRITES, use_cache=use) for use in (True, False)
    ]
    assert written[0].equal(written[1])


def test_a_table_whose_positions_begin_behind_an_offset() -> None:
    options = ENCODER | {"ffn_dim": 44, "word_embed_proj_dim": 32, "bos_token_id": 1, "eos_token_id": 2}
    model = own("OPTForCausalLM", **options)
    original = copy.deepcopy(model)
    assert reach(model) == 40
    extend(model, 90)
    longer, rows = (opt.model.decoder.embed_positions.weight for opt in (model, original))
    assert longer.equal(rows[[0, 1, *(2 + p % 40 for p in range(90))]])
    assert logits(model, inputs("gpt2")).equal(logits(original, inputs("gpt2")))
    assert logits(model, inputs("gpt2", length=90)).isfinite().all()
    swap_attention(model, "full")
    torch.testing.assert_close(unpadded(model, batch("left")), unpadded(original, batch("left")), atol=1e-5, rtol=1e-5)


def test_what_our_own_models_share_stays_shared() -> None:
    config = GreenformerConfig(
        hidden_size=32, num_attention_heads=2, num_hidden_layers=2, intermediate_size=44, vocab_size=40,
        max_position_embeddings=12, attention="linformer", attention_options={"k": 4, "sharing": "layerwise"},
    )  # fmt: skip
    model = GreenformerForMaskedLM(config)
    before = model.all_tied_weights_keys.keys()
    shared = [part._tied_weights_keys for part in model.modules() if getattr(part, "_tied_weights_keys", None)]
    assert any(".mechanism." in name for keys in shared for name in keys)
    greenformers.compress(model, 0.5)
    assert model.all_tied_weights_keys.keys() == before
    after = [part._tied_weights_keys for part in model.modules() if getattr(part, "_tied_weights_keys", None)]
    assert after == shared


def test_a_part_that_is_evaluated_stays_so() -> None:
    model: Any = network("bert").train()
    model.bert.encoder.layer[0].eval()
    places(model)
    assert model.training
    assert not model.bert.encoder.layer[0].training
