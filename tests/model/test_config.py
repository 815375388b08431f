import json

import numpy
import pytest
from networks import config
from transformers import AutoConfig

from greenformers.model.config import GreenformerConfig
from greenformers.model.slots import PROJECTIONS

SMALL = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 3}


def test_sizes_are_those_of_bert_base():
    c = GreenformerConfig()
    assert (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size) == (768, 12, 12, 3072)
    assert (c.vocab_size, c.max_position_embeddings, c.hidden_act) == (30522, 512, None)
    assert (c.hidden_dropout_prob, c.initializer_range, c.layer_norm_eps) == (0.0, None, 1e-12)
    assert (c.attention, c.attention_options, c.rank) == ("full", None, None)
    assert (c.feed_forward, c.residual, c.depth) == (None, None, "stacked")
    assert (c.position, c.norm, c.block, c.pooling) == (None, "layer", "standard", "cls")
    assert (c.input_features, c.pad_token_id, c.tie_word_embeddings) == (None, None, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, got 0"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, got 0"),
        ({"intermediate_size": -1}, "intermediate_size must be at least 1, got -1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 1, got 0"),
        ({"num_attention_heads": 7}, "num_attention_heads must divide hidden_size 15, got 7"),
        (
            {"vocab_size": None},
            "exactly one of vocab_size (tokens) and input_features (values) must be set, got None and None",
        ),
        (
            {"input_features": 1},
            "exactly one of vocab_size (tokens) and input_features (values) must be set, got 30522 and 1",
        ),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob must be in 0..1, got 1.5"),
        ({"layer_norm_eps": -1.0}, "layer_norm_eps must be at least 0 and finite, got -1.0"),
        ({"initializer_range": float("nan")}, "initializer_range must be at least 0 and finite, got nan"),
        ({"vocab_size": 37, "pad_token_id": 37}, "pad_token_id must be in 0..36, got 37"),
        ({"vocab_size": 37, "pad_token_id": -1}, "pad_token_id must be in 0..36, got -1"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"vocab_size": None, "input_features": 0}, "input_features must be at least 1, got 0"),
        ({"residual": "backwards"}, "residual must be one of post, pre, reversible; got 'backwards'"),
        ({"feed_forward": "swish"}, "feed_forward must be one of chunked, dense, gated, switch; got 'swish'"),
        ({"depth": "endless"}, "depth must be one of stacked, shared, adaptive, universal; got 'endless'"),
        (
            {"position": "rotatory"},
            "position must be one of alibi, huang, learned, rotary, shaw, sinusoidal, t5, none; got 'rotatory'",
        ),
        ({"position": "rotary", "position_options": {"share": 2.0}}, "share must be in (0, 1], got 2.0"),
        ({"position": "rotary", "position_options": {"base": 1}}, "base must be above 1, got 1"),
        ({"norm": "batch"}, "norm must be one of layer, rms; got 'batch'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be at least 1, got 0"),
        ({"num_key_value_heads": 2}, "num_key_value_heads must divide num_attention_heads 3, got 2"),
        ({"block": "stars"}, "block must be one of standard, bp, evolved, independent, isab, lite, star; got 'stars'"),
        ({"pooling": "max"}, "pooling must be one of cls, mean, pma; got 'max'"),
        ({"attention": ["full"]}, "attention must have one entry a layer, 3, got 1"),
        ({"attention_options": [{}, {}]}, "attention_options must have one entry a layer, 3, got 2"),
        ({"rank": [7, 5, 3, 2]}, "rank must have one entry a layer, 3, got 4"),
        ({"rank": {"query": 7}}, f"rank must name projections of {', '.join(PROJECTIONS)}; got query"),
        ({"rank": [7, None, {"q": 5, "w": 7}]}, f"rank must name projections of {', '.join(PROJECTIONS)}; got q, w"),
    ],
)
def test_out_of_range(options, message):
    with pytest.raises(ValueError, match="must") as caught:
        GreenformerConfig(**SMALL | options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 15.0}, "hidden_size must be a whole number, got 15.0"),
        ({"intermediate_size": numpy.int64(5)}, f"intermediate_size must be a whole number, got {numpy.int64(5)!r}"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number, got True"),
        ({"embedding_size": "7"}, "embedding_size must be a whole number or none, got '7'"),
        ({"attention_dropout": "0.1"}, "attention_dropout must be a number, got '0.1'"),
        ({"bias": "no"}, "bias must be true or false or none, got 'no'"),
        ({"rank": 2.5}, "rank must be a whole number or values by name or none or several values, got 2.5"),
        ({"attention_options": "k=3"}, "attention_options must be values by name or several values or none, got 'k=3'"),
        ({"pad_token_id": 1.5}, "pad_token_id must be a whole number or none, got 1.5"),
    ],
)
def test_a_value_of_another_type(options, message):
    """Numbers of NumPy among them, which no configuration can be saved with."""
    with pytest.raises(TypeError, match="must be") as caught:
        GreenformerConfig(**SMALL | options)
    assert str(caught.value) == message


