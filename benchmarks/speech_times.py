"""Times of words: how far they are from where the digits of a string sound.

    python benchmarks/speech_times.py [--quick] [--run RUN] [--runs FOLDER] [--json results/speech_times.jsonl]

Test strings of spoken digits, whose clips have known places, by the network of speech_augment.py with dense layers and
all augmentations, or by a run of your own that writes digits. A word sounds from the first to the last 10 ms of its
clip that are at most 40 dB below the loudest. What is compared are the starts and ends of the words that are written
right, without the gate; of the strings as they are, with digital silence between the clips, and with noise 20 dB
below them. Where espeak-ng is installed also of as many strings of its voices, which the network has never heard: each
word is spoken by itself, at 8 kHz as the clips were, and the pauses are as those between clips. Bar: a median error of
starts and of ends of at most 60 ms, of clips without noise and of espeak-ng. The training goes on where it was stopped.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from scipy.signal import resample_poly
from speech_augment import Training, written
from speech_digits import STRINGS
from torch import Tensor

from greenformers.data import read_audio
from greenformers.measure.recognition import needed
from greenformers.measure.record import Record
from greenformers.speech import spoken_digits
from greenformers.speech.augment import coloured_noise, with_noise
from greenformers.speech.recognise import Recogniser
from greenformers.speech.transcript import Segment
from greenformers.train.stream import generator

CLEAN, NOISY, SYNTHETIC = "clean", "with noise", "espeak-ng"
VOICES = tuple(f"en-{accent}+{kind}" for accent in ("us", "gb") for kind in ("m1", "m3", "f2", "f4"))
SNR = 20.0  # decibels
ENDS = ("start", "end")
SHARES = {"median": 50, "90 %": 90}
LIMIT = 60.0  # ms

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, 4 strings; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--run", "folder of a finished run, in place of that of speech_augment.py", Path),
        Option("--runs", "folder of the run folders of speech_augment.py", Path, RUNS / "speech_augment"),
    ),
)


class String(NamedTuple):
    """A string of digits: its sound, its text, and when each word sounds, in seconds."""

    waveform: Tensor
    text: str
    times: list[tuple[float, float]]


def main(run: Run) -> bool:
    given = run.given
    recogniser = listener(run, given.run or Training().trained(run))
    strings = test_strings(given.data, 4 if run.quick else STRINGS)
    variant = Training().name if given.run is None else given.run.resolve().name
    table = Table("strings", "words right", *(f"{end}, {share}, ms" for end in ENDS for share in SHARES))
    sounds = {CLEAN: strings, NOISY: [noisy(string, number) for number, string in enumerate(strings)]}
    if shutil.which("espeak-ng"):
        sounds[SYNTHETIC] = synthetic_strings([len(string.times) for string in strings])
    else:
        print("strings of espeak-ng are left out: it is not installed")
    met, records = True, list[Record]()
    for sound, strings in sounds.items():
        distances = errors(written(recogniser, [string.waveform for string in strings]), strings)
        cells = [sound, f"{len(distances)} of {sum(len(string.times) for string in strings)}"]
        ends: tuple[str, ...] = ENDS if len(distances) else ()
        for place, end in enumerate(ends):
            for share in SHARES.values():
                value = distances[:, place].quantile(share / 100).item()
                setting = {"sound": sound, "strings": len(strings), "end": end, "share": share}
                records.append(run.record("time_error", value, variant, setting))
                cells.append(f"{value:.0f}")
        table.add_row(*cells)
        if sound != NOISY:
            met &= len(distances) > 0 and bool((distances.quantile(0.5, dim=0) <= LIMIT).all())
    run.show(table)
    run.write(records)
    judged = " and ".join(sound for sound in sounds if sound != NOISY)
    print(f"median errors of starts and ends, {judged}, at most {LIMIT:g} ms: {yes(met)}")
    return run.quick or met


def listener(run: Run, folder: Path) -> Recogniser:
    """The recogniser of a run, without the gate."""
    try:
        recogniser = Recogniser.load(folder)
    except ValueError as error:
        run.refuse(str(error))
    config = recogniser.model.config
    if not config.ctc_weight:
        run.refuse(f"{folder} must be trained with ctc_weight, as words have no times without")
    if config.rate != spoken_digits.RATE:
        run.refuse(f"{folder} must have the rate of the strings, {spoken_digits.RATE} Hz, it has {config.rate}")
    return replace(recogniser, gate=False)


def test_strings(folder: Path, count: int) -> list[String]:
    digits = spoken_digits.load(folder)
    strings = []
    for index in range(count):
        waveform, text, about = digits.string("test", index, torch.Generator())
        strings.append(String(waveform, text, digits.times(about)))
    return strings


def noisy(string: String, number: int) -> String:
    """A string with noise below it."""
    noise = coloured_noise(len(string.waveform), generator(1, 9, number))
    return string._replace(waveform=with_noise(string.waveform, noise, SNR))


def synthetic_strings(counts: Sequence[int]) -> list[String]:
    """Strings of so many digits, each said by one of the voices of espeak-ng."""
    strings = []
    for number, count in enumerate(counts):
        source, voice = generator(1, 10, number), VOICES[number % len(VOICES)]
        words = [spoken_digits.DIGITS[int(digit)] for digit in torch.randint(10, (count,), generator=source)]
        pauses = torch.randint(spoken_digits.PAUSE + 1, (count,), generator=source).tolist()
        parts, times, start = list[Tensor](), list[tuple[float, float]](), 0
        for word, pause in zip(words, pauses, strict=True):
            clip = synthetic(word, voice)
            first, end = spoken_digits.sounding(clip)
            times.append(((start + first) / spoken_digits.RATE, (start + end) / spoken_digits.RATE))
            parts += [clip, torch.zeros(pause)]
            start += len(clip) + pause
        strings.append(String(torch.cat(parts[:-1]), " ".join(words), times))
    return strings


@cache
def synthetic(word: str, voice: str) -> Tensor:
    """A word said by a voice of espeak-ng (n,), at the rate of strings and with the spectrum that clips have."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "word.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-w", str(path), word], check=True)
        recorded = read_audio(path, rate=spoken_digits.RECORDED)
    step = spoken_digits.RATE // spoken_digits.RECORDED
    return torch.from_numpy(resample_poly(recorded.numpy(), step, 1)).clamp(-1, 1)


def errors(segments: list[Segment], strings: list[String]) -> Tensor:
    """Errors of start and end of the words that are right, in milliseconds (n, 2)."""
    rows = []
    for segment, string in zip(segments, strings, strict=True):
        for ours, true in pairs([word.text for word in segment.words], string.text.split()):
            word, (start, end) = segment.words[ours], string.times[true]
            rows.append((word.start - start, word.end - end))
    return 1000 * torch.tensor(rows, dtype=torch.float64).abs().reshape(len(rows), 2)


def pairs(hypothesis: list[str], reference: list[str]) -> list[tuple[int, int]]:
    """Places of the right words in hypothesis and reference."""
    (parts,) = needed().process_words(" ".join(reference), " ".join(hypothesis)).alignments
    return [
        (part.hyp_start_idx + step, part.ref_start_idx + step)
        for part in parts
        if part.type == "equal"
        for step in range(part.ref_end_idx - part.ref_start_idx)
    ]


if __name__ == "__main__":
    BENCHMARK.run(main)
