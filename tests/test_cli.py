"""The command line, as a user meets it: what it prints, what it leaves on disk, and how it refuses."""

import gzip
import json
import re
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from greenformers import cli
from greenformers.data import names
from greenformers.measure.record import newest, read
from greenformers.train.settings import Settings

SMALL = ["--epochs", "1", "--limit", "20", "--batch", "10", "--hidden", "8", "--heads", "2", "--feed-forward", "16"]
SMALL += ["--rank", "2"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["greenformers", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line by which a command line is refused."""
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    lines = error.strip().splitlines()
    assert len(lines) == 1, error
    assert lines[0].startswith("greenformers: ")
    return lines[0]


def test_help_answers_at_once() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        shown = subprocess.run([sys.executable, "-m", "greenformers", "--help"], capture_output=True, text=True)
        times.append(time.perf_counter() - start)
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
    found = read(results)
    assert {record.variant for record in found} == {"transformer", "lrt", "linformer"}
    metrics = {record.metric for record in found if record.variant == "lrt"}
    assert metrics >= {
        "parameters", "train_accuracy", "test_accuracy", "train_time", "latency", "peak_memory_training",
        "peak_memory_inference", "flops", "energy", "co2", "train_loss",
    }  # fmt: skip
    context = found[0].context
    assert context["command"].startswith("greenformers compare --epochs 1")
    assert str(tmp_path) not in context["command"]
    assert context["seed"] == 0
    assert context["torch"] == "2.13.0" or context["torch"].startswith("2.13.0+")

    page = (out / "index.html").read_text()
    assert run(monkeypatch, "report", str(results), "--out", str(tmp_path / "again")) == 0
    assert (tmp_path / "again" / "index.html").read_text() == page

    # Records are added to, and the newest run is what a report shows.
    assert run(monkeypatch, *words, "--variants", "lrt") == 0
    assert len(read(results)) > len(found)
    assert {record.variant for record in newest(read(results))} == {"transformer", "lrt"}


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


VERSE = "to be or not to be that is the question\nwhether tis nobler in the mind to suffer\n"
TINY = """
tokenizer = "characters"
length = 16
hidden = 8
heads = 2
feed_forward = 16
layers = 1
steps = 3
batch = 4
"""


def corpus(folder: Path) -> Path:
    """A folder with the text of Tiny Shakespeare and the pairs of Multi30k, in short."""
    folder.mkdir()
    (folder / "input.txt").write_text(VERSE * 20)
    for part, count in (("train", 8), ("val", 3), ("test_2016_flickr", 5)):
        for language, word in (("en", "dog"), ("de", "hund")):
            (folder / f"{part}.{language}").write_text("".join(f"{word} {n}\n" for n in range(count)))
    return folder


def test_a_language_model_from_a_file_to_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, config, out = corpus(tmp_path / "data"), tmp_path / "tiny.toml", tmp_path / "run"
    config.write_text(f'data = "tinyshakespeare"\nfolder = "{folder}"\n{TINY}')
    words = ["train", str(config), "--out", str(out), "--hidden", "12", "--seed", "3", "--resume"]
    assert run(monkeypatch, *words) == 0  # --resume starts where there is nothing yet
    assert re.search(r"validation loss \d\.\d+, perplexity \d+\.\d+, ", capsys.readouterr().out)
    settings = json.loads((out / "run.json").read_text())
    given = {"hidden": 12, "seed": 3, "heads": 2, "steps": 3, "tokenizer": "characters", "epochs": 25}
    assert {name: settings[name] for name in given} == given  # flags over the file over defaults

    assert run(monkeypatch, "evaluate", str(out), "--split", "valid", "--batch", "7") == 0
    scores = json.loads((out / "scores.json").read_text())
    assert capsys.readouterr().out.splitlines() == [
        f"valid loss: {scores['loss']:.4g}",
        f"valid perplexity: {scores['perplexity']:.4g}",
    ]
    other = tmp_path / "other"
    other.mkdir()
    (other / "input.txt").write_text("question\n" * 90)
    assert run(monkeypatch, "evaluate", str(out), "--split", "valid", "--folder", str(other)) == 0
    assert capsys.readouterr().out.splitlines()[0] != f"valid loss: {scores['loss']:.4g}"

    (tmp_path / "prompts").write_text("nobler\nmind\n")
    asked = ["generate", str(out), "--prompt", "to be", "--prompts", str(tmp_path / "prompts"), "--max-new-tokens", "4"]
    assert run(monkeypatch, *asked) == 0
    greedy = capsys.readouterr().out
    lines = greedy.replace("\n", "|")
    assert re.fullmatch(r"to be.{0,4}\|nobler.{0,4}\|mind.{0,4}\|", lines)
    assert run(monkeypatch, *asked) == 0
    assert capsys.readouterr().out == greedy
    drawn = []
    for seed in ("1", "1", "2"):
        assert run(monkeypatch, *asked, "--sample", "--temperature", "3", "--top-k", "9", "--seed", seed) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]
    assert len({*drawn, greedy}) == 3

    for words, message in (
        (["--prompt", ""], "a prompt must have at least one character, got an empty one"),
        ([], "there must be at least one prompt, got none"),
        (["--prompt", "x" * 20], "a prompt must have at most 15 tokens, got one of 20"),
        (
            ["--prompt", "to", "--max-new-tokens", "15"],
            "max_new_tokens must be in 1..14 behind a prompt of 2 tokens, got 15",
        ),
        (
            ["--prompt", "to", "--max-new-tokens", "0"],
            "max_new_tokens must be in 1..14 behind a prompt of 2 tokens, got 0",
        ),
        (["--prompts", str(tmp_path / "nowhere")], "No such file or directory"),
        (["--prompt", "to", "--beams", "0"], "beams must be at least 1, got 0"),
        (["--prompt", "to", "--sample", "--temperature", "0"], "temperature must be above 0, got 0.0"),
        (["--prompt", "to", "--sample", "--top-p", "2"], "top_p must be above 0 and at most 1, got 2.0"),
        (["--prompt", "to", "--sample", "--top-k", "-1"], "top_k must be at least 0, got -1"),
    ):
        assert message in refused(monkeypatch, capsys, "generate", str(out), *words)


def test_a_translator_from_flags_to_scores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, config, out = corpus(tmp_path / "data"), tmp_path / "tiny.toml", tmp_path / "run"
    config.write_text(TINY)
    assert run(monkeypatch, "train", str(config), "--data", "multi30k", "--folder", str(folder), "--out", str(out)) == 0
    capsys.readouterr()
    results = tmp_path / "results.jsonl"
    assert run(monkeypatch, "evaluate", str(out), "--beams", "2", "--samples", "2", "--results", str(results)) == 0
    shown = capsys.readouterr().out
    assert re.findall("(?:source|target): (.*)", shown) == ["dog 0", "hund 0", "dog 1", "hund 1"]
    assert len(re.findall("(?m)^ours:   ", shown)) == 2
    values = dict(re.findall(r"(?m)^test (\w+): (\S+)$", shown))
    found = {record.metric: record.value for record in read(results)}
    assert list(values) == list(found) == ["loss", "perplexity", "bleu", "chrf"]
    assert {name: f"{value:.4g}" for name, value in found.items()} == values

    assert run(monkeypatch, "generate", str(out), "--prompt", "dog 0", "--prompt", "dog 1", "--beams", "2") == 0
    ours = re.findall("(?m)^ours:   (.*)$", shown)
    assert capsys.readouterr().out.splitlines() == ours
    for words, message in (
        (
            ["generate", str(out), "--prompt", "dog", "--max-new-tokens", "16"],
            "max_new_tokens must be in 1..15, got 16",
        ),
        (["generate", str(out), "--prompt", "dog", "--max-new-tokens", "0"], "max_new_tokens must be in 1..15, got 0"),
        (["evaluate", str(out), "--beams", "0"], "beams must be at least 1, got 0"),
        (["evaluate", str(out), "--batch", "0"], "batch"),
        (["evaluate", str(out), "--folder", str(tmp_path / "gone")], "is not a folder"),
    ):
        assert message in refused(monkeypatch, capsys, *words)


def test_options_of_an_attention_are_name_and_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", *SMALL, "--variant", "linformer", "--option", "sharing=layerwise", "--option"]
    assert run(monkeypatch, *words, "k=5", "--out", str(tmp_path / "run")) == 0
    stored = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert stored["attention_options"] == {"k": 5, "sharing": "layerwise"}
    for option, message in (
        ("k", "option must be name=value, got 'k'"),
        ("k=many", "k must"),
        ("width=3", "option must be of linformer, got sharing, width: "),
        ("sharing=all", "sharing must be one of"),
    ):
        assert message in refused(monkeypatch, capsys, *words, option, "--out", str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_resumed_run_keeps_its_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from greenformers.train import run as runs

    folder, out = corpus(tmp_path / "data"), tmp_path / "run"
    (tmp_path / "tiny.toml").write_text(f'data = "tinyshakespeare"\nfolder = "{folder}"\n{TINY}')
    words = ["train", str(tmp_path / "tiny.toml"), "--out", str(out), "--resume"]
    train = runs._train

    def killed(*_, **__):
        raise SystemExit(9)

    monkeypatch.setattr(runs, "_train", killed)
    assert run(monkeypatch, *words) == 9
    monkeypatch.setattr(runs, "_train", train)
    assert [path.name for path in out.iterdir()] == ["run.json"]
    line = refused(monkeypatch, capsys, *words, "--batch", "5")
    assert line == "greenformers: batch of this run is 4, and stays so; got 5"
    assert "new or empty folder" in refused(monkeypatch, capsys, *words[:-1])
    assert run(monkeypatch, *words, "--batch", "4") == 0
    assert (out / "scores.json").exists()


def test_an_error_never_shows_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    secret = "the patient said"
    (tmp_path / "train.tsv").write_text(f"sentence\tlabel\nfine\t1\n{secret}\t{secret}\n")
    words = ["train", "--data", "sst2", "--folder", str(tmp_path), "--out", str(tmp_path / "run")]
    line = refused(monkeypatch, capsys, *words)
    assert "train.tsv, line 3" in line
    assert "patient" not in line
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\n" + secret.encode() + b"\xff\t1\n")
    line = refused(monkeypatch, capsys, *words)
    assert "train.tsv: expected UTF-8" in line
    assert "patient" not in line


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
        ("compare --variants lrt,foo", "variant must be one of transformer, lrt, full, linformer"),
        ("compare --variants lrt+full+linformer", "got 'lrt+full+linformer'"),
        ("compare --data cifar", f"data set must be one of {', '.join(names())}, got 'cifar'"),
        ("compare --data sst2", "data set 'sst2' is text; images are needed here: one of digits, mnist"),
        ("compare --data mnist", "mnist needs the folder"),
        ("compare --data mnist --folder nowhere", "'nowhere' is not a folder"),
        ("compare --rank 65", "rank must be in 1..64 for a 64 x 64 map, got 65"),
        ("compare --rank 0", "rank must be in 1..64"),
        ("compare --k 66", "k must be in 1..65 (the longest sequence), got 66"),
        ("compare --hidden 0", "hidden must be at least 1, got 0"),
        ("compare --hidden 63", "num_attention_heads must divide hidden_size 63, got 4"),
        ("compare --epochs 0", "epochs must be at least 1, got 0"),
        ("compare --learning-rate nan", "learning_rate must be above 0, got nan"),
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
        ("train --out new --data sst2", "sst2 needs the folder that holds its files, or a dataset, got neither"),
        ("train --out new --init nowhere", "nowhere/model/model.safetensors"),
        ("train --out new --dropout 2", "dropout"),
        ("train --out new --seed -1", "seed must be in 0..4294967295, got -1"),
        ("train nowhere.toml --out new", "nowhere.toml: No such file"),
        ("evaluate nowhere", "nowhere/model/config.json: No such file"),
        ("generate nowhere --prompt x", "nowhere/model/config.json: No such file"),
        ("report nowhere.jsonl", "nowhere.jsonl: No such file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(monkeypatch, capsys, *words.split())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_misspelt_option_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "compare", "--epoch", "3") == 2
    assert "--epochs" in capsys.readouterr().err


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
    words = ["compare", *SMALL, "--no-full-size", "--variants", "lrt", "--out", str(out), "--results"]
    assert run(monkeypatch, *words, str(tmp_path / "first.jsonl")) == 0
    page = (out / "index.html").read_text()
    capsys.readouterr()
    assert run(monkeypatch, *words, "/dev/full") == 2
    shown = capsys.readouterr()
    assert shown.err.strip() == "greenformers: /dev/full: No space left on device"
    assert "Test accuracy" in shown.out  # the figures are not lost with the disk
    assert (out / "index.html").read_text() == page


def test_an_unwritable_place_is_found_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("here first")
    start = time.perf_counter()
    line = refused(monkeypatch, capsys, "compare", "--out", str(tmp_path / "file" / "report"))
    assert "Not a directory" in line
    assert time.perf_counter() - start < 20  # the demo's training takes minutes
    assert (tmp_path / "file").read_text() == "here first"