def test_several_tokens_may_end_a_text():
    assert GreenformerConfig(**SMALL, eos_token_id=[2, 3]).eos_token_id == [2, 3]


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({"hidden_act": "geru"}, "hidden_act must be one of ", "; got 'geru'"),
        ({"attention": "linfromer"}, "attention must be one of ", "; got 'linfromer'"),
        ({"attention": ["full", "linformer", "none"]}, "attention must be one of ", "; got 'none'"),
    ],
)
def test_a_name_there_is_not(options, start, end):
    with pytest.raises(ValueError, match="must be one of") as caught:
        GreenformerConfig(**SMALL | options)
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(end)
    choice = "relu" if "hidden_act" in options else "linformer"
    assert choice in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "meant"),
    [("dropout", "hidden_dropout_prob"), ("n_layer", "num_hidden_layers"), ("attn_pdrop", "attention_dropout")],
)
def test_what_other_models_call_an_option_is_refused(theirs, meant):
    """It would be kept, and have no effect."""
    with pytest.raises(TypeError, match=f"^GreenformerConfig takes no option '{theirs}'; here it is '{meant}'$"):
        GreenformerConfig(**{theirs: 1})
    assert GreenformerConfig(a_note_of_mine=3).a_note_of_mine == 3


def test_no_labels_are_refused():
    with pytest.raises(ValueError, match=r"^num_labels must be at least 1, got 0$"):
        GreenformerConfig(num_labels=0)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("hiden_size", "hidden_size"),
        ("ranks", "rank"),
        ("atention", "attention"),
        ("attention_option", "attention_options"),
        ("positions", "position"),
        ("num_attention_head", "num_attention_heads"),
        ("max_position_embedding", "max_position_embeddings"),
    ],
)
def test_a_misspelt_option_has_a_hint(misspelt, meant):
    with pytest.raises(TypeError, match="takes no option") as caught:
        GreenformerConfig(**{misspelt: 1})
    assert str(caught.value) == f"GreenformerConfig takes no option {misspelt!r}; did you mean {meant!r}?"


def test_what_a_user_kept_in_a_configuration_comes_back(tmp_path):
    original = config()
    original.norm_eps, original.hidden_sise = 1.0, 5
    original.save_pretrained(tmp_path)
    loaded = GreenformerConfig.from_pretrained(tmp_path)
    assert (loaded.norm_eps, loaded.hidden_sise) == (1.0, 5)


def test_what_others_keep_in_a_configuration_stays_there():
    others = {"quantization_config": {"bits": 5}, "auto_map": {}, "attn_implementation": "sdpa", "my_notes": "seven"}
    c = GreenformerConfig(**others)
    assert (c._attn_implementation, c.my_notes, c.quantization_config["bits"]) == ("sdpa", "seven", 5)


def test_per_layer_repeats_a_single_value():
    c = GreenformerConfig(**SMALL, attention="linformer", attention_options={"k": 7}, rank=5)
    assert c.per_layer("attention") == ["linformer"] * 3
    assert c.per_layer("attention_options") == [{"k": 7}] * 3
    assert c.per_layer("rank") == [5] * 3


