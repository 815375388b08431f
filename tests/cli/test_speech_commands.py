"""The commands of speech, as a user meets them: trained, resumed, listened with, scored, and refused."""

import io
import json
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import refused, run
from speech.tones import LETTER, SMALL, TEXTS, corpus, settings, sound

from greenformers.data._audio import AudioError
from greenformers.measure.record import read
from greenformers.speech.settings import SpeechSettings

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")
pytest.importorskip("jiwer", reason="the speech extra is not installed")

pytestmark = pytest.mark.usefixtures("drafts")

TOML = "".join(f"{name} = {value}\n" for name, value in SMALL.items())
SECRET = "the patient said"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("commands") / "tones")


@pytest.fixture(scope="module")
def config(folder) -> Path:
    path = folder.parent / "tiny.toml"
    path.write_text(f'corpus = "{folder}"\n{TOML}')
    return path


@pytest.fixture(scope="module")
def runs(folder, config) -> list[Path]:
    """Made by the command, with flags over a file."""
    out = [folder.parent / name for name in ("dense", "small")]
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, "speech", "train", str(config), "--out", str(out[0]), "--steps", "20") == 0
        assert run(patch, "speech", "train", str(config), "--out", str(out[1]), "--variant", "lrt", "--resume") == 0
    return out


@pytest.fixture(scope="module")
def joint(folder, config) -> Path:
    """A run whose words have times."""
    out = folder.parent / "joint"
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, "speech", "train", str(config), "--out", str(out), "--ctc-weight", "0.3") == 0
    return out


def test_help_lists_speech(monkeypatch, capsys):
    assert run(monkeypatch, "--help") == 0
    assert re.search(r"(?m)^\W*speech\s+Speech recognition", capsys.readouterr().out)


