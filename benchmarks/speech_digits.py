"""Spoken digit strings: dense and low-rank recognisers at equal steps (thesis, tables 4.2 and 4.3, figure 4.3).

    python benchmarks/speech_digits.py [--quick] [--seeds 1] [--ways narrow] [--rates 0.5,1,2] [--runs FOLDER]
        [--json results/speech_digits.jsonl] [--picture docs/speech_losses.png]

3,000 real clips of 6 speakers, joined to strings of 3 to 7 digits, new ones in every epoch. Test strings are of takes 0
to 4, of which nothing is learnt; then, of dense and low-rank networks by Muon, once more with one speaker held out. A
small network (front end of 8 channels, d 128, 2 + 4 layers), so that a training takes minutes. Beside low rank stand
dense networks of smaller width with as many parameters (narrow) or FLOPs (narrow_flops) as rank 32, each trained by
Muon and by AdamW. The learning rate of each is that of the grid with the least loss on the validation set, after a
training with seed 0: AdamW's at 0.5, 1 and 2 times 1e-3, Muon's at five times these. Searched for by the beam of 8 of
the thesis, greedily, and as `greenformers speech transcribe` does, by decoder and CTC. Intervals of a seed are 95 %, by
drawing test clips again, each with the characters that were wrong in its word; those of the mean over several seeds are
of the differences, seed by seed. Time of training is that of all steps, from some of them of all networks by turns.
Aim: at most 8 % of characters wrong with dense layers; bar: rank 32 at most 1 point worse than dense in no more time.
Runs go on where they were stopped; what the file of --json has is not repeated.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from _harness import REFERENCE, RUNS, Benchmark, Option, Run, data
from _study import Study, Trained, Values, beside, means, study
from _train_times import bar, train_times
from _ways import DENSE, OPTIONS, Plan, Way, ways
from rich.progress import track
from rich.table import Table
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

VARIANTS: dict[str, dict[str, Any]] = {
    DENSE: {},
    "lrt r=32": {"variant": "lrt", "rank": 32},
    "lrt r=16": {"variant": "lrt", "rank": 16},
}
"""Dense and low-rank networks, which are also judged by the unseen speaker."""
LOW_RANK = "lrt r=32"
WAYS: dict[str, Way] = ways(LOW_RANK, rank=32) | {"lrt r=16": Way("lrt", more={"rank": 16})}
HELD_OUT = "theo"
SETTINGS = SpeechSettings(
    layout=SPOKEN_DIGITS, channels=8, ctc_weight=0.3, hidden=128, layers=2, decoder_layers=4, heads=4,
    feed_forward=512, residual="pre", batch=16, steps=2000, learning_rate=1e-3, evaluate_every=250, save_every=250,
    log_every=50,
)  # fmt: skip
QUICK: dict[str, Any] = {"channels": 2, "hidden": 32, "feed_forward": 32, "steps": 2, "evaluate_every": 2, "batch": 4}
STRINGS, BATCH = 300, 20
SEARCHES = {
    "beam of 8": Search(width=8, ctc_weight=0.0, length_power=0.0),
    "greedy": Search(width=1, ctc_weight=0.0, length_power=0.0),
    "joint": Search(),
}
"""The search of the thesis, by the decoder alone and without length normalisation; the same without beams; and that of
`greenformers speech transcribe`, a beam of 8 by decoder and CTC."""
LOST = 1.0
LOSSES = "speech_losses"
"""The benchmark of the records of loss curves."""

Spoken = list[tuple[Tensor, str, list[int]]]
"""Waveform, text and clips of every test string."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "fsdd", "folder of the clips"),
        Option("--runs", "folder of the run folders", Path, RUNS / "speech_digits"),
        Option("--references", "published tables", Path, REFERENCE),
        Option("--picture", "file of the loss curves, .png", Path),
        *OPTIONS,
    ),
)


def main(run: Run) -> bool:
    given = run.given
    plan = Plan.asked(run, WAYS)
    base = replace(SETTINGS, corpus=str(given.data))
    if run.quick:
        base = replace(base, **QUICK | {"valid_transcripts": 2})
    folder = given.runs / ("quick" if run.quick else "full")
    setting = {"test": "unseen takes", "steps": base.steps}
    ran = study(run, plan, base, folder, "loss", setting)
    run.show(ran.table())
    strings, repeats = (4, 2) if run.quick else (STRINGS, 9)
    spoken = test_strings(given.data, None, strings)
    for seed in range(plan.seeds):
        at = setting | {"seed": seed, "strings": strings}
        for trainings in untested(run, at, {name: own[seed] for name, own in ran.best.items()}):
            tested(run, at, trainings, spoken, repeats)
            run.write(record for name, own in trainings.items() for record in curves(run, own, name))
    at = setting | {"test": f"unseen speaker {HELD_OUT}", "seed": 0, "strings": strings}
    for trainings in untested(run, at, {name: ran.best[name][0] for name in VARIANTS if name in ran.best}):
        others = {name: without(run, own, folder) for name, own in trainings.items()}
        tested(run, at, others, test_strings(given.data, HELD_OUT, strings), repeats)
    times = train_times(run, ran, setting)
    averages, met = list[Record](), True
    for search in SEARCHES:
        at = setting | {"strings": strings, "search": search}
        values = {name: [errors(run, at, name, own) for own in best] for name, best in ran.best.items()}
        averages += means(run, "cer", values, at)
        run.show(shown(ran, values, times, f"Characters wrong, %, mean of the seeds; {setting['test']}, {search}"))
        met &= bar(ran, "cer", values, times, LOW_RANK, LOST)
    run.write([*averages, *times.values()])
    if given.picture:
        panels = {"train": "Training, with CTC", "valid": "Validation"}
        losses = [own for own in run.known() if own.benchmark == LOSSES and own.variant in ran.best]
        figure = loss_curves("Spoken digits: loss curves (thesis, figure 4.3)", losses, panels, unit="nats a character")
        save(figure, given.picture)
    run.published("thesis_table4_2_asr", "thesis_table4_3_asr_speed")
    return met or run.quick


