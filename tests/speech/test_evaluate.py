"""Runs scored side by side: what they wrote, how wrong it is, how large and how fast they are."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from speech.tones import RATE, TEXTS, corpus, digits, finished, settings

from greenformers.data._audio import AudioError
from greenformers.measure.recognition import bootstrap, bootstrap_difference, edits, scores
from greenformers.measure.record import Record
from greenformers.speech import evaluate as module
from greenformers.speech.evaluate import TIMED, evaluate, table
from greenformers.speech.recognise import Recogniser
from greenformers.speech.search import Search
from greenformers.train.run import settings_of

pytest.importorskip("soundfile", reason="the speech extra is not installed")
pytest.importorskip("jiwer", reason="the speech extra is not installed")

SEARCH = Search(width=2, longest=9)
TEST = TEXTS[5:]


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    """Intervals are of 100 drawn corpora: to draw 2,000 takes most of the time of an evaluation."""
    with pytest.MonkeyPatch.context() as patch:
        for function in (bootstrap, bootstrap_difference):
            patch.setitem(function.__kwdefaults__, "draws", 100)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return corpus(tmp_path_factory.mktemp("evaluate") / "tones")


@pytest.fixture(scope="module")
def runs(folder) -> list[Path]:
    """A baseline, and a smaller network that has learnt otherwise."""
    top = folder.parent
    return [
        finished(top / "dense", folder, steps=50, learning_rate=0.02, hidden=24, dropout=0.0),
        finished(top / "small", folder, steps=2, variant="lrt", hidden=12),
    ]


@pytest.fixture(scope="module")
def evaluation(runs):
    return evaluate(runs, "test", search=SEARCH, batch=3, repeats=2)


def by_name(records: list[Record]) -> dict[str, dict[str, Record]]:
    return {
        name: {record.metric: record for record in records if record.variant == name}
        for name in dict.fromkeys(record.variant for record in records)
    }


def wrote(run: Path, split: str, count: int) -> list[str]:
    recogniser, objective = Recogniser.load(run, SEARCH), settings(run.parent / "tones").task().objective
    waveforms = [objective.recordings.sound(split, index, torch.Generator())[0] for index in range(count)]
    return [recogniser.texts([waveform])[0] for waveform in waveforms]


def test_every_figure_of_every_run(runs, evaluation):
    records, _ = evaluation
    assert [(record.variant, record.metric) for record in records] == [
        (run.name, metric) for run in runs for metric in ("parameters", "cer", "wer", "mean_length", "latency")
    ]
    units = {"parameters": "", "cer": "%", "wer": "%", "mean_length": "characters", "latency": "ms"}
    for record in records:
        assert record.benchmark == "speech_evaluate"
        assert record.unit == units[record.metric]
        assert record.setting == {"split": "test", "recordings": 7, "width": 2, "timed": 7, "longest": SEARCH.longest}
        assert record.context == {}
    own = by_name(records)
    for run in runs:
        hypotheses = wrote(run, "test", 7)
        expected = scores(hypotheses, TEST)
        assert {name: own[run.name][name].value for name in expected} == pytest.approx(expected)
        model = Recogniser.load(run).model
        assert own[run.name]["parameters"].value == sum(p.numel() for p in model.parameters())
        wrong, lengths = edits(hypotheses, TEST)
        assert own[run.name]["cer"].value == pytest.approx(100 * wrong.sum().item() / lengths.sum().item())
        low, high = bootstrap(wrong, lengths)
        assert own[run.name]["cer"].spread == pytest.approx(high - low)


def test_what_is_compared_with_the_first(runs, evaluation):
    base, other = by_name(evaluation[0]).values()
    for record in base.values():
        assert (record.ratio, record.to, record.interval) == (None, None, None)
    for metric in ("parameters", "latency"):
        assert other[metric].to == "dense"
        assert other[metric].ratio == pytest.approx(base[metric].value / other[metric].value)
        assert other[metric].interval is None
    assert other["parameters"].ratio > 1
    wrong = [edits(wrote(run, "test", 7), TEST) for run in runs]
    expected = bootstrap_difference(wrong[1][0], wrong[0][0], wrong[0][1])
    assert other["cer"].interval == pytest.approx(list(expected))
    assert (other["cer"].to, other["cer"].ratio) == ("dense", None)
    assert expected[0] <= other["cer"].value - base["cer"].value <= expected[1]
    for metric in ("wer", "mean_length"):
        assert (other[metric].to, other[metric].ratio, other[metric].interval) == (None, None, None)


def test_pairs_are_of_the_first_run(runs, evaluation):
    assert evaluation[1] == list(zip(TEST, wrote(runs[0], "test", 7), strict=True))
    assert evaluate(runs[::-1], "test", search=SEARCH, limit=2, repeats=1)[1] == list(
        zip(TEST[:2], wrote(runs[1], "test", 2), strict=True)
    )


def test_the_table(evaluation):
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(evaluation[0]))
    console.file.close()
    head, *rows = (line for line in console.export_text().splitlines() if any(map(str.isalnum, line)))
    for name in ("parameters", "compression", "CER (%)", "to the first", "WER (%)", "speed-up", "mean length"):
        assert name in head
    base, other = by_name(evaluation[0]).values()
    dense, small = rows
    assert f"{base['parameters'].value:,.0f}" in dense
    assert f"{base['cer'].value:.2f}" in dense
    assert "x" not in dense
    share = 100 * (1 - other["parameters"].value / base["parameters"].value)
    low, high = other["cer"].interval
    for shown in (f"{share:.1f} %", f"{other['latency'].ratio:.2f}x", f"{low:+.2f} to {high:+.2f}"):
        assert shown in small


def test_a_limit_takes_the_first_and_one_recording_has_no_interval(runs):
    records, pairs = evaluate(runs, "valid", search=SEARCH, limit=2, repeats=1)
    assert [reference for reference, _ in pairs] == TEXTS[:2]
    assert records[0].setting["recordings"] == 2
    records, pairs = evaluate(runs, "valid", search=SEARCH, limit=1, repeats=1)
    assert len(pairs) == 1
    own = by_name(records)["small"]
    assert (own["cer"].spread, own["cer"].interval) == (0, None)
    table(records)
    assert len(evaluate(runs[:1], "valid", search=SEARCH, limit=99, repeats=1)[1]) == 5


def test_intervals_are_of_speakers_where_these_are_known(runs, tmp_path, monkeypatch):
    folder, seen = corpus(tmp_path / "spoken", train=["ab"], valid=["ab"], test=["ab", "cd", "dab", "bad"]), []
    path = folder / "test.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = ["ann", "ann", "bob", "bob"]
    path.write_text("".join(json.dumps(row | {"speaker": name}) + "\n" for row, name in zip(rows, names, strict=True)))
    plain = module.bootstrap
    monkeypatch.setattr(module, "bootstrap", lambda *given: (seen.append(given[2]), plain(*given))[1])
    evaluate(runs[:1], "test", search=SEARCH, corpus=str(folder), repeats=1)
    evaluate(runs[:1], "test", search=SEARCH, repeats=1)
    assert seen == [names, None]


def test_progress_is_told_by_run(runs):
    told = []
    evaluate(runs, "test", search=SEARCH, limit=3, batch=2, repeats=1, progress=lambda *done: told.append(done))
    assert told == [(run.name, done) for run in runs for done in (2 / 3, 1.0)]


def test_the_speed_is_that_of_one_batch(runs, monkeypatch):
    monkeypatch.setattr(module, "TIMED", 3)
    assert TIMED == 16
    plain, seen = module.beam_search, []

    def counted(model, features, *given, **options):
        seen.append(len(features))
        return plain(model, features, *given, **options)

    monkeypatch.setattr(module, "beam_search", counted)
    records, _ = evaluate(runs, "test", search=SEARCH, limit=4, repeats=2)
    assert records[0].setting["timed"] == 3
    assert seen == [3] * 2 * (2 + 1)
    assert all(record.value > 0 for record in records if record.metric == "latency")


def test_a_corpus_that_was_moved(runs, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    out = tmp_path / "run"
    shutil.copytree(runs[0], out)
    replace(settings_of(out, type(settings("x"))), corpus=str(tmp_path / "gone")).write(out / "run.json")
    with pytest.raises(FileNotFoundError, match="gone"):
        evaluate([out], "test", search=SEARCH)
    pairs = evaluate([out], "test", search=SEARCH, corpus=str(tmp_path / "moved"), repeats=1)[1]
    assert [reference for reference, _ in pairs] == TEST


def test_other_splits_need_not_be_there(runs, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tones")
    for file in (tmp_path / "tones" / "sounds").glob("train*"):
        file.unlink()
    records, _ = evaluate(runs[:1], "test", corpus=str(tmp_path / "tones"), search=SEARCH, repeats=1)
    assert {record.setting["recordings"] for record in records} == {len(TEST)}


def test_another_corpus_than_that_of_the_training(runs, tmp_path):
    """One of a run on a manifest, and one of a run on digits with a speaker held out."""
    other = corpus(tmp_path / "other", test=["abc", "d", "ba"])
    given = {"search": SEARCH, "repeats": 1}
    assert [reference for reference, _ in evaluate(runs[:1], "test", corpus=str(other), **given)[1]] == [
        "abc", "d", "ba",
    ]  # fmt: skip
    of_digits = tmp_path / "of_digits"
    shutil.copytree(runs[0], of_digits)
    stored = settings_of(of_digits, type(settings("x")))
    replace(stored, corpus="gone", layout="spoken_digits", held_out="bob").write(of_digits / "run.json")
    with pytest.raises(ValueError, match="rate must be 16000 for spoken_digits"):
        evaluate([of_digits], "test", corpus=str(other), **given)
    pairs = evaluate([of_digits], "test", corpus=str(other), layout="manifest", **given)[1]
    assert [reference for reference, _ in pairs] == ["abc", "d", "ba"]
    records, _ = evaluate([of_digits], "test", corpus=str(other), layout="manifest", **given)
    assert {record.setting["corpus"] for record in records} == {"other"}
    file = str(other / "test.jsonl")
    assert evaluate([of_digits], "test", corpus=file, **given)[1] == pairs
    with pytest.raises(ValueError, match=r"^test\.jsonl has no valid split$"):
        evaluate(runs[:1], "valid", corpus=file, **given)
    with pytest.raises(ValueError, match=r"^layout of a file must be manifest, got 'aishell'$"):
        evaluate(runs[:1], "test", corpus=file, layout="aishell", **given)


def test_records_of_other_searches_are_told_apart(runs):
    given = {"limit": 2, "repeats": 1}
    plain, other = (
        evaluate(runs[:1], "test", search=replace(SEARCH, **changed), **given)[0][0].setting
        for changed in ({}, {"gamma": 0.0, "end_threshold": 1.5, "cached": False})
    )
    assert other == plain | {"gamma": 0.0, "end_threshold": 1.5}


def test_a_recording_that_is_too_short_is_told_of_before_the_work(runs, tmp_path, monkeypatch):
    other = corpus(tmp_path / "other", test=["abc", "d"])
    rows = [json.loads(line) for line in (other / "test.jsonl").read_text().splitlines()]
    rows[1] |= {"start": 0.01, "end": 0.03}
    (other / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(Recogniser, "segments", lambda *_, **__: pytest.fail("it was heard"))
    with pytest.raises(AudioError, match=r"test1\.wav: of a recording from 0\.01 s on there must be at least 40 ms$"):
        evaluate(runs[:1], "test", corpus=str(other), search=SEARCH, repeats=1)


def test_the_gate_leaves_out_what_is_silent_where_it_is_asked_for(runs, tmp_path):
    """The search must write three characters, whatever it hears."""
    import soundfile

    other = corpus(tmp_path / "other", test=["ab", "cd"])
    soundfile.write(other / "sounds" / "test0.wav", [0.0] * 2_000, RATE)
    given = {"search": replace(SEARCH, shortest=3), "corpus": str(other), "repeats": 1}
    plain, pairs = evaluate(runs[:1], "test", **given)
    assert pairs[0][1] != ""
    assert evaluate(runs[:1], "test", gate=False, **given)[1] == pairs
    gated, others = evaluate(runs[:1], "test", gate=True, **given)
    assert others == [("ab", ""), pairs[1]]
    rates = scores([written for _, written in others], ["ab", "cd"])
    assert by_name(gated)["dense"]["cer"].value == pytest.approx(rates["cer"])
    assert ["gate" in records[0].setting for records in (plain, gated)] == [False, True]
    assert gated[0].setting["gate"] is True


def test_runs_of_the_same_name_are_both_shown_or_refused(runs, tmp_path):
    shutil.copytree(runs[1], tmp_path / "dense")
    try:
        records, _ = evaluate([runs[0], tmp_path / "dense"], "test", search=SEARCH, limit=2, repeats=1)
    except ValueError as error:
        assert "dense" in str(error)  # noqa: PT017
        return
    sizes = [record.value for record in records if record.metric == "parameters"]
    assert len({record.variant for record in records}) == 2
    assert len(set(sizes)) == 2
    assert table(records).row_count == 2


def test_the_current_folder_has_a_name(runs, folder, monkeypatch):
    monkeypatch.chdir(runs[0])
    records, _ = evaluate([Path(), runs[1]], "test", search=SEARCH, corpus=str(folder), limit=1, repeats=1)
    assert list(dict.fromkeys(record.variant for record in records)) == ["dense", "small"]


def test_runs_that_hear_otherwise_are_not_fed_sound_of_another_rate(runs, folder, tmp_path):
    """The second hears 8,000 samples a second, which those of the first one's 4,000 are not."""
    other = finished(tmp_path / "other", folder, steps=1, rate=8_000, n_fft=128, window=128, hop=80)
    plain, lengths = Recogniser.texts, []

    def texts(self, waveforms):
        lengths.append([len(waveform) / self.model.config.rate for waveform in waveforms])
        return plain(self, waveforms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recogniser, "texts", texts)
        try:
            evaluate([runs[0], other], "test", search=SEARCH, limit=2, batch=2, repeats=1)
        except ValueError as error:
            assert "rate" in str(error)  # noqa: PT017
            return
    assert lengths[0] == pytest.approx(lengths[1])


