"""Linformer, table 2, as far as the data at hand allow: pre-trained networks of every k and sharing, on four tasks.

    python benchmarks/linformer_tasks.py [--quick] [--seed N] [--json results/linformer_tasks.jsonl]

One masked-LM pre-training a row on WikiText-2, of a dense network and of Linformer with k of two sizes times three ways
to share its projections, in the same steps by Muon; each is then fine-tuned by AdamW on SST-2 (6,920 sentences), IMDB
(5,000 reviews, cut to the length), QNLI (its 5,463 dev pairs in five parts by question: three to learn from, one to
judge by) and STS-B, for a fixed number of epochs, so that nothing is chosen by what judges. QQP is not at hand.
Accuracy on test (STS-B: Spearman's correlation on dev); differences to the dense network of the same examples, with 95
% intervals. The mean over the tasks, and its difference, have theirs by bootstrap: 1,000 drawings of as many examples
of each task, the same ones for all networks. Of several seeds in the file of --json a table of means follows, with
Student's intervals of the differences by seed. Published beside: 512 positions, RoBERTa's text. Runs go on where they
were stopped.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from _harness import REFERENCE, RUNS, Benchmark, Option, Run, data
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from greenformers.data import Labelled
from greenformers.data import load as load_data
from greenformers.measure.correlation import spearman
from greenformers.measure.device import accelerator
from greenformers.measure.intervals import mean_interval
from greenformers.measure.quality import paired_difference
from greenformers.measure.record import Record
from greenformers.train.classification import Numbered, TextRegression, predict
from greenformers.train.run import ensure, trained
from greenformers.train.settings import Settings

DENSE, LENGTH, KS, SHARINGS = "dense", 128, (32, 64), ("headwise", "key_value", "layerwise")
ROWS: dict[str, dict[str, Any]] = {DENSE: {"variant": "transformer"}} | {
    f"k {k}, {sharing}": {"variant": "linformer", "k": k, "option": {"sharing": sharing}}
    for k in KS
    for sharing in SHARINGS
}
PRETRAINING = Settings(
    data="wikitext2", objective="masked_lm", vocabulary=8000, length=LENGTH, batch=32, hidden=128, layers=4, heads=4,
    feed_forward=512, residual="pre", dropout=0.1, steps=6000, learning_rate=1e-3, optimizer="muon", log_every=100,
    save_every=200, evaluate_every=1000,
)  # fmt: skip
TUNING: dict[str, Any] = {
    "objective": None, "vocabulary": None, "pooling": "mean", "optimizer": "adamw", "learning_rate": 2e-4, "epochs": 5,
    "steps": None, "evaluate_every": None, "save_every": 100,
}  # fmt: skip
QUICK: dict[str, Any] = {"limit": 60, "vocabulary": 400, "hidden": 16, "feed_forward": 32, "steps": 4,
                         "evaluate_every": 4, "batch": 8}  # fmt: skip
TASKS = {"sst2": "test", "imdb": "test", "qnli": "test", "stsb": "valid"}
PARTS = 5
MEAN, DRAWINGS = "mean", 1000
Answers = dict[tuple[str, str], Tensor]
"""What each network answers on each task, see `answered`."""
Drawn = dict[str, NDArray[np.float64]]
"""The mean over the tasks of each network, by drawing of examples."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, on 60 texts; the figures mean nothing",
    options=(
        data("--data", ".", "folder of the data sets' folders", "wikitext2", "sst2", "imdb", "stsb_open", "qnli_dev"),
        Option("--references", "published tables", Path, REFERENCE),
        Option("--runs", "run folders", Path, RUNS / "linformer_tasks"),
        Option("--seed", "seed of weights and order", int, 0, least=0),
        Option("--only", "one row, and the dense network that it is compared with", choices=ROWS),
    ),
)


def main(run: Run) -> None:
    given, limit = run.given, 60 if run.quick else None
    runs = given.runs / ("quick" if run.quick else "small") / str(given.seed)
    folders = {
        "sst2": given.data / "sst2", "imdb": given.data / "imdb", "stsb": given.data / "stsb_open",
        "qnli": by_question(given.data / "qnli_dev", runs / "qnli"),
    }  # fmt: skip
    names = ROWS if given.only is None else dict.fromkeys((DENSE, given.only))
    answers: Answers = {}
    steps = QUICK["steps"] if run.quick else PRETRAINING.steps
    for name in names:
        own = replace(PRETRAINING, folder=str(given.data / "wikitext2"), seed=given.seed, **ROWS[name])
        own = replace(own, **QUICK) if run.quick else own
        start = runs / name.replace(", ", "-").replace(" ", "") / "pretrained"
        ensure(start, own, run.console)
        for task, folder in folders.items():
            tuned = replace(own, **TUNING | {"data": task, "folder": str(folder), "init": str(start), "limit": limit})
            tuned = replace(tuned, epochs=1) if run.quick else tuned
            ensure(start.parent / task, tuned, run.console)
            answers[name, task] = answered(start.parent / task, tuned, TASKS[task])
    means = {name: drawn(answers, name) for name in names}
    run.show(shown(answers, means))
    run.write(records_of(run, answers, means, steps))
    seeds = over_seeds(run.known(), steps)
    if seeds is not None:
        run.show(seeds)
    run.published("linformer_table2_downstream")


