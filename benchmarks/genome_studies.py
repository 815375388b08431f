"""Chapter 5's two studies with planted causes: surroundings of a gene, and steps of pre-training, five draws each.

    python benchmarks/genome_studies.py [--quick] [--json results/genome_studies.jsonl] [--picture FILE]

Surroundings (figure 5.5): 1,000 synthetic people with a weak cause in a gene of 3,611 positions and two strong ones,
4.3 kb before and 4.5 kb behind it, and the gene with 0 to 15 kb more on each side. Bar: at 5 kb, where both causes are
in, the AUC is above that of every smaller margin, and no larger one, where there is nothing more to learn, is above it:
by 95 % intervals of the differences, draw by draw.

Pre-training (table 5.2): 2,000 synthetic people with a disease of those who have just one of two alleles, so that
neither predicts alone; fine-tuned for five epochs after 0 to 800 steps of masked language modelling, which reads
sequences, without phenotypes, of people who are tested too.

Means of the draws with 95 % intervals by Student's t. Draws are splits of the same people, many of whom are tested in
several: other people would differ by more than these intervals say. Stopped, the same command goes on. Skipped without
the data of `genome demo`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from _harness import RUNS, Benchmark, Option, Run, data, yes
from matplotlib.figure import Figure
from rich.table import Table
from scipy.stats import t

from greenformers.genome.demo import Demo, Files
from greenformers.genome.finetune import SPLIT, chances
from greenformers.genome.studies import MARGINS
from greenformers.measure.intervals import mean_interval
from greenformers.measure.record import Record
from greenformers.report.plot import new_figure, save, settle

SNAPSHOTS = (50, 200, 800)
DRAWS, PEOPLE = 5, 2000
PEAK = 5000
"""The least margin of `MARGINS` that holds all causes."""

STUDIES = {
    "surroundings": ("margin", "positions more on each side"),
    "steps": ("pretraining_steps", "steps of pre-training"),
}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="few people, steps and two draws; the figures mean nothing",
    options=(
        data("--data", ".", "folder of data sets", "genomics_apoe_1000g", "genomics_chr20_1mb"),
        Option("--part", "one of the two studies", choices=STUDIES),
        Option("--runs", "folder of all trainings", Path, RUNS / "genome_studies"),
        Option("--picture", "PNG of both studies", Path),
    ),
)


def main(run: Run) -> bool:
    given = run.given
    draws, people = (2, 200) if run.quick else (DRAWS, PEOPLE)
    margins = MARGINS[:2] if run.quick else MARGINS
    folder = given.runs / ("quick" if run.quick else "whole")
    demo = Demo(Files.under(given.data), folder, run.console, draws, people, margins, draws)
    records: dict[str, list[Record]] = {}
    for name in [name for name in STUDIES if given.part in (None, name)]:
        part = demo.surroundings() if name == "surroundings" else demo.steps((2, 4) if run.quick else SNAPSHOTS)
        records[name] = [
            run.record(
                record.metric, record.value, record.variant, record.setting | {"study": name}, spread=record.spread,
                interval=record.interval, to=record.to,
            )
            for record in part.records
        ]  # fmt: skip
        run.show(shown(name, records[name]))
    run.write([record for study in records.values() for record in study])
    if given.picture:
        save(picture(records), given.picture)
    return run.quick or "surroundings" not in records or has_its_peak(drawn(folder, margins, draws))


def of_mean(record: Record) -> tuple[float, float]:
    """The 95 % interval of the mean of the draws."""
    if record.spread is None:
        return record.value, record.value
    draws = record.setting["draws"]
    half = float(t.ppf(0.975, draws - 1)) * record.spread / draws**0.5
    return record.value - half, record.value + half


def shown(study: str, records: Sequence[Record]) -> Table:
    name, about = STUDIES[study]
    table = Table(about, "", "AUC (%)", "95 % of the mean", "F1 (%)", title=study)
    for record in records:
        if record.metric == "auc":
            low, high = of_mean(record)
            other = next(
                r.value for r in records
                if (r.metric, r.variant, r.setting[name]) == ("f1", record.variant, record.setting[name])
            )  # fmt: skip
            table.add_row(
                f"{record.setting[name]:,}", record.variant, f"{record.value:.1f}", f"{low:.1f} to {high:.1f}",
                f"{other:.1f}",
            )  # fmt: skip
    return table


def drawn(folder: Path, margins: Sequence[int], draws: int) -> dict[int, list[float]]:
    """The network's AUC of every draw, by margin."""
    place = folder / "surroundings" / "risk"
    return {
        margin: [chances(place / f"plus{margin}" / f"{SPLIT}{draw}").scores()["auc"] for draw in range(draws)]
        for margin in margins
    }


def has_its_peak(by_margin: Mapping[int, Sequence[float]]) -> bool:
    """Whether the AUC where all causes are in is above that of smaller margins, and that of no larger one above it.

    Args:
        by_margin: AUC of every draw; those of a draw are of the same people.
    """
    met = True
    for margin, others in by_margin.items():
        if margin == PEAK:
            continue
        low, high = mean_interval([peak - other for peak, other in zip(by_margin[PEAK], others, strict=True)])
        met &= low > 0 if margin < PEAK else high >= 0
        print(f"AUC at {PEAK:,} less that at {margin:,}: {low:+.1f} to {high:+.1f}")
    print(f"above that of smaller margins, and of larger ones none is above it: {yes(met)}")
    return met


def picture(records: dict[str, list[Record]]) -> Figure:
    figure = new_figure(4.8 * len(records), 4.4, "Chapter 5 in small: planted causes, five draws of people")
    panels = figure.subplots(1, len(records), squeeze=False)[0]
    for axes, (study, own) in zip(panels, records.items(), strict=True):
        name, about = STUDIES[study]
        for variant in dict.fromkeys(record.variant for record in own):
            rows = [record for record in own if (record.metric, record.variant) == ("auc", variant)]
            places = [record.setting[name] for record in rows]
            middle = [record.value for record in rows]
            halves = [of_mean(record)[1] - record.value for record in rows]
            axes.errorbar(places, middle, halves, label=variant, capsize=3, marker="o")
        measured = sorted({record.setting[name] for record in own})
        axes.set_xticks(measured, [f"{place:,}" for place in measured], fontsize=8)
        axes.set_xlabel(about)
        axes.set_ylabel("AUC (%)")
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    settle(figure)
    return figure


if __name__ == "__main__":
    BENCHMARK.run(main)
