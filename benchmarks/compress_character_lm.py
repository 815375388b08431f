"""A character language model trained on Tiny Shakespeare, then compressed: the perplexity each solver keeps.

    python benchmarks/compress_character_lm.py [--quick] [--json results/compress_character_lm.jsonl]

Shares 0.8, 0.6 and 0.4 of the linear weights, no training afterwards, beside the toy comparison this is to confirm.
Calibrated on 32,768 characters to learn from; scored on the validation part. Stopped at any moment, the same command
goes on.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import greenformers.model  # noqa: F401  registers its architectures
from greenformers import compress
from greenformers.changes.low_rank import LowRank
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches
from greenformers.data.tinyshakespeare import load
from greenformers.measure.record import Record, with_ratios
from greenformers.train.run import ensure
from greenformers.train.settings import Settings
from greenformers.train.task import MODEL

SETTINGS = Settings(
    data="tinyshakespeare", objective="causal_lm", tokenizer="characters", length=128, batch=16, hidden=128, layers=4,
    heads=4, feed_forward=512, residual="pre", dropout=0.1, steps=4000, learning_rate=2e-3, evaluate_every=1000,
    log_every=100, save_every=500, optimizer="adamw",
)  # fmt: skip
QUICK: dict[str, Any] = {"limit": 200, "steps": 20, "evaluate_every": 10, "log_every": 10, "save_every": 20}
SHARES = (0.8, 0.6, 0.4)
METHODS = (
    ("svd", "uniform"), ("svd", "hull"), ("activation", "uniform"), ("activation", "hull"), ("sequential", "uniform"),
    ("sequential", "hull"), ("loss", "uniform"), ("loss", "hull"), ("sequential_loss", "uniform"),
    ("sequential_loss", "hull"),
)  # fmt: skip
PUBLISHED = {
    ("svd", "uniform"): (8.66, 9.12, 10.15),
    ("activation", "uniform"): (8.43, 8.76, 9.82),
    ("activation", "hull"): (8.31, 8.56, 9.40),
    ("sequential", "uniform"): (8.37, 8.54, 8.99),
    ("loss", "hull"): (8.27, 8.38, 8.72),
}
"""Of a byte model of three layers, d 96; dense 8.25."""
PUBLISHED_DENSE = 8.25
BLOCKS = 256

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "tinyshakespeare", "folder of the text"),
        Option("--runs", "folder of the trainings", Path, RUNS / "compress_character_lm"),
        Option("--seeds", "models trained", int, 2),
    ),
)


def main(run: Run) -> None:
    given = run.given
    text = load(given.data)
    texts = Texts("validation", [(line,) for line in text.valid[: 5_000 if run.quick else None].split("\n")])
    base = replace(SETTINGS, folder=str(given.data), **(QUICK if run.quick else {}))
    records = []
    for seed in range(1 if run.quick else given.seeds):
        folder = given.runs / f"{'quick-' * run.quick}{seed}"
        ensure(folder, replace(base, seed=seed), run.console)
        dense = AutoModelForCausalLM.from_pretrained(folder / MODEL).eval()
        records += scored(run, dense, AutoTokenizer.from_pretrained(folder / MODEL), text.train, texts, seed)
    run.show(shown(records))
    run.write(records)


def scored(
    run: Run, dense: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, learn: str, texts: Texts, seed: int
) -> list[Record]:
    """Perplexity of the dense model and of every compressed one."""
    size = BLOCKS * SETTINGS.length
    calibration = batches(learn[:size].split("\n"), tokenizer, "causal_lm", SETTINGS.length, 32)
    before = judge({"dense": dense}, texts, Reader.of(dense, tokenizer, SETTINGS.length))["dense"]["perplexity"][0]
    records = []
    for share in SHARES:
        setting = {"keep": share, "seed": seed}
        records.append(run.record("perplexity", before, "dense", setting))
        for solver, way in METHODS:
            small = copy.deepcopy(dense)
            # Multiples of 1: at this width those of 8 would be far from the shares.
            change = LowRank(keep=share, uniform=way == "uniform", solver=solver, multiple=1)
            report = compress(small, change, calibration=calibration)
            after = judge({"it": small}, texts, Reader.of(small, tokenizer, SETTINGS.length))["it"]["perplexity"][0]
            print(f"seed {seed}, keep {share}, {solver} {way}: {after:.3f}, {report.summary()[0]}", flush=True)
            records.append(run.record("perplexity", after, f"{solver}, {way}", setting))
    return with_ratios(records, to="dense")


def shown(records: list[Record]) -> Table:
    """Perplexity as times the dense one, the mean over seeds; in brackets that of the toy comparison."""
    dense = [record.value for record in records if record.variant == "dense"]
    table = Table("solver, budget", *(f"{share} kept" for share in SHARES))
    table.title = f"Perplexity a character, times the dense model's {sum(dense) / len(dense):.3f}"
    for method in METHODS:
        row = []
        for place, share in enumerate(SHARES):
            at = [r for r in records if r.variant == ", ".join(method) and r.setting["keep"] == share]
            mean = sum(1 / (r.ratio or 1) for r in at) / len(at)
            toy = f" ({PUBLISHED[method][place] / PUBLISHED_DENSE:.3f})" if method in PUBLISHED else ""
            row.append(f"{mean:.3f}{toy}")
        table.add_row(", ".join(method), *row)
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
