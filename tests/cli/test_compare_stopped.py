"""`compare` stopped by a signal: it keeps what is done, says how to go on, and goes on to the same figures."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL, refused, run

from greenformers.advise import compare
from greenformers.measure.record import read

pytestmark = pytest.mark.usefixtures("drafts")

VARIANTS = ("transformer", "lrt", "linformer")
MEASURED = {"latency", "train_step", "train_time", "energy", "co2", "peak_memory_training", "peak_memory_inference"}


def words(folder: Path, *more: str) -> list[str]:
    files = ["--out", str(folder / "report"), "--results", str(folder / "compare.jsonl")]
    return ["compare", *SMALL, "--no-full-size", "--variants", "lrt,linformer", "--k", "5", *files, *more]


def deterministic(folder: Path) -> list[tuple[Any, ...]]:
    """What two runs of one command have in common."""
    return [
        (record.variant, record.metric, str(record.setting), record.value, record.ratio, record.interval)
        for record in read(folder / "compare.jsonl")
        if record.metric not in MEASURED
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run(monkeypatch, *words(folder)) == 0
    return deterministic(folder)


def interrupted(function: Callable[..., Any], at: int, number: int, trained: list[str]) -> Callable[..., Any]:
    """The same function, but its call `at` gets a signal; the labels of its calls are noted."""

    def call(*args: Any, **options: Any) -> Any:
        if len(trained) == at:
            os.kill(os.getpid(), number)
        trained.append(options.get("label", "").strip())
        return function(*args, **options)

    return call


@pytest.mark.parametrize(
    ("name", "at", "number", "again"),
    [("fit", 1, signal.SIGTERM, ["lrt", "linformer"]), ("costs", 0, signal.SIGINT, [])],
    ids=["while training", "while measuring"],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_figures(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    unbroken: list[tuple[Any, ...]],
    name: str,
    at: int,
    number: int,
    again: list[str],
) -> None:
    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        patched.setattr(compare, name, interrupted(getattr(compare, name), at, number, []))
        assert run(patched, *words(tmp_path)) == 128 + number
    assert capsys.readouterr().out.splitlines()[-1] == "stopped; the same command goes on"
    assert signal.getsignal(number) == before
    assert not (tmp_path / "compare.jsonl").exists()
    assert not (tmp_path / "report" / "index.html").exists()

    trained: list[str] = []
    monkeypatch.setattr(compare, "fit", interrupted(compare.fit, -1, number, trained))
    assert run(monkeypatch, *words(tmp_path)) == 0
    assert trained == again
    assert capsys.readouterr().out.count("trained before") == len(VARIANTS) - len(again)
    assert deterministic(tmp_path) == unbroken
    assert len({record.context["time"] for record in read(tmp_path / "compare.jsonl")}) == 1  # one run of the report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.jsonl", "report"]
    assert {path.suffix for path in (tmp_path / "report").iterdir()} == {".html", ".png"}


def test_what_another_command_line_has_trained_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(compare, "fit", interrupted(compare.fit, 1, signal.SIGTERM, []))
        assert run(patched, *words(tmp_path)) == 128 + signal.SIGTERM
    weights = tmp_path / "report" / "unfinished" / "step-0" / "model.safetensors"
    assert weights.is_file()
    message = refused(monkeypatch, capsys, *words(tmp_path, "--seed", "1"))
    assert "unfinished holds what another command has not finished" in message
    assert weights.is_file()


def test_a_damaged_part_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(compare, "fit", interrupted(compare.fit, 1, signal.SIGTERM, []))
        run(patched, *words(tmp_path))
    weights = tmp_path / "report" / "unfinished" / "step-0" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    trained: list[str] = []
    monkeypatch.setattr(compare, "fit", interrupted(compare.fit, 1, signal.SIGTERM, trained))
    assert run(monkeypatch, *words(tmp_path)) == 128 + signal.SIGTERM
    assert trained == ["transformer"]


def test_a_control_that_cannot_be_is_left_out_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compared: list[list[str]] = []

    def noted(*given: Any, **_: Any) -> None:
        compared.append(given[1])
        raise ValueError("enough")

    files = ["--out", str(tmp_path / "report"), "--results", str(tmp_path / "compare.jsonl")]
    with monkeypatch.context() as patched:
        patched.setattr(compare, "compare", noted)
        assert run(patched, "compare", *SMALL, "--rank", "3", *files) == 2
        assert "left out" not in capsys.readouterr().out
        assert run(patched, "compare", *SMALL, "--heads", "4", *files) == 2
        reason = "no dense network of 4 heads costs as little as that of width 8 with the rank 2"
        assert f"narrow is left out: {reason}" in capsys.readouterr().out
        assert "hidden must be" in refused(patched, capsys, "compare", *SMALL, "--hidden", "0", *files)
    assert compared == [list(compare.USUAL), [name for name in compare.USUAL if name != "narrow"]]
    given = ["--variants", "lrt,narrow", "--heads", "4"]
    assert reason in refused(monkeypatch, capsys, "compare", *SMALL, *given, *files)


def test_low_rank_training_is_for_low_rank_variants_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ways, plain = {}, compare.fit

    def noted(model: Any, objective: Any, schedule: Any, **options: Any) -> Any:
        ways[options["label"].strip()] = schedule.low_rank_training
        return plain(model, objective, schedule, **options)

    monkeypatch.setattr(compare, "fit", noted)
    monkeypatch.setattr(compare, "costs", interrupted(compare.costs, 0, signal.SIGINT, []))
    assert run(monkeypatch, *words(tmp_path, "--low-rank-training", "dense_first")) == 128 + signal.SIGINT
    assert ways == {"transformer": None, "lrt": "dense_first", "linformer": None}


def test_a_variant_that_diverges_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(monkeypatch, capsys, *words(tmp_path, "--learning-rate", "1e30"))
    assert "transformer cannot be compared: training diverged at a learning rate of 1e+30, 5e+30 of Muon: " in told
    assert told.endswith("outputs are nan after 2 steps; try a lower rate, or leave it out")
