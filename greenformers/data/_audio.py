"""Sound files: read as mono at one sampling rate, whole or in pieces cut where it is quiet.

libsndfile decodes (WAV, FLAC, Ogg, MP3 and more, through soundfile), scipy resamples. M4A and MP4 (AAC) are not
among what it decodes. Several channels become one by their mean, sample by sample.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from greenformers._extras import needed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from soundfile import SoundFile

RATE = 16_000
# Four frames of 10 ms, which the front end of the model joins into one.
SHORTEST_SECONDS = 0.04
# Of sampling rates, Hz, and of `longest`, seconds. Between rates without a common divisor a resampling filter has
# 20 times the higher one in coefficients.
RATES = (4_000, 384_000)
PIECES = (0.5, 3_600.0)

_BLOCK = 2**12  # values decoded at a time, which are lost together where one cannot be
_STEP = 0.005  # seconds from one candidate for the quietest window to the next
_WINDOW = 4  # steps: 20 ms
# Programs that cannot seek back write a length such as 0xFFFFFFFF or 0x7FFFF000: not known.
_UNKNOWN_BYTES = 0x7FFF_F000
_UNKNOWN_SAMPLES = 2**62


class AudioError(ValueError):
    """A sound file that cannot be used: its name and why, in one line."""


def seconds(path: str | Path) -> float:
    """Duration of a sound in seconds, by the header of its file; nothing is decoded.

    Raises:
        AudioError: The file is missing, is no sound, has no samples or is cut off, or its header lacks the length.
        MissingExtraError: The package soundfile is not installed.
    """
    with _opened(Path(path)) as file:
        if file.frames >= _UNKNOWN_SAMPLES:
            raise AudioError(f"{path}: its header does not tell its length")
        return file.frames / file.samplerate


def read(
    path: str | Path,
    *,
    rate: int = RATE,
    start: float = 0.0,
    end: float | None = None,
    channel: int | None = None,
) -> Tensor:
    """A whole sound, or a part of one: (n,), float32, n = ceil(seconds * rate).

    Args:
        path: Sound file to read.
        rate: Samples a second to resample to, whatever the file has; 4,000..384,000.
        start: Start of the part to read, in seconds.
        end: End of the part to read, in seconds; None for the end of the file.
        channel: Channel to read, counted from 0; None for the mean of all.

    Raises:
        AudioError: The file is missing, is no sound, has no such part or channel, is damaged or cut off, holds a sample
            that is not finite, or is shorter than `SHORTEST_SECONDS`.
        ValueError: The rate is out of its range.
        MissingExtraError: The package soundfile is not installed.
    """
    check_rate(rate)
    path = Path(path)
    with _opened(path) as file:
        first, last = round(start * file.samplerate), None if end is None else round(end * file.samplerate)
        if not 0 <= first < (file.frames if last is None else min(last, file.frames)):
            raise AudioError(f"{path}: has no part from {start} s to {'its end' if end is None else f'{end} s'}")
        if channel is not None and not 0 <= channel < file.channels:
            raise AudioError(f"{path}: has {file.channels} channels, no channel {channel}")
        return resampled(np.concatenate(list(_blocks(file, path, first, last, channel))), file.samplerate, rate)


def pieces(path: str | Path, longest: float, *, rate: int = RATE) -> Iterator[tuple[float, Tensor]]:
    """A sound in consecutive pieces, as `read` gives them, each with its start in seconds.

    A piece ends in the middle of the quietest 20 ms (mean square) of the last quarter of `longest`, so that words
    are seldom cut. Every sample of the file is in exactly one piece; each piece is resampled by itself. No piece is
    shorter than `SHORTEST_SECONDS`. Memory O(longest), not O(the file).

    Args:
        path: Sound file to read. It is opened when the first piece is asked for.
        longest: Longest piece, in seconds; 0.5..3,600.
        rate: Samples a second to resample to, as in `read`.

    Raises:
        AudioError: As in `read`; damage is found when its piece is asked for.
        ValueError: `longest` or `rate` is out of its range.
        MissingExtraError: The package soundfile is not installed.
    """
    check_rate(rate)
    if not PIECES[0] <= longest <= PIECES[1]:
        raise ValueError(f"longest must be in {PIECES[0]:g}..{PIECES[1]:g} seconds, got {longest}")
    return _pieces(Path(path), longest, rate)


def _pieces(path: Path, longest: float, rate: int) -> Iterator[tuple[float, Tensor]]:
    with _opened(path) as file:
        own_rate, start = file.samplerate, 0
        for part in _parts(_blocks(file, path), longest, own_rate):
            yield start / own_rate, resampled(part, own_rate, rate)
            start += len(part)


def chunks(path: str | Path, seconds: float) -> tuple[int, Iterator[NDArray[np.float64]]]:
    """The sampling rate of a sound, and its samples, mono, as many seconds at a time; the last chunk has what is left.

    Nothing is resampled, as a chunk has no meaning by itself. Raises as `read` does, where the fault lies.
    """
    path = Path(path)
    with _opened(path) as file:
        rate = file.samplerate
    return rate, _chunks(path, max(1, round(seconds * rate)))


def _chunks(path: Path, size: int) -> Iterator[NDArray[np.float64]]:
    with _opened(path) as file:
        held = np.empty(0)
        try:
            for block in _blocks(file, path):
                held = np.concatenate([held, block])
                while len(held) >= size:
                    yield held[:size]
                    held = held[size:]
        except AudioError:
            if len(held):
                yield held  # the good sound before the damage
            raise
        if len(held):
            yield held


def raw(source: BinaryIO, seconds: float, rate: int) -> Iterator[NDArray[np.float64]]:
    """Samples of a stream of raw ones, 16 bits, little-endian, mono, as many seconds at a time, as they come.

    Raises:
        AudioError: There are none, or half a sample at the end.
        ValueError: The rate is out of its range.
    """
    check_rate(rate)
    return _raw(source, 2 * max(1, round(seconds * rate)))


def _raw(source: BinaryIO, size: int) -> Iterator[NDArray[np.float64]]:
    done = 0
    while data := source.read(size):
        done += len(data)
        if len(data) % 2:
            raise AudioError(f"raw samples have 2 bytes each, got {done} bytes")
        yield np.frombuffer(data, dtype="<i2").astype(np.float64) / 2**15
    if not done:
        raise AudioError("raw samples: there are none")


def parts(waveform: Tensor, longest: float, *, rate: int = RATE) -> Iterator[Tensor]:
    """A waveform (n,) in consecutive parts of at most `longest` seconds, cut where it is quiet, as `pieces` does."""
    for part in _parts(iter((waveform.double().numpy(),)), longest, rate):
        yield torch.from_numpy(part).to(waveform.dtype)


def _parts(blocks: Iterator[NDArray[np.float64]], longest: float, rate: int) -> Iterator[NDArray[np.float64]]:
    limit, shortest = int(longest * rate), math.ceil(SHORTEST_SECONDS * rate)
    held: NDArray[np.float64] = np.empty(0)
    damage: AudioError | None = None
    while True:
        # With so much at hand, what remains after a cut is never too short.
        held, error = _filled(held, blocks, limit + shortest)
        damage = damage or error
        if len(held) <= limit:
            break
        cut = _quietest(held, 3 * limit // 4, min(limit, len(held) - shortest), rate)
        yield held[:cut]
        held = held[cut:]
    if damage is None:
        yield held
        return
    if len(held) >= shortest:
        yield held  # the good sound before the damage
    raise damage


def _filled(
    held: NDArray[np.float64], blocks: Iterator[NDArray[np.float64]], needed: int
) -> tuple[NDArray[np.float64], AudioError | None]:
    """The samples held and the blocks after them, until there are `needed`, none is left or one cannot be read."""
    parts, length, damage = [held], len(held), None
    try:
        while length < needed and (block := next(blocks, None)) is not None:
            parts.append(block)
            length += len(block)
    except AudioError as error:
        damage = error
    return np.concatenate(parts), damage


def _quietest(samples: NDArray[np.float64], first: int, last: int, rate: int) -> int:
    """The middle of the quietest 20 ms between two places; of several as quiet, the last."""
    step = round(_STEP * rate)
    stretch = samples[first : first + (last - first) // step * step].reshape(-1, step)
    energy = np.einsum("ns,ns->n", stretch, stretch)
    windows = np.lib.stride_tricks.sliding_window_view(energy, _WINDOW).sum(axis=1)
    place = len(windows) - 1 - int(np.argmin(windows[::-1]))
    return first + place * step + _WINDOW * step // 2


def resampled(samples: NDArray[np.float64], own_rate: int, rate: int) -> Tensor:
    """Samples (n,) at another rate: (ceil(n rate / own_rate),), float32."""
    if own_rate != rate:
        # Slow to import, and not needed for files that have this rate already.
        signal: Any = needed("sound of another rate", "speech", "scipy", "scipy.signal")

        divisor = math.gcd(own_rate, rate)
        samples = signal.resample_poly(samples, rate // divisor, own_rate // divisor)
    return torch.from_numpy(samples.astype(np.float32))


def check_rate(rate: int) -> None:
    """Raise ValueError where sound is not resampled to this rate."""
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(f"rate must be in {RATES[0]}..{RATES[1]} Hz, got {rate}")


def _blocks(
    file: SoundFile, path: Path, first: int = 0, last: int | None = None, channel: int | None = None
) -> Iterator[NDArray[np.float64]]:
    """Samples, of one channel or their mean, a moment at a time; then whether the file has what it promised."""
    done, size = 0, max(256, _BLOCK // file.channels)
    # Where the header does not know the length, whatever can be read is the whole file.
    expected = (file.frames if last is None else min(last, file.frames)) - first
    while done < expected:
        try:
            if first and not done:
                file.seek(first)
            block = file.read(min(size, expected - done), dtype="float32", always_2d=True)
        except RuntimeError as error:
            raise AudioError(f"{path}: damaged at {done / file.samplerate:.2f} s ({error})") from error
        if not len(block):
            break
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            place = (done + int(finite.argmin())) / file.samplerate
            raise AudioError(f"{path}: the sample at {place:.4f} s is not a finite number")
        done += len(block)
        yield block.mean(axis=1, dtype=np.float64) if channel is None else block[:, channel].astype(np.float64)
    if done == 0:
        raise AudioError(f"{path}: has no samples")
    if done < expected and file.frames < _UNKNOWN_SAMPLES:
        raise AudioError(f"{path}: damaged or cut off, {done} of {expected} samples can be read")
    if done < SHORTEST_SECONDS * file.samplerate:
        milliseconds = 1000 * done / file.samplerate
        raise AudioError(f"{path}: shorter than {1000 * SHORTEST_SECONDS:g} ms, has {milliseconds:.1f} ms")


@contextmanager
def _opened(path: Path) -> Iterator[SoundFile]:
    soundfile: Any = needed("sound", "speech", "soundfile")

    class Straight(soundfile.SoundFile):
        """Read from first to last. soundfile seeks after each read: slow, an error at the end of a streamed FLAC."""

        def seekable(self) -> bool:
            return False

    _check_file(path)
    try:
        file = Straight(path)
    except soundfile.LibsndfileError as error:
        if _is_mp4(path):
            raise AudioError(f"{path}: M4A or MP4 is not supported, convert it to FLAC or WAV") from error
        raise AudioError(f"{path}: no sound that can be read ({error.error_string})") from error
    except TypeError as error:
        raise AudioError(f"{path}: raw samples, without a header") from error
    with file:
        if file.frames == 0:
            raise AudioError(f"{path}: has no samples")
        if not RATES[0] <= file.samplerate <= RATES[1]:
            raise AudioError(f"{path}: its rate must be in {RATES[0]}..{RATES[1]} Hz, is {file.samplerate}")
        if _cut_off(path):
            raise AudioError(f"{path}: cut off, its header promises more samples")
        yield file


def _check_file(path: Path) -> None:
    """Libsndfile would call all of these a system error, or wait."""
    if path.is_dir():
        raise AudioError(f"{path}: a folder, not a sound file")
    if not path.exists():
        raise AudioError(f"{path}: no such file")
    if not path.is_file():
        raise AudioError(f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise AudioError(f"{path}: cannot be read ({error.strerror})") from error
    if empty:
        raise AudioError(f"{path}: empty, 0 bytes")


def _is_mp4(path: Path) -> bool:
    """Whether a file is of the MP4 family, as the .m4a of telephones: ISO 14496-12, a first box of kind ftyp."""
    with path.open("rb") as file:
        return file.read(8)[4:] == b"ftyp"


def _cut_off(path: Path) -> bool:
    """Whether a WAV or AIFF file ends before its samples do: libsndfile reads what is left and says nothing."""
    orders = {b"RIFF": "<", b"RIFX": ">", b"FORM": ">"}
    with path.open("rb") as file:
        order = orders.get(file.read(4))
        file.seek(12)
        while order is not None and len(header := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}4sI", header)
            if kind in (b"data", b"SSND"):
                return file.tell() + length > path.stat().st_size and length < _UNKNOWN_BYTES
            file.seek(length + length % 2, os.SEEK_CUR)
    return False
