"""Models that a run keeps at some of its steps."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import QUIET, SMALL, reviews, verses
from torch import Tensor
from transformers import AutoTokenizer

from greenformers import GreenformerForSequenceClassification
from greenformers.train import run
from greenformers.train.settings import Settings

STEPS = 6
PLAIN = Settings(
    data="digits", limit=24, pool=4, hidden=8, heads=2, feed_forward=12, layers=1, dropout=0.1, steps=STEPS, batch=8,
    learning_rate=0.05, save_every=2,
)  # fmt: skip
KEPT = replace(PLAIN, snapshots="2, 5,3")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same(folder: Path, other: Path) -> bool:
    """Bytes of the stored weights."""
    return (folder / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without snapshots, and the same one with three."""
    folder = tmp_path_factory.mktemp("snapshots")
    run.start(folder / "plain", PLAIN, QUIET)
    run.start(folder / "kept", KEPT, QUIET)
    return folder


def test_a_folder_a_step_whose_model_loads(top: Path) -> None:
    folder = top / "kept" / run.SNAPSHOTS
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "5"]
    for step in folder.iterdir():
        # Nothing beside the model: no unfinished folder either.
        assert files(step) == ["model/config.json", "model/model.safetensors"]
        model = GreenformerForSequenceClassification.from_pretrained(step / "model")
        assert model.config.hidden_size == 8
        state = model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in weights(step).items())
    assert sorted(path.name for path in (top / "kept").iterdir()) == [
        "at", "metrics.jsonl", "model", "run.json", "scores.json",
    ]  # fmt: skip
    assert not (top / "plain" / run.SNAPSHOTS).exists()


def test_the_run_ends_as_without_them(top: Path) -> None:
    assert same(top / "kept", top / "plain")
    assert run.metrics_of(top / "kept") == run.metrics_of(top / "plain")
    assert (top / "kept" / "scores.json").read_text() == (top / "plain" / "scores.json").read_text()


def test_they_are_the_models_of_their_steps(top: Path, tmp_path: Path) -> None:
    """Without a schedule over the whole run, a shorter one is its beginning."""
    flat = replace(PLAIN, warmup=0.0, decay=1.0)
    run.start(tmp_path / "whole", replace(flat, snapshots="2,5,6"), QUIET)
    for steps in (2, 5):
        run.start(tmp_path / f"{steps}", replace(flat, steps=steps), QUIET)
        assert same(tmp_path / f"{steps}", tmp_path / "whole" / run.SNAPSHOTS / f"{steps}")
    # At the last step it is the model that is left.
    assert same(tmp_path / "whole", tmp_path / "whole" / run.SNAPSHOTS / "6")
    assert not same(top / "kept" / run.SNAPSHOTS / "2", top / "kept" / run.SNAPSHOTS / "3")
    assert not same(top / "kept" / run.SNAPSHOTS / "5", top / "kept")