def test_help_shows_every_setting_with_its_default(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    assert run(monkeypatch, "speech", "train", "--help") == 0
    shown = capsys.readouterr().out
    for entry in fields(SpeechSettings):
        lines = re.findall(rf"(?m)^\W+--{entry.name.replace('_', '-')} .*$", shown)
        assert len(lines) == (entry.name not in SpeechSettings.unused)
        if not lines:
            continue
        (line,) = lines
        assert entry.metadata["help"] in line
        assert (f"[default: {entry.default}]" in line) == (entry.default is not None)


def test_train_from_flags_alone(monkeypatch, capsys, folder, tmp_path):
    flags = [
        word for name, value in SMALL.items() if name != "rank" for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    out = tmp_path / "run"
    assert run(monkeypatch, "speech", "train", "--out", str(out), "--corpus", str(folder), *flags, "--augment") == 0
    shown = capsys.readouterr().out.splitlines()
    scores = json.loads((out / "scores.json").read_text())
    assert re.fullmatch(
        rf"[\d,]+ parameters, validation loss {scores['loss']:.4g}, perplexity {scores['perplexity']:.4g}, "
        rf"cer {scores['cer']:.4g}, wer {scores['wer']:.4g}, "
        r"\d+\.\d s of training", shown[-2],
    )  # fmt: skip
    assert shown[-1] == f"model: {out / 'model'}"
    expected = vars(settings(folder, augment=True).settled()) | {"rank": SpeechSettings.rank}  # which is of lrt
    assert json.loads((out / "run.json").read_text()) == json.loads(json.dumps(expected))
    assert {path.name for path in out.iterdir()} == {"curves.png", "metrics.jsonl", "model", "run.json", "scores.json"}


def test_train_from_a_file_with_flags_over_it(monkeypatch, capsys, runs, config):
    stored = [json.loads((out / "run.json").read_text()) for out in runs]
    assert [each["steps"] for each in stored] == [20, 3]
    assert [each["variant"] for each in stored] == ["transformer", "lrt"]
    assert [each["hidden"] for each in stored] == [16, 16]
    words = ["speech", "train", str(config), "--out", str(runs[1]), "--variant", "lrt"]
    assert "new or empty folder" in refused(monkeypatch, capsys, *words)
    assert refused(monkeypatch, capsys, *words, "--resume").endswith("small has nothing to resume: it ran to its end")
    line = refused(monkeypatch, capsys, *words, "--resume", "--channels", "3")
    assert line == "greenformers: channels of this run is 2 and cannot be changed; got 3"


def test_a_run_that_was_killed_goes_on(monkeypatch, config, runs, tmp_path):
    from greenformers.train import run as training

    plain, out = training._train, tmp_path / "run"
    words = ["speech", "train", str(config), "--out", str(out), "--resume", "--steps", "20"]

    def killed(*_, **__):
        raise SystemExit(9)

    monkeypatch.setattr(training, "_train", killed)
    assert run(monkeypatch, *words) == 9
    monkeypatch.setattr(training, "_train", plain)
    assert [path.name for path in out.iterdir()] == ["run.json"]
    assert run(monkeypatch, *words) == 0
    assert (out / "scores.json").read_text() == (runs[0] / "scores.json").read_text()


def test_what_is_misspelt_is_named(monkeypatch, capsys, config, tmp_path):
    assert run(monkeypatch, "speech", "train", "--out", str(tmp_path / "run"), "--chanels", "3") == 2
    assert "--channels" in capsys.readouterr().err
    path = tmp_path / "wrong.toml"
    path.write_text(config.read_text().replace("ctc", "").replace("channels", "chanels"))
    line = refused(monkeypatch, capsys, "speech", "train", str(path), "--out", str(tmp_path / "run"))
    assert line == "greenformers: wrong.toml: no setting 'chanels'; did you mean 'channels'?"
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, capsys, "speech", "train", "--out", str(tmp_path / "run"))
    assert line.endswith("corpus must be named: without it the current folder is taken, which holds none")
    line = refused(monkeypatch, capsys, "speech", "train", str(config), "--out", "x", "--layout", "librispeach")
    assert "layout must be one of manifest," in line
    assert line.endswith("got 'librispeach'")


@pytest.mark.parametrize("longest", ["inf", "nan", "0"])
def test_a_length_that_is_none_is_one_line(monkeypatch, capsys, config, tmp_path, longest):
    words = ["speech", "train", str(config), "--out", str(tmp_path / "run"), "--longest", longest]
    assert "longest must be" in refused(monkeypatch, capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_transcripts_are_on_stdout_and_faults_beside_them(monkeypatch, capsys, runs, tmp_path):
    first, second = sound(tmp_path / "one.wav", "abc"), sound(tmp_path / "two.flac", "dcba" * 6, 8_000, channels=2)
    (tmp_path / "text.wav").write_text(SECRET)
    words = ["speech", "transcribe", str(runs[0]), "--width", "2", "--piece", "0.6", "--batch", "2", "--longest", "5"]
    assert run(monkeypatch, *words, str(first), str(second)) == 0
    whole = capsys.readouterr()
    head = r"(?m)^{}: {:.1f} s of sound in \d+\.\d\d s, real-time factor \d+\.\d{{3}}$"
    for path, letters in ((first, 3), (second, 24)):
        assert re.search(head.format(re.escape(str(path)), letters * LETTER), whole.err)
    assert len(whole.out.splitlines()) == 2
    assert "100 %" in whole.err
    assert "greenformers:" not in whole.err

    files = [str(path) for path in (first, tmp_path / "text.wav", tmp_path / "gone.wav", second)]
    assert run(monkeypatch, *words, *files) == 2
    shown = capsys.readouterr()
    texts = whole.out.splitlines()
    assert shown.out.splitlines() == [texts[0], "", "", texts[1]]
    assert re.findall("(?m)^greenformers: (.*)$", shown.err) == [
        f"{tmp_path / 'text.wav'}: no sound that can be read (Format not recognised.)",
        f"{tmp_path / 'gone.wav'}: no such file",
    ]
    assert "patient" not in shown.err + shown.out


def test_transcripts_reach_a_file_from_a_terminal(monkeypatch, capsys, runs, tmp_path):
    """As in `transcribe run a.wav > text`: stderr is a terminal with progress on it, and stdout is none."""
    from rich.console import Console

    from greenformers.cli import _terminal

    path = sound(tmp_path / "one.wav", "abc")
    monkeypatch.setattr(_terminal, "console", lambda *, stderr=False: Console(stderr=stderr, force_terminal=stderr))
    assert run(monkeypatch, "speech", "transcribe", str(runs[0]), str(path), "--width", "1") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert "s of sound" not in shown.out
    assert "0.4sofsoundin" in re.sub(r"\x1b\[\S*?[A-Za-z]|\s", "", shown.err)


def test_every_format_is_data_alone(monkeypatch, capsys, runs, tmp_path):
    first, second = sound(tmp_path / "one.wav", "abc"), sound(tmp_path / "two.wav", "dcba" * 6)
    words = ["speech", "transcribe", str(runs[0]), "--width", "1", "--piece", "0.6", "--longest", "3"]

    def shown(form: str, *paths: Path) -> str:
        assert run(monkeypatch, *words, "--format", form, *map(str, paths)) == 0
        return capsys.readouterr().out

    head, *rows = (line.split("\t") for line in shown("tsv", first, second).splitlines())
    assert head == ["file", "start", "end", "text", "log_probability"]
    assert {row[0] for row in rows} == {str(first), str(second)}
    assert len(rows) > 5
    entries = json.loads(shown("json", first, second))
    assert [entry["file"] for entry in entries] == [str(first), str(second)]
    segments = [segment for entry in entries for segment in entry["segments"]]
    assert [[str(segment[name]) for name in head[1:]] for segment in segments] == [row[1:] for row in rows]
    assert shown("vtt", second).startswith("WEBVTT\n\n")
    assert shown("text", second) == entries[1]["text"] + "\n"
    assert shown("srt", second).count(" --> ") == len(
        [segment for segment in entries[1]["segments"] if segment["text"]]
    )
    line = refused(monkeypatch, capsys, *words, "--format", "srt", str(first), str(second))
    assert line == "greenformers: format srt must have one file, as its times are of one; got 2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--piece", "0"], "piece must be in 0.5..2.08 s for this network, got 0"),
        (["--piece", "9"], "piece must be in 0.5..2.08 s for this network, got 9"),
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--width", "0"], "width must be in 1..1000, got 0"),
        (["--min-confidence", "2"], "min_confidence must be in 0..1, got 2.0"),
        (
            ["--min-confidence", "0.5"],
            "min_confidence needs a run that was trained with ctc_weight and valid_transcripts, got 0.5",
        ),
        (["--gamma", "-1"], "gamma must be in 0..1000, got -1.0"),
        (["--gamma", "inf"], "gamma must be in 0..1000, got inf"),
        (["--longest", "0"], "longest must be at least 1, got 0"),
        (["--ctc-weight", "1.5"], "ctc_weight must be in 0..1, got 1.5"),
    ],
)
def test_options_of_transcribe_out_of_range(monkeypatch, capsys, runs, tmp_path, words, message):
    path = sound(tmp_path / "one.wav", "abc")
    assert run(monkeypatch, "speech", "transcribe", str(runs[0]), str(path), *words) == 2
    shown = capsys.readouterr()
    assert re.findall("(?m)^greenformers: (.*)$", shown.err) == [message]
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_a_share_of_ctc_in_the_search(monkeypatch, capsys, runs, joint, tmp_path):
    path = sound(tmp_path / "one.wav", "abc")
    results = tmp_path / "speech.jsonl"
    words = ["speech", "transcribe", str(joint), str(path), "--no-gate", "--format", "json"]
    capsys.readouterr()
    for least in (0.0, 1.0):
        assert run(monkeypatch, *words, "--min-confidence", str(least)) == 0
        (entry,) = json.loads(capsys.readouterr().out)
        assert all(0 <= word["confidence"] <= 1 for segment in entry["segments"] for word in segment["words"])
    assert entry["text"] == ""
    assert run(monkeypatch, "speech", "transcribe", str(joint), str(path), "--width", "2", "--ctc-weight", "0.5") == 0
    for words in ([], ["--ctc-weight", "1"]):
        shown = [str(joint), "--width", "2", "--limit", "2", "--results", str(results), *words]
        assert run(monkeypatch, "speech", "evaluate", *shown) == 0
    weights = [record.setting.get("ctc_weight") for record in read(results) if record.metric == "cer"]
    assert weights == [None, 1.0]
    capsys.readouterr()
    message = "ctc_weight must be 0 for a network that was trained without CTC, got 0.5"
    for command, more in (("transcribe", [str(path)]), ("evaluate", [])):
        line = refused(monkeypatch, capsys, "speech", command, str(runs[0]), *more, "--ctc-weight", "0.5")
        assert line == f"greenformers: {runs[0]}: {message}"


