"""`greenformers compress`, as a user meets it: what it prints, what it leaves on disk, and how it refuses."""

import json
import signal
from pathlib import Path

import pytest
from command_line import listing, refused, refused_unchanged, run
from models import sentences
from safetensors.torch import load_file
from transformers import AutoTokenizer
from zoo import difference, inputs, outputs

import greenformers
from greenformers.changes import LowRank
from greenformers.changes._recipe import RECIPE, read_recipe
from greenformers.changes._units import ranks_of
from greenformers.compress import run as running
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.measure.record import read

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


class Meter:
    """Reads at once, where the one of the package waits for the load to show."""

    energy_wh, co2_g, source, by = 1.0, 0.4, "estimated", "guess"

    def __init__(self, _: str) -> None:
        pass

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_an_encoder_with_texts_and_pairs(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    before, out, results = listing(home), tmp_path / "small", tmp_path / "results.jsonl"
    words = ["compress", str(home / "BertModel"), "--out", str(out), "--keep", "0.5", "--solver", "activation"]
    words += ["--calibrate", str(home / "texts.txt"), "--evaluate", str(home / "pairs.tsv"), "--lengths", "8"]
    words += ["--length", "16", "--country", "HKG", "--results", str(results), "--seed", "3"]
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    said = ["weights in 13 layers", "kept (", "original", "low rank 0.5", "Spearman", "Cosine", "Inference latency"]
    for text in [*said, f"model:  {out}", f"report: {out / 'report' / 'index.html'}"]:
        assert text in shown, text
    assert listing(home) == before
    assert sorted(path.name for path in out.parent.iterdir()) == ["results.jsonl", "small"]

    names = {path.name for path in out.iterdir()}
    assert names >= {"README.md", "compression.json", "config.json", "model.safetensors", "tokenizer.json", "report"}
    card, page = (out / "README.md").read_text(), (out / "report" / "index.html").read_text()
    for text in (
        "library_name: greenformers", "## Before and after", "| Parameters |", "greenformers.load", "solver activation",
        "Made from `BertModel`", "60 to calibrate with (`texts.txt`), 30 to judge by (`pairs.tsv`)",
        "| | setting | original | low rank 0.5 |",
    ):  # fmt: skip
        assert text in card, text
    assert str(home) not in card + page
    assert "BertModel, compressed" in page
    assert "Quality was not judged" not in page
    assert read_recipe(out / RECIPE) == [LowRank(keep=0.5, solver="activation")]
    done = json.loads((out / "compression.json").read_text())
    (step,) = done["steps"]
    units = step["report"]["units"]
    assert len(units) == 13
    assert sum(unit["after"] for unit in units) <= 0.5 * sum(unit["before"] for unit in units)
    assert all(unit["predicted"] == pytest.approx(unit["lost"], abs=1e-4) for unit in units)

    model = greenformers.load(out)
    assert ranks_of(model) == {
        unit["path"]: int(unit["form"].removeprefix("rank ")) for unit in units if unit["form"] != "dense"
    }
    assert (step["parameters"], step["size"]) == (parameters(model), bytes_of(model))
    assert AutoTokenizer.from_pretrained(out)("bar dolo")["input_ids"][0] == 2

    records = read(results)
    assert {record.variant for record in records} == {"original", "low rank 0.5"}
    assert {record.metric for record in records} == {
        "parameters", "size", "latency", "peak_memory_inference", "flops", "energy_inference", "co2_inference",
        "cosine", "spearman",
    }  # fmt: skip
    (spearman,) = (record for record in records if (record.metric, record.variant) == ("spearman", "low rank 0.5"))
    assert spearman.interval is not None
    assert spearman.interval[0] <= spearman.interval[1]
    sizes = {record.variant: record.value for record in records if record.metric == "size"}
    assert sizes["low rank 0.5"] < sizes["original"]
    assert sizes["low rank 0.5"] * 2**20 == pytest.approx((out / "model.safetensors").stat().st_size, rel=0.2)
    assert records[0].context["command"].startswith("greenformers compress BertModel --out small --keep 0.5")

    # The same again takes the place of what it wrote, and so does its recipe; what is low rank already is refused.
    again = [*words, "--lengths", ""]
    given = [again[:4] + again[8:], ["--recipe", str(tmp_path / RECIPE)]]
    (tmp_path / RECIPE).write_bytes((out / RECIPE).read_bytes())
    for line in (again, given[0] + given[1]):
        assert run(monkeypatch, *line) == 0
        second = greenformers.load(out)
        assert difference(outputs(second, inputs("bert")), outputs(model, inputs("bert"))) == 0.0
    capsys.readouterr()
    assert "none fits" in refused(
        monkeypatch, capsys, "compress", str(out), "--out", str(tmp_path / "new"), "--lengths", ""
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECIPE, "results.jsonl", "small"]


@pytest.mark.parametrize(
    ("model", "words", "shown"),
    [
        (
            "BertForSequenceClassification", "--evaluate labelled.tsv --solver loss --calibrate labelled.tsv",
            "Accuracy (%)",
        ),
        ("GPT2LMHeadModel", "--texts texts.txt --solver sequential_loss", "Perplexity"),
        ("BertForMaskedLM", "--evaluate texts.txt --select *.query,*.key --rank 4", "Perplexity"),
        ("BertModel", "--evaluate texts.txt --energy 0.6 --multiple 2", "Cosine"),
        ("vit", "--keep 0.7 --of parameters --select linear,conv", "Size on disk"),
        ("t5", "--solver random --uniform", "Parameters"),
        ("BertModel", "--stable-rank 1.5 --only-if-faster", "Parameters"),
    ],
)  # fmt: skip
def test_other_models(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured, model: str, words: str, shown: str
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr("greenformers.solve.factorise.measure", lambda _, ranks, __: {None: 2.0, ranks[0]: 1.0})
    lengths = "12" if "faster" in words else ""
    monkeypatch.setattr("greenformers.measure.energy_of.EnergyMeter", Meter)
    out = tmp_path / "small"
    words = f"compress {model} --length 12 {words} --out {out} --lengths {lengths}"
    assert run(monkeypatch, *words.split(" ")) == 0
    text = capsys.readouterr().out
    assert shown in text
    assert "kept (" in text
    assert ranks_of(greenformers.load(out))
    page = (out / "report" / "index.html").read_text()
    judged = any(option in words for option in ("--evaluate", "--texts"))
    assert ('<p class="lead">Quality was not judged: no texts were given. ' in page) != judged
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("BertModel --keep 0.5 --rank 8", "keep and rank of low_rank exclude each other"),
        ("BertModel --energy 0.5 --stable-rank 2", "energy and stable_rank of low_rank exclude each other"),
        ("BertModel --rank 8 --uniform", "uniform of low_rank goes with keep, not with rank"),
        ("BertModel --energy 0.5 --of flops", "of of low_rank goes with keep, not with energy"),
        ("BertModel --from-disk --evaluate texts.txt", "--from-disk cannot be combined with --evaluate"),
        ("BertModel --keep 0", "the share to keep must be in (0, 1], got 0"),
        ("BertModel --keep nan", "the share to keep must be in (0, 1], got nan"),
        ("BertModel --keep 0.05", "the budget must be at least 0."),
        ("BertModel --rank 0", "a rank must be a whole number from 1 on, got 0"),
        ("BertModel --energy 1.5", "the share to keep must be in (0, 1], got 1.5"),
        ("BertModel --stable-rank -1", "the multiple of the stable rank must be positive, got -1"),
        ("BertModel --multiple 0", "multiple must be at least 1, got 0"),
        ("BertModel --of memory", "a budget is spent of parameters, flops, latency; got 'memory'"),
        ("BertModel --uniform --of flops", "a budget of flops is a share of all weights together"),
        ("BertModel --lengths 8,x", "lengths must be whole numbers with commas between; got '8,x'"),
        ("BertModel --lengths 0", "lengths must be at least 1, got 0"),
        ("BertModel --lengths 41", "length and lengths must be at most 40, the longest input; got 41"),
        (
            "BertModel --calibrate texts.txt --length 41 --solver loss",
            "length and lengths must be at most 40, the longest input; got 41",
        ),
        ("BertModel --limit 0", "limit must be at least 1, got 0"),
        ("BertModel --length -1", "length must be at least 1, got -1"),
        ("BertModel --lengths 8 --country ZZZ", "country must be a 3-letter ISO code"),
        ("BertModel --solver actvation", "solver must be one of svd, randomized"),
        ("BertModel --solver loss", "low rank 0.5 needs examples to calibrate with (--texts or --calibrate)"),
        ("BertModel --solver nmf --energy 0.5", "solver 'nmf' has no spectrum for a budget 'energy'"),
        ("BertModel --select *.quary", "the selection '*.quary' matches none of the 16 weights"),
        ("BertModel --solver loss --calibrate empty.txt", "empty.txt holds no text"),
        ("BertModel --solver loss --calibrate header.tsv", "header.tsv holds no text"),
        (
            "BertModel --solver loss --calibrate wrong.tsv",
            "wrong.tsv has no columns of texts: they must be source, target; tokens, ner_tags",
        ),
        (
            "BertModel --evaluate wrong.tsv",
            "wrong.tsv has no columns of texts: they must be source, target; tokens, ner_tags",
        ),
        ("BertModel --calibrate nowhere.txt --solver loss", "nowhere.txt: No such file or directory"),
        ("BertModel --evaluate nowhere.tsv", "nowhere.tsv: No such file or directory"),
        ("BertModel --evaluate labelled.tsv --length 12", "an encoder is judged by plain text or by pairs"),
        (
            "BertModel --evaluate constant.tsv --length 12",
            "constant.tsv: texts judge a BertModel where",
        ),
        (
            "BertForSequenceClassification --evaluate half.tsv",
            "half.tsv, line 2: the label must be one of LABEL_0, LABEL_1, or a whole number from 0 on",
        ),
        (
            "BertForSequenceClassification --evaluate texts.txt --length 12",
            "a BertForSequenceClassification is judged by",
        ),
        ("GPT2LMHeadModel --evaluate pairs.tsv --length 12", "a language model is judged by plain text"),
        ("GPT2LMHeadModel --calibrate short.txt --length 40 --solver loss", "the text has 3 tokens; one block of 40"),
        ("vit --evaluate texts.txt", "a ViTForImageClassification needs an image processor, such as"),
        ("t5 --evaluate texts.txt", "t5 has no tokenizer, which texts need"),
        ("nonsense --evaluate texts.txt", "nonsense has no tokenizer that can be read"),
        ("foreign --evaluate texts.txt", "the tokenizer of foreign has 60 tokens, the model 53"),
        ("BertModel --energy 0.9999", "no weight became low rank"),
        ("nowhere/at/all", "nowhere/at/all has no configuration that can be read"),
        ("./nowhere", "./nowhere is not a folder with a model"),
        ("BertModel/nowhere", "BertModel/nowhere is not a folder with a model"),
        ("texts.txt", "texts.txt is not a folder with a model"),
        (".", "config.json is missing"),
        ("damaged", "is not a whole safetensors file"),
        ("pickled", "pytorch_model.bin is a pickle, which could run code: not read"),
        ("lacking", "lacks 1 weights, pooler.dense.weight among them"),
        ("misfit", "the weights do not fit the configuration"),
        ("custom", "asks for code of its own (auto_map): not run"),
        (
            "BertModel --solver svd --calibrate texts.txt",
            "--calibrate is of no use: no change of the recipe needs such",
        ),
        ("BertModel --heal-texts texts.txt", "--heal-texts is of no use: no change of the recipe needs such texts"),
        ("BertModel --texts few.txt", "7 examples cannot be split into parts for calibration, judging: at least 8"),
        (
            "BertModel --texts texts.txt --calibrate texts.txt --evaluate texts.txt",
            "--texts is of no use: every part that is needed has a file of its own",
        ),
        ("BertModel --keep 0.5 --change int8", "--change and a short form such as --keep exclude each other"),
        ("BertModel --recipe none.toml --change int8", "--recipe and --change exclude each other"),
        (
            "BertModel --change nothing",
            "got 'nothing'",
        ),
        ("BertModel --change int8 --change low_rank", "low_rank cannot follow int8"),
        ("BertModel --recipe nowhere.toml", "nowhere.toml: No such file or directory"),
        ("BertModel --recipe broken.toml", "broken.toml is not TOML"),
        ("BertModel --recipe none.toml", "none.toml must hold a list of tables [[change]] and nothing else"),
        (
            "BertModel --recipe more.toml",
            "more.toml must hold a list of tables [[change]] and nothing else; it has name",
        ),
        ("BertModel --recipe wrong.toml", "wrong.toml, change 2: low_rank: keep must be a number, got 'half'"),
        ("BertModel --teacher ./nowhere --int8", "./nowhere is not a folder with a model"),
        ("unnamed", "names the architecture None, which transformers does not have"),
    ],
)
def test_refusals(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lengths = [] if "--lengths" in words else ["--lengths", ""]
    line = ["compress", *words.split(), *lengths, "--out", str(tmp_path / "small")]
    assert message in refused_unchanged(monkeypatch, capsys, home, tmp_path, *line)


def test_what_stands_in_the_way_stays(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("# dear to me")
    (tmp_path / "file").write_text("dear to me")
    before = listing(tmp_path)
    for name in ("project", "file"):
        message = refused(monkeypatch, capsys, "compress", str(home / "BertModel"), "--out", str(tmp_path / name))
        assert message.endswith(f"{name} exists and holds no compressed network: name another folder")
    assert listing(tmp_path) == before
    # Not even the model itself.
    message = refused(monkeypatch, capsys, "compress", str(home / "BertModel"), "--out", str(home / "BertModel"))
    assert "out must be another folder than that of" in message
    # Nor the records of what was there before.
    words = [
        "compress",
        str(home / "BertModel"),
        "--out",
        str(tmp_path / "new"),
        "--results",
        str(tmp_path / "new" / "r"),
    ]
    assert f"than that of {tmp_path / 'new' / 'r'}, which it would replace" in refused(monkeypatch, capsys, *words)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("step", ["calibrating", "judging", "measuring", "saving"])
def test_interrupted_it_goes_on_behind_the_last_step(
    home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured, step: str
) -> None:
    said: list[str] = []

    def stop(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def progress(_: object, stage: str, __: float) -> None:
        said.append(stage)
        if stage == step:
            stop()

    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "small"), "--lengths", "", "--length", "12"]
    words += ["--calibrate", str(home / "texts.txt"), "--evaluate", str(home / "texts.txt"), "--solver", "activation"]
    with monkeypatch.context() as patch:
        patch.setattr("greenformers.cli._terminal.Steps.__call__", progress)
        if step == "saving":  # the weights are written, the card is not; the second one, after that of the step
            card, calls = greenformers.checkpoint.save.card_of, []
            patch.setattr(
                "greenformers.checkpoint.save.card_of",
                lambda *given: (calls.append(1), stop() if len(calls) == 2 else None, card(*given))[2],
            )
        assert run(patch, *words) not in (0, 2)
        assert "Traceback" not in capsys.readouterr().err
        left = [path.name for path in tmp_path.iterdir()]
        if step == "calibrating":
            assert left == []
        else:
            (name,) = left
            assert name.startswith("small.unfinished-")
        del said[:]
        patch.setattr("greenformers.cli._terminal.Steps.__call__", lambda _, stage, __: said.append(stage))
        assert run(patch, *words) == 0
    assert ("calibrating" in said) == (step == "calibrating")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert len(json.loads((tmp_path / "small" / "compression.json").read_text())["steps"]) == 1


def test_other_words_begin_anew(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "small"), "--lengths", ""]

    def stop(*_: object, **__: object) -> None:
        raise ValueError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(running, "compared", stop)
        assert run(patch, *words, "--keep", "0.6") == 2
    (left,) = tmp_path.iterdir()
    assert run(monkeypatch, *words, "--keep", "0.5") == 0
    assert read_recipe(tmp_path / "small" / RECIPE) == [LowRank(keep=0.5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", left.name]
    state = load_file(tmp_path / "small" / "model.safetensors")
    assert sum(x.numel() for x in state.values()) < sum(
        x.numel() for x in load_file(left / "step-0" / "model.safetensors").values()
    )


def test_what_was_made_before_the_network_became_longer_is_judged_too(
    home: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "out"), "--keep-layers", "1"]
    words += ["--attention", "sliding_window", "--attention-option", "window=4", "--attention-length", "60"]
    words += ["--length", "60", "--lengths", "50", "--evaluate", str(home / "pairs.tsv")]
    assert run(monkeypatch, *words) == 0


def test_repeated_lines_do_not_judge_what_learned_them(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "twice.txt").write_text("\n".join(sentences(60) * 2))
    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "out"), "--keep-layers", "1", "--heal", "2"]
    words += ["--texts", str(tmp_path / "twice.txt"), "--length", "16", "--lengths", ""]
    assert run(monkeypatch, *words) == 0
    assert "more to learn from are left out" in (tmp_path / "out" / "README.md").read_text()
