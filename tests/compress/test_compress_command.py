"""`greenformers compress`, as a user meets it: what it prints, what it leaves on disk, and how it refuses."""

import json
import signal
from pathlib import Path

import pytest
from command_line import listing, refused, refused_unchanged, run
from models import folder, labelled, pairs, sentences, tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes._units import ranks_of
from greenformers.measure.record import read


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts, that no command changes."""
    root = tmp_path_factory.mktemp("home")
    for name, cls in [
        ("bert", "BertModel"), ("bert", "BertForSequenceClassification"), ("bert", "BertForMaskedLM"),
        ("gpt2", "GPT2LMHeadModel"),
    ]:  # fmt: skip
        folder(root, name, cls)
    network("vit").save_pretrained(root / "vit")
    network("t5").save_pretrained(root / "t5")
    (root / "texts.txt").write_text("\n".join(sentences(40)) + "\n\n")
    pairs(root / "pairs.tsv")
    labelled(root / "labelled.tsv")
    return root


class Meter:
    """Reads at once, where the one of the package waits for the load to show."""

    energy_wh, source = 1.0, "estimated"

    def __init__(self, _: str) -> None:
        pass

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_an_encoder_with_texts_and_pairs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("greenformers.measure.energy_of.SECONDS", 0.01)
    monkeypatch.setattr("greenformers.compress.quality.RESAMPLES", 100)
    before, out, results = listing(home), tmp_path / "deep" / "small", tmp_path / "results.jsonl"
    words = ["compress", str(home / "BertModel"), "--out", str(out), "--keep", "0.5", "--solver", "activation"]
    words += ["--calibrate", str(home / "texts.txt"), "--evaluate", str(home / "pairs.tsv"), "--lengths", "8"]
    words += ["--length", "16", "--country", "HKG", "--results", str(results), "--seed", "3"]
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    for text in (
        "weights in 13 maps",
        "kept (",
        "dense",
        "low rank",
        "Spearman",
        "Cosine to dense",
        "Inference latency",
    ):
        assert text in shown, text
    assert f"model:  {out}" in shown
    assert f"report: {out / 'report' / 'index.html'}" in shown
    assert listing(home) == before
    assert sorted(path.name for path in out.parent.iterdir()) == ["small"]

    names = {path.name for path in out.iterdir()}
    assert names >= {"README.md", "compression.json", "config.json", "model.safetensors", "tokenizer.json", "report"}
    card, page = (out / "README.md").read_text(), (out / "report" / "index.html").read_text()
    for text in (
        "library_name: greenformers",
        "## Before and after",
        "| Parameters |",
        "greenformers.load",
        "`activation`",
    ):
        assert text in card, text
    assert "Made from `BertModel`" in card
    assert str(home) not in card + page
    assert "BertModel, compressed" in page
    done = json.loads((out / "compression.json").read_text())
    assert done["kept"] <= 0.5
    assert all(layer["predicted"] == pytest.approx(layer["achieved"], abs=1e-4) for layer in done["layers"])

    model = greenformers.load(out)
    assert len(ranks_of(model)) == sum(layer["rank"] is not None for layer in done["layers"])
    assert sum(parameter.numel() for parameter in model.parameters()) == done["model_after"]
    assert AutoTokenizer.from_pretrained(out)("bar dolo")["input_ids"][0] == 2

    found = read(results)
    assert {record.variant for record in found} == {"dense", "low rank"}
    assert {record.metric for record in found} == {
        "parameters", "size", "latency", "peak_memory_inference", "flops", "energy_inference", "cosine", "spearman",
    }  # fmt: skip
    (spearman,) = (record for record in found if record.metric == "spearman" and record.variant == "low rank")
    assert spearman.interval is not None
    assert spearman.interval[0] <= spearman.interval[1]
    sizes = {record.variant: record.value for record in found if record.metric == "size"}
    assert sizes["low rank"] < sizes["dense"]
    assert sizes["low rank"] * 2**20 == pytest.approx((out / "model.safetensors").stat().st_size, rel=0.2)
    assert found[0].context["command"].startswith("greenformers compress BertModel --out small --keep 0.5")

    # The same again takes the place of what it wrote; a model that is low rank already is refused.
    again = [*words, "--lengths", ""]
    assert run(monkeypatch, *again) == 0
    second = greenformers.load(out)
    assert difference(outputs(second, inputs("bert")), outputs(model, inputs("bert"))) == 0.0
    capsys.readouterr()
    assert "is compressed already" in refused(monkeypatch, capsys, "compress", str(out), "--out", str(tmp_path / "new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "results.jsonl"]


@pytest.mark.parametrize(
    ("model", "words", "shown"),
    [
        (
            "BertForSequenceClassification",
            "--evaluate labelled.tsv --solver loss --calibrate labelled.tsv",
            "Accuracy (%)",
        ),
        ("GPT2LMHeadModel", "--evaluate texts.txt --solver sequential --calibrate texts.txt", "Perplexity"),
        ("GPT2LMHeadModel", "--evaluate texts.txt --solver loss --calibrate texts.txt", "Perplexity"),
        ("BertForMaskedLM", "--evaluate texts.txt --select *.query --select *.key --rank 4", "Perplexity"),
        ("BertModel", "--evaluate texts.txt --energy 0.6 --multiple 2", "Cosine to dense"),
        ("vit", "--keep 0.7 --of parameters --select linear --select conv", "Size on disk"),
        ("t5", "--solver random --uniform", "Parameters"),
        ("BertModel", "--stable-rank 1.5 --only-if-faster", "Parameters"),
    ],
)
def test_other_models(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str,
    words: str, shown: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(home)
    monkeypatch.setattr("greenformers.solve.factorise.measure", lambda _, ranks, __: {None: 2.0, ranks[0]: 1.0})
    lengths = "12" if "faster" in words else ""
    monkeypatch.setattr("greenformers.measure.energy_of.SECONDS", 0.01)
    monkeypatch.setattr("greenformers.measure.energy_of.EnergyMeter", Meter)
    out = tmp_path / "small"
    words = f"compress {model} --length 12 {words} --out {out} --lengths {lengths}"
    assert run(monkeypatch, *words.split(" ")) == 0
    text = capsys.readouterr().out
    assert shown in text
    assert "kept (" in text
    assert ranks_of(greenformers.load(out))
    assert (out / "report" / "index.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("BertModel --keep 0.5 --rank 8", "--keep and --rank exclude each other"),
        ("BertModel --energy 0.5 --stable-rank 2", "--energy and --stable-rank exclude each other"),
        ("BertModel --rank 8 --uniform", "--uniform goes with --keep, not with --rank"),
        ("BertModel --energy 0.5 --of flops", "--of goes with --keep, not with --energy"),
        ("BertModel --from-disk --calibrate texts.txt", "--from-disk goes without --calibrate, --evaluate"),
        ("BertModel --keep 0", "the share to keep must be in (0, 1], got 0"),
        ("BertModel --keep nan", "the share to keep must be in (0, 1], got nan"),
        ("BertModel --keep 0.05", "the budget must be at least 0."),
        ("BertModel --rank 0", "a rank must be a whole number from 1 on, got 0"),
        ("BertModel --energy 1.5", "the share to keep must be in (0, 1], got 1.5"),
        ("BertModel --stable-rank -1", "the multiple of the stable rank must be positive, got -1"),
        ("BertModel --multiple 0", "multiple must be at least 1, got 0"),
        ("BertModel --of memory", "a budget is spent of parameters, flops, latency; got 'memory'"),
        ("BertModel --uniform --of flops", "a budget of flops is a share of all maps together"),
        ("BertModel --lengths 8,x", "lengths must be whole numbers from 1 on, with commas between; got '8,x'"),
        ("BertModel --lengths 0", "lengths must be whole numbers from 1 on"),
        ("BertModel --lengths 41", "the model cannot be run on 41 tokens, see --length and --lengths"),
        ("BertModel --calibrate texts.txt --length 41 --solver loss", "the model cannot be run on 41 tokens"),
        ("BertModel --calibrate texts.txt --limit 0", "limit must be at least 1, got 0"),
        ("BertModel --calibrate texts.txt --length -1", "length must be at least 1, got -1"),
        ("BertModel --lengths 8 --country ZZZ", "country must be a 3-letter ISO code"),
        ("BertModel --solver actvation", "solver must be one of svd, randomized"),
        ("BertModel --solver loss", "solver 'loss' needs texts: name a file with --calibrate"),
        ("BertModel --solver nmf", "solver 'nmf' has no spectrum for a budget 'hull'"),
        ("BertModel --select *.quary", "the selection '*.quary' matches none of the 16 maps"),
        ("BertModel --solver loss --calibrate empty.txt", "empty.txt holds no text"),
        ("BertModel --solver loss --calibrate header.tsv", "header.tsv holds no text"),
        ("BertModel --solver loss --calibrate wrong.tsv", "wrong.tsv, line 1: the header must name sentence1"),
        ("BertModel --evaluate wrong.tsv", "wrong.tsv, line 1: the header must name sentence1"),
        ("BertModel --calibrate nowhere.txt --solver loss", "nowhere.txt: No such file or directory"),
        ("BertModel --evaluate nowhere.tsv", "nowhere.tsv: No such file or directory"),
        ("BertModel --evaluate labelled.tsv --length 12", "an encoder is judged by plain text or by pairs"),
        (
            "BertModel --evaluate constant.tsv --length 12",
            "constant.tsv: pairs judge an encoder where",
        ),
        ("BertForSequenceClassification --evaluate half.tsv", "half.tsv, line 2: the label must be a whole number"),
        ("BertForSequenceClassification --evaluate texts.txt --length 12", "a classifier is judged by a table"),
        ("GPT2LMHeadModel --evaluate pairs.tsv --length 12", "a language model is judged by plain text"),
        ("GPT2LMHeadModel --calibrate short.txt --length 40 --solver loss", "the text has 3 tokens; one block of 40"),
        ("vit --lengths 8", "the model cannot be run on 8 tokens, see --length and --lengths"),
        ("t5 --evaluate texts.txt", "t5 has no tokenizer, which texts need"),
        ("nonsense --evaluate texts.txt", "nonsense has no tokenizer that can be read"),
        ("foreign --evaluate texts.txt", "the tokenizer of foreign has 60 tokens, the model 53"),
        ("BertModel --energy 0.9999", "no map became low rank"),
        ("nowhere/at/all", "nowhere/at/all has no configuration that can be read"),
        ("./nowhere", "./nowhere is not a folder with a model"),
        ("texts.txt", "texts.txt is not a folder with a model"),
        (".", "config.json is missing"),
        ("damaged", "is not a whole safetensors file"),
        ("pickled", "pytorch_model.bin is a pickle, which could run code: not read"),
        ("lacking", "lacks 1 weights, pooler.dense.weight among them"),
        ("misfit", "the weights do not fit the configuration"),
        ("custom", "asks for code of its own (auto_map): not run"),
        ("unnamed", "names the architecture None, which transformers does not have"),
    ],
)
def test_refusals(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    broken(home)
    lengths = [] if "--lengths" in words else ["--lengths", ""]
    line = ["compress", *words.split(), *lengths, "--out", str(tmp_path / "small")]
    assert message in refused_unchanged(monkeypatch, capsys, home, tmp_path, *line)


def broken(home: Path) -> None:
    """Models and texts that are of no use."""
    if (home / "empty.txt").exists():
        return
    texts = {
        "empty.txt": "\n \n", "header.tsv": "sentence\tlabel\n", "wrong.tsv": "text\tclass\nbar\t1\n",
        "half.tsv": "sentence\tlabel\nbar\t0.5\n", "short.txt": "bar dos kit\n",
        "constant.tsv": "sentence1\tsentence2\tscore\n" + "bar\tdos\t3\n" * 4,
    }  # fmt: skip
    for name, text in texts.items():
        (home / name).write_text(text)

    def copied(name: str) -> Path:
        (home / name).mkdir()
        for part in ("config.json", "model.safetensors"):
            (home / name / part).write_bytes((home / "BertModel" / part).read_bytes())
        return home / name

    def described(name: str, **change: object) -> None:
        config = json.loads((copied(name) / "config.json").read_text())
        (home / name / "config.json").write_text(json.dumps(config | change))

    weights = copied("damaged") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    (copied("pickled") / "model.safetensors").rename(home / "pickled" / "pytorch_model.bin")
    described("misfit", hidden_size=48)
    described("custom", auto_map={"AutoModel": "x.Y"})
    described("unnamed", architectures=None)
    (copied("nonsense") / "tokenizer.json").write_text("{}")
    tokens = tokenizer("bert")
    tokens.add_tokens([f"more{number}" for number in range(60 - len(tokens))])
    tokens.save_pretrained(copied("foreign"))
    state = load_file(copied("lacking") / "model.safetensors")
    del state["pooler.dense.weight"]
    save_file(state, home / "lacking" / "model.safetensors", {"format": "pt"})


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
    assert "exists and holds no compressed network" in message


@pytest.mark.parametrize("step", ["calibrating", "judging", "measuring", "saving"])
def test_interrupted_it_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def progress(_: object, what: str, __: float) -> None:
        if what == step:
            stop()

    monkeypatch.setattr("greenformers.cli._terminal.Steps.__call__", progress)
    if step == "saving":  # the weights are written, the card is not
        monkeypatch.setattr("greenformers.checkpoint.save.card_of", stop)
    words = ["compress", str(home / "BertModel"), "--out", str(tmp_path / "small"), "--lengths", "", "--length", "12"]
    words += ["--calibrate", str(home / "texts.txt"), "--evaluate", str(home / "texts.txt"), "--solver", "activation"]
    assert run(monkeypatch, *words) not in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