def damaged(path):
    """All samples of a sound, and then a fault."""
    samples, _ = soundfile.read(path)
    for start in range(0, len(samples), 1000):
        yield samples[start : start + 1000]
    raise AudioError("damaged")


def test_a_stream_writes_a_word_a_line(monkeypatch, capsys, runs, joint, tmp_path):
    path = sound(tmp_path / "one.wav", "abc d ab" * 3)
    words = ["speech", "stream", str(joint), "--no-gate", "--width", "2", "--ctc-weight", "1"]
    capsys.readouterr()
    assert run(monkeypatch, *words, str(path), "--format", "tsv") == 0
    shown = capsys.readouterr()
    header, *rows = shown.out.splitlines()
    assert header == "start\tend\ttext\tconfidence\theard"
    for row in rows:
        start, end, text, _, at = row.split("\t")
        assert float(start) <= float(end) <= float(at)
        assert text
    assert re.fullmatch(rf"{path}: 2\.9 s of sound in \d+\.\d\d s, real-time factor \d+\.\d{{3}}\n", shown.err)
    assert run(monkeypatch, *words, str(path)) == 0
    assert capsys.readouterr().out.splitlines() == [row.split("\t")[2] for row in rows]
    with monkeypatch.context() as patch:  # what was heard is written, as far as it goes
        patch.setattr("greenformers.data._audio.chunks", lambda *_: (4000, damaged(path)))
        assert run(patch, *words, str(path)) == 2
    assert capsys.readouterr().out.splitlines() == [row.split("\t")[2] for row in rows]
    samples, _ = soundfile.read(path, dtype="int16")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(samples.astype("<i2").tobytes())))
    assert run(monkeypatch, *words, "-", "--format", "json", "--rate", "4000") == 0
    piped = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(word["text"], word["heard"]) for word in piped] == [
        (row.split("\t")[2], float(row.split("\t")[4])) for row in rows
    ]
    for more, message in (
        (["--ahead", "3"], "ahead must be in 0.1..0.15 s for this network, got 3"),
        (["--chunk", "0"], "chunk must be in 0.05..10 s, got 0"),
        (["--rate", "8000"], f"rate is of raw samples from stdin, {path} has its own"),
    ):
        assert refused(monkeypatch, capsys, *words, str(path), *more) == f"greenformers: {message}"
    line = refused(monkeypatch, capsys, "speech", "stream", str(runs[0]), str(path))
    assert line == "greenformers: a stream needs the times of words, so a network that was trained with ctc_weight"


