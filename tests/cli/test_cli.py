"""The command line, as a user meets it: what it prints, what it leaves on disk, and how it refuses."""

import gzip
import json
import re
import subprocess
import sys
import time
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from command_line import SMALL, refused, run

from greenformers.cli._terminal import command
from greenformers.data import names
from greenformers.measure.newest import newest
from greenformers.measure.record import read
from greenformers.train.settings import Settings

pytestmark = pytest.mark.usefixtures("drafts")


def test_help_answers_at_once() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        shown = subprocess.run([sys.executable, "-m", "greenformers", "--help"], capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        if times[-1] < 1.5:
            break
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("compare", "train", "evaluate", "generate", "report"))
    assert min(times) < 1.5


def test_compare_trains_measures_and_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results, out = tmp_path / "results" / "compare.jsonl", tmp_path / "report"
    words = ["compare", *SMALL, "--no-full-size", "--results", str(results), "--out", str(out), "--country", "HKG"]
    assert run(monkeypatch, *words, "--variants", "lrt, linformer", "--k", "5") == 0
    shown = capsys.readouterr().out
    assert "Test accuracy (%)" in shown
    assert str(out / "index.html") in shown
    records = read(results)
    assert {record.variant for record in records} == {"transformer", "lrt", "linformer"}
    metrics = {record.metric for record in records if record.variant == "lrt"}
    assert metrics >= {
        "parameters", "train_accuracy", "test_accuracy", "train_time", "latency", "peak_memory_training",
        "peak_memory_inference", "flops", "energy", "co2", "train_loss",
    }  # fmt: skip
    context = records[0].context
    assert context["command"].startswith("greenformers compare --epochs 1")
    assert str(tmp_path) not in context["command"]
    assert context["seed"] == 0
    assert context["torch"] == "2.13.0" or context["torch"].startswith("2.13.0+")

    page = (out / "index.html").read_text()
    assert run(monkeypatch, "report", str(results), "--out", str(tmp_path / "again")) == 0
    assert (tmp_path / "again" / "index.html").read_text() == page

    # Records are added to, and the newest run is what a report shows.
    line = refused(monkeypatch, capsys, *words, "--variants", "transformer")
    assert line.endswith("--rank is for lrt, the variants are transformer")
    at = words.index("--rank")
    words = words[:at] + words[at + 2 :]
    assert "--k is for an attention that" in refused(monkeypatch, capsys, *words, "--variants", "narrow,lrt", "--k=3")
    assert run(monkeypatch, *words, "--variants", "transformer") == 0
    assert len(read(results)) > len(records)
    assert {record.variant for record in newest(read(results))} == {"transformer"}


