"""Streaming: how late words are written, how fast sound is heard, and what is lost beside one pass over the whole file.

    python benchmarks/speech_streaming.py [--quick] [--runs FOLDER] [--json results/speech_streaming.jsonl]

The recogniser of speech_augment.py that was trained with all augmentations, on files of three minutes: test strings of
spoken digits, of takes of which nothing is learnt, with pauses of 0.3 to 1.5 seconds between them. One pass is
`transcribe`, which cuts a file where it is quiet; a stream reads a quarter of a second at a time. The delay of a word
is the sound that had come when it was written, less the word's end (by its alignment with CTC), with what was computed
since. Bars: the first word within a second of its end, sound heard faster than it is spoken, and characters wrong
within one point of one pass. The training goes on where it was stopped.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import soundfile
import torch
from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from speech_augment import Training

from greenformers.data import _audio as audio
from greenformers.measure.recognition import scores
from greenformers.speech import spoken_digits
from greenformers.speech.recognise import Recogniser, transcribe
from greenformers.speech.streaming import Heard, Stream

SECONDS, FILES, CHUNK = 180.0, 3, 0.25
AHEADS = (0.25, 0.5, 0.75)
DEFAULT = 0.5
LATEST, WORSE = 1.0, 1.0
"""Bars: seconds to the first word, and points of characters wrong."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, files of ten seconds; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders of speech_augment.py", Path, RUNS / "speech_augment"),
    ),
)


def main(run: Run) -> bool:
    given, kind = run.given, "quick" if run.quick else "full"
    training = Training()
    recogniser = Recogniser.load(training.trained(run))
    seconds = 10.0 if run.quick else SECONDS
    files = dict(written(given.data, given.runs / kind / "long", seconds))
    setting = {"files": FILES, "seconds": seconds, "steps": training.settings(run).steps}
    texts = list(files.values())
    table = Table(
        "way", "CER (%)", "WER (%)", "real-time factor", "first word, s", "median word, s", title=f"{FILES} files"
    )
    whole = list(transcribe(recogniser, files, words=True))
    pace = sum(transcript.time for transcript in whole) / sum(transcript.seconds for transcript in whole)
    rates = scores([transcript.text for transcript in whole], texts)
    figures = {"cer": rates["cer"], "wer": rates["wer"], "real_time_factor": pace}
    records = [run.record(metric, value, "one pass", setting) for metric, value in figures.items()]
    table.add_row("one pass", f"{rates['cer']:.2f}", f"{rates['wer']:.2f}", f"{pace:.3f}")
    met = True
    for ahead in (DEFAULT,) if run.quick else AHEADS:
        heard, delays, paces = zip(*(streamed(recogniser, path, ahead) for path in files), strict=True)
        own = scores([recogniser.joined(each.word.text for each in words) for words in heard], texts)
        first = max(each[0] if each else math.inf for each in delays)
        usual = median([delay for each in delays for delay in each] or [math.inf])
        pace = sum(paces) / len(paces)
        figures = {"cer": own["cer"], "wer": own["wer"], "real_time_factor": pace}
        figures |= {"first_word": first, "word_delay": usual}
        at = setting | {"ahead": ahead, "chunk": CHUNK}
        records += [run.record(name, value, "stream", at) for name, value in figures.items() if math.isfinite(value)]
        cells = (f"{own['cer']:.2f}", f"{own['wer']:.2f}", f"{pace:.3f}", f"{first:.2f}", f"{usual:.2f}")
        table.add_row(f"stream, {ahead:g} s ahead", *cells)
        if ahead == DEFAULT:
            met = first <= LATEST and pace < 1 and own["cer"] <= rates["cer"] + WORSE
            print(f"first word within {LATEST:g} s: {yes(first <= LATEST)}; faster than spoken: {yes(pace < 1)}")
            print(f"within {WORSE:g} point of one pass: {yes(own['cer'] <= rates['cer'] + WORSE)}")
    run.show(table)
    run.write(records)
    return run.quick or met


def written(folder: Path, out: Path, seconds: float) -> Iterator[tuple[Path, str]]:
    """Files of so many seconds, and what is said in each."""
    digits, index = spoken_digits.load(folder), 0
    out.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        draw = torch.Generator().manual_seed(number)
        parts, texts, length = list[torch.Tensor](), list[str](), 0
        while length < seconds * spoken_digits.RATE:
            wave, text, _ = digits.string("test", index % digits.size("test"), torch.Generator())
            pause = torch.zeros(int((0.3 + 1.2 * torch.rand((), generator=draw).item()) * spoken_digits.RATE))
            parts += [wave, pause]
            texts.append(text)
            length, index = length + len(wave) + len(pause), index + 1
        path = out / f"{number}.wav"
        soundfile.write(path, torch.cat(parts).numpy(), spoken_digits.RATE)
        yield path, " ".join(texts)


def streamed(recogniser: Recogniser, path: Path, ahead: float) -> tuple[list[Heard], list[float], float]:
    """The words of a file, their delays in seconds, and the real-time factor."""
    rate, chunks = audio.chunks(path, CHUNK)
    stream = Stream(recogniser, rate, ahead=ahead)
    heard, delays = list[Heard](), list[float]()
    for chunk in chunks:
        began = perf_counter()
        words = stream.add(np.asarray(chunk))
        heard += words
        delays += [each.at - each.word.end + perf_counter() - began for each in words]
    heard += stream.end()
    return heard, delays, stream.time / stream.seconds


if __name__ == "__main__":
    BENCHMARK.run(main)
