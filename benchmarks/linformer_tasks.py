"""Linformer, table 2, as far as the data at hand allow: pre-trained networks of every k and sharing, on four tasks.

    python benchmarks/linformer_tasks.py [--quick] [--seed N] [--json results/linformer_tasks.jsonl]

One masked-LM pre-training a row on WikiText-2, of a dense network and of Linformer with k of two sizes times three ways
to share its projections, in the same steps; each is then fine-tuned on SST-2 (6,920 sentences), IMDB (5,000 reviews,
cut to the length), QNLI (its 5,463 dev pairs in five parts by question: three to learn from, one to judge by)
and STS-B, for a fixed number of epochs, so that nothing is chosen by what judges. QQP is not at hand. Accuracy on test
(STS-B: Spearman's correlation on dev); differences to the dense network of the same examples, with 95 % intervals.
Published beside: 512 positions, RoBERTa's text. Runs go on where they were stopped.
"""

import zlib
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from _harness import REFERENCE, RUNS, Benchmark, Option, Run, data
from rich.table import Table
from torch import Tensor

from greenformers.data import Labelled
from greenformers.data import load as load_data
from greenformers.measure.device import accelerator
from greenformers.measure.quality import paired_difference
from greenformers.measure.record import Record
from greenformers.train.classification import Numbered, predict
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
    feed_forward=512, residual="pre", dropout=0.1, steps=6000, learning_rate=1e-3, log_every=100, save_every=200,
    evaluate_every=1000,
)  # fmt: skip
TUNING: dict[str, Any] = {
    "objective": None, "vocabulary": None, "pooling": "mean", "learning_rate": 2e-4, "epochs": 5, "steps": None,
    "evaluate_every": None, "save_every": 100,
}  # fmt: skip
QUICK: dict[str, Any] = {"limit": 60, "vocabulary": 400, "hidden": 16, "feed_forward": 32, "steps": 4,
                         "evaluate_every": 4, "batch": 8}  # fmt: skip
TASKS = {"sst2": "test", "imdb": "test", "qnli": "test", "stsb": "valid"}
PARTS = 5

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, on 60 texts; the figures mean nothing",
    options=(
        data("--data", ".", "folder of the data sets' folders"),
        Option("--references", "published tables", Path, REFERENCE),
        Option("--runs", "run folders", Path, RUNS / "linformer_tasks"),
        Option("--seed", "seed of weights and order", int, 0),
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
    right: dict[tuple[str, str], Tensor] = {}
    scores: dict[tuple[str, str], float] = {}
    for name in names:
        own = replace(PRETRAINING, folder=str(given.data / "wikitext2"), seed=given.seed, **ROWS[name])
        own = replace(own, **QUICK) if run.quick else own
        start = runs / name.replace(", ", "-").replace(" ", "") / "pretrained"
        ensure(start, own, run.console)
        for task, folder in folders.items():
            tuned = replace(own, **TUNING | {"data": task, "folder": str(folder), "init": str(start), "limit": limit})
            tuned = replace(tuned, epochs=1) if run.quick else tuned
            ensure(start.parent / task, tuned, run.console)
            scores[name, task], right[name, task] = judged(start.parent / task, tuned, TASKS[task])
    run.show(shown(names, scores, right))
    run.write(records_of(run, names, scores, right))
    run.published("linformer_table2_downstream")


def by_question(source: Path, out: Path) -> Path:
    """The pairs in three files of GLUE's layout, no question in two of them."""
    found = load_data("qnli", source)
    assert isinstance(found, Labelled)
    assert found.classes is not None
    files: dict[str, list[str]] = {name: ["index\tquestion\tsentence\tlabel"] for name in ("train", "dev", "test")}
    examples = found.valid
    for number, ((question, sentence), label) in enumerate(zip(examples.texts, examples.labels, strict=True)):
        part = zlib.crc32(question.encode()) % PARTS
        name = {0: "test", 1: "dev"}.get(part, "train")
        files[name].append(f"{number}\t{question}\t{sentence}\t{found.classes[int(label)]}")
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (out / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return out


def judged(folder: Path, settings: Settings, split: str) -> tuple[float, Tensor]:
    """The score of a finished run, and 1 for each example that it gets right; none of a regression."""
    objective: Any = replace(settings, init=str(folder)).task().objective
    model = trained(folder).to(accelerator())  # type: ignore[arg-type]
    score = objective.evaluate(model, split, 64)[objective.metric]
    if objective.metric != "accuracy":
        return score, torch.tensor([])
    guesses, labels = predict(model, Numbered(objective, split), batch_size=64, collate=objective.collate)
    return score, guesses == labels


def difference(right: dict[tuple[str, str], Tensor], name: str, task: str) -> tuple[float, float] | None:
    """The interval of the accuracy less that of the dense network, by examples, in percent."""
    own, dense = right[name, task], right[DENSE, task]
    if name == DENSE or not len(own):
        return None
    return paired_difference(own, dense)[1:]


def shown(names: Any, scores: dict[tuple[str, str], float], right: dict[tuple[str, str], Tensor]) -> Table:
    """A row for each network: scores, with intervals of the differences, and their mean."""
    table = Table("network", *TASKS, "mean", title="Accuracy, and Spearman's correlation of stsb, %")
    for name in names:
        cells = []
        for task in TASKS:
            between = difference(right, name, task)
            cells.append(
                f"{scores[name, task]:.1f}" + (f" ({between[0]:+.1f} to {between[1]:+.1f})" if between else "")
            )
        table.add_row(name, *cells, f"{mean(scores[name, task] for task in TASKS):.1f}")
    return table


def records_of(
    run: Run, names: Any, scores: dict[tuple[str, str], float], right: dict[tuple[str, str], Tensor]
) -> list[Record]:  # fmt: skip
    records = []
    for name in names:
        for task, split in TASKS.items():
            metric = "spearman" if task == "stsb" else "accuracy"
            between = difference(right, name, task)
            setting = {"data": task, "split": split, "seed": run.given.seed, "steps": PRETRAINING.steps}
            interval = list(between) if between else None
            records.append(
                run.record(metric, scores[name, task], name, setting, interval=interval, to=DENSE if between else None)
            )
    return records


if __name__ == "__main__":
    BENCHMARK.run(main)
