"""MiniLM-L6 searched: the fastest recipe that keeps 99 % of its quality, in torch and in OpenVINO, in an hour each.

    python benchmarks/search_minilm.py [--quick] [--runtime openvino] [--never 0] [--json results/search_minilm.jsonl]
    python benchmarks/search_minilm.py --trials runs/search/torch-0-trials.jsonl [--json results/search_minilm.jsonl]

As a user would: `greenformers compress MODEL --lose 1%` on the 3,000 training pairs of STS-B, some of which judge, and
healed on 163,000 sentences without labels. Then, on STS-B's 625 dev pairs, which nothing has seen, what the result
keeps of Spearman's correlation, in OpenVINO by the file of it that runs there; and 60 recipes that were never tried,
predicted from the trials and then timed, beside them the order in which predictions put any two that are more than 10 %
apart (half an hour; `--never 0` leaves that). The trials are kept in RUNS/RUNTIME-SEED-trials.jsonl: with `--trials`
these 60 are predicted from such a file, and nothing is searched.

A table has every recipe by hand of earlier studies that is above the front, `--picture` all of them beside the trials:
of prune, combine, int8, students, few bits, low rank and deploy those that were timed in torch on 8 texts of 128
tokens, each beside the dense model on its own machine, and judged on the dev pairs. A student without a network is none
of them. In OpenVINO the result is in RUNS/RUNTIME-SEED/deployed; beside OpenVINO's own int8 by
`python benchmarks/deploy.py --small RUNS/RUNTIME-SEED`.

Bars: 4.5 times as fast as dense in torch at 99 %, and no recipe by hand above the front; of 60 predicted times a median
error of at most 8 %, of 1,000 draws of 9 of them a first choice within 10 % of the best in 95 %, no change with a
median of more than 10 % off, the order right in 90 % of the pairs. The weights of MiniLM come with the extra `minilm`.
"""

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from _corpus import SOURCES, corpus
from _harness import RUNS, Benchmark, Option, Run, data, yes
from compress_minilm import LENGTH, minilm, model_folder, pairs
from matplotlib.figure import Figure
from rich.table import Table

from greenformers.advise.in_runtime import RUNTIMES, TORCH
from greenformers.checkpoint.files import line
from greenformers.checkpoint.pretrained import pretrained
from greenformers.compress.job import Job
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.export.runtime import RuntimeModel
from greenformers.measure.record import Record, read
from greenformers.report.front import figure, front_table, recipe_words, sentence, write
from greenformers.report.plot import COLOURS, house, save
from greenformers.search.bound import Bound
from greenformers.search.propose import Predictions
from greenformers.search.recipes import name_of
from greenformers.search.run import DEPLOYED, Outcome, _prepared, find
from greenformers.search.search import Search
from greenformers.search.space import Genes
from greenformers.search.trials import Trial, Trials
from greenformers.train.others import Others

LOSE, BAR = 0.01, 4.5
ERROR, BIAS, WITHIN, APART, ORDERED = 0.08, 0.10, 1.10, 1.10, 0.90
DRAWS, DRAWN, SHARE = 1000, 9, 0.95
"""Draws of so many of the recipes that were never tried, and the share of them in which the first choice is good."""

MODEL, BATCH, DEV = "all-MiniLM-L6", 8, ("stsb valid", "stsb_dev.tsv")
BY_HAND = (
    "prune_minilm", "combine_minilm", "int8_minilm", "students", "few_bits", "compress_minilm", "deploy", "deploy_four",
)  # fmt: skip
"""Files of records of earlier studies that have recipes by hand, timed in torch and judged on the dev pairs."""

OTHERS = (", in ", "searched", "a vector for each token")
"""Parts of the names of what is none of them: in another runtime, of a search, and no network."""

