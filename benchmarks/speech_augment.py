"""Spoken digits: what each augmentation does to the error rate of a recogniser, and to what it writes of nothing.

    python benchmarks/speech_augment.py [--quick] [--seeds 1] [--runs FOLDER] [--json results/speech_augment.jsonl]

The networks and steps of speech_digits.py, trained by Muon; by the joint search of decoder and CTC with its defaults.
With dense layers, one row without augmentation, one for each augmentation alone, and one with all of them; with
low-rank layers, one without and one with all: on takes of which nothing is learnt, and once more on a speaker of whom
nothing is learnt. Error rates are those of all that is written, and, with the gate, of what `greenformers speech
transcribe` writes. Beside them: the area under the curve of the confidence of right words against wrong ones, without
the gate, and the words that are written of 20 silent and 20 noisy clips, with it. Bars, for the networks with all
augmentations and the gate, means of the seeds: at most 4, 5 and 7 % of characters wrong (dense, rank 32, rank 16), 18 %
for the unseen speaker, and an area of at least 90 %; and of no seed more than one word of silence and noise. Runs go on
where they were stopped.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from _harness import KNOWN, RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from speech_digits import BATCH, DENSE, HELD_OUT, QUICK, SETTINGS, STRINGS, VARIANTS, Spoken, test_strings
from torch import Tensor

from greenformers.measure.recognition import right_words, scores
from greenformers.measure.record import Record
from greenformers.speech.augment import coloured_noise
from greenformers.speech.confidence import auc
from greenformers.speech.recognise import Recogniser
from greenformers.speech.settings import SpeechSettings
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
TAKES, SPEAKER = "unseen takes", f"unseen speaker {HELD_OUT}"
CALIBRATED = 300  # validation strings
CLIPS, CLIP = 20, 32_000  # clips of silence, and of noise, in which nothing is said; samples of each, 2 s
CER = {DENSE: 4.0, "lrt r=32": 5.0, "lrt r=16": 7.0}
UNSEEN, AREA, WORDS = 18.0, 90.0, 1
"""Bars: characters wrong in percent, of each variant and for the unseen speaker; percent under the curve; words."""
GATED: dict[str, Any] = {"gate": True}
"""What the setting of an error rate has with the gate alone."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, and only the rows with all augmentations; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders", Path, RUNS / "speech_augment"),
        Option("--seeds", "trainings of each row; the held-out test has one", int, 1),
    ),
    json=KNOWN,
)


class Training(NamedTuple):
    """One training: a variant of `VARIANTS`, a row of `ROWS`, a seed, and the speaker who is held out, if any."""

    variant: str = DENSE
    row: str = EVERY
    seed: int = 0
    held_out: str | None = None

    @property
    def name(self) -> str:
        """The variant of its records."""
        return self.row if self.variant == DENSE else f"{self.variant}, {self.row}"

    @property
    def test(self) -> str:
        """The strings that it is judged by."""
        return TAKES if self.held_out is None else SPEAKER

    def settings(self, run: Run) -> SpeechSettings:
        """Its settings."""
        options = VARIANTS[self.variant] | ROWS[self.row]
        given: dict[str, Any] = {
            "corpus": str(run.given.data),
            "seed": self.seed,
            "held_out": self.held_out,
            "optimizer": "muon",
        }
        own = replace(SETTINGS, **given | options)
        return replace(own, **QUICK | {"valid_transcripts": 2} if run.quick else {"valid_transcripts": CALIBRATED})

    def trained(self, run: Run, runs: Path | None = None) -> Path:
        """Its run folder; it is started, resumed, or only looked up where it has ended."""
        name = "-".join(map(str, (self.row, *VARIANTS[self.variant].values(), self.seed, self.held_out or "")))
        folder = (runs or run.given.runs) / ("quick" if run.quick else "full") / name
        ensure(folder, self.settings(run), run.console)
        return folder


def main(run: Run) -> bool:
    given = run.given
    count, steps = (4, QUICK["steps"]) if run.quick else (STRINGS, SETTINGS.steps)

    @cache
    def spoken(held_out: str | None) -> Spoken:
        return test_strings(given.data, held_out, count)

    def setting(training: Training) -> dict[str, Any]:
        own = {"test": training.test, "seed": training.seed, "strings": count, "steps": steps, "optimizer": "muon"}
        return own | VARIANTS[training.variant]

    def train(training: Training) -> list[Record]:
        recogniser = Recogniser.load(training.trained(run))
        return [
            run.record(metric, value, training.name, setting(training) | gate)
            for metric, value, gate in judged(recogniser, spoken(training.held_out))
        ]

    plan = trainings(given.seeds, run.quick)
    records = run.trainings(plan, lambda training: (training.name, setting(training) | GATED), train, said)
    records = [record for record in records if record.setting.get("steps") == steps]
    run.show(*(table(records, plan, test) for test in (TAKES, SPEAKER)))
    answer = met(records)
    return run.quick or answer


