"""`greenformers compress --heal`, as a user meets it."""

import os
import signal
from pathlib import Path

import pytest
from command_line import refused, run
from models import folder, pairs, sentences
from safetensors.torch import load_file

import greenformers
from greenformers.changes import heal


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home")
    folder(root, "bert", "BertModel")
    (root / "texts.txt").write_text("\n".join(sentences(60)) + "\n")
    (root / "one.txt").write_text("one text\n")
    pairs(root / "pairs.tsv")
    return root


def words(home: Path, out: Path, *more: str) -> list[str]:
    given = ["compress", str(home / "BertModel"), "--out", str(out), "--lengths", "", "--length", "16"]
    return [*given, "--heal", "6", "--heal-batch", "8", *more]


def test_the_healed_model_is_what_is_kept(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("greenformers.compress.quality.RESAMPLES", 100)
    texts = ["--heal-texts", str(home / "texts.txt")]
    out = tmp_path / "healed"
    assert run(monkeypatch, *words(home, out, *texts, "--evaluate", str(home / "pairs.tsv"))) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("dense", "low rank", "healed", "Spearman"))
    assert "| healed |" in (out / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["healed"]
    plain = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "plain"), "--lengths", ""]
    assert run(monkeypatch, *plain) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("healed", "plain"))
    assert one.keys() == other.keys()
    assert any(not tensor.equal(other[name]) for name, tensor in one.items())
    assert greenformers.load(out).config.model_type == "bert"


def test_a_healing_that_was_stopped_goes_on_with_the_same_command(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Signal(heal._Progress):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    texts = ["--calibrate", str(home / "texts.txt")]
    assert run(monkeypatch, *words(home, tmp_path / "whole", *texts)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(heal, "_Progress", Signal)
        assert run(patch, *words(home, tmp_path / "parts", *texts)) == 128 + signal.SIGTERM
    assert "stopped; the same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "parts").exists()
    assert len(list(tmp_path.glob("parts.healing-*"))) == 1
    assert run(monkeypatch, *words(home, tmp_path / "parts", *texts)) == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "healing needs texts: name a file with --heal-texts or --calibrate"),
        (["--heal-texts", "one.txt"], "healing needs at least 2 texts, got 1"),
        (["--heal-texts", "texts.txt", "--heal", "0"], "steps must be at least 1, got 0"),
        (
            ["--heal-texts", "texts.txt", "--heal-batch", "500"],
            "batch must be at most 57, the training examples, got 500",
        ),
        (["--heal-texts", "texts.txt", "--heal-rate", "0"], "learning_rate must be above 0, got 0.0"),
    ],
)
def test_what_cannot_be_healed_is_refused(
    more: list[str], message: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    more = [str(home / word) if word.endswith(".txt") else word for word in more]
    assert message in refused(monkeypatch, capsys, *words(home, tmp_path / "out", *more))
    assert list(tmp_path.iterdir()) == []
