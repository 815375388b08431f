"""Advice for a trained model: what is tried, measured and chosen, how it is said, and `recommend --model`."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command_line import listing, refused_unchanged, run
from models import folder, labelled, pairs, sentences, tokenizer
from transformers import PreTrainedModel
from zoo import network

import greenformers
from greenformers.advise.checkpoint import (
    Advice,
    Change,
    Measured,
    Setting,
    advise,
    changes,
    eight_bits,
    halves,
    made,
    usual,
)
from greenformers.changes._attention_interface import swapped
from greenformers.changes.int8 import is_quantised
from greenformers.checkpoint.structure import ranks_of, structure
from greenformers.data._texts import Texts, batches, read_texts
from greenformers.measure.record import METRICS, Record, read, with_ratios
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import compress

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

PLAIN = Texts("plain.txt", [(line,) for line in sentences(60)])
DENSE, INT8, HALF = Change(), Change(int8=True), Change(keep=0.5)
WINDOW = Change("sliding_window", {"window": 8})
ALL = Change("sliding_window", {"window": 8}, 0.5, True)
SHORT = ["as it is", "int8", "low rank 0.75", "low rank 0.5", "low rank 0.5 + int8"]
SETTING, LONG = Setting(16, 2), "--length 16 --lengths 16"
LOW = "--keep 0.5 --solver activation --calibrate 'a b.tsv'"
MODEL, TEXTS = "--model BertModel", "--texts pairs.tsv"
BOTH = f"{MODEL} {TEXTS}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts, that no command changes."""
    root = tmp_path_factory.mktemp("home")
    folder(root, "bert", "BertModel")
    for part in (eight_bits(network("bert", "BertModel")), tokenizer("bert")):
        part.save_pretrained(root / "eight")
    network("bert", "BertModel").save_pretrained(root / "bare")
    pairs(root / "pairs.tsv", 40)
    labelled(root / "labelled.tsv")
    (root / "few.txt").write_text("bar dor\n" * 7)
    return root


@pytest.fixture(autouse=True)
def swift(monkeypatch: Patch) -> None:
    monkeypatch.setattr("greenformers.measure.energy_of.SECONDS", 0.01)
    monkeypatch.setattr("greenformers.compress.quality.RESAMPLES", 50)


