"""Measuring takes a fifth of the whole at most, unless it is asked for."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import refused, run
from torch import nn

from greenformers.compress import comparison, side_by_side
from greenformers.compress.side_by_side import Plan, planned
from greenformers.measure.record import read

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


class Clock:
    """One that only runs move on: by half a second an example."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def on(self, _: object, __: object, size: int) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            self.now += 0.5 * size
            return torch.zeros(())

        return run


@pytest.mark.parametrize(
    ("seconds", "plan"),
    [
        (math.inf, Plan(4, 20, None)),
        # Two models, of half a second an example: a round of one takes 1 s, of four 4 s. What is left then:
        (1000.0, Plan(4, 20, None)),
        (101.0, Plan(4, 11, 5.0)),  # 96 s, less 5 runs of 4 s to count; of 76 s 60 % for runs
        (49.0, Plan(4, 3, 2.0)),  # 24 s: three runs, and 12 s for 6 readings
        (48.0, Plan(1, 20, 3.0)),  # 23 s, too few; but 38 of runs of one: 20, and 18 s for 6 readings
        (16.0, Plan(1, 6, 4 / 6)),  # 15 s, of which a run of four may take more than a quarter: 10 for runs of one
        (12.0, Plan(1, 3, 0.5)),
        (11.9, None),
    ],
)
def test_what_is_measured_in_so_many_seconds(seconds: float, plan: Plan | None, monkeypatch: Patch) -> None:
    clock = Clock()
    monkeypatch.setattr(side_by_side, "perf_counter", clock)
    monkeypatch.setattr("greenformers.measure.energy_of.SECONDS", 5.0)
    monkeypatch.setattr(side_by_side, "on_example", clock.on)
    models: Any = {name: nn.Linear(1, 1) for name in "ab"}
    assert planned(models, 7, seconds, batch=4, repeats=20) == plan


def test_what_would_take_too_long_is_left_out_and_said(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    monkeypatch.setattr(comparison, "LEAST", 0.0)
    results = tmp_path / "results.jsonl"
    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "small"), "--int8", "--results", str(results)]
    began = time.perf_counter()
    monkeypatch.setattr(comparison, "SHARE", 1e-9)  # however long a step took
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    note = "Time, memory and energy at 40 tokens were not measured: it would take more than a fifth of the whole"
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
    assert "is no folder; create it, or choose another file" in refused(monkeypatch, capsys, *words, "--results", place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if place.startswith("no"):
        assert run(monkeypatch, *words, "--results", "new/x.jsonl") == 0
        assert read("new/x.jsonl")