HEALED, BEFORE = "healed", ("fewer layers", "low rank")
"""What was healed takes as long as before, under whose name it was timed."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="a minute of search and few sentences; the figures mean nothing",
    options=(
        data("--pairs", "stsb_open", "STS-B"),
        *SOURCES,
        Option("--runtime", "where recipes are timed and judged", default=TORCH, choices=RUNTIMES),
        Option("--minutes", "of the search", float, 60.0),
        Option(
            "--never", "recipes that were never tried, whose times are predicted and then measured", int, 60, least=0
        ),
        Option("--trials", "trials of an earlier run, from which these are predicted in place of a search", Path),
        Option("--seed", "of the search", int, 0, least=0),
        Option("--runs", "folder of the result", Path, RUNS / "search"),
        Option("--records", "folder of the records of earlier studies", Path, Path("results")),
        Option("--picture", "PNG of the trials beside the recipes by hand", Path),
    ),
    threads=2,
)


class ByHand(NamedTuple):
    """A recipe by hand of an earlier study.

    Attributes:
        name: its name there.
        file: the file of its records.
        machine: where it was timed.
        speed: how many times as fast as the dense model.
        lost: share of Spearman's correlation on the dev pairs that it lost.
    """

    name: str
    file: str
    machine: str
    speed: float
    lost: float


def main(run: Run) -> bool:
    given = run.given
    if given.trials is not None and not (given.never and given.trials.is_file()):
        run.refuse(f"--trials must be a file, of use with --never 1 or more; got {given.trials} and {given.never}")
    dense, tokenizer = minilm(run)
    source = model_folder()
    assert source is not None
    folder = given.runs / f"{'quick-' * run.quick}{given.runtime}-{given.seed}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    job = Job(texts=written(run), heal_texts=sentences(run), length=LENGTH, lengths=(LENGTH,), seed=given.seed)
    minutes = 1.0 if run.quick else given.minutes
    setting = {"runtime": given.runtime, "seed": given.seed, "minutes": minutes}
    if given.trials is not None:
        return run.quick or foreseen(run, str(source), job, given.trials, setting)
    outcome = find(
        str(source), folder, job, Bound(lose=LOSE), runtime=given.runtime, minutes=minutes, about=run.about, told=told,
    )  # fmt: skip
    trials = folder.with_name(f"{folder.name}-trials.jsonl")
    keep(outcome.search.trials, trials)
    run.show(front_table(outcome, given.runtime))
    print(sentence(outcome, Bound(lose=LOSE), given.runtime))
    page = write(
        outcome, Bound(lose=LOSE), given.runtime, "all-MiniLM-L6-v2", job, folder / "report", "MiniLM-L6, searched"
    )
    print(f"report: {page}")
    by_hand = recipes_by_hand(given.records) if given.runtime == TORCH else []
    above = above_front(outcome.search.trials.done(), by_hand)
    if by_hand:
        run.show(above_table(above))
        print(f"no recipe by hand of {len(by_hand)} is above the front: {yes(not above)}")
    held = pairs(given.pairs, "valid")
    reader = Reader.of(dense, tokenizer, LENGTH)
    models: dict[str, Any] = {"dense": dense, "searched": result(given.runtime, folder)}
    scores = judge(models, held, reader)
    records = [record for trial in outcome.search.trials.done() for record in of_trial(run, outcome, trial, setting)]
    for name, measured in scores.items():
        value, interval = measured["spearman"]
        records.append(
            run.record("spearman", value, name, setting, interval=interval, to="dense" if interval else None)
        )
    share = scores["searched"]["spearman"][0] / scores["dense"]["spearman"][0]
    print(f"dev pairs: {share:.2%} of Spearman's correlation, {outcome.best.speed:.2f}x as fast in {given.runtime}")
    met = share >= 1 - LOSE and (given.runtime != TORCH or outcome.best.speed >= BAR)
    print(f"99 % of Spearman's correlation{f' at {BAR}x' if given.runtime == TORCH else ''}: {yes(met)}")
    run.write(records)
    if given.picture:
        save(picture(outcome, given.runtime, by_hand), given.picture)
    met &= not given.never or foreseen(run, str(source), job, trials, setting)
    return run.quick or (met and not above)


def foreseen(run: Run, model: str, job: Job, trials: Path, setting: dict[str, object]) -> bool:
    """Whether the speed of recipes that were never tried is foreseen from trials; where they are timed is made anew."""
    with tempfile.TemporaryDirectory() as name:
        return predicted(run, of_trials(run, model, job, Path(name), trials), setting)


def told(search: Search, trial: Trial) -> None:
    figures = str(trial.refused) if trial.refused else f"{trial.speed:.2f}x, keeps {1 - trial.lost:.2%}"
    minutes = search.trials.seconds / 60
    print(f"{minutes:5.1f} min: {recipe_words(search, trial)}: {figures}", flush=True)


def result(runtime: str, folder: Path) -> Any:
    """What is judged of a result: the file of it that its runtime runs, and in torch the model itself."""
    model, tokenizer = pretrained(str(folder))
    return model if runtime == TORCH else RuntimeModel(runtime, folder / DEPLOYED, model, tokenizer)


def keep(trials: Trials, path: Path) -> None:
    """Write all trials of a search, whose own file goes with its end, into a file for `--trials`."""
    path.unlink(missing_ok=True)
    archive = Trials(path)
    for trial in trials.seen:
        archive.add(trial)


def of_trials(run: Run, model: str, job: Job, folder: Path, trials: Path) -> Search:
    """A search that has ended, as far as predictions need it: its space, its trials, and where recipes are timed."""
    given = run.given
    search, _, _ = _prepared(model, job, Bound(lose=LOSE), given.runtime, 1.0, folder, lambda *_: None, Others())
    for row in trials.read_text().splitlines():
        trial = Trial.of(json.loads(row))
        sizes = [len(slot) for slot in search.space.slots]
        if len(trial.genes) != len(sizes) or any(gene > size for gene, size in zip(trial.genes, sizes, strict=True)):
            run.refuse(f"--trials must have recipes of at most {sizes}, got {list(trial.genes)}: of another model")
        search.trials.add(trial)
    return search


def of_trial(run: Run, outcome: Outcome, trial: Trial, setting: dict[str, object]) -> list[Record]:
    name, at = recipe_words(outcome.search, trial), setting | {"made": trial == outcome.best}
    return [
        run.record("speed", trial.speed, name, at), run.record("quality_share", 100 * (1 - trial.lost), name, at),
        run.record("smaller", trial.smaller, name, at, source="counted"),
    ]  # fmt: skip


def recipes_by_hand(folder: Path) -> list[ByHand]:
    """The recipes of `BY_HAND`, once for each time that they were judged and timed."""
    recipes = []
    for file in BY_HAND:
        path = folder / f"{file}.jsonl"
        records = [record for record in (read(path) if path.is_file() else []) if counts(record)]
        timed = [record for record in records if record.metric == "latency"]
        for record in records:
            if record.metric == "spearman" and record.ratio is not None and (time := time_of(record, timed)):
                machine = ", ".join(str(time.context["machine"][key]) for key in ("cpu", "cores"))
                recipes.append(ByHand(record.variant, file, machine, time.ratio or 0.0, 1 - record.ratio))
    return recipes


def counts(record: Record) -> bool:
    """Whether a record is of a recipe by hand in torch, at the size that the search times or on the dev pairs."""
    at = {"texts": DEV[0], "model": MODEL, "batch": BATCH, "length": LENGTH} | record.setting
    alike = at["texts"] in DEV and (at["model"], at["batch"], at["length"]) == (MODEL, BATCH, LENGTH)
    own = record.benchmark != "deploy" or record.variant.startswith("ours, ")
    return alike and own and record.variant != record.to and not any(part in record.variant for part in OTHERS)


def time_of(judged: Record, timed: Sequence[Record]) -> Record | None:
    """The time of a judged recipe: taken with it, or of it before healing, or else elsewhere in the same file."""
    names = [judged.variant, *(judged.variant.replace(HEALED, name) for name in BEFORE)]
    beside = {record.variant: record for record in timed if record.context == judged.context}
    elsewhere = {record.variant: record for record in timed}
    return next((beside[name] for name in names if name in beside), elsewhere.get(judged.variant))


def above_front(trials: Sequence[Trial], by_hand: Sequence[ByHand]) -> list[tuple[ByHand, float]]:
    """The recipes by hand that are faster than all trials that lose no more, with the speed of the fastest of those.

    To keep more than all of the quality is noise, and counts as no loss.
    """
    rows = []
    for recipe in by_hand:
        speeds = [trial.speed for trial in trials if max(0.0, trial.lost) <= max(0.0, recipe.lost)]
        fastest = max([1.0, *speeds])  # the model as it is loses nothing
        if recipe.speed > fastest:
            rows.append((recipe, fastest))
    return sorted(rows, key=lambda row: -row[0].speed)


def above_table(above: Sequence[tuple[ByHand, float]]) -> Table:
    table = Table(
        "by hand, above the front", "study", "timed on", "times as fast", "kept, dev pairs", "the front there"
    )
    table.caption = "The front there: the speed of the fastest trial that loses no more, judged by the search."
    for recipe, fastest in above:
        table.add_row(
            recipe.name, recipe.file, recipe.machine, f"{recipe.speed:.2f}", f"{1 - recipe.lost:.2%}", f"{fastest:.2f}"
        )
    return table


@house
def picture(outcome: Outcome, runtime: str, by_hand: Sequence[ByHand]) -> Figure:
    """The trials and their front, as on the page, beside the recipes by hand."""
    drawn = figure(outcome, Bound(lose=LOSE), runtime)
    (axes,) = drawn.axes
    axes.scatter(
        [recipe.speed for recipe in by_hand], [100 * (1 - recipe.lost) for recipe in by_hand], label="by hand",
        color=COLOURS[3], marker="x", s=22, linewidths=1, zorder=2,
    )  # fmt: skip
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return drawn


def predicted(run: Run, search: Search, setting: dict[str, object]) -> bool:
    """Whether the speed of recipes that were never tried is foreseen."""
    rows = never_tried(search, 4 if run.quick else run.given.never, random.Random(run.given.seed))
    speeds = [prediction.speed for prediction in Predictions(search.space, search.trials, 0).of(rows)]
    guesses = dict(zip(rows, speeds, strict=True))
    seen: dict[Genes, float] = {}
    for genes in rows:
        name = name_of(search.space.recipe(genes))
        try:
            seen[genes] = search.lab.speed(search.lab.made(search.space.recipe(genes)))
        except OSError:  # a full disk, say, is no fault of the recipe
            raise
        except Exception as error:
            print(f"{name}: not made: {line(error)}", flush=True)
            continue
        run.write(
            [
                run.record("speed", guesses[genes], name, setting | {"how": "predicted"}, source="estimated"),
                run.record("speed", seen[genes], name, setting | {"how": "measured"}),
            ]
        )
        print(f"{name}: predicted {guesses[genes]:.2f}x, {seen[genes]:.2f}x", flush=True)
    if not seen:
        print(f"none of {len(rows)} recipes could be made")
        return False
    errors, off = np.array([abs(guesses[genes] / seen[genes] - 1) for genes in seen]), biases(search, guesses, seen)
    within, right = first_choices(guesses, seen), in_order(guesses, seen)
    table = Table("recipes", "median error", "90 % below", f"first choice of {DRAWN} within 10 %", "pairs in order")
    table.add_row(
        str(len(seen)), f"{np.median(errors):.1%}", f"{np.quantile(errors, 0.9):.1%}", f"{within:.1%}", f"{right:.1%}"
    )
    by_change = Table("recipes with", "number", "predicted speed, median off")
    for name, (count, value) in off.items():
        by_change.add_row(name, str(count), f"{value:+.1%}")
    run.show(table, by_change)
    worst = max(abs(value) for _, value in off.values())
    met = bool(np.median(errors) <= ERROR and worst <= BIAS and within >= SHARE and right >= ORDERED)
    print(f"times of recipes that were never tried are foreseen: {yes(met)}")
    return met


def never_tried(search: Search, count: int, draw: random.Random) -> list[Genes]:
    """So many recipes by chance, none of which the search has tried."""
    tried = {trial.genes for trial in search.trials.seen}
    rows: list[Genes] = []
    while len(rows) < count:
        genes = search.space.drawn(draw)
        if genes not in tried:
            tried.add(genes)
            rows.append(genes)
    return rows


def biases(search: Search, guesses: Mapping[Genes, float], seen: Mapping[Genes, float]) -> dict[str, tuple[int, float]]:
    """By change the number of recipes with it, and by what share their speed is predicted too high in the median."""
    off = {}
    for place, slot in enumerate(search.space.slots):
        if ratios := [guesses[genes] / seen[genes] for genes in seen if genes[place]]:
            off[slot[0].name()] = len(ratios), median(ratios) - 1
    return off


def first_choices(guesses: Mapping[Genes, float], seen: Mapping[Genes, float]) -> float:
    """The share of draws of a few recipes in which the one that is predicted to be the fastest is fast enough."""
    draw, good = random.Random(0), 0
    for _ in range(DRAWS):
        rows = draw.sample([*seen], min(DRAWN, len(seen)))
        first = max(rows, key=lambda genes: guesses[genes])
        good += max(seen[genes] for genes in rows) <= WITHIN * seen[first]
    return good / DRAWS


def in_order(guesses: Mapping[Genes, float], seen: Mapping[Genes, float]) -> float:
    """The share of the pairs more than 10 % apart whose order is predicted."""
    apart = [(a, b) for a, b in combinations(seen, 2) if max(seen[a] / seen[b], seen[b] / seen[a]) > APART]
    right = sum((guesses[a] > guesses[b]) == (seen[a] > seen[b]) for a, b in apart)
    return right / len(apart) if apart else 1.0


def written(run: Run) -> Path:
    """The training pairs of STS-B as a user would have them."""
    train = pairs(run.given.pairs, "train")
    assert train.labels is not None
    path = run.given.runs / f"{'quick-' * run.quick}pairs.tsv"
    rows = [f"{a}\t{b}\t{score}" for (a, b), score in zip(train.segments, train.labels, strict=True)]
    return put(path, ["sentence1\tsentence2\tscore", *(rows[:400] if run.quick else rows)])


def sentences(run: Run) -> Path:
    """Sentences without labels."""
    given = run.given
    lines = corpus(given.pairs, given.wikitext, given.reviews, given.phrases, given.captions)
    return put(given.runs / f"{'quick-' * run.quick}sentences.txt", lines[:2000] if run.quick else lines)


def put(path: Path, lines: list[str]) -> Path:
    """A file of lines, left as it is where it holds them: what was tried depends on when it was written."""
    text = "\n".join(lines) + "\n"
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


if __name__ == "__main__":
    BENCHMARK.run(main)
