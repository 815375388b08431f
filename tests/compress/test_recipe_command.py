"""`greenformers swap`, and what `compress` does beside low rank, as a user meets them."""

import json
import re
from pathlib import Path

import pytest
import torch
from command_line import refused, run
from models import folder, pairs, sentences
from transformers import AutoTokenizer
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes._attention_interface import swapped
from greenformers.checkpoint.structure import structure
from greenformers.measure.record import read
from greenformers.model.positions import reach

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home")
    for name, cls in [("bert", "BertModel"), ("bert", "BertForMaskedLM"), ("gpt2", "GPT2LMHeadModel")]:
        folder(root, name, cls)
    network("t5").save_pretrained(root / "t5")
    (root / "texts.txt").write_text("\n".join(sentences(60)) + "\n")
    pairs(root / "pairs.tsv")
    return root


@pytest.fixture(autouse=True)
def swift(monkeypatch: Patch) -> None:
    monkeypatch.setattr("greenformers.measure.energy_of.SECONDS", 0.01)
    monkeypatch.setattr("greenformers.compress.quality.RESAMPLES", 50)


def swap(home: Path, out: Path, attention: str, *more: str, model: str = "BertModel", lengths: str = "") -> list[str]:
    given = ["swap", str(home / model), "--out", str(out), "--attention", attention]
    return [*given, "--lengths", lengths, "--country", "HKG", *more]


def compress(home: Path, out: Path, *more: str, model: str = "BertModel") -> list[str]:
    return ["compress", str(home / model), "--out", str(out), "--lengths", "", "--length", "16", *more]