def test_runs_are_timed_on_what_each_can_read(tmp_path):
    place = corpus(tmp_path / "tones", train=["abcd"] * 4, valid=["ab"], test=["abcd" * 3])
    long, short = (finished(tmp_path / name, place, steps=1, longest=least) for name, least in (("a", 2.0), ("b", 0.5)))
    records, _ = evaluate([long, short], "test", search=SEARCH, repeats=1)
    assert {record.variant for record in records if record.value > 0} == {"a", "b"}


def test_recordings_longer_than_those_that_were_learnt_from_are_scored(tmp_path):
    place = corpus(tmp_path / "tones", train=["abcd"] * 4, valid=["ab"], test=["ab", "abcd" * 3])
    out = finished(tmp_path / "run", place, steps=1, longest=0.5)
    _, pairs = evaluate([out], "test", search=SEARCH, repeats=1)
    assert len(pairs) == 2


def test_spoken_digits_of_a_speaker_held_out(tmp_path):
    place = digits(tmp_path / "digits", takes=9, samples=300)
    given = {"layout": "spoken_digits", "rate": 16_000, "n_fft": 160, "window": 160, "hop": 160, "held_out": "bob"}
    with pytest.MonkeyPatch.context() as patch:
        from greenformers.speech import spoken_digits

        plain = spoken_digits.load
        patch.setattr(spoken_digits, "load", lambda *a, **b: plain(*a, **b, valid_strings=3, test_strings=5))
        out = finished(tmp_path / "run", place, steps=1, **given)
        pairs = [evaluate([out], "test", search=SEARCH, repeats=1)[1] for _ in range(2)]
    assert pairs[0] == pairs[1]
    assert [len(reference.split()) for reference, _ in pairs[0]] == [3, 4, 5, 6, 7]