@pytest.mark.parametrize("stop", [2, 4])  # after one of the steps whose model is kept, and between two
def test_a_run_that_was_stopped_has_the_same(top: Path, tmp_path: Path, stop: int) -> None:
    class Signal(run._Metrics):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == stop - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    began = []

    class Begun(run._Metrics):
        def on_train_begin(self, args, state, control, **given):
            began.append(state.global_step)
            super().on_train_begin(args, state, control, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_Metrics", Signal)
        outcome = run.start(tmp_path / "run", KEPT, QUIET)
    assert (outcome.history.stopped, outcome.history.steps) == (signal.SIGTERM, stop)
    steps = {int(path.name) for path in (tmp_path / "run" / run.SNAPSHOTS).iterdir()}
    assert steps == {step for step in (2, 3, 5) if step <= stop}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_Metrics", Begun)
        run.resume(tmp_path / "run", QUIET)
    assert began == [stop]
    assert files(tmp_path / "run") == files(top / "kept")
    for part in (".", "at/2", "at/3", "at/5"):
        assert same(tmp_path / "run" / part, top / "kept" / part)


def test_what_was_killed_is_made_again(top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the third step nothing but a snapshot is left, damaged: the newest checkpoint is that of the second."""

    class KilledError(Exception):
        pass

    class Kill(run._Metrics):
        def on_optimizer_step(self, args, state, control, **_):
            if state.global_step == 3:
                raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(run, "_Metrics", Kill)
        with pytest.raises(KilledError):
            run.start(tmp_path / "run", KEPT, QUIET)
    third = tmp_path / "run" / run.SNAPSHOTS / "3" / "model" / "model.safetensors"
    third.write_bytes(third.read_bytes()[:50])
    run.resume(tmp_path / "run", QUIET)
    assert files(tmp_path / "run") == files(top / "kept")
    for part in (".", "at/2", "at/3", "at/5"):
        assert same(tmp_path / "run" / part, top / "kept" / part)


def test_a_run_can_start_from_one(top: Path, tmp_path: Path) -> None:
    place = top / "kept" / run.SNAPSHOTS / "3"
    settings = replace(PLAIN, init=str(place), seed=7)
    state, stored = settings.task().network().state_dict(), weights(place)
    assert state.keys() == stored.keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in state.items())
    assert any(not torch.equal(tensor, weights(top / "kept")[name]) for name, tensor in stored.items())
    run.start(tmp_path / "run", replace(settings, learning_rate=1e-12, warmup=0.0), QUIET)
    for name, tensor in weights(tmp_path / "run").items():
        torch.testing.assert_close(tensor, stored[name], rtol=0, atol=1e-6)


def test_of_text_the_tokenizer_is_kept_too(tmp_path: Path) -> None:
    given = {"data": "tinyshakespeare", "folder": verses(tmp_path / "verses"), "objective": "masked_lm"}
    run.start(tmp_path / "before", Settings(**SMALL | given, snapshots="1"), QUIET)
    place = tmp_path / "before" / run.SNAPSHOTS / "1"
    own, last = (AutoTokenizer.from_pretrained(folder / "model").get_vocab() for folder in (place, tmp_path / "before"))
    assert own == last
    assert not same(place, tmp_path / "before")
    settings = Settings(**SMALL | {"data": "sst2", "folder": reviews(tmp_path / "reviews"), "init": str(place)})
    task = settings.task()
    assert task.tokenizer.get_vocab() == own
    stored = weights(place)
    for name, tensor in task.network().encoder.state_dict().items():
        assert torch.equal(tensor, stored[f"encoder.{name}"]), name
    assert run.start(tmp_path / "run", settings, QUIET).steps == 3


@pytest.mark.parametrize("snapshots", ["", ",", None])
def test_none_is_none(tmp_path: Path, snapshots: str | None) -> None:
    run.start(tmp_path / "run", replace(PLAIN, steps=1, snapshots=snapshots), QUIET)
    assert not (tmp_path / "run" / run.SNAPSHOTS).exists()


@pytest.mark.parametrize(
    ("snapshots", "message"),
    [
        ("0", r"snapshots must be in 1\.\.6, the steps of the run, got 0"),
        ("2,7", r"snapshots must be in 1\.\.6, the steps of the run, got 2,7"),
        ("-1", "snapshots must be whole numbers with commas between, got '-1'"),
        ("two", "snapshots must be whole numbers with commas between, got 'two'"),
        ("1.5", r"snapshots must be whole numbers with commas between, got '1\.5'"),
        ("2;3", "snapshots must be whole numbers with commas between, got '2;3'"),
    ],
)
def test_refused_steps_leave_no_folder(tmp_path: Path, snapshots: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        run.start(tmp_path / "run", replace(PLAIN, snapshots=snapshots), QUIET)
    assert not list(tmp_path.iterdir())


def test_the_steps_are_those_of_the_epochs(tmp_path: Path) -> None:
    settings = replace(PLAIN, steps=None, epochs=2, snapshots="7")
    with pytest.raises(ValueError, match=r"^snapshots must be in 1\.\.6, the steps of the run, got 7$"):
        run.start(tmp_path / "run", settings, QUIET)
    assert not list(tmp_path.iterdir())


def test_in_a_pipeline_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun says it; it is refused before processes meet
    settings = replace(PLAIN, layers=2, dropout=0.0, micro_batches=2, snapshots="2")
    with pytest.raises(ValueError, match=r"^snapshots are not made in a pipeline \(micro_batches\), got 2$"):
        run.start(tmp_path / "run", settings, QUIET)
    assert not list(tmp_path.iterdir())
