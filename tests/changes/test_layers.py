"""Fewer layers: which are kept, and that they are what they were."""

import pytest
import torch
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes.attention import swap_attention
from greenformers.changes.layers import drop_layers, spread, stack
from greenformers.checkpoint.structure import structure

STACKS = {"bert": "num_hidden_layers", "gpt2": "n_layer", "llama": "num_hidden_layers"}
INSIDE = {"bert": "bert.encoder.layer", "gpt2": "transformer.h", "llama": "model.layers"}


@pytest.mark.parametrize(
    ("count", "keep", "kept"),
    [(12, 6, [0, 2, 4, 7, 9, 11]), (6, 3, [0, 2, 5]), (5, 2, [0, 4]), (4, 1, [0]), (3, 2, [0, 2]), (4, 3, [0, 2, 3])],
)
def test_spread(count: int, keep: int, kept: list[int]) -> None:
    assert spread(count, keep) == kept


@pytest.mark.parametrize("count", range(1, 49))
def test_spread_keeps_the_ends_and_none_twice(count: int) -> None:
    for keep in range(1, count):
        found = spread(count, keep)
        assert found == sorted(set(found))
        assert len(found) == keep
        assert found[0] == 0
        assert keep == 1 or found[-1] == count - 1


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("name", STACKS)
def test_the_kept_layers_are_the_right_ones(name: str, keep: int) -> None:
    model, original = (network(name, **{STACKS[name]: 5}) for _ in range(2))
    kept = drop_layers(model, keep)
    assert kept == ([0] if keep == 1 else [0, 2, 4])
    assert len(stack(model)) == model.config.num_hidden_layers == keep
    by_hand = network(name, **{STACKS[name]: keep})
    weights = original.state_dict()
    stem = INSIDE[name]
    renamed = {key: value for key, value in weights.items() if not key.startswith(stem + ".")}
    for place, layer in enumerate(kept):
        old, new = f"{stem}.{layer}.", f"{stem}.{place}."
        renamed |= {key.replace(old, new): value for key, value in weights.items() if key.startswith(old)}
    by_hand.load_state_dict(renamed)
    assert outputs(model, inputs(name))[0].equal(outputs(by_hand, inputs(name))[0])
    found = [part.layer_idx for part in stack(model).modules() if getattr(part, "layer_idx", None) is not None]
    assert set(found) <= set(range(keep))
    assert getattr(original.config, "quantization_config", None) is None
    assert original.config.num_hidden_layers == 5
    if name != "bert":
        assert set(found) == set(range(keep))
        ids = inputs(name)["input_ids"]
        more = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
        assert model.generate(ids, **more).equal(model.generate(ids, **more, use_cache=False))


def test_layers_are_counted_from_the_first_model_on() -> None:
    model = network("bert", num_hidden_layers=6)
    assert drop_layers(model, 4) == [0, 2, 3, 5]
    assert drop_layers(model, 2) == [0, 3]
    assert structure(model).layers == [0, 5]
    assert model.config.quantization_config.layers == [0, 5]


def test_what_was_changed_before_goes_along() -> None:
    model = network("bert", num_hidden_layers=4)
    greenformers.compress(model, 0.5)
    swap_attention(model, "linformer", options={"k": 4})
    drop_layers(model, 2)
    found = structure(model)
    assert found.layers == [0, 3]
    assert {path.split(".")[3] for path in found.attention} == {"0", "1"}
    assert {path.split(".")[3] for path in found.ranks if ".layer." in path} == {"0", "1"}


@pytest.mark.parametrize("keep", [0, -1, 2, 3])
def test_so_many_cannot_be_kept(keep: int) -> None:
    model = network("bert")
    before = model.state_dict().keys()
    with pytest.raises(ValueError, match=rf"layers to keep must be in 1\.\.1, of 2; got {keep}"):
        drop_layers(model, keep)
    assert model.state_dict().keys() == before
    assert getattr(model.config, "quantization_config", None) is None


@pytest.mark.parametrize("name", ["albert", "bart", "t5", "whisper"])
def test_models_without_one_stack_are_refused(name: str) -> None:
    model = network(name)
    expected = outputs(model, inputs(name))[0]
    with pytest.raises(ValueError, match="has no one stack of layers"):
        drop_layers(model, 1)
    assert outputs(model, inputs(name))[0].equal(expected)
