"""Measuring takes a fifth of the whole at most, unless it is asked for."""

import math
import time
from pathlib import Path

import pytest
import torch
from command_line import refused, run
from torch import nn

from greenformers.compress import comparison, side_by_side
from greenformers.compress.side_by_side import Plan, planned
from greenformers.measure.costs import Subject
from greenformers.measure.record import read

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


class Clock:
    """One that only calls move on: by 2 s each."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def call(self) -> torch.Tensor:
        self.now += 2.0
        return torch.zeros(())


@pytest.mark.parametrize(
    ("seconds", "plan"),
    [
        (math.inf, Plan(20, None)),
        (1000.0, Plan(20, None)),
        (100.0, Plan(13, 5.0)),  # two models of 2 s a call; 12 s are spent on counting
        (36.0, Plan(3, 2.0)),  # (24 - 3 x 4) / 6 readings
        (35.9, None),
    ],
)
def test_what_is_measured_in_so_many_seconds(seconds: float, plan: Plan | None, monkeypatch: Patch) -> None:
    clock = Clock()
    monkeypatch.setattr(side_by_side, "perf_counter", clock)
    monkeypatch.setattr("greenformers.measure.energy_of.SECONDS", 5.0)
    subjects = {name: Subject(nn.Linear(1, 1), clock.call) for name in "ab"}
    assert planned(subjects, seconds, 20) == plan


def test_what_would_take_too_long_is_left_out_and_said(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    monkeypatch.setattr(comparison, "LEAST", 0.0)
    results = tmp_path / "results.jsonl"
    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "small"), "--int8", "--results", str(results)]
    began = time.perf_counter()
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    note = "time, memory and energy at 40 tokens were not measured: it would take more than a fifth of the whole"
    assert f"{note} (--measure)" in shown
    assert note in (tmp_path / "small" / "README.md").read_text()
    assert {record.metric for record in read(results)} == {"parameters", "size"}
    assert time.perf_counter() - began < 60
    assert run(monkeypatch, *words, "--measure") == 0
    assert "latency" in {record.metric for record in read(results)}


@pytest.mark.parametrize("place", ["/nowhere-at-the-root/x.jsonl", "no/such/x.jsonl", "file/x.jsonl"])
def test_only_the_folder_of_results_is_made(
    place: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    words = ["compress", str(home / "BertModel"), "--out", "small", "--int8", "--lengths", ""]
    assert "is no folder; make it, or name another place" in refused(monkeypatch, capsys, *words, "--results", place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if place.startswith("no"):
        assert run(monkeypatch, *words, "--results", "new/x.jsonl") == 0
        assert read("new/x.jsonl")
