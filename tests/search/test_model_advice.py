"""Advice for a trained model: what is tried, measured and chosen, how it is said, and `recommend --model`."""

import re
import shlex
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
from greenformers.advise import in_runtime
from greenformers.changes import Attention, Int8, Layers, LowRank, Narrow, Prune
from greenformers.changes._attention_interface import swapped
from greenformers.changes._int8 import int8_of
from greenformers.checkpoint.structure import structure
from greenformers.compress import answers, side_by_side
from greenformers.data._examples import Images, halves
from greenformers.data._read_texts import read_texts
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.measure.record import METRICS, Record, read, with_ratios
from greenformers.search.advice import Advice, Measured, advise, shown, usual
from greenformers.search.bound import Bound
from greenformers.search.recipes import Recipe, Setting, command, healed, name_of
from greenformers.search.search import Plan, Search
from greenformers.search.space import Space
from greenformers.search.trials import Trial, Trials
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
LOSE, LONG_ENOUGH = Bound(lose=0.03), 1000.0
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


@pytest.fixture(autouse=True)
def brief(monkeypatch: Patch) -> None:
    """Each change is tried alone, timed a few times, and one recipe by chance, however long it takes; nothing more."""
    monkeypatch.setattr("greenformers.train.bf16.quickest", lambda: "fp32")  # whatever this processor has
    monkeypatch.setattr("greenformers.search.lab.REPEATS", 2)
    monkeypatch.setattr("greenformers.search.lab.SECONDS", 0.0)
    monkeypatch.setattr("greenformers.search.lab.PAUSE", 0.0)
    monkeypatch.setattr("greenformers.search.advice.REPEATS", 3)
    monkeypatch.setattr(side_by_side, "METERED", ("latency",))  # counting is of no account here
    monkeypatch.setattr("greenformers.search.search.CHANCE", 1)
    monkeypatch.setattr(answers, "RESAMPLES", 50)
    monkeypatch.setattr("greenformers.search.search.propose", lambda *_, **__: [])