def untested(run: Run, setting: dict[str, Any], trainings: dict[str, Trained]) -> list[dict[str, Trained]]:
    """The trainings of which no errors are known, in groups: with the dense network, or each by itself."""
    new = {
        name: own for name, own in trainings.items()
        if not all(known_errors(run, setting | {"search": search}, name, own) for search in SEARCHES)
    }  # fmt: skip
    return [new] if DENSE in new else [{name: own} for name, own in new.items()]


def tested(run: Run, setting: dict[str, Any], trainings: dict[str, Trained], spoken: Spoken, repeats: int) -> None:
    """Write the columns of tables 4.2 and 4.3 of one seed, by each search."""
    for search in SEARCHES:
        own = judged(setting, {name: each.at_hand(run) for name, each in trainings.items()}, spoken, search, repeats)
        printed = table(own)
        printed.title = ", ".join(f"{key} {value}" for key, value in own[0].setting.items())
        run.show(printed)
        run.write(
            replace(record, setting=record.setting | trainings[record.variant].rates, context=run.about)
            for record in own
        )


def without(run: Run, own: Trained, folder: Path) -> Trained:
    """The same training once more, without one of the speakers."""
    assert isinstance(own.settings, SpeechSettings)
    settings = replace(own.settings, held_out=HELD_OUT)
    place = folder / f"{own.folder.name}-{HELD_OUT}"
    scores = ensure(place, settings, run.console)
    return Trained(settings, place, scores["loss"])


def known_errors(run: Run, setting: dict[str, Any], name: str, own: Trained) -> Record | None:
    """What is known of the characters that a training gets wrong."""
    return run.remembered("cer", name, setting | {"seed": own.settings.seed} | own.rates)


def errors(run: Run, setting: dict[str, Any], name: str, own: Trained) -> float:
    """Characters that a training gets wrong, in percent."""
    record = known_errors(run, setting, name, own)
    assert record is not None, "it has been tested"
    return record.value


def shown(ran: Study, values: Values, times: dict[str, Record], title: str) -> Table:
    """A row a way: the mean over seeds, and the difference to the dense network."""
    rows = Table("", "rate", "CER (%)", "beside transformer", "time of transformer", title=title)
    for name, trainings in ran.best.items():
        cells = f"{fmean(values[name]):.2f}", beside(values, name), f"{1 / (times[name].ratio or 1):.2f}"
        rows.add_row(name, f"{trainings[0].rate:g}", *cells)
    return rows


def test_strings(folder: Path, held_out: str | None, count: int) -> Spoken:
    digits = spoken_digits.load(folder, held_out=held_out)
    strings = []
    for index in range(count):
        waveform, text, about = digits.string("test", index, torch.Generator())
        strings.append((waveform, text, about["clips"]))
    return strings


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


def judged(setting: dict[str, Any], runs: dict[str, Path], spoken: Spoken, search: str, repeats: int) -> list[Record]:
    """Columns of tables 4.2 and 4.3, for all variants of one seed and one way to search."""
    recognisers = {name: Recogniser.load(run, SEARCHES[search]) for name, run in runs.items()}
    waveforms = [waveform for waveform, _, _ in spoken]
    times = generation_times(recognisers, waveforms[:TIMED], repeats)
    outcomes = []
    for name, recogniser in recognisers.items():
        told = track(waveforms, f"{setting['test']}, {name}, {search}")
        hypotheses = recognised(recogniser, told, batch=BATCH, progress=lambda _: None)
        wrong, lengths = by_clip(hypotheses, spoken)
        outcomes.append(Judged(name, recogniser, hypotheses, wrong))
    texts = [text for _, text, _ in spoken]
    return list(columns(BENCHMARK.name, setting | {"search": search}, outcomes, texts, lengths, times))


def curves(run: Run, own: Trained, variant: str) -> Iterator[Record]:
    """Figure 4.3: losses in nats a character."""
    for entry in metrics_of(own.folder):
        for key, task in (("loss", "train"), ("eval_loss", "valid")):
            if key in entry:
                setting = {"task": task, "step": int(entry["step"]), "seed": own.settings.seed}
                about = run.about | {"seed": own.settings.seed}
                yield Record.of("loss", entry[key], benchmark=LOSSES, variant=variant, setting=setting, context=about)


if __name__ == "__main__":
    BENCHMARK.run(main)
