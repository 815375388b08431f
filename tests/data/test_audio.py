"""Sound files of all kinds, right and wrong, and their pieces sample by sample."""

import importlib
import math
import os
import struct
import sys
import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from greenformers.data._audio import PIECES, RATE, RATES, SHORTEST_SECONDS, AudioError, pieces, read, seconds

soundfile = pytest.importorskip("soundfile", reason="the speech extra is not installed")

EXACT = {"atol": 0, "rtol": 0}


def noise(samples, seed=0):
    """16-bit values, which every format here keeps as they are."""
    values = np.random.default_rng(seed).integers(-(2**14), 2**14, samples)
    return (values / 2**15).astype(np.float32)


def band(length, rate):
    """A sound below 3 kHz that begins and ends in silence: the same at every sampling rate from 8 kHz."""
    time = np.arange(round(length * rate)) / rate
    tones = sum(np.sin(2 * math.pi * hertz * time + hertz) for hertz in (211, 743, 1_583, 2_903)) / 5
    return tones * np.sin(math.pi * time / length) ** 4


def write(path, samples, rate=RATE, **options):
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.mark.parametrize(
    ("name", "subtype"),
    [
        *(("a.wav", subtype) for subtype in ("PCM_16", "PCM_24", "FLOAT", "DOUBLE")),
        *((name, subtype) for name in ("a.flac", "a.aiff") for subtype in ("PCM_16", "PCM_24")),
    ],
)
def test_every_sample(tmp_path, name, subtype):
    """Of more than one decoded block."""
    samples = noise(70_001)
    path = write(tmp_path / name, samples, subtype=subtype)
    result = read(path)
    assert result.dtype == torch.float32
    assert_close(result, torch.from_numpy(samples), **EXACT)
    assert_close(read(str(path)), result, **EXACT)
    assert seconds(path) == 70_001 / RATE


@pytest.mark.parametrize("name", ["a.ogg", "a.mp3"])
def test_lossy_formats(tmp_path, name):
    samples = band(2, RATE)
    path = write(tmp_path / name, samples)
    result = read(path)
    assert len(result) == len(samples) == seconds(path) * RATE
    assert_close(result.double(), torch.from_numpy(samples), atol=0.05, rtol=0)


def test_channels_are_averaged(tmp_path):
    left, right = noise(7_919, 1), noise(7_919, 2)
    path = write(tmp_path / "a.wav", np.stack([left, right], 1))
    assert_close(read(path), torch.from_numpy((left + right) / 2), **EXACT)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_any_rate(tmp_path, rate):
    """A stereo file of 8..96 kHz is the mono original of 16 kHz within the error of resampling, and back."""
    original = torch.from_numpy(band(1.5, RATE)).float()
    there = band(1.5, rate)
    path = write(tmp_path / "a.wav", np.stack([1.2 * there, 0.8 * there], 1), rate, subtype="FLOAT")
    result = read(path)
    assert len(result) == math.ceil(len(there) * RATE / rate)
    assert_close(result[: len(original)], original[: len(result)], atol=1e-3, rtol=0)
    assert seconds(path) == len(there) / rate

    back = read(write(tmp_path / "b.wav", original.numpy(), subtype="FLOAT"), rate=rate)
    assert len(back) == math.ceil(len(original) * rate / RATE)
    shared = min(len(back), len(there))
    assert_close(back[:shared].double(), torch.from_numpy(there)[:shared], atol=1e-3, rtol=0)


def test_what_16_khz_cannot_hold_is_filtered(tmp_path):
    """10 kHz would be heard as 6 kHz."""
    time = np.arange(48_000) / 48_000
    result = read(write(tmp_path / "a.wav", 0.5 * np.sin(2 * math.pi * 10_000 * time), 48_000))
    assert result[1_000:-1_000].abs().max() < 1e-3


def test_shortest(tmp_path):
    samples = noise(640)
    assert_close(read(write(tmp_path / "a.wav", samples)), torch.from_numpy(samples), **EXACT)
    assert [start for start, _ in pieces(tmp_path / "a.wav", 1)] == [0]
    write(tmp_path / "b.wav", samples[:639])
    for use in (read, first):
        with pytest.raises(AudioError, match=r"b\.wav: shorter than 40 ms, has 39\.9 ms$"):
            use(tmp_path / "b.wav")
    assert seconds(tmp_path / "b.wav") == 639 / RATE