def strong(name: str, cls: str, **more: Any) -> PreTrainedModel:
    """One that tells texts apart."""
    model = network(name, cls, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    return model


def advised(model: PreTrainedModel, texts: Texts = PLAIN, name: str = "bert", **more: Any) -> Advice:
    usual_ones = {"bound": LOSE, "seconds": LONG_ENOUGH, "batch": 2, "country": "HKG", "about": {"seed": 7}}
    return advise(model, tokenizer(name), texts, **usual_ones | more)


def check(advice: Advice, metric: str, changes: set[str], impossible: set[str] = frozenset()) -> dict[str, Measured]:
    """What holds of all advice; each change has a row of its own. Its rows, by name."""
    rows, possible = {name_of(row.recipe): row for row in advice.rows}, [row for row in advice.rows if not row.refused]
    assert advice.metric == metric
    assert advice.rows[: len(possible)] == sorted(possible, key=lambda row: row.milliseconds)
    assert {change.name() for row in possible if len(row.recipe) == 1 for change in row.recipe} == changes
    assert {change.name() for row in advice.rows[len(possible) :] for change in row.recipe} == impossible
    dense = rows["as it is"]
    assert (dense.quality_share, dense.speed, dense.smaller, dense.interval) == (1.0, 1.0, 1.0, None)
    for row in possible:
        assert row.speed == pytest.approx(dense.milliseconds / row.milliseconds)
        assert row.smaller == pytest.approx(dense.mib / row.mib)
        assert row.co2 > 0
    assert rows["int8"].smaller > 2
    names = {name_of(row.recipe) for row in possible}
    assert {(record.benchmark, record.variant) for record in advice.records} == {("advice", name) for name in names}
    assert all(record.context == {"seed": 7} for record in advice.records)
    return rows


@pytest.mark.parametrize("bound", [Bound(lose=0.02), Bound(faster=2.0)])
def test_the_best_of_the_front_is_shown_and_each_change_alone(bound: Bound, tmp_path: Path) -> None:
    space = Space(((Int8(),), tuple(LowRank(keep=share / 10) for share in (9, 8, 7))), lambda _: True)
    search = Search(space, None, Plan(bound, 1.0, heals=False), Trials(tmp_path / "trials.jsonl"))
    for genes, speed, lost in [
        ((1, 0), 1.5, 0.001), ((0, 1), 1.04, 0.0005), ((0, 2), 1.2, 0.018), ((0, 3), 1.3, 0.3),
        ((1, 1), 1.6, 0.01), ((1, 2), 1.9, 0.02), ((1, 3), 2.2, 0.31),
    ]:  # fmt: skip
        search.trials.add(Trial(genes, 0, speed, lost, 1.0))
    # Neither (0, 1), which is hardly faster, nor what another beats in both; but one of low rank alone.
    front_, alone = {(1, 0), (1, 1), (1, 2), (1, 3)}, (0, 2) if bound.lose else (0, 1)
    assert set(shown(search)) == front_ | {alone}
    assert shown(search)[0] == ((1, 2) if bound.lose else (1, 0)), shown(search)


@pytest.mark.parametrize(("causal", "other"), [(False, "linformer"), (True, "linear_transformer")])
def test_of_long_texts_a_quarter_is_seen(causal: bool, other: str) -> None:
    model = network("gpt2" if causal else "bert")
    assert Attention.searched(model, length=255, causal=causal, heals=False) == []
    for length in (256, 1000):
        another, window = Attention.searched(model, length=length, causal=causal, heals=False)
        assert (another.mechanism, window.mechanism) == (other, "sliding_window")
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
        ((Narrow(8),), "a student of 8", f"--narrow 8 {LONG} --texts 'a b.tsv'",
         f"--narrow 8 --heal 300 --heal-rate 0.001 {LONG} --texts 'a b.tsv'"),
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


def test_an_encoder_and_pairs(home: Path) -> None:
    model, steps = strong("bert", "BertModel"), set()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    texts = read_texts(home / "pairs.tsv")[0]
    advice = advised(model, texts, limit=15, progress=lambda stage, share: steps.add((stage, share)))
    rows = check(advice, "spearman", {"int8", "layers", "low_rank", "prune"})
    assert rows["as it is"].mib > rows["int8"].mib
    for row in advice.rows:
        assert row.quality_share == pytest.approx(row.quality / rows["as it is"].quality)
        assert (row.interval is None) == (row.recipe == DENSE)
    assert advice.setting.length == usual(texts, tokenizer("bert"), model)
    assert [r.setting for r in advice.records if r.metric == "latency"] == [
        {"length": advice.setting.length, "batch": 2}
    ] * len(rows)
    assert {("judging", 1.0), ("measuring", 1.0)} <= steps
    assert "trying" in {stage for stage, _ in steps}
    assert structure(model).empty
    assert [name for name, tensor in model.state_dict().items() if not tensor.equal(before.pop(name))] == []
    assert before == {}


def test_an_encoder_whose_attention_is_its_own() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 44}
    config = transformers.MPNetConfig(vocab_size=53, max_position_embeddings=260, **sizes)
    advice = advised(transformers.MPNetModel(config).eval(), length=256)
    check(advice, "cosine", {"int8", "layers", "low_rank"}, {"attention", "prune"})
    assert any("attention of its own" in str(row.refused) for row in advice.rows)
    assert advice.setting.length == 256


def test_a_language_model_of_long_texts() -> None:
    texts = Texts("long.txt", [(line,) for line in sentences(200)])
    model = strong("gpt2", "GPT2LMHeadModel", n_positions=256)
    advice = advised(model, texts, "gpt2", bound=Bound(faster=1.5))
    rows = check(advice, "perplexity", {"attention", "int8", "layers", "low_rank", "prune"})
    assert advice.setting.length == 256
    for row in advice.rows:
        assert row.quality_share == pytest.approx(rows["as it is"].quality / row.quality)  # less is better
        assert (row.interval is None) == (row is rows["as it is"])


def test_a_classifier_that_is_low_rank_already(home: Path) -> None:
    model = strong("bert", "BertForSequenceClassification")
    factorise(model, Budget(0.5, "uniform"), multiple=1)
    advice = advised(model, read_texts(home / "labelled.tsv")[0])
    rows = check(advice, "accuracy", {"int8", "layers"}, {"low_rank", "prune"})
    refused = [str(row.refused) for row in advice.rows if row.refused]
    assert all(re.search("none fits|cannot follow low_rank", why) for why in refused), refused
    assert rows["int8"].interval is not None


