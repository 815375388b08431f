"""Times of words: how far they are from where the digits of a string sound.

    python benchmarks/speech_times.py [--quick] [--run RUN] [--runs FOLDER] [--json results/speech_times.jsonl]

Test strings of spoken digits, whose clips have known places, by the network of speech_augment.py with dense layers and
all augmentations, or by a run of your own that writes digits. A word sounds from the first to the last 10 ms of its
clip that are at most 40 dB below the loudest. What is compared are the starts and ends of the words that are written
right, without the gate; of the strings as they are, with digital silence between the clips, and with noise 20 dB
below them. Bar: a median error of starts and of ends of at most 60 ms, without noise. The training goes on where it
was stopped.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from speech_augment import Training, written
from speech_digits import STRINGS
from torch import Tensor

from greenformers.measure.recognition import needed
from greenformers.measure.record import Record
from greenformers.speech import spoken_digits
from greenformers.speech.augment import coloured_noise, with_noise
from greenformers.speech.recognise import Recogniser
from greenformers.speech.transcript import Segment
from greenformers.train.stream import generator

CLEAN, NOISY = "clean", "with noise"
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
    met, records = False, list[Record]()
    for sound in (CLEAN, NOISY):
        waveforms = [string.waveform for string in strings]
        if sound == NOISY:
            noises = [coloured_noise(len(own), generator(1, 9, number)) for number, own in enumerate(waveforms)]
            waveforms = [with_noise(own, noise, SNR) for own, noise in zip(waveforms, noises, strict=True)]
        distances = errors(written(recogniser, waveforms), strings)
        cells = [sound, f"{len(distances)} of {sum(len(string.times) for string in strings)}"]
        ends: tuple[str, ...] = ENDS if len(distances) else ()
        for place, end in enumerate(ends):
            for share in SHARES.values():
                value = distances[:, place].quantile(share / 100).item()
                setting = {"sound": sound, "strings": len(strings), "end": end, "share": share}
                records.append(run.record("time_error", value, variant, setting))
                cells.append(f"{value:.0f}")
        table.add_row(*cells)
        if sound == CLEAN:
            met = len(distances) > 0 and bool((distances.quantile(0.5, dim=0) <= LIMIT).all())
    run.show(table)
    run.write(records)
    print(f"median errors of starts and ends, {CLEAN}, at most {LIMIT:g} ms: {yes(met)}")
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
