"""`greenformers compress` with other changes than low rank: attention, layers, int8, healing, one after the other."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from command_line import refused, refused_unchanged, run
from models import sentences
from safetensors.torch import load_file
from transformers import AutoTokenizer
from zoo import difference, inputs, outputs

import greenformers
from greenformers.changes import Heal, Int8, LowRank, _healing
from greenformers.changes._attention_interface import swapped
from greenformers.changes._recipe import RECIPE, read_recipe
from greenformers.checkpoint.structure import structure
from greenformers.compress.job import Job
from greenformers.measure.record import read
from greenformers.model.positions import reach

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
HEAL = ["--heal", "3", "--heal-batch", "8"]


def compress(home: Path, out: Path, *more: str, model: str = "BertModel", lengths: str = "") -> list[str]:
    given = ["compress", str(home / model), "--out", str(out), "--lengths", lengths, "--country", "HKG"]
    return [*given, *(() if "--length" in more else ("--length", "16")), *more]


def columns(out: Path) -> list[str]:
    """Of the table on the card."""
    (line,) = [line for line in (out / "README.md").read_text().splitlines() if line.startswith("| | setting | ")]
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_a_model_longer_and_healed(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out, results = tmp_path / "out", tmp_path / "results.jsonl"
    window = ["--attention", "sliding_window", "--attention-layers", "0-1", "--attention-option", "window=4"]
    window += ["--attention-length", "60"]
    more = ["--length", "60", "--results", str(results), *HEAL, "--heal-rate", "1e-5"]
    (tmp_path / "more.txt").write_text("\n".join(sentences(60, seed=5)))
    more += ["--heal-texts", str(tmp_path / "more.txt"), "--evaluate", str(home / "pairs.tsv")]
    assert run(monkeypatch, *compress(home, out, *window, *more, lengths="50")) == 0
    shown = capsys.readouterr().out
    said = ["attention: 2 of 2 attentions are sliding_window", "heal: 3 steps of 8 examples", "original", "Spearman"]
    for text in [*said, "Inference latency", f"model:  {out}", f"report: {out / 'report' / 'index.html'}"]:
        assert text in shown, text
    assert sorted(path.name for path in out.parent.iterdir()) == ["more.txt", "out", "results.jsonl"]
    names = ["original", "sliding_window", "sliding_window + healed 3"]
    assert columns(out) == names
    card, page = (out / "README.md").read_text(), (out / "report" / "index.html").read_text()
    assert "60 to learn from (`more.txt`), 30 to judge by (`pairs.tsv`)." in card
    assert "`encoder.layer.0.attention.self` | sliding_window" in card
    assert "`attention`: Another attention" in card
    assert names[-1] in page
    records = read(results)
    assert {record.variant for record in records} == set(names)
    assert {record.variant for record in records if record.metric == "latency"} == set(names[:2])
    model = greenformers.load(out)
    assert [place.options for _, place, _ in swapped(model)] == [{"window": 4}] * 2
    assert reach(model) == 60
    assert outputs(model, inputs("bert", length=60))[0].isfinite().all()
    assert AutoTokenizer.from_pretrained(out).model_max_length == 60
    plain = tmp_path / "plain"
    typed = ["--change", "attention sliding_window window=4 layers=0-1 length=60"]
    assert run(monkeypatch, *compress(home, plain, *typed)) == 0
    assert read_recipe(plain / RECIPE) == read_recipe(out / RECIPE)[:1]
    assert difference(outputs(model, inputs("bert")), outputs(greenformers.load(plain), inputs("bert"))) > 1e-6


def test_one_file_of_texts_is_enough(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    """A language model gets another attention and heals, is judged, and writes; its texts are split."""
    words = ["--attention", "linear_transformer", "--attention-layers", "1", "--heal", "2", "--heal-batch", "2"]
    words += ["--keep", "0.6", "--texts", str(home / "texts.txt")]
    assert run(monkeypatch, *compress(home, tmp_path / "out", *words, model="GPT2LMHeadModel")) == 0
    assert "attention: 1 of 2 attentions are linear_transformer" in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text()
    parts = re.search(r"Texts: (\d+) to judge by .*, (\d+) to calibrate with .*, (\d+) to learn from", card)
    parts = parts or re.search(r"Texts: (\d+) to .*, (\d+) to .*, (\d+) to .* \(`texts\.txt`\)", card)
    assert parts
    assert sorted(map(int, parts.groups())) == [12, 12, 36]
    assert "drawn by seed 0, disjoint" in card
    assert "`transformer.h.1.attn` | linear_transformer" in card
    model, ids = greenformers.load(tmp_path / "out"), inputs("gpt2")["input_ids"]
    more = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
    assert model.generate(ids, **more).equal(model.generate(ids, **more, use_cache=False))


def test_low_rank_and_int8_and_nothing_after_it(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    out = tmp_path / "out"
    words = ["--int8", "--keep", "0.5", "--evaluate", str(home / "pairs.tsv")]
    assert run(monkeypatch, *compress(home, out, *words)) == 0
    assert columns(out) == ["original", "low rank 0.5", "low rank 0.5 + int8"]
    assert "low rank 0.5 + int8" in capsys.readouterr().out
    card = (out / "README.md").read_text()
    assert "`int8`: Int8 weights of linear layers, experts and embeddings" in card
    assert structure(greenformers.load(out)).order == ["low_rank", "int8"]
    assert read_recipe(out / RECIPE) == [LowRank(keep=0.5), Int8()]
    assert "low rank 0.5 + int8" in (out / "report" / "index.html").read_text()
    for words, message in [
        (["--int8"], "int8 cannot follow int8"),
        ([], "low_rank cannot follow int8, which leaves rounded weights: put low_rank before it"),
        ([*HEAL, "--texts", str(home / "texts.txt")], "heal cannot follow int8"),
    ]:
        assert message in refused(monkeypatch, capsys, *compress(tmp_path, tmp_path / "again", *words, model="out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_healed_for_int8(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    more = ["--int8", "--heal-aware", *HEAL, "--texts", str(home / "texts.txt")]
    assert run(monkeypatch, *compress(home, tmp_path / "out", *more, model="BertForMaskedLM")) == 0
    assert columns(tmp_path / "out") == ["original", "healed 3", "healed 3 + int8"]
    model = greenformers.load(tmp_path / "out")
    assert structure(model).order == ["int8"]
    assert not any("parametrizations" in name for name in model.state_dict())
    assert read_recipe(tmp_path / "out" / RECIPE) == [Heal(3, batch_size=8, aware=True), Int8()]
    words = compress(home, tmp_path / "none", "--heal-aware", *HEAL, "--texts", str(home / "texts.txt"))
    assert "aware healing needs a later change" in refused(monkeypatch, capsys, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_fewer_layers_healed(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out = tmp_path / "out"
    more = [*HEAL, "--heal-texts", str(home / "texts.txt"), "--evaluate", str(home / "pairs.tsv")]
    assert run(monkeypatch, *compress(home, out, "--keep-layers", "1", *more)) == 0
    assert columns(out) == ["original", "1 layer", "1 layer + healed 3"]
    model = greenformers.load(out)
    assert structure(model).changes == {"layers": {"encoder.layer": [0]}}
    assert model.config.num_hidden_layers == 1
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    card = (out / "README.md").read_text()
    assert "layers 0 of 2 are left" in card
    assert "30 to judge by (`pairs.tsv`); 30 more to learn from are left out, as they are among those that" in card
    assert "3 steps of 8 examples" in card
    words = compress(home, tmp_path / "none", "--keep-layers", "2")
    assert "layers to keep must be in 1..1, of 2; got 2" in refused(monkeypatch, capsys, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_changed_model_learns_from_its_original(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    first = ["--attention", "linformer", "--attention-option", "k=4"]
    assert run(monkeypatch, *compress(home, tmp_path / "first", *first)) == 0
    more = ["--keep", "0.6", "--teacher", str(home / "BertModel"), *HEAL, "--texts", str(home / "texts.txt"), "--int8"]
    assert run(monkeypatch, *compress(tmp_path, tmp_path / "out", *more, model="first")) == 0
    names = ["low rank 0.6", "low rank 0.6 + healed 3", "low rank 0.6 + healed 3 + int8"]
    assert columns(tmp_path / "out") == ["original", *names]
    model = greenformers.load(tmp_path / "out")
    assert structure(model).order == ["attention", "low_rank", "int8"]
    assert all(place.name == "linformer" for _, place, _ in swapped(model))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "out"]


def test_a_healing_that_was_stopped_goes_on_with_the_same_command(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    class Signal(_healing._Progress):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    words = ["--keep", "0.5", "--heal", "6", "--heal-batch", "8", "--texts", str(home / "texts.txt"), "--int8"]
    assert run(monkeypatch, *compress(home, tmp_path / "whole", *words)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(_healing, "_Progress", Signal)
        assert run(patch, *compress(home, tmp_path / "parts", *words)) == 128 + signal.SIGTERM
    assert "stopped; the same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "parts").exists()
    (unfinished,) = tmp_path.glob("parts.unfinished-*")
    assert {path.name for path in unfinished.iterdir()} == {"step-0", "training-1"}
    more = [*words, "--measure"]  # which changes nothing of the work
    assert run(monkeypatch, *compress(home, tmp_path / "parts", *more)) == 0
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(tensor.equal(parts[name]) for name, tensor in whole.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]


WINDOW = "BertModel --attention sliding_window"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("BertModel --attention slidingwindow", "attention must be one of "),
        (f"{WINDOW} --attention-option widow=4", "sliding_window has no option 'widow', it has window, dilation"),
        (f"{WINDOW} --attention-option window", "attention_option must be name=value, got 'window'"),
        (f"{WINDOW} --attention-option window=0", "window must be"),
        (f"{WINDOW} --attention-option window=wide", "sliding_window: window must be a whole number, got 'wide'"),
        ("BertModel --attention performer --attention-option features=1.5", "must be a whole number or none, got 1.5"),
        (f"{WINDOW} --attention-layers 0-2", "layers must be in 0..1, got 2"),
        (f"{WINDOW} --attention-layers first", "layers must be a whole number, got 'first'"),
        (f"{WINDOW} --attention-layers 1-0", "no layer is chosen"),
        (f"{WINDOW} --attention-layers ,", "no layer is chosen"),
        (f"{WINDOW} --attention-select decoder.*", "the selection 'decoder.*' matches none of"),
        (f"{WINDOW} --attention-length 0", "length must be at least 1, got 0"),
        (f"{WINDOW} --lengths 50", "lengths must be at most 40, the longest input; got 50"),
        (f"{WINDOW} --country NOWHERE --lengths 8", "NOWHERE"),
        ("BertModel --attention routing", "has a loss of its own"),
        ("GPT2LMHeadModel --attention linformer", "linformer has no causal form"),
        ("t5 --attention full --attention-length 40", "position bias|its mask is a bias|of its own"),
        ("vit --attention full", "names no longest input: give a length"),
        ("t5 --keep-layers 1", "has no stack of layers of which some could be kept"),
        ("BertModel --change int8:3", "a change must be one of .*; got 'int8:3'"),
        ("BertModel --heal 3", "healed 3 needs examples to learn from (--texts or --heal-texts)"),
        ("BertModel --heal 6 --heal-texts one.txt", "healing needs at least 2 examples, got 1"),
        ("BertModel --heal 0 --heal-texts texts.txt", "steps must be at least 1, got 0"),
        ("BertModel --heal 6 --heal-batch 500 --heal-texts texts.txt", "batch must be at most 57, the training "),
        ("BertModel --heal 6 --heal-rate 0 --heal-texts texts.txt", "learning_rate must be above 0 and finite, got 0"),
        ("BertModel --heal 6 --heal-batch 8 --heal-texts texts.txt --teacher GPT2LMHeadModel",
         "a BertModel cannot learn from this GPT2LMHeadModel: of one example the "),
        ("BertModel --keep 0.5 --solver svd --calibrate texts.txt", "--calibrate is of no use"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line(
    words: str, message: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    lengths = [] if "--lengths" in words else ["--lengths", ""]
    line = ["compress", *words.split(), *lengths, "--length", "16", "--out", str(tmp_path / "out")]
    said = refused_unchanged(monkeypatch, capsys, home, tmp_path, *line)
    assert message in said or re.search(message, said), said


def test_labels_outside_the_classes_are_refused(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    table = home / "ninth.tsv"
    table.write_text((home / "labelled.tsv").read_text().replace("\t1\n", "\t9\n"))
    line = ["compress", "BertForSequenceClassification", "--keep", "0.5", "--evaluate", "ninth.tsv"]
    said = refused_unchanged(monkeypatch, capsys, home, tmp_path, *line, "--out", str(tmp_path / "out"))
    assert "ninth.tsv: labels must be in 0..1, the classes of the model; got 9" in said
    table.unlink()


@pytest.mark.parametrize(
    ("out", "message"), [("deep/er/out", "deep/er is no folder: make it"), ("/proc/out", "written")]
)
def test_a_place_that_cannot_be_written_is_refused_first(
    out: str, message: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    line = ["compress", "BertModel", "--keep", "0.5", "--out", out if out.startswith("/") else str(tmp_path / out)]
    assert message in refused_unchanged(monkeypatch, capsys, home, tmp_path, *line)


def test_a_length_given_twice_is_measured_once() -> None:
    assert Job(lengths=(16, 8, 16)).at(40) == (40, (16, 8))