def columns(out: Path) -> list[str]:
    """Of the table on the card."""
    (line,) = [line for line in (out / "README.md").read_text().splitlines() if line.startswith("| | setting | ")]
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_a_model_longer_and_healed(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out, results = tmp_path / "deep" / "out", tmp_path / "results.jsonl"
    more = ["--layers", "0-1", "--option", "window=4", "--length", "60", "--results", str(results)]
    more += ["--heal", "3", "--heal-texts", str(home / "texts.txt"), "--heal-batch", "8", "--heal-rate", "1e-3"]
    more += ["--evaluate", str(home / "pairs.tsv")]
    assert run(monkeypatch, *swap(home, out, "sliding_window", *more, lengths="50")) == 0
    shown = capsys.readouterr().out
    said = ["2 of 2 attentions are sliding_window", "encoder.layer.1.attention.self", "original", "healed", "Spearman"]
    for text in [*said, "Inference latency", f"model:  {out}", f"report: {out / 'report' / 'index.html'}"]:
        assert text in shown, text
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert columns(out) == ["original", "sliding_window", "healed"]
    card, page = (out / "README.md").read_text(), (out / "report" / "index.html").read_text()
    assert "Made from `BertModel`: `sliding_window` in `encoder.layer.0.attention.self`, `encoder.layer.1." in card
    assert "another attention stands in the place of its own" in card
    assert "BertModel, sliding_window" in page
    assert "healed" in page
    found = read(results)
    assert {record.benchmark for record in found} == {"swap"}
    assert {record.variant for record in found} == {"original", "sliding_window", "healed"}
    model = greenformers.load(out)
    assert [made.options for _, made, _ in swapped(model)] == [{"window": 4}] * 2
    assert reach(model) == 60
    assert outputs(model, inputs("bert", length=60))[0].isfinite().all()
    assert AutoTokenizer.from_pretrained(out).model_max_length == 60
    plain = tmp_path / "plain"
    assert run(monkeypatch, *swap(home, plain, "sliding_window", "--option", "window=4", "--length", "60")) == 0
    assert difference(outputs(model, inputs("bert")), outputs(greenformers.load(plain), inputs("bert"))) > 1e-6


def test_a_language_model_is_judged_and_writes(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    more = ["--layers", "1", "--evaluate", str(home / "texts.txt"), "--heal", "2", "--heal-batch", "2"]
    more += ["--heal-texts", str(home / "texts.txt")]
    assert run(monkeypatch, *swap(home, tmp_path / "out", "linear_transformer", *more, model="GPT2LMHeadModel")) == 0
    assert "1 of 2 attentions are linear_transformer\n  transformer.h.1.attn" in capsys.readouterr().out
    model, ids = greenformers.load(tmp_path / "out"), inputs("gpt2")["input_ids"]
    more_ = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
    assert model.generate(ids, **more_).equal(model.generate(ids, **more_, use_cache=False))


@pytest.mark.parametrize(
    ("attention", "more", "message"),
    [
        ("slidingwindow", [], "attention must be one of "),
        ("sliding_window", ["--option", "widow=4"], "sliding_window: got an unexpected keyword argument 'widow'"),
        ("sliding_window", ["--option", "window"], "option must be name=value, got 'window'"),
        ("sliding_window", ["--option", "window=0"], "window must be"),
        ("sliding_window", ["--option", "window=wide"], "window"),
        ("sliding_window", ["--layers", "0-2"], "layers must be in 0..1, got 2"),
        ("sliding_window", ["--layers", "first"], "layers must be whole numbers from 0 on"),
        ("sliding_window", ["--layers", "1-0"], "layers must be whole numbers from 0 on"),
        ("sliding_window", ["--layers", ","], "layers must be whole numbers from 0 on"),
        ("sliding_window", ["--select", "decoder.*"], "the selection 'decoder.*' matches none of"),
        ("sliding_window", ["--length", "0"], "length must be at least 1, got 0"),
        ("sliding_window", ["--lengths", "50"], "lengths must be at most 40, the longest input; got 50"),
        ("sliding_window", ["--heal", "3"], "healing needs both a number of steps and texts"),
        ("sliding_window", ["--heal-texts", "nowhere.txt"], "healing needs both a number of steps and texts"),
        ("sliding_window", ["--teacher", "/nowhere"], "/nowhere is not a folder with a model"),
        ("routing", [], "has a loss of its own"),
        ("full", ["--country", "NOWHERE", "--lengths", "8"], "NOWHERE"),
    ],
)
def test_mistyped_words_are_refused_in_one_line(
    attention: str, more: list[str], message: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    words = swap(home, tmp_path / "out", attention, *more)
    assert message in refused(monkeypatch, capsys, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "attention", "message"),
    [
        ("GPT2LMHeadModel", "linformer", "linformer has no causal form"),
        ("t5", "full", "position bias|its mask is a bias|names no longest input"),
        ("nowhere", "full", "nowhere is not a folder with a model"),
    ],
)
def test_models_that_cannot_are_refused(
    model: str, attention: str, message: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert re.search(message, refused(monkeypatch, capsys, *swap(home, tmp_path / "out", attention, model=model)))
    assert list(tmp_path.iterdir()) == []


def test_8_bits_of_every_kind(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, *compress(home, out, "--int8", "--keep", "0.5", "--evaluate", str(home / "pairs.tsv"))) == 0
    assert columns(out) == ["dense", "low rank", "int8", "low rank, int8"]
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("dense", "int8", "low rank"))
    assert "weights of 8 bits" in (out / "README.md").read_text()
    found = structure(greenformers.load(out))
    assert found.ranks
    assert found.int8
    assert "low rank, int8" in (out / "report" / "index.html").read_text()
    assert "compressed already" in refused(
        monkeypatch, capsys, "compress", str(out), "--out", str(tmp_path / "again"), "--int8", "--lengths", ""
    )
    message = refused(monkeypatch, capsys, *swap(tmp_path, tmp_path / "again", "full", model="out"))
    assert "is of 8 bits: swap its attention first, then quantise" in message
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_8_bits_alone_and_healed_for_them(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert run(monkeypatch, *compress(home, tmp_path / "one", "--int8", model="BertForMaskedLM")) == 0
    assert columns(tmp_path / "one") == ["dense", "int8"]
    assert structure(greenformers.load(tmp_path / "one")).ranks == {}
    taught = ["--heal", "3", "--heal-batch", "8", "--heal-texts", str(home / "texts.txt")]
    more = ["--int8", "--int8-aware", *taught, "--evaluate", str(home / "texts.txt")]
    assert run(monkeypatch, *compress(home, tmp_path / "two", *more, model="BertForMaskedLM")) == 0
    assert columns(tmp_path / "two") == ["dense", "healed", "int8", "healed, int8"]
    model = greenformers.load(tmp_path / "two")
    assert structure(model).int8
    assert not any("parametrizations" in name for name in model.state_dict())
    words = compress(home, tmp_path / "three", "--int8-aware", *taught)
    assert "healing that is aware of 8 bits goes with --int8" in refused(monkeypatch, capsys, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_fewer_layers_healed(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out = tmp_path / "out"
    more = ["--heal", "3", "--heal-batch", "8", "--heal-texts", str(home / "texts.txt")]
    more += ["--evaluate", str(home / "pairs.tsv")]
    assert run(monkeypatch, *compress(home, out, "--keep-layers", "1", *more)) == 0
    assert columns(out) == ["dense", "fewer layers", "healed"]
    model = greenformers.load(out)
    assert structure(model).layers == [0]
    assert structure(model).ranks == {}
    assert model.config.num_hidden_layers == 1
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    card = (out / "README.md").read_text()
    assert "1 layers kept; healed for 3 steps" in card
    assert "of the layers 0 are left" in card
    words = compress(home, tmp_path / "none", "--keep-layers", "2")
    assert "layers to keep must be in 1..1, of 2; got 2" in refused(monkeypatch, capsys, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_swapped_model_learns_from_its_original(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    assert run(monkeypatch, *swap(home, tmp_path / "swapped", "linformer", "--option", "k=4")) == 0
    more = ["--keep", "0.6", "--teacher", str(home / "BertModel"), "--heal", "3", "--heal-batch", "8"]
    more += ["--heal-texts", str(home / "texts.txt"), "--int8"]
    assert run(monkeypatch, *compress(tmp_path, tmp_path / "out", *more, model="swapped")) == 0
    assert columns(tmp_path / "out") == ["dense", "low rank", "healed", "int8", "low rank, int8", "healed, int8"]
    model = greenformers.load(tmp_path / "out")
    found = structure(model)
    assert found.attention
    assert found.int8
    assert found.ranks
    assert all(made.name == "linformer" for _, made, _ in swapped(model))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "swapped"]