def trainings(seeds: int, quick: bool) -> list[Training]:
    """All trainings, in order."""
    tests = [(None, seed) for seed in range(1 if quick else seeds)] + [(HELD_OUT, 0)]
    rows = {variant: (EVERY,) if quick else tuple(ROWS) if variant == DENSE else (PLAIN, EVERY) for variant in CER}
    return [
        Training(variant, row, seed, held_out) for held_out, seed in tests for variant in CER for row in rows[variant]
    ]


def judged(recogniser: Recogniser, spoken: Spoken) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Metric, figure, and what is added to the setting: error rates, area under the curve, and words of nothing."""
    waveforms, references = [waveform for waveform, _, _ in spoken], [text for _, text, _ in spoken]
    segments = written(replace(recogniser, gate=False), waveforms)
    without: dict[str, Any] = {}
    for gate, own in ((without, segments), (GATED, written(recogniser, waveforms))):
        rates = scores([segment.text for segment in own], references)
        yield from ((name, rates[name], gate) for name in ("cer", "wer"))
    sure: list[float] = []
    right: list[bool] = []
    for segment, reference in zip(segments, references, strict=True):
        sure += [word.confidence for word in segment.words if word.confidence is not None]
        right += right_words([word.text for word in segment.words], reference.split())
    if len(sure) == len(right) and 0 < sum(right) < len(right):
        yield "auc", auc(sure, right), without
    words = sum(len(segment.text.split()) for segment in written(recogniser, nothing()))
    yield "false_words", float(words), without


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


def said(records: list[Record]) -> str:
    gates = {True: " with the gate", False: ""}
    return ", ".join(f"{record.metric}{gates['gate' in record.setting]} {record.value:.2f}" for record in records)


def values(
    records: list[Record], variant: str, row: str, test: str, metric: str, *, gated: bool = False
) -> list[float]:
    """A figure of each seed, the last one where it was measured more than once."""
    name, setting = Training(variant, row).name, {"test": test} | VARIANTS[variant] | (GATED if gated else {})
    by_seed = {
        record.setting["seed"]: record.value
        for record in records
        if (record.variant, record.metric) == (name, metric)
        and {
            key: value for key, value in record.setting.items() if key not in ("seed", "strings", "steps", "optimizer")
        }
        == setting
    }
    return list(by_seed.values())


def table(records: list[Record], plan: list[Training], test: str) -> Table:
    """Means of the seeds."""
    shown = Table(
        "layers", "augmentation", "CER (%)", "with the gate", "WER (%)", "with the gate", "AUC (%)", "words of nothing",
        title=test,
    )  # fmt: skip
    columns = [("cer", False), ("cer", True), ("wer", False), ("wer", True), ("auc", False), ("false_words", False)]
    for variant, row in dict.fromkeys((training.variant, training.row) for training in plan):
        figures = [values(records, variant, row, test, metric, gated=gated) for metric, gated in columns]
        shown.add_row(variant, row, *(f"{fmean(own):.2f}" if own else "" for own in figures))
    return shown


def met(records: list[Record]) -> bool:
    """Whether the networks with all augmentations meet every bar; each answer is printed."""
    answers: list[bool] = []
    for variant, limit in CER.items():
        for test, most in ((TAKES, limit), (SPEAKER, UNSEEN)):
            rates = values(records, variant, EVERY, test, "cer", gated=True)
            areas = values(records, variant, EVERY, test, "auc")
            words = values(records, variant, EVERY, test, "false_words")
            # A figure that is missing is no number, which meets no bar.
            rate, area = (fmean(own) if own else math.nan for own in (rates, areas))
            false = max(words, default=math.nan)
            print(f"{variant}, {test}, seeds: {len(rates)}")
            for about, answer in (
                (f"{rate:.2f} % of characters wrong with the gate, at most {most:g}", rate <= most),
                (f"{area:.1f} % under the curve, at least {AREA:g}", area >= AREA),
                (f"{false:.0f} words of silence and noise, at most {WORDS}", false <= WORDS),
            ):
                print(f"  {about}: {yes(answer)}")
                answers.append(answer)
    return all(answers)


if __name__ == "__main__":
    BENCHMARK.run(main)
