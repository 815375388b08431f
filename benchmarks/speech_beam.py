"""The search for transcripts: whether its defaults are what is best on validation data.

    python benchmarks/speech_beam.py [--quick] [--runs FOLDER] [--json results/speech_beam.jsonl]

Validation strings of spoken digits, by the network of speech_augment.py with dense layers and all augmentations: greedy
and by a beam of 8, with log P as it is (Cahyawijaya 2021, eq. 4.1) and divided by the number of characters, with and
without a threshold for the end, by the decoder alone and with CTC's share of the training. Intervals are 95 %, by
drawing clips again, each with the characters that were wrong in its word. Bar: no search is better than the default
beyond noise. The training goes on where it was stopped.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from speech_augment import Training
from speech_digits import BATCH, STRINGS, Spoken, by_clip
from torch import Tensor

from greenformers.measure.recognition import bootstrap, bootstrap_difference
from greenformers.measure.record import Record
from greenformers.speech import spoken_digits
from greenformers.speech.recognise import Recogniser, recognised
from greenformers.speech.search_options import Search

WIDTHS, POWERS, THRESHOLDS = (1, 8), (0.0, 1.0), (None, 1.5)
SHARES = (0.0, None)
"""Shares of CTC: the decoder alone, and as trained."""
GRID = [
    Search(width=width, length_power=power, end_threshold=threshold, ctc_weight=share)
    for width, power, threshold, share in product(WIDTHS, POWERS, THRESHOLDS, SHARES)
]
DEFAULT = Search()
SEARCHES = list(dict.fromkeys([DEFAULT, *GRID]))

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, 4 strings; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders of speech_augment.py", Path, RUNS / "speech_augment"),
    ),
)


def main(run: Run) -> bool:
    training = Training()
    recogniser = Recogniser.load(training.trained(run))
    spoken = valid_strings(run.given.data, 4 if run.quick else STRINGS)
    waveforms = [waveform for waveform, _, _ in spoken]
    setting = {"split": "valid", "strings": len(spoken), "seed": training.seed, "augmentation": training.row}
    records: list[Record] = []
    table = Table("search", "CER (%)", "95 %", "to the default", "ms a string", title=f"{len(spoken)} strings")
    wrong: dict[Search, Tensor] = {}
    own = {search: replace(recogniser, search=search) for search in SEARCHES}
    calls = {
        name_of(search): partial(recognised, by, waveforms[:BATCH], batch=BATCH, progress=lambda _: None)
        for search, by in own.items()
    }
    times = run.times(calls, 5, 1)
    for search in SEARCHES:
        hypotheses = recognised(own[search], waveforms, batch=BATCH, progress=lambda _: None)
        time = 1000 * times[name_of(search)].median / len(waveforms[:BATCH])
        wrong[search], lengths = by_clip(hypotheses, spoken)
        rate, (low, high) = rate_of(wrong[search], lengths), bootstrap(wrong[search], lengths)
        ends = bootstrap_difference(wrong[search], wrong[DEFAULT], lengths)
        to: dict[str, Any] = {} if search == DEFAULT else {"to": name_of(DEFAULT), "interval": ends}
        name = name_of(search)
        records += [
            run.record("cer", rate, name, setting, spread=high - low, **to),
            run.record("latency", time, name, setting),
        ]
        difference = "default" if search == DEFAULT else f"{ends[0]:+.2f} to {ends[1]:+.2f}"
        table.add_row(name, f"{rate:.2f}", f"{low:.2f} to {high:.2f}", difference, f"{time:.0f}")
    run.show(table)
    run.write(records)
    answer = met(wrong, lengths)
    return run.quick or answer


def valid_strings(folder: Path, count: int) -> Spoken:
    digits = spoken_digits.load(folder)
    strings = []
    for index in range(count):
        waveform, text, about = digits.string("valid", index, torch.Generator())
        strings.append((waveform, text, about["clips"]))
    return strings


def name_of(search: Search) -> str:
    parts = [
        "greedy" if search.width == 1 else f"beam of {search.width}",
        f"log P / n^{search.length_power:g}" if search.length_power else "log P",
        "" if search.end_threshold is None else f"end threshold {search.end_threshold:g}",
        "with CTC" if search.ctc_weight is None else "decoder alone",
    ]
    return ", ".join(filter(None, parts))


def rate_of(wrong: Tensor, lengths: Tensor) -> float:
    """Character error rate in percent."""
    return 100 * wrong.sum().item() / lengths.sum().item()


def met(wrong: dict[Search, Tensor], lengths: Tensor) -> bool:
    """Whether no search is better than the default beyond noise; the answer is printed."""
    best = min(wrong, key=lambda search: rate_of(wrong[search], lengths))
    ends = {search: bootstrap_difference(wrong[DEFAULT], own, lengths) for search, own in wrong.items()}
    # Also one that is not the best may be better for certain, where its interval is narrower.
    better = [name_of(search) for search, (low, _) in ends.items() if low > 0]
    for about, search in (("best", best), ("default", DEFAULT)):
        print(f"{about}: {name_of(search)}, {rate_of(wrong[search], lengths):.2f} % of characters wrong")
    low, high = ends[best]
    print(f"the default less the best: {low:+.2f} to {high:+.2f} points")
    print(f"no search is better beyond noise: {yes(not better)}{''.join(f'; {name}' for name in better)}")
    return not better


if __name__ == "__main__":
    BENCHMARK.run(main)