def by_question(source: Path, out: Path) -> Path:
    """The pairs in three files of GLUE's layout, no question in two of them."""
    pairs = load_data("qnli", source)
    assert isinstance(pairs, Labelled)
    assert pairs.classes is not None
    files: dict[str, list[str]] = {name: ["index\tquestion\tsentence\tlabel"] for name in ("train", "dev", "test")}
    examples = pairs.valid
    for number, ((question, sentence), label) in enumerate(zip(examples.texts, examples.labels, strict=True)):
        part = zlib.crc32(question.encode()) % PARTS
        name = {0: "test", 1: "dev"}.get(part, "train")
        files[name].append(f"{number}\t{question}\t{sentence}\t{pairs.classes[int(label)]}")
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (out / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return out


def answered(folder: Path, settings: Settings, split: str) -> Tensor:
    """What a finished run answers: whether it gets each example right (n,), or predictions and right scores (2, n)."""
    objective: Any = replace(settings, init=str(folder)).task().objective
    model = trained(folder).to(accelerator())  # type: ignore[arg-type]
    if isinstance(objective, TextRegression):
        return torch.stack(objective.predicted(model, split, 64))
    guesses, labels = predict(model, Numbered(objective, split), batch_size=64, collate=objective.collate)
    return guesses == labels


def score(answers: Tensor) -> float:
    """The accuracy of answers, or Spearman's correlation, in percent."""
    if answers.dim() == 2:
        return 100 * spearman(answers[0].numpy(), answers[1].numpy())
    return 100 * answers.double().mean().item()


def mean_score(answers: Answers, name: str) -> float:
    """The mean of a network over the tasks, in percent."""
    return mean(score(answers[name, task]) for task in TASKS)


def drawn(answers: Answers, name: str) -> NDArray[np.float64]:
    """The mean of a network over the tasks in each drawing of examples, with replacement; alike for all networks."""
    means = np.zeros(DRAWINGS)
    for task in TASKS:
        own, source = answers[name, task], torch.Generator().manual_seed(0)
        size = own.shape[-1]
        for drawing in range(DRAWINGS):
            means[drawing] += score(own[..., torch.randint(size, (size,), generator=source)]) / len(TASKS)
    return means


def interval_of(values: NDArray[np.float64]) -> list[float]:
    """The 95 % interval of drawings."""
    return [float(end) for end in np.percentile(values, [2.5, 97.5])]


def difference(answers: Answers, name: str, task: str) -> list[float] | None:
    """The interval of the accuracy less that of the dense network, by examples, in percent."""
    own, dense = answers[name, task], answers[DENSE, task]
    if name == DENSE or own.dim() == 2:
        return None
    return list(paired_difference(own, dense)[1:])


def shown(answers: Answers, means: Drawn) -> Table:
    """A row for each network: scores, with intervals of the differences; their mean, and its difference."""
    title = "Accuracy, and Spearman's correlation of stsb, %; 95 % intervals of differences to dense"
    table = Table("network", *TASKS, "mean, its interval", "mean less dense", title=title)
    for name, own in means.items():
        cells = []
        for task in TASKS:
            between = difference(answers, name, task)
            cells.append(f"{score(answers[name, task]):.1f}" + ("" if between is None else f" ({ends(between)})"))
        low, high = interval_of(own)
        less = "" if name == DENSE else ends(interval_of(own - means[DENSE]))
        table.add_row(name, *cells, f"{mean_score(answers, name):.1f} ({low:.1f} to {high:.1f})", less)
    return table


def ends(interval: Iterable[float]) -> str:
    """The interval of a difference, in words."""
    low, high = interval
    return f"{low:+.1f} to {high:+.1f}"


def records_of(run: Run, answers: Answers, means: Drawn, steps: int | None) -> list[Record]:
    """The scores of all networks, with the intervals of their differences to the dense one."""
    records = []
    for name, own in means.items():
        figures = {
            task: ("spearman" if task == "stsb" else "accuracy", score(answers[name, task]), split)
            for task, split in TASKS.items()
        }
        between = {task: difference(answers, name, task) for task in TASKS}
        figures[MEAN] = ("mean_score", mean_score(answers, name), "all")
        between[MEAN] = None if name == DENSE else interval_of(own - means[DENSE])
        for task, (metric, value, split) in figures.items():
            setting = {
                "data": task, "split": split, "seed": run.given.seed, "steps": steps,
                "optimizer": PRETRAINING.optimizer,
            }  # fmt: skip
            to = None if between[task] is None else DENSE
            records.append(run.record(metric, value, name, setting, interval=between[task], to=to))
    return records


def over_seeds(records: Iterable[Record], steps: int | None) -> Table | None:
    """A row for each network: means over the seeds, and the interval of the difference to dense; None of one seed."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for record in records:
        at = record.setting
        if record.benchmark == BENCHMARK.name and at["steps"] == steps:
            values.setdefault((record.variant, at["data"]), {})[at["seed"]] = record.value
    if not any(len(by_seed) > 1 for by_seed in values.values()):
        return None
    table = Table("network", "seeds", *TASKS, MEAN, "mean less dense", title="Means over seeds, %; 95 % intervals")
    for name in [name for name in ROWS if (name, MEAN) in values]:
        by_seed, dense = values[name, MEAN], values.get((DENSE, MEAN), {})
        less = [value - dense[seed] for seed, value in by_seed.items() if seed in dense]
        interval = f" ({ends(mean_interval(less))})" if len(less) > 1 else ""
        table.add_row(
            name,
            ", ".join(map(str, sorted(by_seed))),
            *(_mean(values.get((name, task), {})) for task in (*TASKS, MEAN)),
            "" if name == DENSE or not less else f"{mean(less):+.1f}{interval}",
        )
    return table


def _mean(by_seed: Mapping[int, float]) -> str:
    return f"{mean(by_seed.values()):.1f}" if by_seed else ""


if __name__ == "__main__":
    BENCHMARK.run(main)
