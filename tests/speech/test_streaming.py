"""Words while the sound still comes: those of the whole, in time, whatever the chunks."""

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from speech.tones import HERTZ, RATE, sound, spoken

from greenformers.data import _audio as audio
from greenformers.data._audio import AudioError
from greenformers.speech.streaming import Heard, Stream
from greenformers.speech.transcript import Segment, Word

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")

TEXT = "ab cd  dab a b    bad cab d cc ad bc   bb cad dd a ab cd dab bad    cab dd"
STEP = round(0.02 * RATE)


def letters(samples: np.ndarray) -> str:
    """What is heard in each 20 ms: a letter or a space."""
    text = ""
    for part in torch.from_numpy(np.asarray(samples, dtype=np.float64)).split(STEP):
        hertz = torch.fft.rfft(part).abs().argmax().item() * RATE / len(part)
        text += min(HERTZ, key=lambda letter: abs(HERTZ[letter] - hertz)) if part.square().mean() > 0.01 else " "
    return text


class Perfect:
    """A recogniser that hears every sound as it is: a word cut in two is two shorter words."""

    piece = 2.0
    model = SimpleNamespace(config=SimpleNamespace(rate=RATE, ctc_weight=0.3))

    def __init__(self) -> None:
        self.heard: list[float] = []

    def segments(self, pieces: list[tuple[float, torch.Tensor]], *, words: bool) -> list[Segment]:
        assert words
        ((start, waveform),) = pieces
        self.heard.append(len(waveform) / RATE)
        own, place = letters(waveform.numpy()), 0
        spans: list[Word] = []
        for text in own.split(" "):
            if text:
                times = (start + place * 0.02, start + (place + len(text)) * 0.02)
                spans.append(Word("".join(c for c, b in zip(text, " " + text, strict=False) if c != b), *times))
            place += len(text) + 1
        return [Segment(start, start + self.heard[-1], "", 0.0, tuple(spans))]


def streamed(samples: np.ndarray, chunk: float, **given: Any) -> tuple[list[Heard], Perfect]:
    recogniser: Any = Perfect()
    stream = Stream(recogniser, RATE, **given)
    size = round(chunk * RATE)
    return list(stream.words(samples[at : at + size] for at in range(0, len(samples), size))), recogniser


@pytest.mark.parametrize("chunk", [0.05, 0.17, 0.25, 1.0, 60.0])
@pytest.mark.parametrize("ahead", [0.1, 0.5])
def test_the_words_are_those_of_the_whole_each_at_its_time(chunk: float, ahead: float) -> None:
    samples = spoken(TEXT)
    heard, recogniser = streamed(samples, chunk, ahead=ahead)
    (whole,) = Perfect().segments([(0.0, torch.from_numpy(samples))], words=True)
    assert len(whole.words) > 15
    assert [each.word.text for each in heard] == [word.text for word in whole.words]
    for each, word in zip(heard, whole.words, strict=True):
        assert each.word.start == pytest.approx(word.start, abs=0.05)
        assert each.word.end == pytest.approx(word.end, abs=0.05)
        # Not before so much sound has followed, and no later than with the next chunk.
        assert word.end - 0.05 <= each.at - ahead or each.at == pytest.approx(len(samples) / RATE)
        assert each.at <= min(word.end + ahead + min(chunk, 0.5) + 0.05, len(samples) / RATE)
    assert max(recogniser.heard) <= Perfect.piece


def test_silence_and_one_endless_sound_go_on() -> None:
    """What is never a word, and what is never the end of one, leave the window too."""
    heard, recogniser = streamed(np.concatenate([np.zeros(5 * RATE), spoken("ab cd")]), 0.25)
    assert [each.word.text for each in heard] == ["ab", "cd"]
    assert heard[0].word.start == pytest.approx(5, abs=0.05)
    heard, recogniser = streamed(spoken("a" * 60), 0.25)
    assert max(recogniser.heard) <= Perfect.piece
    assert {each.word.text for each in heard} == {"a"}


class Unsteady(Perfect):
    """A recogniser that hears the first word end later while it is the only one."""

    def segments(self, pieces: list[tuple[float, torch.Tensor]], *, words: bool) -> list[Segment]:
        end = len(pieces[0][1]) / RATE
        spans = [Word("ab", 0.1, 0.5), Word("cd", 0.45, 1.0)][: 1 if end < 1.2 else 2]
        return [Segment(0.0, end, "", 0.0, tuple(spans))]


def test_no_word_begins_before_the_end_of_the_last() -> None:
    recogniser: Any = Unsteady()
    words = [each.word for each in Stream(recogniser, RATE).words(np.zeros((4, RATE // 2)))]
    assert [(word.text, word.start, word.end) for word in words] == [("ab", 0.1, 0.5), ("cd", 0.5, 1.0)]


def test_a_network_without_ctc_or_an_unlikely_look_ahead_is_refused() -> None:
    without: Any = SimpleNamespace(piece=2.0, model=SimpleNamespace(config=SimpleNamespace(rate=RATE, ctc_weight=0.0)))
    with pytest.raises(ValueError, match=r"trained with ctc_weight$"):
        Stream(without, RATE)
    recogniser: Any = Perfect()
    for ahead in (0.0, 0.6, float("nan")):
        with pytest.raises(ValueError, match=rf"^ahead must be in 0\.1\.\.0\.5 s for this network, got {ahead:g}$"):
            Stream(recogniser, RATE, ahead=ahead)
    with pytest.raises(ValueError, match=r"^rate must be in"):
        Stream(recogniser, 100)


def test_the_good_sound_before_a_damage_is_a_chunk(tmp_path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, np.random.default_rng(0).standard_normal(2**19).clip(-1, 1) * 0.1, RATE)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = bytes(20_000)
    path.write_bytes(data)
    parts: list[np.ndarray] = []
    with pytest.raises(AudioError):
        parts.extend(audio.chunks(path, 7.0)[1])
    whole: list[np.ndarray] = []
    with pytest.raises(AudioError):
        whole.extend(audio.chunks(path, 0.01)[1])
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(whole))


def test_chunks_are_all_samples_of_a_file_or_a_pipe(tmp_path) -> None:
    path = sound(tmp_path / "a.wav", "ab cd", channels=2)
    whole, _ = soundfile.read(path)
    rate, chunks = audio.chunks(path, 0.1)
    parts = list(chunks)
    assert rate == RATE
    assert {len(part) for part in parts[:-1]} == {400}
    np.testing.assert_allclose(np.concatenate(parts), whole.mean(1), atol=1e-7)
    numbers = (whole.mean(1) * 2**15).astype("<i2")
    piped = list(audio.raw(io.BytesIO(numbers.tobytes()), 0.1, RATE))
    np.testing.assert_array_equal(np.concatenate(piped), numbers / 2**15)
    for data, message in ((b"", "there are none"), (b"abc", "2 bytes each, got 3 bytes")):
        with pytest.raises(AudioError, match=message):
            list(audio.raw(io.BytesIO(data), 0.1, RATE))
    with pytest.raises(AudioError, match="no such file"):
        audio.chunks(tmp_path / "gone.wav", 0.1)
