"""Error rates, size and speed of trained recognisers, the columns of tables 4.2 and 4.3 of Cahyawijaya 2021."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from greenformers.measure.latency import Timing, interleaved
from greenformers.measure.parameters import parameters
from greenformers.measure.recognition import bootstrap, bootstrap_difference, edits, needed, scores
from greenformers.measure.record import Record
from greenformers.speech.recognise import Recogniser, recognised
from greenformers.speech.recordings import OnDisk, Recordings, of_manifest
from greenformers.speech.search import Search, beam_search
from greenformers.speech.settings import SpeechSettings
from greenformers.speech.vocabulary import check_covers
from greenformers.train.run import settings_of

Progress = Callable[[str, float], None]

TIMED = 16
"""Number of transcripts generated to measure the speed, the batch size of Cahyawijaya 2021."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A recogniser and its transcripts.

    Attributes:
        name: Name of the run.
        recogniser: The recogniser.
        hypotheses: A transcript for each recording.
        wrong: Number of wrong characters in each part; the bootstrap of an interval draws parts.
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
    layout: str | None = None,
    limit: int | None = None,
    batch: int = 16,
    gate: bool = False,
    repeats: int = 5,
    progress: Progress = lambda *_: None,
) -> tuple[list[Record], list[tuple[str, str]]]:
    """Score finished runs on a split of the first one's corpus.

    Args:
        runs: Folders of the runs; the others are compared with the first one.
        split: "train", "valid" or "test".
        search: Options of the beam search.
        corpus: Folder of the corpus, if it has moved since or is another one; or a manifest, which is the test split.
        layout: Layout of that corpus, if it is another one than that of the training.
        limit: Most recordings to score, the first ones.
        batch: Number of recordings at a time.
        gate: Whether the gate of `Recogniser` holds: nothing counts as written of a part of a recording that is silent,
            or, with a calibration of CTC, whose words are likelier wrong than right.
        repeats: Number of times that the generation of `TIMED` transcripts is timed; runs are timed in turns.
        progress: Function that is called with the name of a run and the share of its recordings that is done.

    Returns:
        Records without context, and pairs of reference and transcript of the first run.

    Raises:
        ValueError: A folder holds no such run, there is no such split, a number is below 1, or a run was trained on
            none of the characters of the texts.
        OSError: There is no finished run in a folder, or the corpus is missing.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    for name, number in (("batch", batch), ("repeats", repeats)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    names = [Path(os.path.abspath(run)).name for run in runs]  # that of . too
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"runs must have names of their own, got {', '.join(sorted(twice))} more than once")
    recognisers = [Recogniser.load(run, search) for run in runs]
    rate = recognisers[0].model.config.rate
    for name, recogniser in zip(names, recognisers, strict=True):
        if recogniser.model.config.rate != rate:
            own = recogniser.model.config.rate
            raise ValueError(f"runs must have the rate of the first, {rate} Hz, {name} has {own}")
    sounds = _sounds(settings_of(runs[0], SpeechSettings), corpus, layout, split)
    count = min(sounds.size(split), limit or sounds.size(split))
    needed()
    if isinstance(sounds, OnDisk):
        sounds.check(split, count)
    for name, recogniser in zip(names, recognisers, strict=True):
        texts = sounds.texts(split)
        check_covers(recogniser.tokenizer, texts, of=f"the {split} split", source=name, become="count as wrong")
    references: list[str] = []
    judged: list[Judged] = []
    for name, recogniser in zip(names, recognisers, strict=True):

        def told(done: int, name: str = name) -> None:
            progress(name, done / count)

        def waveforms(first: bool = not judged) -> Iterator[Tensor]:
            for waveform, text in _recordings(sounds, split, count):
                if first:
                    references.append(text)
                yield waveform

        hypotheses = recognised(recogniser, waveforms(), batch=batch, progress=told, gated=gate)
        judged.append(Judged(name, recogniser, hypotheses, edits(hypotheses, references)[0]))
    # Every recogniser must be able to read what all are timed on.
    least = min(recognisers, key=lambda recogniser: recogniser.longest)
    first = [next(least.parts(waveform)) for waveform, _ in _recordings(sounds, split, min(count, TIMED))]
    times = generation_times({result.name: result.recogniser for result in judged}, first, repeats)
    setting = {"split": split, "recordings": count, "width": search.width, "timed": len(first)}
    # What `cached` keeps changes no transcript; without a share of CTC each run has that of its training.
    setting |= {
        entry.name: value for entry in fields(search)
        if entry.name not in ("width", "cached") and (value := getattr(search, entry.name)) != entry.default
    }  # fmt: skip
    if corpus is not None:
        setting["corpus"] = Path(corpus).name
    if gate:
        setting["gate"] = True
    lengths = torch.tensor([len(text) for text in references])
    speakers = [sounds.speaker(split, index) for index in range(count)]
    named = [speaker for speaker in speakers if speaker is not None]
    groups = named if len(named) == count and len(set(named)) > 1 else None
    records = list(columns("speech_evaluate", setting, judged, references, lengths, times, groups))
    return records, list(zip(references, judged[0].hypotheses, strict=True))


def _sounds(settings: SpeechSettings, corpus: str | None, layout: str | None, split: str) -> Recordings:
    """The recordings of a split of a run, or of another corpus at its sampling rate."""
    if corpus is not None and Path(corpus).is_file():
        if layout not in (None, "manifest"):
            raise ValueError(f"layout of a file must be manifest, got {layout!r}")
        return of_manifest(Path(corpus), settings.rate)
    if corpus is not None:
        settings = replace(settings, corpus=corpus, valid=None, test=None)
    if layout is not None:
        # Who is held out is a question of the corpus that was trained on.
        held_out = settings.held_out if layout == settings.layout else None
        settings = replace(settings, layout=layout, held_out=held_out)
    return settings.recordings(split)


def _recordings(sounds: Recordings, split: str, count: int) -> Iterator[tuple[Tensor, str]]:
    for index in range(count):
        yield sounds.sound(split, index, torch.Generator().manual_seed(index))


def generation_times(recognisers: dict[str, Recogniser], waveforms: list[Tensor], repeats: int) -> dict[str, Timing]:
    """Times of generating transcripts in one batch from given features, the recognisers by turns."""

    def call(recogniser: Recogniser) -> Callable[[], object]:
        features, mask = (x.to(recogniser.model.device) for x in recogniser.features(waveforms))
        model, search = recogniser.model.eval(), recogniser.search
        return lambda: beam_search(model, features, mask, space=recogniser.space, search=search)

    return interleaved({name: call(recogniser) for name, recogniser in recognisers.items()}, repeats=repeats, warmup=1)


def columns(
    benchmark: str, setting: dict[str, Any], judged: list[Judged], references: list[str], lengths: Tensor,
    times: dict[str, Timing], groups: list[str] | None = None,
) -> Iterator[Record]:  # fmt: skip
    """The columns of tables 4.2 and 4.3 of Cahyawijaya 2021, as records.

    Args:
        benchmark: Benchmark of the records.
        setting: Setting of the records.
        judged: Recognisers and their transcripts; the others are compared with the first one.
        references: Reference texts.
        lengths: Number of characters of each part in `Judged.wrong`.
        times: Times of generation, by name of the run.
        groups: The speaker of each part, where that is known: intervals are of speakers who are drawn, then.
    """
    base = judged[0]
    size = parameters(base.recogniser.model)
    for result in judged:
        compared = None if result is base else base.name
        quality = scores(result.hypotheses, references)
        count = parameters(result.recogniser.model)
        time = 1000 * times[result.name].median
        ratios = {"parameters": size / count, "latency": 1000 * times[base.name].median / time}
        low, high = bootstrap(result.wrong, lengths, groups) if len(lengths) > 1 else (quality["cer"],) * 2
        for metric, value in {"parameters": count, **quality, "latency": time}.items():
            record = Record.of(metric, value, benchmark=benchmark, variant=result.name, setting=setting)
            if metric == "cer":
                record = replace(record, spread=high - low)
                if compared is not None and len(lengths) > 1:
                    ends = list(bootstrap_difference(result.wrong, base.wrong, lengths, groups))
                    record = replace(record, to=compared, interval=ends)
            elif compared is not None and metric in ratios:
                record = replace(record, ratio=ratios[metric], to=compared)
            yield record


def table(records: list[Record]) -> Table:
    """The table to print, as tables 4.2 and 4.3 of Cahyawijaya 2021: a row a run."""
    printed = Table("", "parameters", "compression", "CER (%)", "to the first", "WER (%)", "speed-up", "mean length")
    for name in dict.fromkeys(record.variant for record in records):
        own = {record.metric: record for record in records if record.variant == name}
        cer, size, time = own["cer"], own["parameters"], own["latency"]
        difference = "" if cer.interval is None else f"{cer.interval[0]:+.2f} to {cer.interval[1]:+.2f}"
        printed.add_row(
            name,
            f"{size.value:,.0f}",
            "" if size.ratio is None else f"{100 - 100 / size.ratio:.1f} %",
            f"{cer.value:.2f}",
            difference,
            f"{own['wer'].value:.2f}",
            "" if time.ratio is None else f"{time.ratio:.2f}x",
            f"{own['mean_length'].value:.1f}",
        )
    return printed
