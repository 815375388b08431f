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
from greenformers._torch import has_vnni
from greenformers.advise.checkpoint import (
    Advice,
    Measured,
    Recipe,
    Setting,
    advise,
    changed_copy,
    command,
    halves,
    healed,
    name_of,
    recipes,
    usual,
)
from greenformers.changes import Attention, Given, Int8, LowRank
from greenformers.changes._attention_interface import swapped
from greenformers.changes._int8 import int8_of
from greenformers.changes._units import ranks_of
from greenformers.checkpoint.structure import structure
from greenformers.compress import quality
from greenformers.data._texts import Texts, batches, read_texts
from greenformers.measure.record import METRICS, Record, read, with_ratios
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import factorise

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

PLAIN = Texts("plain.txt", [(line,) for line in sentences(60)])
DENSE: Recipe = ()
INT8: Recipe = (Int8(),)
HALF: Recipe = (LowRank(keep=0.5),)
WINDOW: Recipe = (Attention("sliding_window", options={"window": 8}),)
ALL: Recipe = (*WINDOW, *HALF, *INT8)
DENSE_NAME = "as it is"
LAYERS = "half the layers by influence"
SHORT = [DENSE_NAME, "int8", LAYERS, "low rank 0.75", "low rank 0.5", "low rank 0.5 + int8", f"{LAYERS} + int8"]
SETTING, LONG = Setting(16, 2), "--length 16 --lengths 16"
MODEL, TEXTS = "--model BertModel", "--texts pairs.tsv"
BOTH = f"{MODEL} {TEXTS}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts, that no command changes."""
    root = tmp_path_factory.mktemp("home")
    folder(root, "bert", "BertModel")
    eight = network("bert", "BertModel")
    greenformers.compress(eight, Int8())
    greenformers.save(eight, root / "eight", tokenizer=tokenizer("bert"))
    network("bert", "BertModel").save_pretrained(root / "bare")
    pairs(root / "pairs.tsv", 40)
    labelled(root / "labelled.tsv")
    (root / "few.txt").write_text("bar dor\n" * 7)
    return root


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
    rows, possible = {name_of(row.recipe): row for row in advice.rows}, advice.rows[: len(names)]
    assert advice.metric == metric
    assert {name_of(row.recipe) for row in possible if row.refused is None} == set(names)
    assert possible == sorted(possible, key=lambda row: row.milliseconds)
    assert [name_of(row.recipe) for row in advice.rows[len(names) :]] == list(impossible)
    dense = rows["as it is"]
    assert (dense.quality_share, dense.speed, dense.smaller, dense.interval) == (1.0, 1.0, 1.0, None)
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
    assert [name_of(recipe) for recipe in recipes(255, causal)] == SHORT
    for length in (256, 1000):
        tried = {name_of(recipe): recipe for recipe in recipes(length, causal)}
        assert len(tried) == len(recipes(length, causal))
        ((window,), (another,)) = tried["sliding_window"], tried[other]
        *short, layers = SHORT[1:]
        assert list(tried) == [DENSE_NAME, other, "sliding_window", *short, name_of((window, *HALF, *INT8)), layers]
        assert tried[name_of((window, *HALF, *INT8))] == (window, *HALF, *INT8)
        assert window.options["window"] * (1 if causal else 2) == length // 4  # to the left, or on both sides
        assert another.options == ({} if causal else {"k": length // 4})


@pytest.mark.parametrize(
    ("recipe", "name", "plain", "taught"),
    [
        (INT8, "int8", f"--int8 {LONG}", f"--heal 300 --heal-aware --int8 {LONG} --texts 'a b.tsv'"),
        (HALF, "low rank 0.5", f"--keep 0.5 {LONG} --texts 'a b.tsv'",
         f"--keep 0.5 --heal 300 {LONG} --texts 'a b.tsv'"),
        ((Attention("bigbird", options={"window": 3, "chosen": 2}),), "bigbird",
         f"--attention bigbird --attention-option window=3 --attention-option chosen=2 {LONG}",
         "--attention bigbird --attention-option window=3 --attention-option chosen=2 --heal 300 "
         f"{LONG} --texts 'a b.tsv'"),
        (ALL, "sliding_window + low rank 0.5 + int8",
         f"--attention sliding_window --attention-option window=8 --keep 0.5 --int8 {LONG} --texts 'a b.tsv'",
         "--attention sliding_window --attention-option window=8 --keep 0.5 --heal 300 --heal-aware --int8 "
         f"{LONG} --texts 'a b.tsv'"),
    ],
)  # fmt: skip
def test_names_and_command_lines(recipe: Recipe, name: str, plain: str, taught: str) -> None:
    assert name_of(recipe) == name
    few = Setting(16, 2, rows=19)
    for at, tried, line in (
        (SETTING, recipe, plain), (SETTING, healed(recipe, SETTING.rows), taught),
        (few, healed(recipe, few.rows), taught.replace("--heal 300", "--heal 300 --heal-batch 19")),
    ):  # fmt: skip
        assert command(tried, "my model", "a b.tsv", at) == f"greenformers compress 'my model' {line} --out small"


def test_the_model_as_it_is_needs_no_command() -> None:
    assert name_of(DENSE) == DENSE_NAME
    with pytest.raises(ValueError, match="the model as it is needs no command"):
        command(DENSE, "my model", "a b.tsv", SETTING)


def test_positions_that_go_on_are_typed_too() -> None:
    (longer,) = (change.fitted(network("bert", "BertModel"), 60) for change in WINDOW)
    assert longer == WINDOW[0].but(length=60)
    assert "--attention-length 60" in command((longer,), "m", "t.txt", SETTING)
    assert WINDOW[0].fitted(network("bert", "BertModel"), 40) == WINDOW[0]


def test_the_commands_run(tmp_path: Path, monkeypatch: Patch) -> None:
    for part in (strong("bert", "BertModel"), tokenizer("bert")):
        part.save_pretrained(tmp_path / "my model")
    pairs(tmp_path / "my texts.tsv", 60)
    at = Setting(16, 2, rows=19)
    for recipe in (healed(ALL, at.rows), HALF):
        (work := tmp_path / name_of(recipe)).mkdir()
        monkeypatch.chdir(work)
        line = command(recipe, "../my model", "../my texts.tsv", at)
        assert run(monkeypatch, *shlex.split(line.replace("--heal 300", "--heal 2"))[1:]) == 0
        small = greenformers.load("small")
        assert structure(small).order == [change.name() for change in recipe if change.name() != "heal"]
        there = [(mechanism.name, mechanism.options) for _, mechanism, _ in swapped(small)]
        assert there == [("sliding_window", {"window": 8})] * (0 if recipe == HALF else 2)


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
    given = Given(calibration=calibration)
    small = changed_copy(model, ALL, {}, given)
    assert structure(small).order == ["attention", "low_rank", "int8"]
    low = changed_copy(model, HALF, {}, given)
    assert structure(low).order == ["low_rank"]
    # What was made before is not made again.
    known = {name_of(HALF): low}
    both = changed_copy(model, (*HALF, *INT8), known, Given())
    assert structure(both).order == ["low_rank", "int8"]
    assert ranks_of(both) == ranks_of(low)
    assert not int8_of(low)
    for recipe in (HALF, (LowRank(keep=0.75), *INT8)):
        with pytest.raises(ValueError, match="none fits"):
            changed_copy(low, recipe, {}, given)
    with pytest.raises(ValueError, match="linformer has no causal form"):
        changed_copy(network("gpt2"), (Attention("linformer", options={"k": 4}),), {}, Given())
    assert structure(model).empty
    assert [name for name, tensor in model.state_dict().items() if not tensor.equal(before.pop(name))] == []
    assert before == {}


def test_an_encoder_and_pairs(home: Path) -> None:
    model, steps = strong("bert", "BertModel"), set()
    texts = read_texts(home / "pairs.tsv")
    advice = advised(model, texts, limit=15, progress=lambda what, share: steps.add((what, share)))
    rows = check(advice, "spearman", SHORT)
    assert rows["as it is"].mib > rows["low rank 0.75"].mib > rows["low rank 0.5"].mib > rows["int8"].mib
    assert rows["low rank 0.5 + int8"].mib < rows["int8"].mib > rows[f"{LAYERS} + int8"].mib
    for row in advice.rows:
        assert row.quality_share == pytest.approx(row.quality / rows["as it is"].quality)
        assert (row.interval is None) == (row.recipe == DENSE)
    assert advice.setting.length == usual(texts, tokenizer("bert"), model)
    assert [r.setting for r in advice.records if r.metric == "latency"] == [
        {"length": advice.setting.length, "batch": 2}
    ] * len(SHORT)
    assert {("making", 1.0), ("judging", 1.0), ("measuring", 1.0)} <= steps
    assert structure(model).empty


def test_an_encoder_whose_attention_is_its_own() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 44}
    config = transformers.MPNetConfig(vocab_size=53, max_position_embeddings=260, **sizes)
    advice = advised(transformers.MPNetModel(config).eval(), length=256)
    check(advice, "cosine", SHORT, ["linformer", "sliding_window", name_of(ALL)])
    assert all("attention of its own" in str(row.refused) for row in advice.rows[len(SHORT) :])
    assert advice.setting.length == 256


def test_a_language_model_of_long_texts() -> None:
    texts = Texts("long.txt", [(line,) for line in sentences(200)])
    advice = advised(strong("gpt2", "GPT2LMHeadModel", n_positions=256), texts, "gpt2")
    rows = check(advice, "perplexity", [name_of(recipe) for recipe in recipes(256, True)])
    assert advice.setting.length == 256
    for row in advice.rows:
        assert row.quality_share == pytest.approx(rows["as it is"].quality / row.quality)  # less is better
        assert row.interval is None


def test_a_classifier_that_is_low_rank_already(home: Path) -> None:
    model = strong("bert", "BertForSequenceClassification")
    factorise(model, Budget(0.5, "uniform"), multiple=1)
    advice = advised(model, read_texts(home / "labelled.tsv"))
    low = [name for name in SHORT if "low rank" in name]
    rows = check(advice, "accuracy", [name for name in SHORT if name not in low], low)
    refused = [str(row.refused) for row in advice.rows[-len(low) :]]
    assert all(re.search("none fits|became low rank|the budget must be", why) for why in refused)
    assert rows["int8"].interval is not None


def test_rows_are_worked_out_of_records(monkeypatch: Patch) -> None:
    times = {"as it is": 8.0, "int8": 4.0, "low rank 0.75": 16.0, "low rank 0.5": 2.0, "low rank 0.5 + int8": 1.0,
             LAYERS: 9.0, f"{LAYERS} + int8": 10.0}  # fmt: skip
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
    wanted = {"lengths": [9], "batch": 5, "country": "FRA", "benchmark": "advice"}
    assert {name: asked[name] for name in wanted} == wanted
    assert asked["texts"] == halves(PLAIN, 12)[1]
    assert [name for name, model in asked["models"].items() if int8_of(model)] == [
        name for name in SHORT if "int8" in name
    ]
    assert [name for name, model in asked["models"].items() if ranks_of(model)] == [
        name for name in SHORT if "low rank" in name
    ]
    layers = {name: model.config.num_hidden_layers for name, model in asked["models"].items()}
    assert layers == {name: 1 if LAYERS in name else 2 for name in SHORT}
    assert [name_of(row.recipe) for row in advice.rows] == sorted(times, key=lambda name: times[name])
    # 0.5 mWh a millisecond, 5 texts: 0.4 kWh a million texts, of 60 g each.
    assert advice.rows[2] == Measured(INT8, 4.0, 2.0, 2.0, 0.5, 0.25, None, 12.0, pytest.approx(0.024))


@pytest.mark.slow
def test_beyond_the_positions_of_a_rotary_model() -> None:
    advice = advised(
        strong("llama", "LlamaForCausalLM"), Texts("t", [(line,) for line in sentences(200)]), "gpt2", length=256
    )
    check(advice, "perplexity", [name_of(recipe) for recipe in recipes(256, True)])
    attentions = [change for row in advice.rows for change in row.recipe if isinstance(change, Attention)]
    assert len(attentions) == 3
    assert {change.length for change in attentions} == {256}
    assert advice.setting.rows < 64


def test_a_model_that_does_no_good_has_no_quality_to_keep(monkeypatch: Patch) -> None:
    monkeypatch.setattr(quality, "spearman", lambda *_: -0.2)
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
        (
            "t5",
            "T5ForConditionalGeneration",
            PLAIN,
            "an encoder-decoder needs a table with the columns source and target",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            advised(network(name, cls), texts, name)


def test_recommend_for_a_model(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    before = listing(home)
    monkeypatch.chdir(tmp_path)
    given = ["recommend", "--model", str(home / "BertModel"), "--texts", str(home / "pairs.tsv"), "--batch", "2"]
    assert run(monkeypatch, *given, "--country", "HKG", "--limit", "10", "--results", "results.jsonl") == 0
    shown = capsys.readouterr().out
    names = [name for name in SHORT if LAYERS not in name] + ["half the layers by", "influence + int8"]  # on two lines
    for text in ("BertModel: 2 x 11 tokens", "Spearman's", "CO2, kg", "Measured on this machine", *names):
        assert text in shown, text
    assert re.search(
        r"^(Advice: (int8|low rank|half the layers)|No change that keeps 97 % of the quality)", shown, re.MULTILINE
    )
    assert listing(home) == before
    assert list(listing(tmp_path)) == ["results.jsonl"]
    found = read("results.jsonl")
    assert {(record.benchmark, record.variant) for record in found} == {("advice", name) for name in SHORT}
    assert found[0].context["command"].startswith("greenformers recommend --model BertModel --texts pairs.tsv")

    losses: list[float] = []
    monkeypatch.setattr(Advice, "chosen", lambda self, loss: losses.append(loss) or self.rows[0])
    assert run(monkeypatch, *given, "--length", "9", "--loss", "7.5", "--results", "results.jsonl") == 0
    assert losses == [0.075]
    assert re.search(r"^(Advice: |No change that keeps 92.5 % )", capsys.readouterr().out, re.MULTILINE)
    assert {record.setting["length"] for record in read("results.jsonl") if record.metric == "flops"} == {9, 11}
    assert len(read("results.jsonl")) == 2 * len(found)  # added


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name a length with --length, or a trained model with --model and --texts"),
        (MODEL, "--model needs --texts"), (TEXTS, "--texts needs --model"),
        ("--length 64 --loss 3", "--loss needs --model"),
        (f"{BOTH} --hidden 768", "--hidden cannot be combined with --model"),
        (f"{BOTH} --feed-forward 8", "--feed-forward cannot be combined with --model"),
        (f"{BOTH} --loss 100", "loss must be in 0..100, got 100"), (f"{BOTH} --loss -1", "0..100, got -1"),
        (f"{BOTH} --batch 0", "batch must be at least 1, got 0"), (f"{BOTH} --limit 0", "limit must be at least 1"),
        (f"{BOTH} --length 0", "length must be at least 1"), (f"{BOTH} --length 41", "cannot be run on 41 tokens"),
        (f"{BOTH} --runtime tflite", "runtime must be one of torch, onnx, openvino; got 'tflite'"),
        (f"{BOTH} --country XXX", "country must be a 3-letter ISO code"), (f"{BOTH} --results .", "Is a directory"),
        (f"{MODEL} --texts nowhere.txt", "nowhere.txt"), (f"{MODEL} --texts few.txt", "few.txt has 7 examples"),
        (f"{MODEL} --texts labelled.tsv", "labelled.tsv: an encoder is judged by plain text or by pairs"),
        (f"--model ./nowhere {TEXTS}", "nowhere is not a folder with a model"),
        (f"--model bare {TEXTS}", "bare has no tokenizer"),
        (f"--model eight {TEXTS}", "int8 was applied to the model already: give the model from before"),
    ],
)  # fmt: skip
def test_refused_in_one_line(
    line: str, message: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    typed = line.split()
    if BOTH in line and "--results" not in line:
        typed += ["--results", str(tmp_path / "results.jsonl")]
    assert message in refused_unchanged(monkeypatch, capsys, home, tmp_path, "recommend", *typed)


@pytest.mark.slow
def test_in_another_runtime(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["recommend", "--model", str(home / "BertModel"), "--texts", str(home / "pairs.tsv"), "--batch", "2"]
    assert run(monkeypatch, *given, "--runtime", "onnx", "--limit", "10", "--results", "results.jsonl") == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"^(Advice: (int8|low rank|half the layers)|No change that keeps 97 % of the quality)", shown, re.MULTILINE
    )
    records = read("results.jsonl")
    # Without VNNI ONNX Runtime's int8 sums overflow, which is found out when the file is run, and told.
    told = {name for name in SHORT if "int8" in name and not has_vnni()}
    assert {record.variant for record in records} == set(SHORT) - told
    assert shown.count("differs from the model by") == len(told)
    assert {record.setting["runtime"] for record in records if record.metric == "latency"} == {"onnx"}