def test_train_leaves_a_run_that_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from greenformers import GreenformerForSequenceClassification

    out = tmp_path / "runs" / "first"
    words = ["train", "--variant", "lrt+linformer", "--out", str(out), *SMALL, "--k", "4"]
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out.splitlines()
    scores = json.loads((out / "scores.json").read_text())
    model = GreenformerForSequenceClassification.from_pretrained(out / "model")
    count = sum(parameter.numel() for parameter in model.parameters())
    expected = rf"{count:,} parameters, validation accuracy {scores['accuracy']:.4g}, \d+\.\d s of training"
    assert re.fullmatch(expected, shown[-2])
    assert shown[-1] == f"model: {out / 'model'}"
    assert (model.config.attention, model.config.attention_options) == ("linformer", {"k": 4})
    assert model.config.rank == 2
    assert sorted(path.name for path in out.iterdir()) == [
        "curves.png", "metrics.jsonl", "model", "run.json", "scores.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (out / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert list(out.parent.iterdir()) == [out]
    # A second run would lose the first: refused before any work.
    assert "new or empty folder" in refused(monkeypatch, capsys, *words)
    assert refused(monkeypatch, capsys, *words, "--resume").endswith("first has nothing to resume: it ran to its end")

    results = tmp_path / "results.jsonl"
    words = ["evaluate", str(out), "--split", "valid", "--results", str(results)]
    for runs in (1, 2):  # records are added to
        assert run(monkeypatch, *words) == 0
        assert capsys.readouterr().out == f"valid accuracy: {scores['accuracy']:.4g}\n"
        assert len(read(results)) == runs
    record = read(results)[0]
    assert (record.benchmark, record.variant, record.metric, record.unit) == (
        "evaluate", "lrt+linformer", "accuracy", "%",
    )  # fmt: skip
    assert record.value == pytest.approx(scores["accuracy"])
    assert record.setting == {"data": "digits", "split": "valid", "hidden": 8, "layers": 2}
    assert record.context["command"] == "greenformers evaluate first --split valid --results results.jsonl"
    assert run(monkeypatch, "report", str(results), "--markdown") == 0
    assert "Accuracy" in capsys.readouterr().out
    assert "split must be one of train, valid, test, got 'dev'" in refused(
        monkeypatch, capsys, "evaluate", str(out), "--split", "dev"
    )
    assert "must be a causal or a sequence-to-sequence one" in refused(
        monkeypatch, capsys, "generate", str(out), "--prompt", "x"
    )


def test_help_shows_every_setting_with_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(monkeypatch, "train", "--help") == 0
    shown = capsys.readouterr().out
    for entry in fields(Settings):
        flag = re.escape(f"--{entry.name.replace('_', '-')}")
        (line,) = re.findall(rf"(?m)^\W+{flag} .*$", shown)
        assert entry.metadata["help"] in line
        assert ("[default:" in line) == (entry.default is not None)
        if entry.default is not None:
            assert f"[default: {entry.default}]" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "compare --variants lrt,foo",
            "variant must be one of transformer, lrt, narrow, narrow_flops, adaptive_span, ",
        ),
        ("compare --variants lrt+full+linformer", "got 'lrt+full+linformer'"),
        ("compare --data cifar", f"data set must be one of {', '.join(names())}, got 'cifar'"),
        (
            "compare --data sst2",
            "data set 'sst2' is text; images are needed here: one of cifar10_gray, digits, mnist, ",
        ),
        ("compare --data mnist", "mnist needs the folder"),
        ("compare --data mnist --folder nowhere", "'nowhere' is not a folder"),
        ("compare --rank 65", "rank must be in 1..64 for a 64 x 64 linear layer, got 65"),
        ("compare --rank 0", "rank must be in 1..64"),
        ("compare --k 66", "k must be in 1..65 (the longest sequence), got 66"),
        ("compare --hidden 0", "hidden must be at least 1, got 0"),
        ("compare --hidden 63", "num_attention_heads must divide hidden_size 63, got 4"),
        ("compare --epochs 0", "epochs must be at least 1, got 0"),
        ("compare --learning-rate nan", "learning_rate must be above 0 and finite, got nan"),
        ("compare --optimizer sgd", "optimizer must be one of adamw, muon; got 'sgd'"),
        (
            "compare --low-rank-training sgd",
            "low_rank_training must be one of spectral, dense_first; got 'sgd'",
        ),
        (
            "compare --variants linformer --low-rank-training spectral",
            "low_rank_training spectral is for low-rank layers, and no variant has any: transformer, linformer",
        ),
        ("compare --variants transformer --limit 50", "batch must be at most 50, the training examples, got 64"),
        ("compare --country ZZZ", "country must be a 3-letter ISO code"),
        ("compare --limit 9", "limit must be at least 10, the classes of digits, got 9"),
        ("compare --pool 3", "pool must be one of 1, 2, 4, 8 for 8x8 images, got 3"),
        ("train --out new --variant foo", "variant must be one of"),
        ("train --out new --data digit", f"data set must be one of {', '.join(names())}, got 'digit'"),
        ("train --out new --objective causal", "objective must be one of classification for digits, got 'causal'"),
        ("train --out new --precision half", "precision must be one of fp32, bf16, fp16; got 'half'"),
        pytest.param(
            "train --out new --precision fp16",
            "precision must be fp32 or bf16 where there is no GPU, got 'fp16'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        ("train --out new --batch 64 --limit 20", "batch must be at most 20, the training examples, got 64"),
        ("train --out new --batch 10 --accumulate 3", "accumulate must divide the batch, 10, got 3"),
        ("train --out new --option sharing=none", "option is for an attention, the variant is 'transformer'"),
        ("train --out new --variant linformer --k 0", "k must be in 1..65 (the longest sequence), got 0"),
        (
            "train --out new --variant sliding_window --option window=3 --k 5",
            "k and option window exclude each other, got 5 and 3",
        ),
        ("train --out new --data sst2", "sst2 needs the folder that holds its files, or a dataset, got neither"),
        ("train --out new --init nowhere", "nowhere/model/model.safetensors"),
        (
            "train --out new --variant isab --feed-forward 99",
            "feed_forward is for feed-forward blocks, isab has none; got 99",
        ),
        (
            "train --out new --variant lrt+star --feed-forward 256",
            "feed_forward is for feed-forward blocks, star has none; got 256",
        ),
        ("train --out new --batch 0", "greenformers: batch must be at least 1, got 0"),
        ("train --out new --layers 0", "greenformers: layers must be at least 1, got 0"),
        ("train --out new --feed-forward 0", "greenformers: feed_forward must be at least 1, got 0"),
        ("train --out new --dropout 2", "dropout must be in [0, 1), got 2.0"),
        ("train --out new --dropout nan", "dropout must be in [0, 1), got nan"),
        ("train --out new --seed -1", "seed must be in 0..4294967295, got -1"),
        ("train nowhere.toml --out new", "nowhere.toml: No such file"),
        ("evaluate nowhere", "nowhere must be a finished run: it has no model/config.json"),
        ("generate nowhere --prompt x", "nowhere must be a finished run: it has no model/config.json"),
        ("report nowhere.jsonl", "nowhere.jsonl: No such file"),
        (f"report nowhere.jsonl --out {__file__}", "out must be a folder, and "),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(monkeypatch, capsys, *words.split())
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_option_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "compare", "--epoch", "3") == 2
    assert "--epochs" in capsys.readouterr().err