def test_rows_are_worked_out_of_records(monkeypatch: Patch) -> None:
    times = {"as it is": 8.0, "int8": 4.0}
    asked: dict[str, Any] = {}
    values = {"latency": 1.0, "size": 3.0, "energy_inference": 0.5, "cosine": 1 / 16}

    def fake(models: dict[str, Any], texts: Texts, _: Any, **given: Any) -> list[Record]:
        asked.update(given, models=models, texts=texts)
        all_ = [(name, metric, factor * times[name]) for name in models for metric, factor in values.items()]
        records = [Record("advice", name, {}, metric, value, METRICS[metric].unit) for name, metric, value in all_]
        return with_ratios(records, to="as it is")

    monkeypatch.setattr("greenformers.search.advice.compared", fake)
    monkeypatch.setattr("greenformers.search.advice.grid_intensity", {"FRA": 60.0}.__getitem__)
    for kind in (Attention, Layers, LowRank, Prune):
        monkeypatch.setattr(kind, "searched", classmethod(lambda *_, **__: []))
    advice = advised(strong("bert", "BertModel"), length=9, batch=5, limit=12, country="FRA")
    expected = {"lengths": [9], "batch": 5, "country": "FRA", "benchmark": "advice"}
    assert {name: asked[name] for name in expected} == expected
    assert asked["texts"] == halves(PLAIN, 12)[1]
    assert [name for name, model in asked["models"].items() if int8_of(model)] == ["int8"]
    # 0.5 mWh a millisecond, 5 texts: 0.4 kWh a million texts, of 60 g each.
    assert advice.rows[0] == Measured(INT8, 4.0, 2.0, 2.0, 0.5, 0.25, None, 12.0, pytest.approx(0.024))
    assert [name_of(row.recipe) for row in advice.rows] == ["int8", "as it is"]


@pytest.mark.slow
def test_beyond_the_positions_of_a_rotary_model() -> None:
    advice = advised(
        strong("llama", "LlamaForCausalLM"), Texts("t", [(line,) for line in sentences(200)]), "gpt2", length=256
    )
    check(advice, "perplexity", {"attention", "int8", "layers", "low_rank", "prune"})
    attentions = [change for row in advice.rows for change in row.recipe if isinstance(change, Attention)]
    assert attentions
    assert {change.length for change in attentions} == {256}
    assert advice.setting.rows < 64


def test_a_model_that_no_change_fits(monkeypatch: Patch) -> None:
    for kind in (Int8, Layers, LowRank, Prune):
        monkeypatch.setattr(kind, "searched", classmethod(lambda *_, **__: []))
    with pytest.raises(ValueError, match=r"^no change of the search can be applied$"):
        advised(strong("bert", "BertModel"))


def test_a_model_that_does_no_good_has_no_quality_to_keep(monkeypatch: Patch) -> None:
    monkeypatch.setattr(answers, "spearman", lambda *_: -0.2)
    texts = Texts(
        "t.tsv", [(line, line) for line in sentences(8)], [float(place) for place in range(8)], label_kind="score"
    )
    with pytest.raises(
        ValueError, match=r"^t.tsv cannot judge changes: the model as it is has a spearman of -20 on it$"
    ):
        advised(network("bert", "BertModel"), texts)


