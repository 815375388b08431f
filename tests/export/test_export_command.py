"""`greenformers export`, as a user meets it: what it prints, what it leaves on disk, and how it refuses."""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from command_line import listing, refused, refused_unchanged, run
from models import tokenizer
from zoo import network

import greenformers
from greenformers.export import measure
from greenformers.export.write import FORMATS
from greenformers.measure.record import Record, read


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that no command changes."""
    root = tmp_path_factory.mktemp("home")
    model = network("bert", "BertForSequenceClassification", num_hidden_layers=1)
    greenformers.compress(model, 0.5)
    greenformers.save(model, root / "small", tokenizer=tokenizer("bert"))
    network("gpt2", n_layer=1).save_pretrained(root / "gpt2")
    tokenizer("gpt2").save_pretrained(root / "gpt2")
    network("bert", "BertModel", num_hidden_layers=1).bfloat16().save_pretrained(root / "half")
    network("t5").save_pretrained(root / "t5")
    (root / "texts.txt").write_text("w1 w2\nw3 w4\n")
    return root


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor takes half a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def shown(card: Path) -> list[dict[str, Any]]:
    """What the Python on a card leaves."""
    left: list[dict[str, Any]] = []
    for block in re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL):
        if "sentence_transformers" not in block and "optimum" not in block:
            left.append({})
            exec(block, left[-1])
    return left


@pytest.mark.usefixtures("eager")
def test_a_compressed_classifier(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out, results = listing(home), tmp_path / "deep" / "exported", tmp_path / "results.jsonl"
    words = ["export", str(home / "small"), "--out", str(out), "--results", str(results)]
    assert run(monkeypatch, *words, "--lengths", "8,20", "--batch", "2") == 0
    text = capsys.readouterr().out
    for part in (
        "torch, compiled", "OpenVINO", "ONNX Runtime", "Relative error", "Size on disk", "Inference latency",
        "Length 20",
    ):  # fmt: skip
        assert part in text, part
    assert f"model:  {out}" in text
    assert listing(home) == before
    assert [path.name for path in out.parent.iterdir()] == ["exported"]
    names = {path.name for path in out.iterdir()}
    assert names >= {"README.md", "onnx", "openvino", "model.safetensors", "config.json", "tokenizer.json"}

    records = read(results)
    assert {(record.benchmark, record.metric) for record in records} == {
        ("export", "latency"), ("export", "relative_error"), ("export", "size"),
    }  # fmt: skip
    assert all(record.value < 1e-4 for record in records if record.metric == "relative_error")
    assert records[0].context["command"].startswith("greenformers export small --out exported")

    # The folder alone is enough, as its card says.
    card = (out / "README.md").read_text()
    assert "of any batch and up to 40 tokens; the output is `logits`" in card
    assert str(home) not in card
    monkeypatch.chdir(out)
    by_openvino, by_onnx, by_torch = shown(out / "README.md")
    tokens = by_onnx["tokens"]
    assert 0 in tokens["attention_mask"]
    with torch.no_grad():
        right = greenformers.load(home / "small")(**tokens.convert_to_tensors("pt")).logits
    torch.testing.assert_close(torch.from_numpy(by_onnx["output"]), right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_torch["output"].detach(), right, rtol=1e-4, atol=1e-5)
    # OpenVINO computes in bfloat16 where the processor has it.
    torch.testing.assert_close(torch.from_numpy(by_openvino["output"]), right, rtol=2e-2, atol=2e-2)

    # Again, in its place.
    assert run(monkeypatch, *words, "--lengths", "", "--formats", "program") == 0
    assert "Inference latency" not in capsys.readouterr().out
    assert not (out / "onnx").exists()
    assert "model.onnx" not in (out / "README.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "results.jsonl"]


@pytest.mark.slow
def test_a_model_in_half_precision(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["export", str(home / "half"), "--out", str(tmp_path / "out"), "--lengths", "", "--formats"]
    assert run(monkeypatch, *words, "torch,program") == 0
    monkeypatch.chdir(tmp_path / "out")
    for left, dtype in zip(shown(tmp_path / "out" / "README.md"), (torch.bfloat16, torch.float32), strict=True):
        assert left["output"].dtype is dtype
        assert left["output"].shape[:2] == left["tokens"]["input_ids"].shape


def test_a_language_model_writes_the_same_everywhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # It reads 40 tokens, fewer than are timed one by one where there is room.
    monkeypatch.setattr(measure, "_compiled", lambda *_: None)
    monkeypatch.setattr(measure, "PAUSE", 1e-4)
    words = ["export", str(home / "gpt2"), "--out", str(tmp_path / "out"), "--length", "16"]
    assert run(monkeypatch, *words) == 0
    sentence = "The files of OpenVINO and ONNX Runtime keep the keys and values of earlier tokens"
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert sentence in (tmp_path / "out" / "README.md").read_text()
    monkeypatch.chdir(tmp_path / "out")
    by_openvino, by_onnx, by_torch, by_genai = shown(tmp_path / "out" / "README.md")
    assert isinstance(by_genai["output"], str)
    right = by_torch["output"].numpy()
    first = by_torch["tokens"]["input_ids"].shape[1]
    assert right.shape[1] > first + 5
    for left in (by_openvino, by_onnx):
        assert left["output"].shape == (len(right), first + 20)
        assert (left["output"][:, : right.shape[1]] == right).all()


def test_a_model_of_question_answering_has_two_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network("bert", "BertForQuestionAnswering", num_hidden_layers=1)
    for saved in (model, tokenizer("bert")):
        saved.save_pretrained(tmp_path / "model")
    texts = tmp_path / "squad.jsonl"
    rows = (
        {"question": f"w{at}", "context": f"w{at} " * (20 if at == 3 else 2), "answers": [f"w{at}"]} for at in range(12)
    )
    texts.write_text("\n".join(map(json.dumps, rows)))
    words = ["export", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--texts", str(texts), "--length", "16"]
    assert run(monkeypatch, *words, "--lengths", "", "--loss", "1", "--formats", "openvino,onnx,torch,program") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "F1" in out
    assert "is not read" not in out  # a text that is longer is read in windows
    assert "the outputs are `start_logits` and `end_logits`" in (tmp_path / "out" / "README.md").read_text()
    session = onnxruntime.InferenceSession(tmp_path / "out" / FORMATS["onnx"], providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_outputs()] == ["start_logits", "end_logits"]
    monkeypatch.chdir(tmp_path / "out")
    lefts = shown(tmp_path / "out" / "README.md")
    tokens = lefts[0]["tokens"].convert_to_tensors("pt")
    assert (tokens["input_ids"] == 3).sum() == 2  # two texts
    with torch.no_grad():
        right = model(**tokens)
    for left in lefts:
        for got, expected in zip(left["output"], (right.start_logits, right.end_logits), strict=True):
            torch.testing.assert_close(torch.as_tensor(got).detach(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("small --formats tflite", "torch, program, compressed-tensors, each once; got 'tflite'"),
        ("small --formats torch,tf", "each once; got 'torch,tf'"),
        ("small --formats ,", "each once; got ''"),
        ("small --loss 1", "a loss is judged on texts: give some (--texts)"),
        ("small --limit 0", "limit must be at least 1, got 0"),
        ("small --texts nowhere.txt", "nowhere.txt"),
        ("small --lengths 8,x", "lengths must be whole numbers from 1 on, with commas between; got '8,x'"),
        ("small --lengths 0", "lengths must be whole numbers from 1 on"),
        ("small --loss nan", "loss must be in 0..100 %, got nan"),
        ("small --loss -1", "loss must be in 0..100 %, got -1"),
        ("small --length 41", "length must be at most 40, the longest input of the model, got 41"),
        ("small --lengths 41", "lengths must be at most 40, the longest input of the model, got 41"),
        ("small --batch 0", "batch must be at least 1, got 0"),
        ("small --limit 5", "--limit is of texts to calibrate with: give some (--texts)"),
        (
            "small --limit 5 --texts texts.txt",
            "--limit is of texts to calibrate int8 layers with for openvino and onnx",
        ),
        ("small --lengths= --batch 2", "--batch is of no use with --lengths"),
        ("t5", "only networks that take input_ids and attention_mask alone can be exported; got a T5"),
        ("./nowhere", "./nowhere is not a folder with a model"),
        (".", "config.json is missing"),
    ],
)
def test_refusals(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str,
    message: str,
) -> None:  # fmt: skip
    line = ["export", *words.split(), "--out", str(tmp_path / "out")]
    assert message in refused_unchanged(monkeypatch, capsys, home, tmp_path, *line)


def test_without_the_extra(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = refused(monkeypatch, capsys, "export", str(home / "small"), "--out", str(tmp_path / "out"))
    assert "the format onnx needs all of onnx, onnxruntime, onnxscript: install greenformers with its extra" in message


def test_what_stands_in_the_way_stays(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("# dear to me")
    (tmp_path / "file").write_text("dear to me")
    before = listing(tmp_path) | listing(home)
    for out in (tmp_path / "project", tmp_path / "file"):
        message = refused(monkeypatch, capsys, "export", str(home / "small"), "--out", str(out))
        assert message.endswith(f"{out.name} exists and holds no exported model: name another folder")
    message = refused(monkeypatch, capsys, "export", str(home / "small"), "--out", str(home / "small"))
    assert "out must be another folder than that of" in message
    out = tmp_path / "out"
    for option in ("--texts", "--results"):
        words = ["export", str(home / "small"), "--out", str(out), option, str(out / "inside.jsonl")]
        assert "inside.jsonl, which it would replace; got" in refused(monkeypatch, capsys, *words)
    assert listing(tmp_path) | listing(home) == before


@pytest.mark.parametrize("step", ["checking", "measuring"])
def test_interrupted_it_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    pressed: list[str] = []

    def progress(_: object, stage: str, __: float) -> None:
        if stage == step and not pressed:  # once: what cleans up may tell of its progress too
            pressed.append(stage)
            raise KeyboardInterrupt  # as Python does where Ctrl-C is pressed

    monkeypatch.setattr("greenformers.cli._terminal.Steps.__call__", progress)
    out = tmp_path / "new" / "deep" / "out"
    words = ["export", str(home / "half"), "--out", str(out), "--formats", "program", "--lengths", "8"]
    assert run(monkeypatch, *words) not in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_texts_calibrate_and_judge(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = greenformers.load(home / "small")
    greenformers.compress(model, [greenformers.changes.Int8()])
    greenformers.save(model, tmp_path / "int8", tokenizer=tokenizer("bert"))
    rows = [f"w{at % 40} w{at * 7 % 40} w{at * 3 % 40}\t{at % 2}" for at in range(40)]
    (tmp_path / "texts.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    words = [
        "export",
        str(tmp_path / "int8"),
        "--out",
        str(tmp_path / "out"),
        "--lengths",
        "",
        "--formats",
        "onnx,torch",
    ]
    message = refused(monkeypatch, capsys, *words)
    assert "onnx run int8 layers in integers by ranges of their inputs" in message
    texts = ["--texts", str(tmp_path / "texts.tsv"), "--length", "12"]
    assert run(monkeypatch, *words, *texts) == 0
    assert "Accuracy" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text()
    assert "nan" not in card
    assert "Int8 layers have the ranges of single texts" in card
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["truncation"] is None
    before = listing(tmp_path)
    plain = measure.judged

    def lost(*given: Any) -> list[Record]:
        """As if the file were right half as often."""
        return [
            replace(record, value=record.value / (2 if record.variant == "ONNX Runtime" else 1))
            for record in plain(*given)
        ]

    monkeypatch.setattr(import_module("greenformers.export.deploy"), "judged", lost)
    message = refused(monkeypatch, capsys, *words, *texts, "--loss", "5")
    assert message.endswith(
        "ONNX Runtime loses 50 % of the model's accuracy, more than the 5 % of --loss: nothing was written"
    )
    assert listing(tmp_path) == before