def test_a_report_that_is_only_printed_has_no_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", "gone.jsonl", "--markdown", "--out", "page"]
    assert "--markdown only prints: --out would have no effect, got page" in refused(monkeypatch, capsys, *words)


def test_the_command_of_records_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["report", "/home/me/a.jsonl", "--out=/home/me/b", "--texts", "c/d.tsv", "--slot=norm=rms"]
    monkeypatch.setattr(sys, "argv", ["greenformers", *words])
    assert command() == "greenformers report a.jsonl --out=b --texts c/d.tsv --slot=norm=rms"


def test_what_is_warned_of_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which is put back
    assert run(monkeypatch, "--version") == 0
    shown = warnings.formatwarning("2 texts\n are\x1b left out", UserWarning, names.__code__.co_filename, 3)
    assert shown == "greenformers: 2 texts are left out\n"
    assert "test_cli.py:7: UserWarning: of others" in warnings.formatwarning("of others", UserWarning, __file__, 7)


def test_a_truncated_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(100))[:20])
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(b"")
    line = refused(monkeypatch, capsys, "compare", "--data", "mnist", "--folder", str(tmp_path))
    assert "train-images-idx3-ubyte.gz" in line


def test_a_full_disk_costs_no_earlier_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here to stand for a full disk")
    out = tmp_path / "report"
    out.mkdir()
    (out / "index.html").write_text("the page of an earlier run")
    words = ["compare", *SMALL[:-2], "--no-full-size", "--variants", "transformer", "--out", str(out)]
    assert run(monkeypatch, *words, "--results", "/dev/full") == 2
    shown = capsys.readouterr()
    assert shown.err.strip() == "greenformers: /dev/full: No space left on device"
    assert "Test accuracy" in shown.out  # the figures are not lost with the disk
    assert (out / "index.html").read_text() == "the page of an earlier run"


def test_an_unwritable_place_is_found_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("here first")
    start = time.perf_counter()
    line = refused(monkeypatch, capsys, "compare", "--out", str(tmp_path / "file" / "report"))
    assert line.endswith(f"out must be a folder, and {tmp_path / 'file'} is a file")
    assert time.perf_counter() - start < 20  # the demo's training takes minutes
    assert (tmp_path / "file").read_text() == "here first"