def first(path):
    return next(pieces(path, 1.0))


def lasting(path):
    return list(pieces(path, 1.0))


def make_missing(path):
    path.unlink(missing_ok=True)
    return "no such file"


def make_folder(path):
    path.mkdir()
    return "a folder, not a sound file"


def make_empty(path):
    path.touch()
    return "empty, 0 bytes"


def make_pipe(path):
    os.mkfifo(path)
    return "not a regular file"


def make_text(path):
    path.write_text("MISTER QUILTER IS THE APOSTLE OF THE MIDDLE CLASSES\n" * 50)
    return r"no sound that can be read \(.+\)"


def make_picture(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(200))
    return r"no sound that can be read \(.+\)"


def make_m4a(path):
    path.write_bytes(b"\0\0\0\x20ftypM4A \0\0\0\0" + bytes(200))
    return "M4A or MP4 is not supported, convert it to FLAC or WAV"


def make_header(path):
    path.write_bytes(wav(0)[:20])
    return r"no sound that can be read \(.+\)"


def make_no_samples(path):
    write(path, np.zeros(0))
    return "has no samples"


def make_cut_off(path):
    path.write_bytes(wav(16_000)[:-2])
    return "cut off, its header promises more samples"


def make_slow(path):
    write(path, np.zeros(3_999), 3_999)
    return r"its rate must be in 4000\.\.384000 Hz, is 3999"


def make_fast(path):
    write(path, np.zeros(384_001), 384_001)
    return r"its rate must be in 4000\.\.384000 Hz, is 384001"


def wav(samples, claimed=None):
    """A mono file of 16 bits and 16 kHz, by hand: its header may claim another number of bytes."""
    data = bytes(2 * samples)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    note = struct.pack("<4sI4s", b"LIST", 3, b"abc\0")  # of an odd length, so one more byte follows
    chunk = struct.pack("<4sI", b"data", len(data) if claimed is None else claimed)
    body = b"WAVE" + form + note + chunk + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


HEADERS = [
    make_missing,
    make_folder,
    make_empty,
    make_text,
    make_picture,
    make_m4a,
    make_header,
    make_no_samples,
    make_cut_off,
]
HEADERS += [make_slow, make_fast]
if hasattr(os, "mkfifo"):
    HEADERS.append(make_pipe)


