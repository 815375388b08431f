"""How good, how small and how fast a trained recogniser is: the columns of tables 4.2 and 4.3 of the thesis."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from greenformers.measure.latency import Timing, interleaved
from greenformers.measure.parameters import parameters
from greenformers.measure.recognition import bootstrap, bootstrap_difference, edits, scores
from greenformers.measure.record import Record
from greenformers.speech.objective import Speech
from greenformers.speech.recognise import Recogniser, recognised
from greenformers.speech.search import Search, beam_search
from greenformers.speech.settings import SpeechSettings
from greenformers.train.run import settings_of

Progress = Callable[[str, float], None]

TIMED = 16
"""Utterances that are generated when the speed is measured: a batch of the thesis' size."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A recogniser and what it wrote.

    Attributes:
        name: of the run.
        recogniser: the network.
        hypotheses: a transcript for each recording.
        wrong: characters that are wrong in each of the parts that are drawn again for an interval.
    """

    name: str
    recogniser: Recogniser
    hypotheses: list[str]
    wrong: Tensor


def evaluate(
    runs: list[Path],
    split: str,
    *,
    search: Search,
    corpus: str | None = None,
    limit: int | None = None,
    batch: int = 16,
    repeats: int = 5,
    progress: Progress = lambda *_: None,
) -> tuple[list[Record], list[tuple[str, str]]]:
    """Score finished runs on a split of the first one's corpus.

    Args:
        runs: their folders; the first one is what the others are compared with.
        split: train, valid or test.
        search: how transcripts are searched for.
        corpus: where the corpus is, if not where it was.
        limit: at most so many recordings, the first ones.
        batch: recordings at a time.
        repeats: how often the time of generating `TIMED` transcripts is taken; all runs take turns.
        progress: told what is done, and how much of it.

    Returns:
        Records without context, and of the first run what it was to write and what it wrote.

    Raises:
        ValueError: a folder holds no such run, there is no such split, or limit is below 1.
        OSError: there is no finished run in a folder, or the corpus is gone.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if batch < 1 or repeats < 1:
        raise ValueError(f"batch and repeats must be at least 1, got {batch} and {repeats}")
    names = [run.resolve().name for run in runs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"runs must have names of their own, got {', '.join(sorted(twice))} more than once")
    recognisers = [Recogniser.load(run, search) for run in runs]
    rate = recognisers[0].model.config.rate
    for name, one in zip(names, recognisers, strict=True):
        if one.model.config.rate != rate:
            raise ValueError(f"runs must have the rate of the first, {rate} Hz, {name} has {one.model.config.rate}")
    settings = replace(settings_of(runs[0], SpeechSettings), init=str(runs[0]))
    if corpus is not None:
        settings = replace(settings, corpus=corpus)
    objective = settings.task().objective
    assert isinstance(objective, Speech)
    count = min(objective.size(split), limit or objective.size(split))
    references: list[str] = []
    judged: list[Judged] = []
    for run, recogniser in zip(runs, recognisers, strict=True):

        def told(done: int, name: str = run.name) -> None:
            progress(name, done / count)

        def waveforms(first: bool = not judged) -> Iterator[Tensor]:
            for waveform, text in _recordings(objective, split, count):
                if first:
                    references.append(text)
                yield waveform

        hypotheses = recognised(recogniser, waveforms(), batch=batch, progress=told)
        judged.append(Judged(run.name, recogniser, hypotheses, edits(hypotheses, references)[0]))
    first = [next(recognisers[0].parts(waveform)) for waveform, _ in _recordings(objective, split, min(count, TIMED))]
    times = generation_times({one.name: one.recogniser for one in judged}, first, repeats)
    setting = {"split": split, "recordings": count, "width": search.width, "timed": len(first)}
    lengths = torch.tensor([len(text) for text in references])
    records = list(columns("speech_evaluate", setting, judged, references, lengths, times))
    return records, list(zip(references, judged[0].hypotheses, strict=True))


def _recordings(objective: Speech, split: str, count: int) -> Iterator[tuple[Tensor, str]]:
    for index in range(count):
        yield objective.recordings.sound(split, index, torch.Generator().manual_seed(index))


def generation_times(recognisers: dict[str, Recogniser], waveforms: list[Tensor], repeats: int) -> dict[str, Timing]:
    """Time of generating transcripts in one batch, features made before, of all by turns."""

    def call(recogniser: Recogniser) -> Callable[[], object]:
        features, mask = recogniser.features(waveforms)
        model, search = recogniser.model.eval(), recogniser.search
        return lambda: beam_search(model, features, mask, space=recogniser.space, search=search)

    return interleaved({name: call(one) for name, one in recognisers.items()}, repeats=repeats, warmup=1)


def columns(
    benchmark: str, setting: dict[str, Any], judged: list[Judged], references: list[str], lengths: Tensor,
    times: dict[str, Timing],
) -> Iterator[Record]:  # fmt: skip
    """The columns of tables 4.2 and 4.3.

    Args:
        benchmark: of the records.
        setting: of the records.
        judged: recognisers; the first one is what the others are compared with.
        references: what was to be written.
        lengths: characters of the parts whose wrong ones are counted in `Judged.wrong`.
        times: of generation.
    """
    base = judged[0]
    size = parameters(base.recogniser.model)
    for one in judged:
        to = None if one is base else base.name
        found = scores(one.hypotheses, references)
        count = parameters(one.recogniser.model)
        time = 1000 * times[one.name].median
        ratios = {"parameters": size / count, "latency": 1000 * times[base.name].median / time}
        low, high = bootstrap(one.wrong, lengths) if len(lengths) > 1 else (found["cer"], found["cer"])
        for metric, value in {"parameters": count, **found, "latency": time}.items():
            record = Record.of(metric, value, benchmark=benchmark, variant=one.name, setting=setting)
            if metric == "cer":
                record = replace(record, spread=high - low)
                if to is not None and len(lengths) > 1:
                    ends = list(bootstrap_difference(one.wrong, base.wrong, lengths))
                    record = replace(record, to=to, interval=ends)
            elif to is not None and metric in ratios:
                record = replace(record, ratio=ratios[metric], to=to)
            yield record


def table(records: list[Record]) -> Table:
    """Tables 4.2 and 4.3: a row a run."""
    shown = Table("", "parameters", "compression", "CER (%)", "to the first", "WER (%)", "speed-up", "mean length")
    for name in dict.fromkeys(record.variant for record in records):
        own = {record.metric: record for record in records if record.variant == name}
        cer, size, time = own["cer"], own["parameters"], own["latency"]
        difference = "" if cer.interval is None else f"{cer.interval[0]:+.2f} to {cer.interval[1]:+.2f}"
        shown.add_row(
            name,
            f"{size.value:,.0f}",
            "" if size.ratio is None else f"{100 - 100 / size.ratio:.1f} %",
            f"{cer.value:.2f}",
            difference,
            f"{own['wer'].value:.2f}",
            "" if time.ratio is None else f"{time.ratio:.2f}x",
            f"{own['mean_length'].value:.1f}",
        )
    return shown
