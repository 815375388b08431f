"""Recordings: utterances on disk with their parts and lengths, and strings of digits that are new in every epoch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from speech.tones import LETTER, RATE, SMALL, digits, settings, sound, spoken
from torch.testing import assert_close

from greenformers.data._audio import AudioError
from greenformers.data._corpus import Corpus, Utterance, load
from greenformers.speech import spoken_digits
from greenformers.speech.recordings import DigitStrings, OnDisk
from greenformers.train.stream import Stream

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")

EXACT = {"atol": 0, "rtol": 0}
NOTHING = torch.Generator()


def utterance(folder: Path, text: str, **given) -> Utterance:
    return Utterance(sound(folder / f"{text}.wav", text), text, **given)


def on_disk(train, longest=2.0, valid=(), test=(), rate=RATE) -> OnDisk:
    return OnDisk(Corpus("made", list(train), list(valid), list(test)), rate, longest)


def test_too_long_training_utterances_are_left_out_and_counted(tmp_path):
    every = [utterance(tmp_path, text) for text in ("a", "abcdabcd", "abc", "abcdabcda", "ab")]
    recordings = on_disk(every, 3 * LETTER, valid=every[:1], test=every[1:])
    assert recordings.left_out == 2
    assert [recordings.size(split) for split in ("train", "valid", "test")] == [3, 1, 4]
    assert [recordings.length(index) for index in range(3)] == pytest.approx([LETTER, 3 * LETTER, 2 * LETTER])
    for index, text in enumerate(("a", "abc", "ab")):
        waveform, written = recordings.sound("train", index, NOTHING)
        assert written == text
        assert_close(waveform.double(), torch.from_numpy(spoken(text)), atol=2**-15, rtol=0)
    assert recordings.sound("test", 2, NOTHING)[1] == "abcdabcda"  # what is scored stays whole
    assert on_disk(every, 9 * LETTER).left_out == 0


def test_all_too_long_names_the_shortest(tmp_path):
    every = [utterance(tmp_path, text) for text in ("abcd", "abc")]
    with pytest.raises(ValueError, match=r"^longest must be at least 0\.36 s, got 0\.3$"):
        on_disk(every, 0.3)


def test_the_shortest_to_allow_is_one_that_can_be_heard(tmp_path):
    every = [utterance(tmp_path, "abcd"), utterance(tmp_path, "ab", start=0.23)]
    with pytest.raises(ValueError, match=r"^longest must be at least 0\.48 s, got 0\.3$"):
        on_disk(every, 0.3)
    for start in (0.23, 50.0):  # no `longest` helps
        short = [utterance(tmp_path, "ab", start=start)]
        for train, valid, split in ((short, every, "train"), (every, short, "valid")):
            about = f"made: an utterance must be at least 40 ms of its file, of the 1 of {split} none is"
            with pytest.raises(ValueError, match=f"^{about}$"):
                on_disk(train, valid=valid)


def test_a_split_that_is_missing(tmp_path):
    recordings = on_disk([utterance(tmp_path, "a")])
    with pytest.raises(ValueError, match=r"^made has no valid split$"):
        recordings.size("valid")
    with pytest.raises(ValueError, match=r"^split must be one of train, valid, test, got 'dev'$"):
        recordings.size("dev")


def test_parts_of_a_call_are_heard_on_their_channel(tmp_path):
    """As in HKUST: two channels, turns by their times."""
    call = "20040503_220512_A901121_B901122"
    left, right = spoken("aabbccdd"), spoken("ddccbbaa")
    for place in ("audio/train", "trans/train"):
        (tmp_path / place).mkdir(parents=True)
    soundfile.write(tmp_path / f"audio/train/{call}.wav", np.stack([left, right], 1), RATE)
    turns = [(0, 2, "A", "是"), (3, 5, "B", "不"), (2, 7, "A", "好"), (4, 8, "B", "你")]
    lines = [f"{start * LETTER:.2f} {end * LETTER:.2f} {side}: {text}" for start, end, side, text in turns]
    (tmp_path / f"trans/train/{call}.txt").write_text("\n".join(["# header", *lines]), encoding="gb18030")
    recordings = OnDisk(load(tmp_path), RATE, 4.5 * LETTER)
    assert (recordings.left_out, recordings.size("train")) == (1, 3)
    assert set("".join(recordings.texts())) >= set("是不你")
    letter = round(LETTER * RATE)
    for index, (start, end, side, text) in enumerate([turns[0], turns[1], turns[3]]):
        waveform, written = recordings.sound("train", index, NOTHING)
        assert written == text
        expected = {"A": left, "B": right}[side][start * letter : end * letter]
        assert_close(waveform.double(), torch.from_numpy(expected), atol=2**-15, rtol=0)
        assert recordings.length(index) == pytest.approx((end - start) * LETTER)


def test_another_rate_is_resampled(tmp_path):
    clip = Utterance(sound(tmp_path / "a.wav", "abc", 8_000), "abc")
    recordings = on_disk([clip])
    waveform, _ = recordings.sound("train", 0, NOTHING)
    assert len(waveform) == round(3 * LETTER * RATE)
    assert recordings.length(0) == pytest.approx(3 * LETTER)


def test_a_damaged_or_missing_training_file_is_found_at_the_start(tmp_path):
    whole = utterance(tmp_path, "ab")
    (tmp_path / "text.wav").write_text("no sound")
    for path in (tmp_path / "text.wav", tmp_path / "gone.wav"):
        with pytest.raises(AudioError, match=rf"^{path}: "):
            on_disk([whole, Utterance(path, "a")])
        with pytest.raises(AudioError, match=rf"^{path}: "):  # a part of it as well
            on_disk([whole, Utterance(path, "a", start=0.1, end=0.3)])


@pytest.mark.parametrize(
    "part",
    [{"start": 0.5}, {"start": 0.4, "end": 0.5}, {"start": 0.1, "end": 0.11}],
    ids=["starts behind the end", "lies behind the end", "is too short"],
)
def test_a_part_that_cannot_be_heard_does_not_stop_training_later(tmp_path, part):
    """It is left out, so that whatever is in the training split can be heard."""
    recordings = on_disk([utterance(tmp_path, "ab"), utterance(tmp_path, "ba", **part)])
    assert recordings.size("train") == 1
    recordings.sound("train", 0, NOTHING)


def strings(folder: Path) -> DigitStrings:
    return DigitStrings(spoken_digits.load(digits(folder), valid_strings=5, test_strings=7))


def test_strings_of_digits(tmp_path):
    recordings = strings(tmp_path)
    assert [recordings.size(split) for split in ("train", "valid", "test")] == [2 * 10 * 2 // 5, 5, 7]
    assert set("".join(recordings.texts())) == set("zero one two three four five six seven eight nine")
    for index in range(5):
        drawn = [recordings.sound("train", index, torch.Generator().manual_seed(seed)) for seed in range(50)]
        assert {len(text.split()) for _, text in drawn} == {3 + index}
        seconds = sum(len(waveform) for waveform, _ in drawn) / len(drawn) / spoken_digits.RATE
        assert recordings.length(index) == pytest.approx(seconds, rel=0.05)
    first, second = (recordings.sound("valid", 3, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert_close(first[0], second[0], **EXACT)
    assert first[1] == second[1]


def test_every_epoch_has_new_strings_and_they_depend_on_the_seed_alone(tmp_path):
    digits(tmp_path)
    given = SMALL | {"rate": 16_000, "n_fft": 160, "window": 160, "hop": 160}
    objective = settings(tmp_path, **given | {"layout": "spoken_digits"}).task().objective
    stream = Stream(objective, 4, 6, 0)
    assert stream.steps_an_epoch == 2
    seen = [stream[place] for place in range(24)]
    epochs = [{tuple(example["labels"].tolist()) for example in seen[start : start + 8]} for start in (0, 8, 16)]
    assert all(len(epoch) == 8 for epoch in epochs)
    assert not epochs[0] & epochs[1]
    assert not epochs[1] & epochs[2]
    # A run that goes on reads from the middle, out of a fresh objective.
    again = Stream(settings(tmp_path, **given | {"layout": "spoken_digits"}).task().objective, 4, 6, 0)
    for place in (13, 22, 3):
        for name, tensor in again[place].items():
            assert_close(tensor, seen[place][name], **EXACT)
    other = Stream(objective, 4, 6, 1)
    assert any(not torch.equal(other[place]["labels"], seen[place]["labels"]) for place in range(8))


def test_batches_of_digits_are_of_like_length(tmp_path):
    recordings = strings(tmp_path)
    lengths = [recordings.length(index) for index in range(recordings.size("train"))]
    assert lengths[:3] == lengths[5:]
    assert lengths[:5] == sorted(set(lengths))


def test_a_manifest_of_parts(tmp_path):
    sound(tmp_path / "a.wav", "abcd")
    rows = [
        {"path": "a.wav", "text": "bc", "start": LETTER, "end": 3 * LETTER},
        {"path": "a.wav", "text": "d", "start": 3 * LETTER},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recordings = OnDisk(load(tmp_path / "train.jsonl"), RATE, 2.0)
    assert [recordings.length(0), recordings.length(1)] == pytest.approx([2 * LETTER, LETTER])
    letter = round(LETTER * RATE)
    whole = torch.from_numpy(spoken("abcd"))
    for index, part in enumerate((whole[letter : 3 * letter], whole[3 * letter :])):
        assert_close(recordings.sound("train", index, NOTHING)[0].double(), part, atol=2**-15, rtol=0)