@pytest.mark.parametrize("use", [seconds, read, first])
@pytest.mark.parametrize("make", HEADERS)
def test_unusable_files(tmp_path, make, use):
    path = tmp_path / "a.wav"
    message = make(path)
    with pytest.raises(AudioError, match=rf"a\.wav: {message}$") as caught:
        use(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_raw_samples_have_no_header(tmp_path):
    (tmp_path / "a.raw").write_bytes(bytes(32_000))
    with pytest.raises(AudioError, match=r"a\.raw: raw samples, without a header"):
        seconds(tmp_path / "a.raw")


@pytest.mark.parametrize(("name", "endian"), [("a.wav", "LITTLE"), ("a.wav", "BIG"), ("a.aiff", "FILE")])
def test_cut_off_files(tmp_path, name, endian):
    path = write(tmp_path / name, noise(5_003), endian=endian)
    whole = path.read_bytes()
    read(path)
    for length in (len(whole) - 2, len(whole) // 2, len(whole) // 3):
        path.write_bytes(whole[:length])
        with pytest.raises(AudioError, match="cut off, its header promises more samples"):
            read(path)


@pytest.mark.parametrize("claimed", [0xFFFF_FFFF, 0x7FFF_F000, 0x7FFF_FFFF])
def test_streamed_wav(tmp_path, claimed):
    """A program that wrote to a pipe could not come back to write the length."""
    path = tmp_path / "a.wav"
    path.write_bytes(wav(8_000, claimed))
    assert len(read(path)) == 8_000
    assert seconds(path) == 0.5


def test_streamed_flac(tmp_path):
    """The 36 bits of its number of samples are 0."""
    samples = noise(70_001)
    path = write(tmp_path / "a.flac", samples)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert_close(read(path), torch.from_numpy(samples), **EXACT)
    assert sum(len(piece) for _, piece in pieces(path, 1)) == 70_001
    with pytest.raises(AudioError, match=r"a\.flac: its header does not tell its length$"):
        seconds(path)
    data[4] |= 0x80  # now the first block of metadata is the last, and nothing follows it
    path.write_bytes(data[:42])
    for use in (read, first):
        with pytest.raises(AudioError, match=r"a\.flac: has no samples$"):
            use(path)


def test_damaged_flac(tmp_path):
    """Cut off at several places; and with zeros for a stretch of it."""
    path = write(tmp_path / "a.flac", noise(160_000))
    whole = path.read_bytes()
    for share in (0.3, 0.5, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        for use in (read, lasting):
            with pytest.raises(AudioError, match=r"a\.flac: damaged "):
                use(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(4_096) + whole[middle + 4_096 :])
    for use in (read, lasting):
        with pytest.raises(AudioError, match=r"a\.flac: damaged "):
            use(path)


def test_pieces_before_the_damage_are_heard_to_its_place(tmp_path):
    samples = noise(160_000)
    path = write(tmp_path / "a.flac", samples)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(0.7 * len(whole))])
    heard = []
    with pytest.raises(AudioError, match=r"a\.flac: damaged at [67]\.\d\d s "):
        heard.extend(piece for _, piece in pieces(path, 4))
    good = torch.cat(heard)
    assert len(heard) >= 2
    assert len(good) > 0.65 * 160_000
    torch.testing.assert_close(good, read(write(tmp_path / "b.flac", samples))[: len(good)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_not_finite(tmp_path, value):
    samples = np.zeros((80_000, 2))
    samples[72_000, 1] = value
    path = write(tmp_path / "a.wav", samples, subtype="DOUBLE")
    for use in (read, lasting):
        with pytest.raises(AudioError, match=r"a\.wav: the sample at 4\.5000 s is not a finite number$"):
            use(path)


def test_options_out_of_range(tmp_path):
    path = write(tmp_path / "a.wav", noise(16_000))
    for longest in (0, 0.49, 3_601, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"^longest must be in 0\.5\.\.3600 seconds, got {longest}$"):
            pieces(path, longest)
    for rate in (0, 3_999, 384_001):
        for use in (read, partial(pieces, longest=1)):
            with pytest.raises(ValueError, match=rf"^rate must be in 4000\.\.384000 Hz, got {rate}$"):
                use(path, rate=rate)
    assert [len(read(path, rate=rate)) for rate in RATES] == list(RATES)
    assert [len(list(pieces(path, longest))) for longest in PIECES] == [3, 1]


def test_without_soundfile(tmp_path, monkeypatch):
    path = write(tmp_path / "a.wav", noise(16_000))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    for use in (seconds, read, first):
        with pytest.raises(ImportError, match=r"^sound needs soundfile: install greenformers with its extra 'speech'"):
            use(path)


def cover(path, samples, longest, rate=RATE):
    """The pieces of a file at its own rate, checked: every sample once and in order, none too long or too short."""
    parts = list(pieces(path, longest, rate=rate))
    assert_close(torch.cat([piece for _, piece in parts]), torch.from_numpy(samples), **EXACT)
    place = 0
    for start, piece in parts:
        assert start == place / rate
        assert SHORTEST_SECONDS * rate <= len(piece) <= longest * rate
        place += len(piece)
    for _, piece in parts[:-2]:
        assert len(piece) >= int(0.75 * longest * rate)
    return parts


@settings(deadline=None, max_examples=80)
@given(st.integers(640, 60_000), st.floats(0.5, 4), st.sampled_from([4_000, 11_025, 16_000]), st.booleans())
def test_pieces_cover_any_file(tmp_path_factory, samples, longest, rate, silent):
    values = np.zeros(samples, np.float32) if silent else noise(samples)
    cover(write(tmp_path_factory.getbasetemp() / "any.wav", values, rate), values, longest, rate)


@pytest.mark.parametrize("more", [-1, 0, 1, 2, 639, 640, 641, 15_999, 16_000])
def test_pieces_about_one_length(tmp_path, more):
    """A file as long as a piece is one; of one more sample, both are long enough."""
    values = noise(16_000 + more)
    parts = cover(write(tmp_path / "a.wav", values), values, 1.0)
    assert (len(parts) > 1) == (more > 0)


def test_pieces_are_cut_in_silence(tmp_path):
    """Words with pauses of 60 ms, one of them in the last quarter; a quieter pause before it is not taken."""
    values = noise(10 * RATE)
    for second in range(10):
        pause = second * RATE + int(0.85 * RATE)
        values[pause : pause + 960] = noise(960) // 2**-9 * 2**-15
        values[second * RATE + 8_000 : second * RATE + 9_000] = 0
    parts = cover(write(tmp_path / "a.flac", values), values, 1.05)
    # A piece that begins in a pause has the next one, a second later, in its last quarter.
    for start, _ in parts[1:]:
        assert 0.86 <= start % 1 <= 0.90
    assert len(parts) == 11


def test_pieces_quietest_window(tmp_path):
    """20 ms a little quieter than the rest: the cut is in their middle, to the sample."""
    values = np.tile(np.float32([0.5, -0.5]), 12_000)
    place = 12_000 + 17 * 80
    values[place : place + 320] *= 0.9
    parts = cover(write(tmp_path / "a.wav", values, subtype="FLOAT"), values, 1.0)
    assert parts[1][0] == (place + 160) / RATE


def test_pieces_of_a_sound_without_pauses_are_long(tmp_path):
    values = np.zeros(10 * RATE, np.float32)
    parts = cover(write(tmp_path / "a.wav", values), values, 2.0)
    assert [len(piece) for _, piece in parts] == [2 * RATE - 160] * 5 + [5 * 160]


def test_pieces_are_resampled_by_themselves(tmp_path):
    """Quiet at every whole second and cut there: the pieces are the whole, to the sample where the rates divide."""
    for rate, atol in ((48_000, 1e-3), (44_100, None)):
        second = band(1.0, rate)
        samples = np.concatenate([second, second, second])
        path = write(tmp_path / "a.wav", np.stack([samples, samples], 1), rate)
        whole, parts = read(path), list(pieces(path, 1.2))
        assert [start for start, _ in parts] == pytest.approx([0, 1, 2], abs=0.02)
        joined = torch.cat([piece for _, piece in parts])
        assert len(joined) in range(len(whole), len(whole) + (1 if atol else len(parts)))
        if atol:
            assert_close(joined, whole, atol=atol, rtol=0)


def test_memory_of_pieces_is_flat(tmp_path):
    """Of a file of 10 minutes as of one of 1, and far below the 38 MB that the samples of the longer one are."""
    importlib.import_module("scipy.signal")  # is not of the file
    second = (noise(RATE) * 2**15).astype(np.int16)
    peaks = {}
    for minutes in (1, 10):
        path = tmp_path / f"{minutes}.wav"
        with soundfile.SoundFile(path, "w", RATE, 1) as file:
            for _ in range(60 * minutes):
                file.write(second)
        total = 0
        tracemalloc.start()
        try:
            for _, piece in pieces(path, 10.0, rate=8_000):
                total += len(piece)
            peaks[minutes] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert total == pytest.approx(60 * minutes * 8_000, abs=100)
    assert peaks[10] < 1.1 * peaks[1]
    assert peaks[10] < 10e6


def test_a_part_of_one_channel_is_read(tmp_path):
    sound = np.stack([np.linspace(-0.5, 0.5, 8000), np.linspace(0.25, -0.25, 8000)], 1)
    path = tmp_path / "call.wav"
    soundfile.write(path, sound, 8000, subtype="DOUBLE")
    part = read(path, rate=8000, start=0.25, end=0.5, channel=1)
    torch.testing.assert_close(part, torch.tensor(sound[2000:4000, 1], dtype=torch.float32))
    torch.testing.assert_close(read(path, rate=8000, start=0.75), torch.tensor(sound[6000:].mean(1)).float())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"start": 1.0}, "has no part from 1.0 s to its end"),
        ({"start": 0.5, "end": 0.5}, "has no part from 0.5 s to 0.5 s"),
        ({"start": -0.1}, "has no part"),
        ({"channel": 1}, "has 1 channels, no channel 1"),
        ({"start": 0.98}, "shorter than 40 ms"),
    ],
)
def test_a_part_that_is_not_there(tmp_path, part, message):
    path = tmp_path / "sound.wav"
    soundfile.write(path, np.zeros(8000), 8000)
    with pytest.raises(AudioError, match=message):
        read(path, **part)