def test_characters_that_no_network_can_write_are_told(runs, tmp_path):
    place = corpus(tmp_path / "strange", test=["ab", "axxb"])
    with pytest.warns(UserWarning, match=r"^1 .* of the test split, 33\.3% of .* count as wrong: .* of dense$"):
        evaluate(runs[:1], "test", search=SEARCH, corpus=str(place), layout="manifest", repeats=1)
    capitals = corpus(tmp_path / "capitals", test=["AB", "C D"])
    with pytest.raises(ValueError, match=r"^the vocabulary of dense must have characters of the test split"):
        evaluate(runs, "test", search=SEARCH, corpus=str(capitals), layout="manifest", repeats=1)


def test_what_is_refused(runs, tmp_path):
    for given, message in (
        ({"limit": 0}, r"limit must be at least 1, got 0"),
        ({"limit": -1}, r"limit must be at least 1, got -1"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"split": "dev"}, "split must be one of train, valid, test, got 'dev'"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            evaluate(runs, **{"split": "test", "search": SEARCH} | given)
    with pytest.raises(ValueError, match=r"gone must be a finished run or a model of speech, it has no config\.json$"):
        evaluate([runs[0], tmp_path / "gone"], "test", search=SEARCH)
    with pytest.raises(OSError, match=r"run\.json"):  # a model alone does not say what to score it on
        evaluate([runs[0] / "model"], "test", search=SEARCH)
    # A baseline's own settings are not needed of the others.
    assert len(evaluate([runs[0], runs[1] / "model"], "test", search=SEARCH, limit=1, repeats=1)[0]) == 10
