"""Spoken digit strings: dense and low-rank recognisers at equal steps (thesis, tables 4.2 and 4.3, figure 4.3).

    python benchmarks/speech_digits.py [--quick] [--seeds 1] [--runs FOLDER] [--json results/speech_digits.jsonl]
        [--picture docs/speech_losses.png]

3,000 real clips of 6 speakers, joined to strings of 3 to 7 digits, new ones in every epoch. Test strings are of takes
0 to 4, of which nothing is learnt; then once more with one speaker held out. A small network (front end of 8 channels,
d 128, 2 + 4 layers), so that a training takes minutes. Beam of 8, and greedy. Intervals are 95 %, by drawing test
clips again, each with the characters that were wrong in its word. Aim: at most 8 % of characters wrong with dense maps,
low-rank ones at most 3 points worse. Runs go on where they were stopped.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from rich.progress import track
from torch import Tensor

from greenformers.measure.record import Record
from greenformers.report.curves import save
from greenformers.report.loss_curves import loss_curves
from greenformers.speech import spoken_digits
from greenformers.speech.evaluate import TIMED, Judged, columns, generation_times, table
from greenformers.speech.recognise import Recogniser, recognised
from greenformers.speech.recordings import SPOKEN_DIGITS
from greenformers.speech.search import Search
from greenformers.speech.settings import SpeechSettings
from greenformers.train.run import ensure, metrics_of

DENSE = "transformer"
VARIANTS: dict[str, dict[str, Any]] = {
    DENSE: {},
    "lrt r=32": {"variant": "lrt", "rank": 32},
    "lrt r=16": {"variant": "lrt", "rank": 16},
}
HELD_OUT = "theo"
SETTINGS = SpeechSettings(
    layout=SPOKEN_DIGITS, channels=8, ctc_weight=0.3, hidden=128, layers=2, decoder_layers=4, heads=4,
    feed_forward=512, residual="pre", batch=16, steps=2000, learning_rate=1e-3, evaluate_every=250, save_every=250,
    log_every=50,
)  # fmt: skip
QUICK: dict[str, Any] = {"channels": 2, "hidden": 32, "feed_forward": 32, "steps": 2, "evaluate_every": 2, "batch": 4}
STRINGS, BATCH = 300, 20
WIDTHS = (8, 1)

Spoken = list[tuple[Tensor, str, list[int]]]
"""Waveform, text and clips of every test string."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders", Path, RUNS / "speech_digits"),
        Option("--seeds", "trainings of each variant; the held-out test has one", int, 1),
        Option("--picture", "file of the loss curves, .png", Path),
    ),
)


def main(run: Run) -> None:
    given = run.given
    records: list[Record] = []
    losses: list[Record] = []
    tests = [(None, seed) for seed in range(1 if run.quick else given.seeds)] + [(HELD_OUT, 0)]
    for held_out, seed in tests:
        test = "unseen takes" if held_out is None else f"unseen speaker {held_out}"
        folders = {}
        for variant in VARIANTS:
            own = settings(variant, given.data, seed, held_out, run.quick)
            name = f"{own.variant}-{own.rank}-{seed}-{held_out or ''}"
            folders[variant] = given.runs / ("quick" if run.quick else "full") / name
            ensure(folders[variant], own, run.console)
            if held_out is None:
                losses += curves(folders[variant], variant, seed)
        spoken = test_strings(given.data, held_out, 4 if run.quick else STRINGS)
        setting = {"test": test, "seed": seed, "strings": len(spoken), "steps": own.steps}
        for width in WIDTHS:
            # As in the thesis: by the decoder alone, and without length normalisation.
            search = Search(width=width, ctc_weight=0.0, length_power=0.0)
            columns_of_test = judged(setting, folders, spoken, search, 2 if run.quick else 9)
            shown = table(columns_of_test)
            shown.title = ", ".join(f"{key} {value}" for key, value in columns_of_test[0].setting.items())
            run.show(shown)
            records += columns_of_test
    if given.picture:
        panels = {"train": "Training, with CTC", "valid": "Validation"}
        figure = loss_curves("Spoken digits: loss curves (thesis, figure 4.3)", losses, panels, unit="nats a character")
        save(figure, given.picture)
    run.write(replace(record, context=run.about) for record in records + losses)


def settings(variant: str, folder: Path, seed: int, held_out: str | None, quick: bool) -> SpeechSettings:
    one = replace(SETTINGS, corpus=str(folder), seed=seed, held_out=held_out, **VARIANTS[variant])
    return replace(one, **QUICK) if quick else one


def test_strings(folder: Path, held_out: str | None, count: int) -> Spoken:
    digits = spoken_digits.load(folder, held_out=held_out)
    found = []
    for index in range(count):
        waveform, text, about = digits.string("test", index, torch.Generator())
        found.append((waveform, text, about["clips"]))
    return found


def by_clip(hypotheses: list[str], spoken: Spoken) -> tuple[Tensor, Tensor]:
    """Wrong characters, and characters, of every test clip in all strings it is in."""
    import jiwer

    references = [text for _, text, _ in spoken]
    out = jiwer.process_characters(references, hypotheses)
    wrong: dict[int, int] = {}
    length: dict[int, int] = {}
    for (_, text, clips), parts in zip(spoken, out.alignments, strict=True):
        word = [text[:place].count(" ") for place in range(len(text))]
        for place in range(len(text)):
            length[clips[word[place]]] = length.get(clips[word[place]], 0) + 1
        for part in parts:
            if part.type == "insert":
                clip = clips[word[min(part.ref_start_idx, len(text) - 1)]]
                wrong[clip] = wrong.get(clip, 0) + part.hyp_end_idx - part.hyp_start_idx
            elif part.type != "equal":
                for place in range(part.ref_start_idx, part.ref_end_idx):
                    wrong[clips[word[place]]] = wrong.get(clips[word[place]], 0) + 1
    order = sorted(length)
    return torch.tensor([wrong.get(clip, 0) for clip in order]), torch.tensor([length[clip] for clip in order])


def judged(
    setting: dict[str, Any], runs: dict[str, Path], spoken: Spoken, search: Search, repeats: int
) -> list[Record]:
    """Columns of tables 4.2 and 4.3, for all variants of one seed and one way to search."""
    recognisers = {name: Recogniser.load(run, search) for name, run in runs.items()}
    waveforms = [waveform for waveform, _, _ in spoken]
    times = generation_times(recognisers, waveforms[:TIMED], repeats)
    found = []
    for name, recogniser in recognisers.items():
        told = track(waveforms, f"{setting['test']}, {name}, width {search.width}")
        hypotheses = recognised(recogniser, told, batch=BATCH, progress=lambda _: None)
        wrong, lengths = by_clip(hypotheses, spoken)
        found.append(Judged(name, recogniser, hypotheses, wrong))
    texts = [text for _, text, _ in spoken]
    return list(columns(BENCHMARK.name, setting | {"width": search.width}, found, texts, lengths, times))


def curves(run: Path, variant: str, seed: int) -> Iterator[Record]:
    """Figure 4.3: losses in nats a character."""
    for entry in metrics_of(run):
        for key, task in (("loss", "train"), ("eval_loss", "valid")):
            if key in entry:
                setting = {"task": task, "step": int(entry["step"]), "seed": seed}
                yield Record.of("loss", entry[key], benchmark="speech_losses", variant=variant, setting=setting)


if __name__ == "__main__":
    BENCHMARK.run(main)
