"""`greenformers arena`, from the command line to a page: resumed, killed, refused, and with a part that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import listing, refused, run

from greenformers.arena import grid as grids
from greenformers.arena.protocol import TASKS, drawn_folder
from greenformers.data import listops
from greenformers.measure.record import read

pytestmark = pytest.mark.usefixtures("drafts")

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
WORDS = ("arena", "--tasks", "listops", "--variants", "transformer,linformer", "--seeds", "2", "--steps", "4",
         "--batch", "4")  # fmt: skip
PLAIN = ("--no-controls", "--no-pretrain")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder whose ListOps is drawn already, small."""
    data = listops.generate(train=40, valid=10, test=20, shortest=5, longest=30, depth=4, arguments=4)
    listops.write(drawn_folder("listops", TASKS["listops"].sizes["tiny"], tmp_path / "grid/data"), data)
    return tmp_path / "grid"


def survey(folder: Path) -> Path:
    folder.mkdir()
    rows = "model,average_score,steps_per_s_1k,steps_per_s_4k\nTransformer,54,8.0,1.0\nLinformer,51,10.0,8.0\n"
    (folder / "survey_table2_long_range_arena.csv").write_text(rows)
    return folder


@pytest.fixture
def seldom(monkeypatch: Patch) -> None:
    """Networks are judged, and checkpoints written, at the end of a training alone."""
    monkeypatch.setattr("greenformers.arena.cell.EVALUATIONS", 1)


@pytest.mark.usefixtures("seldom")
def test_a_grid_with_its_controls_ends_in_a_page(
    out: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    monkeypatch.setattr(grids, "WINDOWS", (5,))
    monkeypatch.setattr("greenformers.arena.speed.REPEATS", 1)
    results = tmp_path / "results.jsonl"
    words = (*WORDS, "--seeds", "1", "--results", str(results), "--out", str(out))
    words += ("--references", str(survey(tmp_path / "there")))
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "listops, linformer, seed 0, self-pretrained: " in shown
    assert "min left" in shown or " s left" in shown
    records = read(results)
    scores = [record for record in records if record.metric == "test_accuracy"]
    variants = {record.variant for record in scores}
    assert {"majority", "root operator", "n-grams", "transformer", "linformer"} < variants
    assert {"sliding_window:window=5", "sliding_window:window=1"} < variants
    own = [record for record in scores if "seed" in record.setting and record.variant == "linformer"]
    assert [(record.setting["pretraining_steps"], record.setting["training_steps"]) for record in own] == [
        (0, 4),
        (2, 2),
    ]
    assert all(record.interval and record.to == "transformer" for record in own)
    assert {"train_step", "peak_memory_training", "flops", "accuracy", "loss"} <= {r.metric for r in records}
    page = (out / "report/index.html").read_text()
    for text in ("window of the same FLOPs", "without a network: root operator", "speed and memory"):
        assert text in page, text
    assert (out / "report/curves_listops.png").read_bytes().startswith(b"\x89PNG")
    before = listing(out / "listops")
    assert run(monkeypatch, *(word for word in words if word not in ("--results", str(results))), "--list") == 0
    assert "0 of " in capsys.readouterr().out
    assert run(monkeypatch, *words) == 0
    assert listing(out / "listops") == before, "what ended is never done again"


@pytest.mark.slow
def test_killed_in_the_middle_of_a_cell_it_goes_on(out: Path, monkeypatch: Patch) -> None:
    words = (*WORDS, *PLAIN, "--variants", "transformer", "--steps", "150", "--seeds", "1", "--out", str(out))
    process = subprocess.Popen(
        [sys.executable, "-m", "greenformers", *words], stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    cell = out / "listops/transformer/seed-0"
    checkpoints, end = cell / "training/checkpoints", time.monotonic() + 120
    while not list(checkpoints.glob("step-*")) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (cell / "result.json").exists()
    step = max(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
    assert run(monkeypatch, *words) == 0
    entries = [json.loads(line) for line in (cell / "training/metrics.jsonl").read_text().splitlines()]
    steps = [entry["step"] for entry in entries if "loss" in entry]
    assert steps == sorted(set(steps))
    assert steps[-1] == 150
    assert step in steps, "the curve from before the kill is there"
    assert json.loads((cell / "result.json").read_text())["steps"] == [0, 150]


@pytest.mark.usefixtures("seldom")
def test_what_fails_is_told_and_the_grid_goes_on(out: Path, monkeypatch: Patch, capsys: Captured) -> None:
    train = grids.train

    def short_of_memory(cell, *given):
        if cell.variant == "linformer" and cell.seed == 0:
            raise MemoryError
        return train(cell, *given)

    words = (*WORDS, *PLAIN, "--out", str(out))
    with monkeypatch.context() as patch:
        patch.setattr(grids, "train", short_of_memory)
        assert run(monkeypatch, *words) == 1
    shown = capsys.readouterr().out
    assert "not done: listops, linformer, seed 0: OutOfMemory" in shown
    assert "listops, linformer, seed 1: " in shown
    page = (out / "report/index.html").read_text()
    assert "Parts that could not be done" in page
    assert page.count(", 1 of 2 seeds)") == 1, "the mean of fewer seeds says so"
    assert run(monkeypatch, *words) == 1, "it stays so"
    results = out.parent / "results.jsonl"
    assert run(monkeypatch, *words, "--retry", "--results", str(results)) == 0
    assert "Parts that could not be done" not in (out / "report/index.html").read_text()
    scores = [record for record in read(results) if record.metric == "test_accuracy"]
    (mean,) = (record for record in scores if "draws" in record.setting and record.variant == "linformer")
    assert (mean.setting["draws"], mean.setting["training_steps"], mean.to) == (2, 4, "transformer")
    assert mean.interval


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--tasks", "listop"), "tasks must be of listops"), (("--variants", "linformr"), "variant must be one of"),
     (("--size", "huge"), "size must be one of tiny, small, paper"), (("--seeds", "0"), "seeds must be at least 1"),
     (("--tasks", "text"), "data must be the folder that holds the folder imdb, got none"),
     (("--lengths", "1024"), "lengths are for text; the tasks are listops"),
     (("--data", "."), "data is for text, retrieval, pixels; the tasks are listops"),
     (("--variants", "sliding_window:window=0"), "variants must be usable for every task; sliding_window:window=0"),
     (("--retry",), "--list only lists: --retry would have no effect"),
     (("--results", "r.jsonl"), "--list only lists: --results would have no effect"),
     (("--references", "gone"), "references must be a folder that is there, got gone"),
     (("--variants", "linformer,linformer"), "variants must differ"), (("--steps", "1"), "steps must be at least 2")],
)  # fmt: skip
def test_mistakes_are_one_line_before_any_work(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    line = refused(
        monkeypatch, capsys, "arena", "--tasks", "listops", "--list", *words, "--out", str(tmp_path / "grid")
    )
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_cells_with_other_settings_are_not_mixed(out: Path, monkeypatch: Patch, capsys: Captured) -> None:
    words = (*WORDS, *PLAIN, "--variants", "transformer", "--seeds", "1", "--out", str(out))
    assert run(monkeypatch, *words) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.chdir(out.parent)
        assert run(patch, *words[:-1], out.name, "--list") == 0, "the same grid by another spelling of its folder"
    assert "0 of " in capsys.readouterr().out
    assert "holds listops, transformer, seed 0 with batch 4, now 5" in refused(
        monkeypatch, capsys, *words, "--batch", "5"
    )
