"""Fewer layers: which are kept, and that they are what they were."""

from pathlib import Path

import pytest
import torch
import transformers
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Attention, Layers, LowRank
from greenformers.checkpoint.structure import structure
from greenformers.model.example import example_of
from greenformers.solve.which_layers import spread

STACKS = {"bert": "num_hidden_layers", "gpt2": "n_layer", "llama": "num_hidden_layers"}
INSIDE = {"bert": "bert.encoder.layer", "gpt2": "transformer.h", "llama": "model.layers"}


@pytest.mark.parametrize(
    ("count", "keep", "expected"),
    [(12, 6, [0, 2, 4, 7, 9, 11]), (6, 3, [0, 2, 5]), (5, 2, [0, 4]), (4, 1, [0]), (3, 2, [0, 2]), (4, 3, [0, 2, 3])],
)
def test_spread(count: int, keep: int, expected: list[int]) -> None:
    assert spread(count, keep) == expected


def test_spread_keeps_the_ends_and_none_twice() -> None:
    for count in range(1, 49):
        for keep in range(1, count):
            places = spread(count, keep)
            assert places == sorted(set(places))
            assert len(places) == keep
            assert places[0] == 0
            assert keep == 1 or places[-1] == count - 1


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("name", STACKS)
def test_the_kept_layers_are_the_right_ones(name: str, keep: int) -> None:
    model, original = (network(name, **{STACKS[name]: 5}) for _ in range(2))
    report = greenformers.compress(model, Layers(keep))
    (layers,) = structure(model).changes["layers"].values()
    assert layers == ([0] if keep == 1 else [0, 2, 4])
    forms = {unit.path.rpartition(".")[2]: (unit.form, unit.before > unit.after) for unit in report.units}
    assert forms == {str(n): ("kept", False) if n in layers else ("dropped", True) for n in range(5)}
    stack = model.get_submodule(INSIDE[name])
    assert len(stack) == model.config.num_hidden_layers == keep
    by_hand = network(name, **{STACKS[name]: keep})
    weights = original.state_dict()
    stem = INSIDE[name]
    renamed = {key: value for key, value in weights.items() if not key.startswith(stem + ".")}
    for place, layer in enumerate(layers):
        old, new = f"{stem}.{layer}.", f"{stem}.{place}."
        renamed |= {key.replace(old, new): value for key, value in weights.items() if key.startswith(old)}
    by_hand.load_state_dict(renamed)
    assert outputs(model, inputs(name))[0].equal(outputs(by_hand, inputs(name))[0])
    indices = [part.layer_idx for part in stack.modules() if getattr(part, "layer_idx", None) is not None]
    assert set(indices) <= set(range(keep))
    assert getattr(original.config, "quantization_config", None) is None
    assert original.config.num_hidden_layers == 5
    if name != "bert":
        assert set(indices) == set(range(keep))
        ids = inputs(name)["input_ids"]
        more = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
        assert model.generate(ids, **more).equal(model.generate(ids, **more, use_cache=False))


def test_layers_are_counted_from_the_first_model_on() -> None:
    model = network("bert", num_hidden_layers=6)
    for keep, left in ((4, [0, 2, 3, 5]), (2, [0, 5])):
        greenformers.compress(model, Layers(keep))
        assert structure(model).changes == {"layers": {INSIDE["bert"]: left}}
        assert model.config.quantization_config.changes == {"layers": {INSIDE["bert"]: left}}


def test_half_of_them_by_default() -> None:
    model = network("bert", num_hidden_layers=5)
    greenformers.compress(model, Layers())
    assert structure(model).changes == {"layers": {INSIDE["bert"]: [0, 4]}}


def test_what_was_changed_before_goes_along() -> None:
    model = network("bert", num_hidden_layers=4)
    greenformers.compress(model, [LowRank(keep=0.5), Attention("linformer", options={"k": 4}), Layers(2)])
    described = structure(model)
    assert described.order == ["low_rank", "attention", "layers"]
    assert described.changes["layers"] == {INSIDE["bert"]: [0, 3]}
    ranks = described.changes["low_rank"]["ranks"]
    for paths in (described.changes["attention"], ranks):
        assert {path.split(".")[3] for path in paths if ".layer." in path} == {"0", "1"}


