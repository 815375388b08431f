"""Runs on the command line: trained from files and flags, resumed, evaluated, and made to write."""

import json
import re
from pathlib import Path

import pytest
from command_line import SMALL, refused, run

from greenformers.measure.record import read

pytestmark = pytest.mark.usefixtures("drafts")

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
    """A folder with the text of Tiny Shakespeare, the pairs of Multi30k and the papers of SciTLDR, in short."""
    folder.mkdir()
    (folder / "input.txt").write_text(VERSE * 20)
    for part, count in (("train", 8), ("val", 3), ("test_2016_flickr", 5)):
        for language, word in (("en", "dog"), ("de", "hund")):
            (folder / f"{part}.{language}").write_text("".join(f"{word} {n}\n" for n in range(count)))
    rows = [f"Of dogs {n}\tA dog ran. It sat.\ta dog ran ||| a dog sat\n" for n in range(8)]
    for part, count in (("train", 8), ("dev", 3)):
        (folder / f"scitldr_{part}.tsv").write_text("title\tabstract\tsummaries\n" + "".join(rows[:count]))
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

    said = refused(monkeypatch, capsys, "evaluate", str(out), "--samples", "1")
    assert "options of writing are for seq2seq" in said
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
    (tmp_path / "gap").write_text("nobler\n\nmind\n")
    asked = ["generate", str(out), "--prompt", "to be", "--prompts", str(tmp_path / "prompts"), "--max-new-tokens", "4"]
    assert run(monkeypatch, *asked) == 0
    greedy = capsys.readouterr().out
    lines = greedy.replace("\n", "|")
    assert re.fullmatch(r"to be.{0,4}\|nobler.{0,4}\|mind.{0,4}\|", lines)
    assert run(monkeypatch, *asked) == 0
    assert capsys.readouterr().out == greedy
    with pytest.warns(UserWarning, match=r"1 of the 5 tokens of the prompts are not in the model's vocabulary"):
        assert run(monkeypatch, "generate", str(out), "--prompt", "to bé", "--max-new-tokens", "1") == 0
    assert capsys.readouterr().out.startswith("to b")
    drawn = []
    for seed in ("1", "1", "2"):
        assert run(monkeypatch, *asked, "--sample", "--temperature", "3", "--top-k", "9", "--seed", seed) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]
    assert len({*drawn, greedy}) == 3

    for words, message in (
        (["--prompt", ""], "a prompt must have at least one character, got an empty one"),
        ([], "there must be at least one prompt, got none"),
        (["--prompt", "o" * 20], "a prompt must have at most 15 tokens, got one of 20"),
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
        (
            ["--prompt", "to", "--length-penalty", "2"],
            "length_penalty chooses among beams, which must be at least 2 then, got 1",
        ),
        (["--prompt", "to", "--no-repeat", "0"], "no_repeat must be at least 1, got 0"),
        (
            ["--prompt", "to", "--max-new-tokens", "4", "--min-new-tokens", "5"],
            "min_new_tokens must be in 1..4, the largest number, got 5",
        ),
        (
            ["--prompt", "to", "--temperature", "0.5"],
            "temperature, top_k, top_p and seed are of sampling: give --sample too",
        ),
        (["--prompt", "to", "--seed", "0"], "temperature, top_k, top_p and seed are of sampling: give --sample too"),
        (["--prompts", str(tmp_path / "gap")], "gap, line 2: a prompt must have at least one character"),
        (["--prompt", "to", "--sample", "--temperature", "0"], "temperature must be above 0, got 0.0"),
        (["--prompt", "to", "--sample", "--top-p", "2"], "top_p must be above 0 and at most 1, got 2.0"),
        (["--prompt", "to", "--sample", "--top-k", "-1"], "top_k must be at least 0, got -1"),
        (["--prompt", "to", "--sample", "--seed", "-1"], "seed must be in 0..4294967295, got -1"),
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
    scores = {record.metric: record.value for record in read(results)}
    assert list(values) == list(scores) == ["loss", "perplexity", "bleu", "chrf"]
    assert {name: f"{value:.4g}" for name, value in scores.items()} == values

    assert run(monkeypatch, "generate", str(out), "--prompt", "dog 0", "--prompt", "dog 1", "--beams", "2") == 0
    ours = re.findall("(?m)^ours:   (.*)$", shown)
    assert capsys.readouterr().out.splitlines() == ours
    for words, message in (
        (
            ["generate", str(out), "--prompt", "dog", "--max-new-tokens", "16"],
            "max_new_tokens must be in 1..15, got 16",
        ),
        (["generate", str(out), "--prompt", ""], "a prompt must have at least one character, got an empty one"),
        (["generate", str(out), "--prompt", "dog", "--max-new-tokens", "0"], "max_new_tokens must be in 1..15, got 0"),
        (["evaluate", str(out), "--beams", "0"], "beams must be at least 1, got 0"),
        (["evaluate", str(out), "--batch", "0"], "batch must be at least 1, got 0"),
        (["evaluate", str(out), "--folder", str(tmp_path / "gone")], "is not a folder"),
    ):
        assert message in refused(monkeypatch, capsys, *words)


def test_a_summariser_from_flags_to_scores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, config, out = str(corpus(tmp_path / "data")), tmp_path / "tiny.toml", tmp_path / "run"
    config.write_text(TINY)
    results = tmp_path / "results.jsonl"
    words = ["--data", "scitldr", "--folder", folder, "--target-length", "9"]
    assert run(monkeypatch, "train", str(config), *words, "--out", str(out)) == 0
    capsys.readouterr()
    words = ["evaluate", str(out), "--split", "valid", "--beams", "2", "--no-repeat", "1", "--samples", "1"]
    assert run(monkeypatch, *words, "--results", str(results)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("source: Of dogs 0 | A dog ran. It sat.\ntarget: a dog ran\n        a dog sat\nours:   ")
    names = ["rouge_1", "rouge_2", "rouge_l"]
    assert re.findall(r"(?m)^valid (\w+): \S+ \(\S+ to \S+\)$", shown) == names
    beside = re.findall(r"(?m)^valid (\w+) of (lead-\d): \S+; ours less this \S+ to \S+$", shown)
    assert beside == [(name, lead) for lead in ("lead-1", "lead-3") for name in names]
    records = read(results)
    assert [(record.variant, record.metric) for record in records] == [
        ("transformer", "loss"), ("transformer", "perplexity"), *(("transformer", name) for name in names),
        *((lead, name) for lead in ("lead-1", "lead-3") for name in names),
    ]  # fmt: skip
    assert [record.to for record in records] == [None] * 2 + ["lead-1"] * 3 + [None] * 6
    ours, lead = (
        {record.metric: record for record in records if record.variant == variant}
        for variant in ("transformer", "lead-1")
    )
    low, high = ours["rouge_1"].interval
    assert low <= ours["rouge_1"].value - lead["rouge_1"].value <= high

    assert run(monkeypatch, "generate", str(out), "--prompt", "Of dogs 0 | A dog ran. It sat.", *words[4:8]) == 0
    (line,) = re.findall("(?m)^ours:   (.*)$", shown)
    assert capsys.readouterr().out == f"{line}\n"  # no longer than targets, as in evaluation
    assert len(line) <= 9
    assert len({*line}) == len(line)  # of characters, none twice
    message = "target_length is for seq2seq, the objective is causal_lm; got 9"
    words = ["--data", "tinyshakespeare", "--folder", folder, "--target-length", "9"]
    assert message in refused(monkeypatch, capsys, "train", str(config), *words, "--out", str(tmp_path / "other"))
    message = "target_length is for seq2seq, the data are images; got 9"
    words = ["--data", "digits", "--target-length", "9", "--out", str(tmp_path / "other")]
    assert message in refused(monkeypatch, capsys, "train", *words)
    for name, value in (("length", "9"), ("tokenizer", "bytes")):
        words = ["--data", "digits", f"--{name}", value, "--out", str(tmp_path / "other")]
        said = f"{name} is of texts, the data are images; got {value}"
        assert said in refused(monkeypatch, capsys, "train", *words)


def test_options_of_an_attention_are_name_and_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", *SMALL[:-2], "--variant", "linformer", "--option", "sharing=layerwise", "--option"]
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


def test_a_rank_is_for_low_rank_layers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config, out = tmp_path / "tiny.json", tmp_path / "run"
    low_rank = {"steps": 1, "limit": 20, "batch": 10, "hidden": 8, "heads": 2, "layers": 1, "variant": "lrt", "rank": 2}
    config.write_text(json.dumps(low_rank | {"variant": "linformer"}))
    said = "greenformers: rank is for lrt, the variant is 'linformer'; got 2"
    assert refused(monkeypatch, capsys, "train", str(config), "--out", str(out)) == said
    config.write_text(json.dumps(low_rank))
    words = ["train", str(config), "--variant", "transformer", "--out", str(out)]
    said = "greenformers: rank is for lrt, the variant is 'transformer'; got 3"
    assert refused(monkeypatch, capsys, *words, "--rank", "3") == said
    assert not out.exists()
    assert run(monkeypatch, *words) == 0  # the dense network beside that of the file
    words = ["train", "--init", str(out), "--tokenizer", "bytes", "--out", str(tmp_path / "other")]
    said = f"greenformers: tokenizer is that of the run in init, {out}; got bytes"
    assert refused(monkeypatch, capsys, *words) == said


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
    assert line == "greenformers: batch of this run is 4 and cannot be changed; got 5"
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