def test_evaluate_two_runs(monkeypatch, capsys, runs, tmp_path):
    results = tmp_path / "results" / "speech.jsonl"
    words = ["speech", "evaluate", *map(str, runs), "--width", "2", "--samples", "2", "--results", str(results)]
    assert run(monkeypatch, *words, "--longest", "6") == 0
    shown = capsys.readouterr()
    assert re.findall("(?m)^spoken:  (.*)$", shown.out) == TEXTS[5:7]
    assert len(re.findall("(?m)^written: .*$", shown.out)) == 2
    assert all(f" {out.name} " in shown.out for out in runs)
    assert "CER (%)" in shown.out
    assert "100 %" in shown.err
    records = read(results)
    assert {record.variant for record in records} == {"dense", "small"}
    assert {record.metric for record in records} == {"parameters", "cer", "wer", "mean_length", "latency"}
    for record in records:
        assert record.context["command"].startswith("greenformers speech evaluate dense small --width 2")
        assert str(tmp_path) not in record.context["command"]
    assert (records[0].setting["recordings"], records[-1].to) == (7, "dense")
    assert run(monkeypatch, *words, "--limit", "1", "--split", "valid") == 0
    assert re.findall("(?m)^spoken:  (.*)$", capsys.readouterr().out) == TEXTS[:1]
    assert len(read(results)) == 2 * len(records)
    assert run(monkeypatch, "report", str(results), "--markdown") == 0
    assert "Character error rate" in capsys.readouterr().out