def test_rank_of_a_map():
    c = GreenformerConfig(**SMALL, rank=[7, None, {"q": 5, "up": 3, "v": None}])
    projections = ("q", "k", "v", "output", "up", "down")
    assert [c.rank_of(0, name) for name in projections] == [7] * 6
    assert [c.rank_of(1, name) for name in projections] == [None] * 6
    assert [c.rank_of(2, name) for name in projections] == [5, None, None, None, 3, None]


EVERY_SLOT = {
    **SMALL,
    "vocab_size": None,
    "input_features": 2,
    "attention": ["full", "linformer", "linformer"],
    "attention_options": [None, {"k": 7}, {"k": [[5, 5, 5], [7, 5, 3], 3], "sharing": "none"}],
    "rank": [{"q": 5, "up": None}, None, 7],
    "residual": "pre",
    "position": "sinusoidal",
    "pooling": "mean",
    "num_labels": 5,
}


def test_json_round_trip():
    c = GreenformerConfig(**EVERY_SLOT)
    again = GreenformerConfig(**json.loads(c.to_json_string(use_diff=False)))
    assert again.to_dict() == c.to_dict()
    for name, value in EVERY_SLOT.items():
        assert getattr(again, name) == value


@pytest.mark.parametrize("loader", [GreenformerConfig, AutoConfig])
def test_from_pretrained(tmp_path, loader):
    c = GreenformerConfig(**EVERY_SLOT)
    c.save_pretrained(tmp_path)
    again = loader.from_pretrained(tmp_path)
    assert type(again) is GreenformerConfig
    for name, value in EVERY_SLOT.items():
        assert getattr(again, name) == value
    changed = loader.from_pretrained(tmp_path, pooling="cls")
    assert (changed.pooling, changed.residual) == ("cls", "pre")


OF_NONE = {"residual": ("post", "pre"), "bias": (True, False), "embedding_norm": (True, False)}


def test_what_none_stands_for():
    """Today's layers in a causal stack by itself, BERT's in all others."""
    plain, pair, block = GreenformerConfig(), GreenformerConfig(decoder_layers=1), GreenformerConfig(block="bp")
    for name, (alone, causal) in OF_NONE.items():
        assert {each.resolved(name, causal=True) for each in (pair, block)} == {alone}
        assert (plain.resolved(name), plain.resolved(name, causal=True)) == (alone, causal)
        given = GreenformerConfig(**{name: alone})
        assert given.resolved(name, causal=True) == alone
    assert {each.feed_forward_names(causal=True)[0] for each in (pair, block)} == {"dense"}
    assert (plain.feed_forward_names()[0], plain.feed_forward_names(causal=True)[0]) == ("dense", "gated")
    assert (plain.activation_of("gated"), plain.activation_of("dense")) == ("silu", "gelu")
    given = GreenformerConfig(feed_forward="dense", hidden_act="relu", initializer_range=0.1)
    assert given.feed_forward_names(causal=True)[0] == "dense"
    assert given.activation_of("gated") == "relu"
    assert (plain.initial_std(), plain.initial_std(causal=True)) == (768**-0.5, 0.02)
    assert plain.initial_std(causal=True, into_residual=True) == 0.02 / 24**0.5
    assert {pair.initial_std(causal=True, into_residual=each) for each in (False, True)} == {768**-0.5}
    assert given.initial_std(causal=True) == 0.1


def test_a_bad_value_in_a_file_is_an_error(tmp_path):
    config(residual="post").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"post"', '"past"'))
    with pytest.raises(ValueError, match="residual must be one of post, pre, reversible; got 'past'"):
        GreenformerConfig.from_pretrained(tmp_path)


def test_two_configurations_share_nothing():
    first, second = GreenformerConfig(rank={"q": 5}), GreenformerConfig()
    assert second.rank is None
    first.rank["k"] = 7
    assert GreenformerConfig(rank={"q": 5}).rank == {"q": 5}


def test_marks_of_a_tokenizer_are_no_misspelt_slots(tmp_path):
    config = GreenformerConfig(sep_token_id=3, cls_token_id=2, mask_token_id=4)
    config.save_pretrained(tmp_path)
    assert GreenformerConfig.from_pretrained(tmp_path).sep_token_id == 3
    assert GreenformerConfig.from_pretrained(tmp_path).pad_token_id is None