def strong(name: str, cls: str, **more: Any) -> PreTrainedModel:
    """One that tells texts apart."""
    model = network(name, cls, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    return model


def advised(model: PreTrainedModel, texts: Texts = PLAIN, name: str = "bert", **more: Any) -> Advice:
    return advise(model, tokenizer(name), texts, **{"batch": 2, "country": "HKG", "about": {"seed": 7}, **more})


def check(advice: Advice, metric: str, names: Sequence[str], impossible: Sequence[str] = ()) -> dict[str, Measured]:
    """What holds of all advice. Its rows, by name."""
    rows, possible = {row.change.name: row for row in advice.rows}, advice.rows[: len(names)]
    assert advice.metric == metric
    assert {row.change.name for row in possible if row.refused is None} == set(names)
    assert possible == sorted(possible, key=lambda row: row.milliseconds)
    assert [row.change.name for row in advice.rows[len(names) :]] == list(impossible)
    dense = rows["as it is"]
    assert (dense.kept, dense.speed, dense.smaller, dense.interval) == (1.0, 1.0, 1.0, None)
    for row in possible:
        assert row.speed == pytest.approx(dense.milliseconds / row.milliseconds)
        assert row.smaller == pytest.approx(dense.mib / row.mib)
        assert row.co2 > 0
    assert rows["int8"].smaller > 2
    assert {(record.benchmark, record.variant) for record in advice.records} == {("advice", name) for name in names}
    assert all(record.context == {"seed": 7} for record in advice.records)
    return rows


@pytest.mark.parametrize(("causal", "other"), [(False, "linformer"), (True, "linear_transformer")])
def test_of_long_texts_a_quarter_is_seen(causal: bool, other: str) -> None:
    short = changes(255, causal)
    assert [change.name for change in short] == SHORT
    for length in (256, 1000):
        found = changes(length, causal)
        window, another, both = found[len(SHORT) :]
        assert found[: len(SHORT)] == short
        assert (window.name, another.name) == ("sliding_window", other)
        assert both == Change("sliding_window", window.options, 0.5, True)
        assert window.options["window"] * (1 if causal else 2) == length // 4  # to the left, or on both sides
        assert another.options == ({} if causal else {"k": length // 4})
        assert len({change.name for change in found}) == len(found)


@pytest.mark.parametrize(
    ("change", "name", "lines"),
    [
        (DENSE, "as it is", []),
        (INT8, "int8", [f"compress 'my model' --int8 {LONG}@% --out small"]),
        (HALF, "low rank 0.5", [f"compress 'my model' {LOW} {LONG}@ --out small"]),
        (Change("bigbird", {"window": 3, "chosen": 2}), "bigbird",
         ["swap 'my model' --attention bigbird --option window=3 --option chosen=2# --lengths 16@ --out small"]),
        (ALL, "sliding_window + low rank 0.5 + int8",
         ["swap 'my model' --attention sliding_window --option window=8# --lengths 16 --out swapped",
          f"compress swapped --teacher 'my model' {LOW} --int8 {LONG}@% --out small"]),
    ],
)  # fmt: skip
def test_names_and_command_lines(change: Change, name: str, lines: list[str]) -> None:
    """@ stands where healing does, in the last command, % where it knows of 8 bits, # where positions go on."""
    assert change.name == name
    learnt = " --heal 300 --heal-texts 'a b.tsv'"
    for at, heal, longer in (
        (SETTING, "", ""), (SETTING, learnt, ""), (Setting(16, 2, longer=True), "", " --length 16"),
        (Setting(16, 2, rows=19), f"{learnt} --heal-batch 19", ""),
    ):  # fmt: skip
        aware = " --int8-aware" if heal else ""
        filled = [line.replace("@", heal).replace("#", longer).replace("%", aware) for line in lines]
        expected = [f"greenformers {line}" for line in filled]
        assert change.commands("my model", "a b.tsv", at, bool(heal)) == expected


def test_the_commands_run(tmp_path: Path, monkeypatch: Patch) -> None:
    for part in (strong("bert", "BertModel"), tokenizer("bert")):
        part.save_pretrained(tmp_path / "my model")
    pairs(tmp_path / "my texts.tsv", 40)
    for change, healed in ((ALL, False), (ALL, True), (WINDOW, True), (INT8, True), (HALF, False)):
        (work := tmp_path / f"{change.name}, {healed}").mkdir()
        monkeypatch.chdir(work)
        for line in change.commands("../my model", "../my texts.tsv", Setting(16, 2, rows=19), healed):
            typed = shlex.split(line.replace("--heal 300", "--heal 2"))
            assert run(monkeypatch, *typed[1:]) == 0
        found = structure(small := greenformers.load("small"))
        assert (bool(found.ranks), bool(found.int8)) == (change.keep is not None, change.int8)
        there = [(made.name, made.options) for _, made, _ in swapped(small)]
        assert there == [("sliding_window", {"window": 8})] * (2 if change.attention else 0)


@pytest.mark.parametrize(("count", "limit"), [(8, 200), (31, 200), (1000, 10), (801, 200), (799, 200), (20, 1)])
def test_every_other_example_judges(count: int, limit: int) -> None:
    whole = Texts("t.tsv", [(f"a{n}", f"b{n}") for n in range(count)], [float(n) for n in range(count)])
    seen, judged = halves(whole, limit)
    a, b = (half.labels or [] for half in (seen, judged))
    for half, labels in ((seen, a), (judged, b)):
        assert half.name == "t.tsv"
        assert half.segments == [(f"a{label:g}", f"b{label:g}") for label in labels]
        assert min(count // 2, limit) <= len(labels) <= limit
    assert not set(a) & set(b)
    assert all(x < y for x, y in zip(a, b, strict=False))
    assert all(y < x for x, y in zip(a[1:], b, strict=False))
    assert limit == 1 or max(b) >= 0.9 * (count - 1)
    assert halves(Texts("t.tsv", whole.segments), limit) == (replace(seen, labels=None), replace(judged, labels=None))
    with pytest.raises(ValueError, match=r"^t\.txt has 7 examples; at least 8 are needed, half of them to judge by$"):
        halves(Texts("t.txt", whole.segments[:7]), limit)


def test_the_usual_length() -> None:
    bert, words_ = network("bert", "BertModel"), tokenizer("bert")
    short, long = ("bar bas bat",), (" ".join(["bar"] * 60),)
    assert usual(Texts("", [short] * 39 + [long]), words_, bert) == 3 + 2  # with what the tokenizer adds
    assert usual(Texts("", [short] * 30 + [long] * 10), words_, bert) == 40
    assert usual(Texts("", [long] * 8), words_, network("bert", "BertModel", max_position_embeddings=100)) == 62
    for positions, expected in ((40, 40), (600, 512)):
        assert usual(PLAIN, tokenizer("gpt2"), network("gpt2", n_positions=positions)) == expected


def test_a_model_is_changed_in_a_copy() -> None:
    model = strong("bert", "BertModel")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    calibration = batches(PLAIN.lines, tokenizer("bert"), "encoder", 11)
    small = made(model, ALL, calibration, 11)
    assert is_quantised(small)
    assert ranks_of(small)
    assert [found.name for _, found, _ in swapped(small)] == ["sliding_window"] * 2
    low = made(model, HALF, calibration, 11)
    assert not is_quantised(low)
    assert is_quantised(eight_bits(low))
    assert not is_quantised(low)
    assert is_quantised(made(model, INT8, [], 11))
    for change in (HALF, Change(keep=0.75, int8=True)):
        with pytest.raises(ValueError, match=r"^its maps are low rank already$"):
            made(low, change, calibration, 11)
    with pytest.raises(ValueError, match="linformer has no causal form"):
        made(network("gpt2"), Change("linformer", {"k": 4}), [], 11)
    assert structure(model).empty
    assert [name for name, tensor in model.state_dict().items() if not tensor.equal(before.pop(name))] == []
    assert before == {}


def test_an_encoder_and_pairs(home: Path) -> None:
    model, steps = strong("bert", "BertModel"), set()
    texts = read_texts(home / "pairs.tsv")
    advice = advised(model, texts, limit=15, progress=lambda what, share: steps.add((what, share)))
    rows = check(advice, "spearman", SHORT)
    assert rows["as it is"].mib > rows["low rank 0.75"].mib > rows["low rank 0.5"].mib > rows["int8"].mib
    assert rows["low rank 0.5 + int8"].mib == min(row.mib for row in advice.rows)
    for row in advice.rows:
        assert row.kept == pytest.approx(row.quality / rows["as it is"].quality)
        assert (row.interval is None) == (row.change == DENSE)
    assert advice.setting.length == usual(texts, tokenizer("bert"), model)
    assert [r.setting for r in advice.records if r.metric == "latency"] == [
        {"length": advice.setting.length, "batch": 2}
    ] * 5
    assert {("making", 1.0), ("judging", 1.0), ("measuring", 1.0)} <= steps
    assert structure(model).empty


def test_an_encoder_whose_attention_is_its_own() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 44}
    config = transformers.MPNetConfig(vocab_size=53, max_position_embeddings=260, **sizes)
    advice = advised(transformers.MPNetModel(config).eval(), length=256)
    check(advice, "cosine", SHORT, ["sliding_window", "linformer", ALL.name])
    assert all("attention of its own" in str(row.refused) for row in advice.rows[len(SHORT) :])
    assert advice.setting.length == 256


def test_a_language_model_of_long_texts() -> None:
    texts = Texts("long.txt", [(line,) for line in sentences(200)])
    advice = advised(strong("gpt2", "GPT2LMHeadModel", n_positions=256), texts, "gpt2")
    rows = check(advice, "perplexity", [change.name for change in changes(256, True)])
    assert advice.setting.length == 256
    for row in advice.rows:
        assert row.kept == pytest.approx(rows["as it is"].quality / row.quality)  # less is better
        assert row.interval is None


def test_a_classifier_that_is_low_rank_already(home: Path) -> None:
    model = strong("bert", "BertForSequenceClassification")
    compress(model, Budget(0.5))
    advice = advised(model, read_texts(home / "labelled.tsv"))
    rows = check(advice, "accuracy", SHORT[:2], SHORT[2:])
    assert {row.refused for row in advice.rows[2:]} == {"its maps are low rank already"}
    assert rows["int8"].interval is not None


def test_rows_are_worked_out_of_records(monkeypatch: Patch) -> None:
    times = {"as it is": 8.0, "int8": 4.0, "low rank 0.75": 16.0, "low rank 0.5": 2.0, "low rank 0.5 + int8": 1.0}
    asked: dict[str, Any] = {}
    values = {"latency": 1.0, "size": 3.0, "energy_inference": 0.5, "cosine": 1 / 16}

    def fake(models: dict[str, Any], texts: Texts, _: Any, **given: Any) -> list[Record]:
        asked.update(given, models=models, texts=texts)
        all_ = [(name, metric, factor * times[name]) for name in models for metric, factor in values.items()]
        found = [Record("advice", name, {}, metric, value, METRICS[metric].unit) for name, metric, value in all_]
        return with_ratios(found, to="as it is")

    monkeypatch.setattr("greenformers.advise.checkpoint.compared", fake)
    monkeypatch.setattr("greenformers.advise.checkpoint.grid_intensity", {"FRA": 60.0}.__getitem__)
    advice = advised(strong("bert", "BertModel"), length=9, batch=5, limit=12, country="FRA")
    wanted = {"length": 9, "lengths": [9], "batch": 5, "country": "FRA", "benchmark": "advice"}
    assert {name: asked[name] for name in wanted} == wanted
    assert asked["texts"] == halves(PLAIN, 12)[1]
    assert [name for name, model in asked["models"].items() if is_quantised(model)] == ["int8", "low rank 0.5 + int8"]
    assert [name for name, model in asked["models"].items() if ranks_of(model)] == SHORT[2:]
    assert [row.change.name for row in advice.rows] == sorted(times, key=lambda name: times[name])
    # 0.5 mWh a millisecond, 5 texts: 0.4 kWh a million texts, of 60 g each.
    assert advice.rows[2] == Measured(INT8, 4.0, 2.0, 2.0, 0.5, 0.25, None, 12.0, pytest.approx(0.024))


def test_beyond_the_positions_of_a_rotary_model() -> None:
    advice = advised(
        strong("llama", "LlamaForCausalLM"), Texts("t", [(line,) for line in sentences(200)]), "gpt2", length=256
    )
    check(advice, "perplexity", [change.name for change in changes(256, True)])
    assert advice.setting == Setting(256, 2, longer=True, rows=advice.setting.rows)
    assert advice.setting.rows < 64


def test_a_model_that_does_no_good_has_no_quality_to_keep(monkeypatch: Patch) -> None:
    monkeypatch.setattr("greenformers.compress.quality._spearman", lambda *_: -0.2)
    texts = Texts("t.tsv", [(line, line) for line in sentences(8)], [float(place) for place in range(8)])
    with pytest.raises(
        ValueError, match=r"^t.tsv cannot judge changes: the model as it is has a spearman of -20 on it$"
    ):
        advised(network("bert", "BertModel"), texts)


def test_texts_that_cannot_judge(home: Path) -> None:
    labels, scores = read_texts(home / "labelled.tsv"), read_texts(home / "pairs.tsv")
    for name, cls, texts, message in [
        ("bert", "BertModel", labels, "an encoder is judged by plain text or by pairs"),
        ("gpt2", "GPT2LMHeadModel", labels, "a language model is judged by plain text"),
        ("bert", "BertForSequenceClassification", scores, "a classifier is judged by a table"),
        ("gpt2", "GPT2LMHeadModel", Texts("t", [("bar",)] * 8), "one block of 40 is needed"),
        ("t5", "T5ForConditionalGeneration", PLAIN, "texts can calibrate and judge encoders"),
    ]:
        with pytest.raises(ValueError, match=message):
            advised(network(name, cls), texts, name)


def test_recommend_for_a_model(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    before = listing(home)
    monkeypatch.chdir(tmp_path)
    given = ["recommend", "--model", str(home / "BertModel"), "--texts", str(home / "pairs.tsv"), "--batch", "2"]
    assert run(monkeypatch, *given, "--country", "HKG", "--limit", "10", "--results", "results.jsonl") == 0
    shown = capsys.readouterr().out
    for text in ("BertModel: 2 x 11 tokens", "Spearman's", "CO2, kg", "Measured on this machine", *SHORT):
        assert text in shown, text
    assert re.search(r"^(Advice: (int8|low rank)|None that keeps 97 % of the quality)", shown, re.MULTILINE)
    assert listing(home) == before
    assert list(listing(tmp_path)) == ["results.jsonl"]
    found = read("results.jsonl")
    assert {(record.benchmark, record.variant) for record in found} == {("advice", name) for name in SHORT}
    assert found[0].context["command"].startswith("greenformers recommend --model BertModel --texts pairs.tsv")

    losses: list[float] = []
    monkeypatch.setattr(Advice, "chosen", lambda self, loss: losses.append(loss) or self.rows[0])
    assert run(monkeypatch, *given, "--length", "9", "--loss", "7.5", "--results", "results.jsonl") == 0
    assert losses == [0.075]
    assert re.search(r"^(Advice: |None that keeps 92.5 % )", capsys.readouterr().out, re.MULTILINE)
    assert {record.setting["length"] for record in read("results.jsonl") if record.metric == "flops"} == {9, 11}
    assert len(read("results.jsonl")) == 2 * len(found)  # added


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name a length with --length, or a trained model with --model and --texts"),
        (MODEL, "--model needs --texts"), (TEXTS, "--texts goes with --model"),
        ("--length 64 --loss 3", "--loss goes with --model"), (f"{BOTH} --hidden 768", "--hidden goes without --model"),
        (f"{BOTH} --feed-forward 8", "--feed-forward goes without --model"),
        (f"{BOTH} --loss 100", "loss must be in 0..100, got 100"), (f"{BOTH} --loss -1", "0..100, got -1"),
        (f"{BOTH} --batch 0", "batch must be at least 1, got 0"), (f"{BOTH} --limit 0", "limit must be at least 1"),
        (f"{BOTH} --length 0", "length must be at least 1"), (f"{BOTH} --length 41", "cannot be run on 41 tokens"),
        (f"{BOTH} --country XXX", "country must be a 3-letter ISO code"), (f"{BOTH} --results .", "Is a directory"),
        (f"{MODEL} --texts nowhere.txt", "nowhere.txt"), (f"{MODEL} --texts few.txt", "few.txt has 7 examples"),
        (f"{MODEL} --texts labelled.tsv", "labelled.tsv: an encoder is judged by plain text or by pairs"),
        (f"--model ./nowhere {TEXTS}", "nowhere is not a folder with a model"),
        (f"--model bare {TEXTS}", "bare has no tokenizer"), (f"--model eight {TEXTS}", "is of 8 bits already"),
    ],
)  # fmt: skip
def test_refused_in_one_line(
    line: str, message: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    typed = line.split()
    if BOTH in line and "--results" not in line:
        typed += ["--results", str(tmp_path / "results.jsonl")]
    assert message in refused_unchanged(monkeypatch, capsys, home, tmp_path, "recommend", *typed)
