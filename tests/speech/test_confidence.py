"""Confidence: the calibration of words, the gate, and what is left out of a transcript."""

import json
import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from speech.tones import RATE, corpus, finished, spoken

from greenformers.measure.recognition import right_words
from greenformers.speech.calibrate import calibrated
from greenformers.speech.confidence import EVIDENCE, FILE, Calibration, auc, evidence_of
from greenformers.speech.recognise import GATE, Recogniser
from greenformers.speech.search import Hypothesis, Search
from greenformers.speech.settings import SpeechSettings
from greenformers.train.run import settings_of

pytest.importorskip("soundfile", reason="the speech extra is not installed")
pytest.importorskip("jiwer", reason="the speech extra is not installed")


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    top = tmp_path_factory.mktemp("confidence")
    return finished(
        top / "run", corpus(top / "tones"), steps=50, learning_rate=0.02, hidden=24, dropout=0.0, ctc_weight=0.5
    )


@pytest.fixture(scope="module")
def recogniser(out) -> Recogniser:
    return Recogniser.load(out, Search(width=2, longest=9))


def drawn(count, seed=0):
    """Evidence of words, and whether they are right with the probability of a known law."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, len(EVIDENCE), generator=source, dtype=torch.float64) * 3 + 1
    truth = (x[:, 0] - 0.5 * x[:, 2] + 1).sigmoid()
    return x, truth, torch.rand(count, generator=source, dtype=torch.float64) < truth


def test_probabilities_are_those_of_the_law():
    x, _, right = drawn(4_000)
    calibration = Calibration.fit(x, right)
    new, truth, _ = drawn(500, seed=1)
    assert (calibration(new) - truth).abs().mean() < 0.03
    assert (calibration.words, calibration.wrong) == (4_000, int((~right).sum()))
    # The formula, word by word.
    row = new[3].tolist()
    terms = zip(row, calibration.mean, calibration.scale, calibration.weight, strict=True)
    score = calibration.bias + sum(weight * (value - mean) / scale for value, mean, scale, weight in terms)
    assert calibration(new)[3].item() == pytest.approx(1 / (1 + math.exp(-score)))


@pytest.mark.parametrize("right", [True, False])
def test_words_that_are_all_right_or_all_wrong_are_no_certainty(right):
    x = torch.ones(7, len(EVIDENCE), dtype=torch.float64)
    sure = Calibration.fit(x, torch.full((7,), right))(x[:1]).item()
    assert sure == pytest.approx(8 / 9 if right else 1 / 9, abs=1e-3)
    with pytest.raises(ValueError, match=r"^a calibration needs at least 1 word, got 0$"):
        Calibration.fit(x[:0], torch.tensor([], dtype=torch.bool))


def test_evidence_of_a_word():
    evidence = evidence_of(torch.tensor([-1.0, -2.0, -6.0]), torch.tensor([-0.5, -1.5]), -20.0, -32.0)
    assert evidence.tolist() == pytest.approx([-3.0, -6.0, -1.0, -1.5, 12.0])
    assert evidence_of(torch.zeros(1), torch.zeros(1), -20.0, -100.0)[-1] == 30
    assert evidence_of(torch.zeros(1), torch.zeros(1), -40.0, -30.0)[-1] == 0


def test_area_under_the_curve_is_a_count_of_pairs():
    scores, right = [0.9, 0.4, 0.4, 0.1, 0.7], [True, True, False, False, False]
    pairs = [(a, b) for a, true in zip(scores, right, strict=True) if true for b in (0.4, 0.1, 0.7)]
    assert auc(scores, right) == pytest.approx(100 * sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs))
    with pytest.raises(ValueError, match=r"^there must be right and wrong words, got 1 and 0$"):
        auc([0.5], [True])


def test_right_words_are_aligned_with_the_reference():
    assert right_words(["a", "b", "c", "d"], ["a", "c", "d"]) == [True, False, True, True]
    assert right_words(["a", "x"], ["a", "b", "c"]) == [True, False]
    assert right_words(["a"], []) == [False]
    assert right_words([], ["a"]) == []


def test_a_run_stores_its_calibration(out, tmp_path):
    stored = json.loads((out / "model" / FILE).read_text())
    assert stored["evidence"] == list(EVIDENCE)
    own = Recogniser.load(out)
    assert own.calibration == Calibration.read(out / "model")
    recordings = settings_of(out, SpeechSettings).recordings()
    assert calibrated(own, recordings, 5) == own.calibration
    own.calibration.write(tmp_path)
    assert Calibration.read(tmp_path) == own.calibration
    assert Calibration.read(tmp_path / "gone") is None
    for damage in ("{", "[]", '{"evidence": ["x"]}', json.dumps(stored | {"weight": [1.0]})):
        (tmp_path / FILE).write_text(damage)
        with pytest.raises(ValueError, match=r"must be the calibration of a speech recogniser, it is damaged$"):
            Calibration.read(tmp_path)


def fixed(sure):
    """A calibration that is as sure of every word."""
    count = len(EVIDENCE)
    return Calibration((0.0,) * count, (1.0,) * count, (0.0,) * count, math.log(sure / (1 - sure)), 1, 0)


def test_what_is_unsure_is_not_written(recogniser, monkeypatch):
    pieces = [(0.0, torch.from_numpy(spoken("ab cd")).float())]
    plain = replace(recogniser, calibration=None).segments(pieces, words=True)[0]
    assert plain.words
    assert {word.confidence for word in plain.words} == {None}
    for sure, gate, least, stays in (
        (GATE - 0.01, True, 0.0, False), (GATE - 0.01, False, 0.0, True), (GATE + 0.1, True, 0.0, True),
        (GATE + 0.1, True, 0.7, False), (0.9, True, 0.7, True),
    ):  # fmt: skip
        own = replace(recogniser, calibration=fixed(sure)).sifting(gate=gate, least=least)
        (segment,) = own.segments(pieces, words=True)
        assert segment.text == (plain.text if stays else "")
        assert segment.log_probability == (plain.log_probability if stays else None)
        assert [word.confidence for word in segment.words] == (
            [pytest.approx(sure)] * len(plain.words) if stays else []
        )
    # Of two words the surer one.
    words = [*plain.words, plain.words[0]][:2]
    monkeypatch.setattr(Calibration, "__call__", lambda *_: torch.tensor([0.4, 0.8], dtype=torch.float64))
    monkeypatch.setattr(Recogniser, "_words", lambda *_: (words, [torch.zeros(len(EVIDENCE)).double()] * 2))
    own = replace(recogniser, calibration=fixed(0.5), least=0.5)
    (segment,) = own.segments(pieces, words=True)
    assert segment.text == words[1].text


def test_a_text_that_there_is_no_room_for_is_nothing(recogniser):
    own = replace(recogniser, calibration=fixed(0.9)).sifting(gate=True, least=None)
    letter = own.tokenizer.get_vocab()["a"]
    pieces = [(0.0, torch.from_numpy(spoken("ab")).float())]
    with mock.patch("greenformers.speech.recognise.written", return_value=[[Hypothesis((letter,) * 40, 0.0, 0.0)]]):
        assert own.segments(pieces, words=True)[0].text == ""
        assert own.sifting(gate=False, least=None).segments(pieces, words=True)[0].text == 40 * "a"


def test_silence_is_nothing_with_or_without_a_calibration(recogniser):
    pieces = [(0.0, torch.zeros(RATE)), (1.0, 1e-4 * torch.randn(RATE, generator=torch.Generator().manual_seed(0)))]
    for calibration in (None, fixed(0.9)):
        own = replace(recogniser, calibration=calibration)
        assert [segment.text for segment in own.segments(pieces, words=True)] == ["", ""]
    assert [segment.words for segment in own.segments(pieces, words=True)] == [(), ()]


def test_a_least_confidence_out_of_range(recogniser):
    for least in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=rf"^min_confidence must be in 0\.\.1, got {least}$"):
            recogniser.sifting(gate=True, least=least)
    message = r"^min_confidence needs a run that was trained with ctc_weight and valid_transcripts, got 0\.5$"
    with pytest.raises(ValueError, match=message):
        replace(recogniser, calibration=None).sifting(gate=True, least=0.5)