def test_texts_that_cannot_judge(home: Path) -> None:
    labels, scores = read_texts(home / "labelled.tsv")[0], read_texts(home / "pairs.tsv")[0]
    for name, cls, texts, message in [
        ("bert", "BertModel", labels, "an encoder is judged by plain text or by pairs"),
        ("gpt2", "GPT2LMHeadModel", labels, "a language model is judged by plain text"),
        ("bert", "BertForSequenceClassification", scores, "a BertForSequenceClassification is judged by a table"),
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


def test_a_length_is_of_texts() -> None:
    images = Images("photos", [Path("a.png")] * 8, ["a"] * 8)
    with pytest.raises(ValueError, match="length is of texts, and photos holds images; got 64"):
        advise(network("bert", "BertModel"), None, images, bound=LOSE, length=64, about={})


def test_recommend_for_a_model(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    before = listing(home)
    monkeypatch.chdir(tmp_path)
    given = ["recommend", "--model", str(home / "BertModel"), "--texts", str(home / "pairs.tsv"), "--batch", "2"]
    given += ["--minutes", "9", "--results", "results.jsonl"]
    assert run(monkeypatch, *given, "--country", "HKG", "--limit", "10") == 0
    shown_ = capsys.readouterr().out
    for text in ("BertModel: 2 x 11 tokens", "Spearman's", "CO2, kg", "Measured on this machine", "int8", "low rank"):
        assert text in shown_, text
    assert re.search(r"^(Advice: |No recipe that keeps 97 % of the quality)", shown_, re.MULTILINE)
    assert shown_.rstrip().endswith("--lose 3% --out small")
    assert listing(home) == before
    assert list(listing(tmp_path)) == ["results.jsonl"]
    records = read("results.jsonl")
    assert {record.benchmark for record in records} == {"advice"}
    assert records[0].context["command"].startswith("greenformers recommend --model BertModel --texts pairs.tsv")

    bounds: list[Bound] = []
    monkeypatch.setattr(Advice, "chosen", lambda self, bound: bounds.append(bound) or self.rows[0])
    assert run(monkeypatch, *given, "--length", "9", "--faster", "1.2x", "--minutes", "0.001") == 0
    assert bounds == [Bound(faster=1.2)]
    assert capsys.readouterr().out.rstrip().endswith("--faster 1.2x --out small")
    assert {record.setting["length"] for record in read("results.jsonl") if record.metric == "latency"} == {9, 11}
    assert len(read("results.jsonl")) > len(records)  # added


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "name a length with --length, or a trained model with --model and --texts"),
        (MODEL, "--model needs --texts"), (TEXTS, "--texts needs --model"),
        ("--length 64 --lose 3%", "--lose needs --model"),
        (f"{BOTH} --hidden 768", "--hidden cannot be combined with --model"),
        (f"{BOTH} --feed-forward 8", "--feed-forward cannot be combined with --model"),
        (f"{BOTH} --lose 100%", "lose must be at least 0 % and below 100 %"),
        (f"{BOTH} --lose 3", "lose must be a share such as 1% or 0.01, got '3'"),
        (f"{BOTH} --lose 3% --faster 2x", "--lose and --faster exclude each other"),
        (f"{BOTH} --minutes 0", "minutes must be above 0, got 0"),
        (f"{BOTH} --batch 0", "batch must be at least 1, got 0"), (f"{BOTH} --limit 0", "limit must be at least 1"),
        (f"{BOTH} --length 0", "length must be at least 1"),
        (f"{BOTH} --length 41", "at most 40, the longest input; got 41"),
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
    shown_ = capsys.readouterr().out
    assert re.search(r"^(Advice: |No recipe that keeps 97 % of the quality)", shown_, re.MULTILINE)
    records = read("results.jsonl")
    # Without VNNI ONNX Runtime's int8 sums overflow, which is found out when the file is run, and told.
    assert any("int8" in record.variant for record in records) == has_vnni()
    assert ("differs from the model by" in shown_) == (not has_vnni())
    assert {record.setting["runtime"] for record in records if record.metric == "latency"} == {"onnx"}


def test_what_a_runtime_cannot_take_is_told_and_the_rest_is_measured(monkeypatch: Patch) -> None:
    own, other = network("bert", "BertModel"), network("bert", "BertModel")
    write = in_runtime.write

    def picky(model: PreTrainedModel, *rest: Any, **options: Any) -> None:
        if model is other:
            raise ValueError("no such operation")
        write(model, *rest, **options)

    monkeypatch.setattr(in_runtime, "write", picky)
    reader = Reader.of(own, tokenizer("bert"), 16)
    size: dict[str, Any] = {"length": 16, "batch": 2, "repeats": 2, "country": "USA", "about": {}}

    def measured(models: dict[str, PreTrainedModel]) -> tuple[list[Record], dict[str, str]]:
        judged = halves(PLAIN, 10)[1]
        return in_runtime.compared_in("onnx", models, judged, reader, (), **size, progress=lambda *_: None)

    records, refused = measured({"own": own, "other": other})
    assert refused == {"other": "no such operation"}
    assert {record.variant for record in records} == {"own"}
    with pytest.raises(ValueError, match="no such operation"):
        measured({"other": other, "own": own})
