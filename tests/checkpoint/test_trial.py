"""Nothing is called saved that is not, read again, what was in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zoo import inputs, network

import greenformers
from greenformers.changes import Int8, LowRank
from greenformers.checkpoint.guard import guarded
from greenformers.model.example import example_of


def small(name: str = "bert") -> Any:
    model = network(name)
    greenformers.compress(model, LowRank(keep=0.5))
    return model


def refused(model: nn.Module, folder: Path, why: str, **more: Any) -> None:
    """Saving raises, and what was there stays."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None
    with pytest.raises(ValueError, match=f"the network was not saved: {why}"):
        greenformers.save(model, folder, **more)
    after = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None
    assert before == after
    assert [path for path in folder.parent.iterdir() if path != folder] == []


def test_a_layer_that_its_configuration_does_not_know_of(tmp_path: Path) -> None:
    model = small()
    greenformers.save(model, tmp_path / "out")
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()
    refused(model, tmp_path / "out", r"read again it is not what it was: its outputs differ by .*, the largest being")


def test_a_weight_that_is_not_written(tmp_path: Path) -> None:
    model = small()
    model.bert.encoder.layer[0].output.dropout = nn.PReLU(32)
    refused(model, tmp_path / "out", r"read again it is not what it was: 1 unexpected keys, bert\.encoder.* among them")
    model = small()
    model.config.type_vocab_size = 3
    refused(model, tmp_path / "out", "read again it is not what it was: You set `ignore_mismatched_sizes`")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value: float, tmp_path: Path) -> None:
    """Healing that had diverged was saved as a success."""
    model = small()
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.key.decoder.weight[0, 0] = value
    refused(model, tmp_path / "out", r"bert\.encoder.*key\.decoder\.weight holds values that are not finite")


def test_other_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(state: dict[str, Any], guards: Any) -> dict[str, Any]:
        halved = {key: x.half().float() if x.is_floating_point() else x for key, x in state.items()}
        return guarded(halved, guards)

    monkeypatch.setattr("greenformers.checkpoint.guard.guarded", rounded)
    refused(small(), tmp_path / "out", r"read again it is not what it was: bert\..* has other values")


def test_a_plain_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    greenformers.compress(model, [LowRank(keep=0.5), Int8()])
    greenformers.save(model, tmp_path / "out")
    again = greenformers.load(tmp_path / "out", into=nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
    x = torch.randn(3, 64)
    assert again(x).equal(model(x))
    monkeypatch.setattr("greenformers.checkpoint.save.save_model", lambda _, path: Path(path).write_bytes(b"nothing"))
    refused(model, tmp_path / "out", "read again it is not what it was: .*")


def test_with_an_example_of_ones_own(tmp_path: Path) -> None:
    model, seen = small(), []
    model.register_forward_pre_hook(lambda *given: seen.append(given[2]), with_kwargs=True)
    batch = inputs("bert")
    greenformers.save(model, tmp_path / "out", example=batch)
    assert seen == [batch]
    greenformers.save(model, tmp_path / "out")
    assert seen[1]["input_ids"].equal(example_of(model)["input_ids"])


def test_the_mode_and_the_draw_stay(tmp_path: Path) -> None:
    model = small().train()
    before = torch.random.get_rng_state()
    greenformers.save(model, tmp_path / "out")
    assert model.training
    assert torch.random.get_rng_state().equal(before)