def test_what_evaluate_and_transcribe_refuse(monkeypatch, capsys, runs, tmp_path):
    gone, run_folder = str(tmp_path / "gone"), str(runs[0])
    expected = f"greenformers: {gone} must be a finished run or a model of speech, it has no config.json"
    assert refused(monkeypatch, capsys, "speech", "transcribe", gone, "a.wav") == expected
    assert refused(monkeypatch, capsys, "speech", "evaluate", gone) == expected
    assert refused(monkeypatch, capsys, "speech", "evaluate", run_folder, gone) == expected
    for words, message in (
        (["--limit", "0"], "limit must be at least 1, got 0"),
        (["--split", "dev"], "split must be one of train, valid, test, got 'dev'"),
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--samples", "-1"], "samples must be at least 0, got -1"),
        (["--corpus", gone], "a corpus must be a folder or a manifest"),
        (["--width", "0"], "width must be in 1..1000, got 0"),
    ):
        assert message in refused(monkeypatch, capsys, "speech", "evaluate", run_folder, *words)
    assert list(tmp_path.iterdir()) == []


def test_an_error_never_shows_what_was_said(monkeypatch, capsys, config, tmp_path):
    words = ["speech", "train", str(config), "--out", str(tmp_path / "run"), "--corpus", str(tmp_path / "tones")]
    rows = {
        "fields": {"path": "a.wav"},
        "audio": {"path": "gone.wav", "text": SECRET},
        "text": {"path": 3, "text": SECRET},
    }
    for row in rows.values():
        (tmp_path / "tones").mkdir(exist_ok=True)
        for split in ("train", "valid"):
            (tmp_path / "tones" / f"{split}.jsonl").write_text(json.dumps(row | {"note": SECRET}) + "\n")
        assert "patient" not in refused(monkeypatch, capsys, *words)
    assert not (tmp_path / "run").exists()


def test_the_gate_of_evaluate_is_off_unless_asked_for(monkeypatch, capsys, runs, tmp_path):
    import soundfile

    other, results = corpus(tmp_path / "other", test=["ab"]), tmp_path / "speech.jsonl"
    soundfile.write(other / "sounds" / "test0.wav", [0.0] * 2_000, SMALL["rate"])
    words = ["speech", "evaluate", str(runs[0]), "--corpus", str(other), "--width", "1", "--results", str(results)]
    for gate in ([], ["--no-gate"], ["--gate"]):
        capsys.readouterr()
        assert run(monkeypatch, *words, *gate) == 0
    assert re.search(r"(?m)^written: *$", capsys.readouterr().out)
    records = [record for record in read(results) if record.metric == "cer"]
    assert [record.setting.get("gate") for record in records] == [None, None, True]
    assert records[-1].value == 100
