"""Spoken digits: what each augmentation does to the error rate of a recogniser, and to what it writes of nothing.

    python benchmarks/speech_augment.py [--quick] [--seeds 1] [--runs FOLDER] [--json results/speech_augment.jsonl]

The networks and steps of speech_digits.py, by the joint search of decoder and CTC with its defaults. One row without
augmentation, one for each augmentation alone, and one with all of them: on takes of which nothing is learnt, and once
more on a speaker of whom nothing is learnt. Beside the error rates: the area under the curve of the confidence of right
words against wrong ones, and the words that are written of 20 silent and 20 noisy clips, with the gate. Aim: at most
4 % of characters wrong with dense layers and all augmentations, 18 % for the unseen speaker, an area of at least 90 %,
and at most one word of silence and noise. Runs go on where they were stopped.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table
from speech_digits import BATCH, HELD_OUT, QUICK, SETTINGS, STRINGS, Spoken, test_strings
from torch import Tensor

from greenformers.measure.recognition import right_words, scores
from greenformers.measure.record import Record
from greenformers.speech.augment import coloured_noise
from greenformers.speech.confidence import auc
from greenformers.speech.recognise import Recogniser
from greenformers.speech.transcript import Segment
from greenformers.train.run import ensure
from greenformers.train.stream import generator

PLAIN, EVERY = "none", "all"
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "SpecAugment": {"augment": True},
    "speed": {"speed": True},
    "noise": {"noise": True},
    "speechless": {"speechless": 0.1},
}
ROWS: dict[str, dict[str, Any]] = {
    PLAIN: {}, **AUGMENTATIONS,
    EVERY: {name: value for own in AUGMENTATIONS.values() for name, value in own.items()},
}  # fmt: skip
CALIBRATED = 300  # validation strings
CLIPS, CLIP = 20, 32_000  # clips of silence, and of noise, in which nothing is said; samples of each, 2 s

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders", Path, RUNS / "speech_augment"),
        Option("--seeds", "trainings of each row; the held-out test has one", int, 1),
    ),
)


def main(run: Run) -> None:
    given, records = run.given, list[Record]()
    rows = {name: ROWS[name] for name in (PLAIN, EVERY)} if run.quick else ROWS
    tests = [(None, seed) for seed in range(1 if run.quick else given.seeds)] + [(HELD_OUT, 0)]
    for held_out, seed in tests:
        test = "unseen takes" if held_out is None else f"unseen speaker {held_out}"
        spoken = test_strings(given.data, held_out, 4 if run.quick else STRINGS)
        shown = Table("augmentation", "CER (%)", "WER (%)", "AUC (%)", "words of nothing", title=f"{test}, seed {seed}")
        for name, options in rows.items():
            own = replace(SETTINGS, corpus=str(given.data), seed=seed, held_out=held_out, **options)
            own = replace(own, **QUICK | {"valid_transcripts": 2} if run.quick else {"valid_transcripts": CALIBRATED})
            folder = given.runs / ("quick" if run.quick else "full") / f"{name}-{seed}-{held_out or ''}"
            ensure(folder, own, run.console)
            setting = {"test": test, "seed": seed, "strings": len(spoken), "steps": own.steps}
            figures = dict(judged(Recogniser.load(folder), spoken))
            cells = [f"{figures[key]:.2f}" if key in figures else "" for key in ("cer", "wer", "auc")]
            shown.add_row(name, *cells, f"{figures['false_words']:.0f}")
            records += [
                Record.of(metric, value, benchmark=BENCHMARK.name, variant=name, setting=setting, context=run.about)
                for metric, value in figures.items()
            ]
        run.show(shown)
    run.write(records)


def judged(recogniser: Recogniser, spoken: Spoken) -> Iterator[tuple[str, float]]:
    """Error rates, area under the curve of the confidence, and words written of clips in which nothing is said."""
    references = [text for _, text, _ in spoken]
    segments = written(replace(recogniser, gate=False), [waveform for waveform, _, _ in spoken])
    rates = scores([segment.text for segment in segments], references)
    yield from ((name, rates[name]) for name in ("cer", "wer"))
    sure: list[float] = []
    right: list[bool] = []
    for segment, reference in zip(segments, references, strict=True):
        sure += [word.confidence for word in segment.words if word.confidence is not None]
        right += right_words([word.text for word in segment.words], reference.split())
    if len(sure) == len(right) and 0 < sum(right) < len(right):
        yield "auc", auc(sure, right)
    yield "false_words", float(sum(len(segment.text.split()) for segment in written(recogniser, nothing())))


def written(recogniser: Recogniser, waveforms: list[Tensor]) -> list[Segment]:
    segments: list[Segment] = []
    for start in range(0, len(waveforms), BATCH):
        pieces = [(0.0, waveform) for waveform in waveforms[start : start + BATCH]]
        segments += recogniser.segments(pieces, words=True)
    return segments


def nothing() -> list[Tensor]:
    """Clips of silence and of noise between -50 and -12 dB of full scale, of other draws than those of training."""
    levels = [10 ** ((-50 + 2 * number) / 20) for number in range(CLIPS)]
    noises = [level * coloured_noise(CLIP, generator(1, 5, number)) for number, level in enumerate(levels)]
    return [torch.zeros(CLIP) for _ in levels] + [noise.clamp(-1, 1) for noise in noises]


if __name__ == "__main__":
    BENCHMARK.run(main)