def test_fewer_than_one_cannot_be_kept() -> None:
    for keep in (0, -1):
        with pytest.raises(ValueError, match=f"layers to keep must be at least 1, got {keep}"):
            Layers(keep)


@pytest.mark.parametrize("keep", [2, 3])
def test_so_many_cannot_be_kept(keep: int) -> None:
    model = network("bert")
    before = model.state_dict().keys()
    with pytest.raises(ValueError, match=rf"layers to keep must be in 1\.\.1, of 2; got {keep}"):
        greenformers.compress(model, Layers(keep))
    assert model.state_dict().keys() == before
    assert getattr(model.config, "quantization_config", None) is None


@pytest.mark.parametrize("name", ["albert", "bart"])
def test_models_without_a_stack_are_refused(name: str) -> None:
    """Layers that are one, repeated; or of which there is but one."""
    model = network(name)
    expected = outputs(model, inputs(name))[0]
    with pytest.raises(ValueError, match="has no stack of layers of which some could be kept"):
        greenformers.compress(model, Layers(1))
    assert outputs(model, inputs(name))[0].equal(expected)


BOTH = {
    "bart": ({"encoder_layers": 4, "decoder_layers": 3}, ("model.encoder.layers", "model.decoder.layers")),
    "t5": ({"num_layers": 4, "num_decoder_layers": 3}, ("encoder.block", "decoder.block")),
    "whisper": ({"encoder_layers": 3, "decoder_layers": 3}, ("model.encoder.layers", "model.decoder.layers")),
}


@pytest.mark.parametrize("name", BOTH)
def test_both_stacks_of_an_encoder_decoder(name: str, tmp_path: Path) -> None:
    sizes, paths = BOTH[name]
    model = network(name, **sizes)
    report = greenformers.compress(model, Layers(2))
    counts = list(sizes.values())
    assert structure(model).changes["layers"] == {
        path: [0, count - 1] for path, count in zip(paths, counts, strict=True)
    }
    assert [getattr(model.config, key) for key in sizes] == [2, 2]
    assert f"layers 0, {counts[0] - 1} of {counts[0]} of {paths[0]}" in report.steps[0].report.summary
    again = greenformers.load(greenformers.save(model, tmp_path / "small"))
    assert outputs(again, inputs(name))[0].equal(outputs(model, inputs(name))[0])
    with pytest.raises(ValueError, match=r"layers to keep must be in 1\.\.1, of 2; got 2"):
        greenformers.compress(model, Layers(2))


def test_one_of_two_stacks_may_be_short_enough() -> None:
    model = network("bart", encoder_layers=4, decoder_layers=2)
    greenformers.compress(model, Layers(2))
    assert structure(model).changes == {"layers": {"model.encoder.layers": [0, 3]}}
    assert (model.config.encoder_layers, model.config.decoder_layers) == (2, 2)


KINDS = {
    "LongformerModel": {"attention_window": [4, 4, 4, 8]},  # a traceback on loading: one window a layer
    "MambaModel": {"state_size": 4},  # a traceback: its kinds of layers cannot be set
    "Dinov2Model": {"image_size": 16, "patch_size": 8},  # a traceback on loading: a name of each layer's output
    "Gemma3TextModel": {
        "head_dim": 8,
        "num_key_value_heads": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_said_of_each_layer_is_kept(name: str, tmp_path: Path) -> None:
    """What was called done could not be loaded: the configuration still said something of each layer that had been."""
    cls = getattr(transformers, name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
    config = cls.config_class(**sizes | {"vocab_size": 30} | KINDS[name])
    model = cls(config).eval()
    greenformers.compress(model, Layers(2))
    example = example_of(model, length=8)
    again = greenformers.load(greenformers.save(model, tmp_path / "small"))
    assert outputs(again, example)[0].equal(outputs(model, example)[0])
    if name == "LongformerModel":
        assert model.config.attention_window == [4, 8]


def test_layers_of_several_sizes_are_refused() -> None:
    sizes = {"image_size": 32, "patch_size": 4, "hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 2, 1]}
    model = transformers.ConvNextModel(transformers.ConvNextConfig(**sizes))
    before = {key: x.shape for key, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"ConvNextModel cannot do with fewer layers: .* would have another shape"):
        greenformers.compress(model, Layers(2))
    assert {key: x.shape for key, x in model.state_dict().items()} == before
    assert model.config.depths == [1, 1, 2, 1]
