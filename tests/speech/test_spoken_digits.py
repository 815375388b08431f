"""Strings of digits from a small made corpus, which tells its clips apart, and from the real one where it is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly

from greenformers.speech import spoken_digits
from greenformers.speech.spoken_digits import DIGITS, load

REAL = Path(__file__).parents[2].parent / "shared/data/fsdd"
SPEAKERS = ("ann", "bob", "cleo")
TAKES = 11


def corpus_arrays():
    """Arrays of 3 speakers, 10 digits and takes 0-10, in an order that is none; no sample is zero."""
    draw = np.random.default_rng(0)
    who = [(speaker, digit, take) for speaker in range(len(SPEAKERS)) for digit in range(10) for take in range(TAKES)]
    order = draw.permutation(len(who))
    speaker, digit, take = (np.array(values, dtype=np.uint8)[order] for values in zip(*who, strict=True))
    offsets = np.concatenate([[0], draw.integers(17, 31, len(who)).cumsum()])
    audio = draw.integers(3000, 9000, offsets[-1]).astype(np.int16)
    return {
        "audio": audio,
        "offsets": offsets,
        "digit": digit,
        "speaker": speaker,
        "index": take,
        "speakers": np.array(SPEAKERS),
        "sample_rate": np.array(8000, dtype=np.int32),
    }


@pytest.fixture
def corpus():
    return corpus_arrays()


@pytest.fixture
def folder(tmp_path, corpus):
    return saved(tmp_path, corpus)


def saved(folder, arrays):
    np.savez(folder / "fsdd.npz", **arrays)
    return folder


def source(seed):
    return torch.Generator().manual_seed(seed)


def drawn(digits, split, count):
    """The clips of `count` strings, and of these the speakers."""
    made_of = [digits.string(split, index % digits.size(split), source(index))[2] for index in range(count)]
    return {clip for string in made_of for clip in string["clips"]}, {string["speaker"] for string in made_of}


def pauses(samples, clips, corpus):
    """The silent samples between the clips, which must be those of the corpus at twice the rate and nothing else."""
    place, silences = 0, []
    for number, clip in enumerate(clips):
        start, end = corpus["offsets"][clip : clip + 2]
        begin = place
        if number:
            place += int(samples[place:].nonzero()[0])
        silences += [place - begin] if number else []
        expected = torch.from_numpy(resample_poly(corpus["audio"][start:end] / 32768, 2, 1)).float()
        torch.testing.assert_close(samples[place : place + len(expected)], expected, rtol=0, atol=1e-5)
        place += len(expected)
    assert place == len(samples)
    return silences


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_string_is_its_clips(folder, corpus, split):
    digits = load(folder, valid_strings=13, test_strings=13)
    lengths = []
    for index in range(13):
        samples, text, made_of = digits.string(split, index, source(index))
        assert samples.dtype == torch.float32
        clips = made_of["clips"]
        assert text.split(" ") == [DIGITS[corpus["digit"][clip]] for clip in clips]
        assert {SPEAKERS[corpus["speaker"][clip]] for clip in clips} == {made_of["speaker"]}
        assert len(clips) == digits.digits_in(split, index) == 3 + index % 5
        lengths += pauses(samples, clips, corpus)
    assert min(lengths) < 400
    assert 2000 < max(lengths) <= 2400


def test_splits_have_no_clip_in_common(folder, corpus):
    digits = load(folder, valid_strings=401, test_strings=401)
    draws = {split: drawn(digits, split, 401)[0] for split in ("train", "valid", "test")}
    takes = {split: {int(corpus["index"][clip]) for clip in clips} for split, clips in draws.items()}
    assert takes == {"train": {8, 9, 10}, "valid": {5, 6, 7}, "test": {0, 1, 2, 3, 4}}
    # No clip is left unused: 2,000 draws from 90 miss one with a chance of 2e-8.
    assert len(draws["train"]) == 3 * 10 * 3


def test_a_speaker_held_out(folder, corpus):
    digits = load(folder, held_out="bob", valid_strings=301, test_strings=601)
    train, valid, test = (drawn(digits, split, 601) for split in ("train", "valid", "test"))
    assert (train[1], valid[1], test[1]) == ({"ann", "cleo"}, {"ann", "cleo"}, {"bob"})
    takes = [{int(corpus["index"][clip]) for clip in clips} for clips, _ in (train, valid, test)]
    assert takes == [set(range(TAKES)) - {5, 6, 7}, {5, 6, 7}, set(range(TAKES))]
    assert not train[0] & valid[0]


def test_sizes(folder):
    digits = load(folder, valid_strings=7, test_strings=11, least=2, most=4)
    assert [digits.size(split) for split in ("train", "valid", "test")] == [3 * 10 * 3 // 5, 7, 11]
    assert load(folder, held_out="ann").size("train") == 2 * 10 * 8 // 5
    assert [digits.digits_in("valid", index) for index in range(7)] == [2, 3, 4, 2, 3, 4, 2]
    assert (digits.least, digits.most, digits.speakers) == (2, 4, list(SPEAKERS))
    assert load(folder, least=1, most=1).digits_in("train", 5) == 1


def same(a, b):
    return torch.equal(a[0], b[0]) and a[1:] == b[1:]


def test_only_training_strings_are_drawn_afresh(folder):
    digits, again = load(folder), load(folder)
    for split in ("valid", "test"):
        unused = source(1)
        before = unused.get_state()
        assert same(digits.string(split, 2, unused), again.string(split, 2, source(2)))
        assert torch.equal(unused.get_state(), before)
        # Strings 2 and 7 are of the same length, and not the same.
        assert digits.string(split, 2, unused)[2] != digits.string(split, 7, unused)[2]
    assert digits.string("valid", 2, source(0))[1] != digits.string("test", 2, source(0))[1]
    assert same(digits.string("train", 2, source(1)), again.string("train", 2, source(1)))
    assert digits.string("train", 2, source(1))[2] != digits.string("train", 2, source(2))[2]


def test_a_tone_keeps_its_pitch_and_strength(tmp_path, corpus):
    length = 800
    seconds = np.arange(length) / 8000
    clips = len(corpus["digit"])
    tone = np.round(16384 * np.sin(2 * np.pi * 440 * seconds)).astype(np.int16)
    corpus |= {"audio": np.tile(tone, clips), "offsets": np.arange(clips + 1) * length}
    samples, _, _ = load(saved(tmp_path, corpus), least=1, most=1).string("test", 0, source(0))
    expected = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(1600) / 16000)
    assert samples.shape == (1600,)
    torch.testing.assert_close(samples[200:-200], expected[200:-200], rtol=0, atol=2e-3)


def test_words_sound_where_their_clips_do(tmp_path, corpus):
    """Clips of 100 ms of a tone, with 50 ms before it and 70 ms behind it that are 60 dB quieter."""
    clips = len(corpus["digit"])
    tone = 16384 * np.sin(2 * np.pi * 440 * np.arange(800) / 8000)
    clip = np.round(np.concatenate([np.zeros(400), tone, np.zeros(560)]) + 10).astype(np.int16)
    corpus |= {"audio": np.tile(clip, clips), "offsets": np.arange(clips + 1) * len(clip)}
    digits = load(saved(tmp_path, corpus))
    samples, text, made_of = digits.string("test", 4, source(0))
    times = digits.times(made_of)
    assert len(times) == len(made_of["starts"]) == len(text.split()) == 7
    expected = torch.from_numpy(resample_poly(clip / 32768, 2, 1)).float()
    for first, (start, end) in zip(made_of["starts"], times, strict=True):
        torch.testing.assert_close(samples[first : first + len(expected)], expected, rtol=0, atol=1e-5)
        # To a frame: the filter's ringing reaches into the one beside the tone.
        assert start == pytest.approx(first / 16_000 + 0.05, abs=0.011)
        assert end == pytest.approx(first / 16_000 + 0.15, abs=0.011)


def test_a_clip_that_is_as_loud_throughout_sounds_whole(folder, corpus):
    digits = load(folder)
    _, _, made_of = digits.string("valid", 0, source(0))
    lengths = [2 * int(corpus["offsets"][clip + 1] - corpus["offsets"][clip]) for clip in made_of["clips"]]
    assert digits.times(made_of) == [
        (start / 16_000, (start + length) / 16_000) for start, length in zip(made_of["starts"], lengths, strict=True)
    ]


def test_samples_stay_in_range(tmp_path, corpus):
    corpus["audio"] = np.where(np.arange(len(corpus["audio"])) // 3 % 2, 32767, -32768).astype(np.int16)
    samples, _, _ = load(saved(tmp_path, corpus)).string("test", 4, source(0))
    assert (samples.min(), samples.max()) == (-1, 1)


def test_wrong_arguments(tmp_path, folder):
    digits = load(folder, valid_strings=7)
    for call, expected in [
        (lambda: load(folder, held_out="dan"), r"^held_out must be one of ann, bob, cleo, got 'dan'$"),
        (lambda: load(folder, least=0), r"^least and most must be 1 <= least <= most, got 0 and 7$"),
        (lambda: load(folder, least=8), r"^least and most must be 1 <= least <= most, got 8 and 7$"),
        (lambda: load(folder, test_strings=0), r"^valid_strings and test_strings must be at least 1, got 300 and 0$"),
        (lambda: load(folder, valid_strings=0), r"^valid_strings and test_strings must be at least 1, got 0 and 300$"),
        (lambda: digits.size("dev"), r"^split must be one of train, valid, test, got 'dev'$"),
        (lambda: digits.digits_in("valid", 7), r"^index must be in 0\.\.6 of split valid, got 7$"),
        (lambda: digits.string("valid", -1, source(0)), r"^index must be in 0\.\.6 of split valid, got -1$"),
    ]:
        with pytest.raises(ValueError, match=expected):
            call()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match=f"^fsdd.npz is needed, none is in folder '{empty}'$"):
        load(empty)


CHANGED = {
    "rate": ({"sample_rate": np.array(16000)}, "sample_rate must be 8000"),
    "float audio": ({"audio": np.zeros(5)}, "audio must be int16 (samples,), found float64 (5,)"),
    "no clips": ({"offsets": np.array([0])}, "offsets must be whole numbers (clips + 1,), found int64 (1,)"),
    "offsets": ({"audio": np.zeros(5, np.int16)}, "offsets must rise from 0 to 5, the number of samples"),
    "short": ({"digit": np.zeros(3, np.uint8)}, "digit must be whole numbers (330,), found uint8 (3,)"),
    "digit": ({"digit": np.full(330, 10, np.uint8)}, "digit must be in 0..9"),
    "speaker": ({"speakers": np.array(["ann", "bob"])}, "speaker must be in 0..1"),
    "takes": ({"index": np.full(330, 9, np.uint8)}, "split valid has no clip"),
    "words": ({"digit": np.zeros(330, np.uint8)}, "split train has no clip of one by ann"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_arrays_that_do_not_fit(tmp_path, corpus, case):
    changes, expected = CHANGED[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load(saved(tmp_path, corpus | changes))
    assert str(caught.value) == f"fsdd.npz: {expected}"


def test_damaged_files(tmp_path, corpus):
    path = saved(tmp_path, corpus) / "fsdd.npz"
    whole = path.read_bytes()
    np.save(tmp_path / "one.npy", np.arange(3))
    lone = (tmp_path / "one.npy").read_bytes()
    for content in (whole[:-300], whole[:1000], whole[:600] + b"\0\0\0" + whole[603:], b"", b"no archive", lone):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^fsdd\.npz: expected a whole npz file, found a damaged one$"):
            load(tmp_path)
    # Objects would be read by unpickling, which runs code.
    saved(tmp_path, corpus | {"speakers": np.array(SPEAKERS, dtype=object)})
    with pytest.raises(ValueError, match=r"^fsdd\.npz: expected a whole npz file, found a damaged one$"):
        load(tmp_path)
    saved(tmp_path, {name: array for name, array in corpus.items() if name != "index"})
    with pytest.raises(ValueError, match=r"^fsdd\.npz: expected arrays audio, .*, one is missing$"):
        load(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="shared/data/fsdd is not beside the repository on this machine")
def test_the_real_corpus():
    digits = load(REAL)
    assert [digits.size(split) for split in ("train", "valid", "test")] == [2520 // 5, 300, 300]
    assert digits.speakers == ["george", "jackson", "lucas", "nicolas", "theo", "yweweler"]
    draws = {split: drawn(digits, split, 504) for split in ("train", "valid", "test")}
    assert not draws["train"][0] & (draws["valid"][0] | draws["test"][0])
    assert not draws["valid"][0] & draws["test"][0]
    assert all(speakers == set(digits.speakers) for _, speakers in draws.values())
    samples, text, made_of = digits.string("test", 4, source(0))
    assert len(text.split()) == len(made_of["clips"]) == 7
    assert 1.0 < len(samples) / 16_000 < 12
    assert 0.02 < samples.abs().max() <= 1


@pytest.mark.skipif(not REAL.is_dir(), reason="shared/data/fsdd is not beside the repository on this machine")
def test_a_real_speaker_held_out(monkeypatch):
    # Nothing is heard here, and resampling takes long.
    monkeypatch.setattr(spoken_digits, "_resampled", lambda audio, offsets: (torch.from_numpy(audio), offsets))
    digits = load(REAL, held_out="theo")
    assert digits.size("train") == 5 * 10 * 47 // 5
    draws = {split: drawn(digits, split, 307) for split in ("train", "valid", "test")}
    assert draws["test"][1] == {"theo"}
    assert "theo" not in draws["train"][1] | draws["valid"][1]
    assert not draws["train"][0] & draws["valid"][0]
