"""`greenformers search`, from the command line to a run that is read again."""

import inspect
import json
import re
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from command_line import run

from greenformers.cli.search import search
from greenformers.search import UNSEARCHED
from greenformers.search.network_lab import NetworkLab
from greenformers.search.tries import Tries
from greenformers.train import run as runs
from greenformers.train.run import Stopped

pytestmark = pytest.mark.usefixtures("drafts")

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
WORDS = ("search", "--data", "digits", "--limit", "100", "--steps", "6", "--batch", "16", "--layers", "1",
         "--hidden", "16", "--feed-forward", "32", "--vary", "rank,heads,feed-forward", "--lose", "20%",
         "--minutes", "0.05")  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch: Patch) -> None:
    """Every network takes half a second of the search, however long it takes."""
    clock = count(step=0.25)
    monkeypatch.setattr("greenformers.search.network_run.Tries", partial(Tries, clock=lambda: next(clock)))
    monkeypatch.setattr(NetworkLab, "speed_up", lambda *_: 1.5)
    monkeypatch.setattr("greenformers.search.network_run.RUNGS", (3, 1))
    monkeypatch.setattr("greenformers.search.network_run.TOP", 1)
    monkeypatch.setattr("greenformers.search.network_run.least_minutes", lambda *_: 0.0)


def test_stopped_it_goes_on_and_both_networks_are_runs(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out, trial = tmp_path / "found", NetworkLab.trial

    def stop(*given):
        if len((out / "search/trials.jsonl").read_text().splitlines()) == 2:
            raise Stopped(15)
        return trial(*given)

    with monkeypatch.context() as patch:
        patch.setattr(NetworkLab, "trial", lambda *given: stop(*given) if out.exists() and list(out.rglob("*.jsonl"))
                      else trial(*given))  # fmt: skip
        assert run(monkeypatch, *WORDS, "--out", str(out)) != 0
    assert "--resume goes on" in capsys.readouterr().out.replace("\n", " ")
    assert run(monkeypatch, *WORDS, "--out", str(out)) == 2
    assert "out must be a new or empty folder" in told(capsys)
    assert run(monkeypatch, *WORDS, "--heads", "2", "--resume", "--out", str(out)) == 2
    assert "holds a search with other settings than these" in told(capsys)
    with monkeypatch.context() as patch:
        patch.setattr("greenformers.search.network_run.least_minutes", lambda *_: 7.0)
        assert run(monkeypatch, *WORDS, "--resume", "--out", str(out)) == 2
    assert "minutes must be at least" in told(capsys)
    assert len((out / "search/trials.jsonl").read_text().splitlines()) >= 2, "what was tried stays"
    capsys.readouterr()
    assert run(monkeypatch, *WORDS, "--resume", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if re.match(r" *\d+ +\d+ steps: ", line)]) >= 2
    for text in ("The front of networks trained for 6 steps", "On the test split: Accuracy"):
        assert text in " ".join(shown.split()), text
    for name in ("base", "best"):
        assert json.loads((out / name / "scores.json").read_text())["accuracy"] >= 0
        assert runs.trained(out / name).config.num_hidden_layers == 1
    page = (out / "report/index.html").read_text()
    assert "after as many steps" in page
    assert re.search("greenformers train .*--steps 6 .*--data digits", page)
    assert len((out / "results.jsonl").read_text().splitlines()) == 6  # a context, and five figures
    assert run(monkeypatch, *WORDS, "--resume", "--out", str(out)) == 2
    assert "its search ran to its end" in told(capsys)


def told(capsys: Captured) -> str:
    """What a command wrote as its errors, in one line."""
    return " ".join(capsys.readouterr().err.split())


def test_another_best_takes_the_place_of_one_that_was_stopped(
    tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    out = tmp_path / "found"
    assert run(monkeypatch, *WORDS, "--out", str(out)) == 0
    (out / "results.jsonl").unlink()
    path = out / "best/run.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"hidden": 2 * stored["hidden"]}))
    assert run(monkeypatch, *WORDS, "--resume", "--out", str(out)) == 0
    assert json.loads(path.read_text()) == stored
    (out / "results.jsonl").unlink()
    monkeypatch.setattr("greenformers.measure.record.machine", lambda: {"cpu": "another", "cores": 1, "threads": 1})
    capsys.readouterr()
    assert run(monkeypatch, *WORDS, "--resume", "--out", str(out)) == 2
    assert "of another machine" in told(capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--faster", "2x"), "--lose and --faster exclude each other"), (("--strategy", "darts"), "strategy must be one"),
     (("--vary", "width"), "vary must be of attention"),
     (("--attentions", "linformr", "--vary", "attention"), "attentions must be of"),
     (("--attentions", "linformer"), "name it in --vary"), (("--variant", "narrow"), "variant narrow is a control"),
     (("--strategy", "one-shot"), "it needs faster"), (("--minutes", "0"), "minutes must be above 0"),
     (("--low-rank-training", "spectral"), "low_rank_training spectral is for low-rank layers"),
     (("--lose", "many"), "lose must be a share")],
)  # fmt: skip
def test_mistakes_are_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert run(monkeypatch, *WORDS, *words, "--out", str(tmp_path / "found")) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_settings_that_no_search_takes_are_no_flags_and_refused_in_files(
    tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert not {*UNSEARCHED} & {*inspect.signature(search).parameters}
    (tmp_path / "settings.toml").write_text("patience = 2\n")
    assert run(monkeypatch, *WORDS, str(tmp_path / "settings.toml"), "--out", str(tmp_path / "found")) == 2
    assert "patience is not for a search: it must be left out, got 2" in capsys.readouterr().err


def test_too_short_a_time_is_refused_with_the_least(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.setattr("greenformers.search.network_run.least_minutes", lambda *_: 7.0)
    assert run(monkeypatch, *WORDS, "--out", str(tmp_path / "found")) == 2
    assert "minutes must be at least 7.0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
