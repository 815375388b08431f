"""A character language model trained on Tiny Shakespeare, then compressed: the perplexity each solver keeps.

    python benchmarks/compress_character_lm.py [--quick] [--json results/compress_character_lm.jsonl]

Shares 0.8, 0.6 and 0.4 of the linear weights, no training afterwards, beside the toy comparison this is to confirm.
Calibrated on 32,768 characters to learn from; scored on the validation part. Stopped at any moment, the same command
goes on.
"""

import argparse
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, logging

import greenformers.model  # noqa: F401  registers its architectures
from greenformers.compress.quality import judge
from greenformers.data._texts import Texts, batches
from greenformers.data.tinyshakespeare import load
from greenformers.measure.record import METRICS, Record, append, context, with_ratios
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import compress
from greenformers.train.run import ensure
from greenformers.train.settings import Settings
from greenformers.train.task import MODEL

SETTINGS = Settings(
    data="tinyshakespeare", objective="causal_lm", tokenizer="characters", length=128, batch=16, hidden=128, layers=4,
    heads=4, feed_forward=512, residual="pre", dropout=0.1, steps=4000, learning_rate=2e-3, evaluate_every=1000,
    log_every=100, save_every=500,
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


def scored(
    dense: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, learn: str, texts: Texts, seed: int,
    about: dict[str, Any],
) -> list[Record]:  # fmt: skip
    """Perplexity of the dense model and of every compressed one."""
    size = BLOCKS * SETTINGS.length
    calibration = batches(learn[:size].split("\n"), tokenizer, "causal_lm", SETTINGS.length, 32)

    def record(variant: str, setting: dict[str, Any], value: float) -> Record:
        unit = METRICS["perplexity"].unit
        return Record("compress_character_lm", variant, setting, "perplexity", value, unit, context=about)

    before = judge({"dense": dense}, texts, tokenizer, SETTINGS.length)["dense"]["perplexity"][0]
    found = []
    for share in SHARES:
        found.append(record("dense", {"keep": share, "seed": seed}, before))
        for solver, way in METHODS:
            small = copy.deepcopy(dense)
            # Multiples of 1: at this width those of 8 would be far from the shares.
            report = compress(small, Budget(share, way), solver=solver, calibration=calibration, multiple=1)
            after = judge({"it": small}, texts, tokenizer, SETTINGS.length)["it"]["perplexity"][0]
            print(f"seed {seed}, keep {share}, {solver} {way}: {after:.3f}, kept {report.kept:.3f}", flush=True)
            found.append(record(f"{solver}, {way}", {"keep": share, "seed": seed}, after))
    return with_ratios(found, to="dense")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tinyshakespeare"), help="folder of the text")
    parser.add_argument("--runs", type=Path, default=Path("runs/compress_character_lm"), help="folder of the trainings")
    parser.add_argument("--seeds", type=int, default=2, help="models trained")
    parser.add_argument("--quick", action="store_true", help="hardly any training; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    if not given.data.is_dir():
        parser.exit(message=f"skipped: no folder {given.data}\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    about = context("python benchmarks/compress_character_lm.py" + " --quick" * given.quick, 0)
    text = load(given.data)
    texts = Texts("validation", [(line,) for line in text.valid[: 5_000 if given.quick else None].split("\n")])
    base = replace(SETTINGS, folder=str(given.data), **(QUICK if given.quick else {}))
    records = []
    for seed in range(1 if given.quick else given.seeds):
        run = given.runs / f"{'quick-' * given.quick}{seed}"
        ensure(run, replace(base, seed=seed), Console())
        folder = run / MODEL
        dense = AutoModelForCausalLM.from_pretrained(folder).eval()
        records += scored(dense, AutoTokenizer.from_pretrained(folder), text.train, texts, seed, about)
    Console(width=120).print(shown(records))
    if given.json:
        append(given.json, records)


if __name__ == "__main__":
    main()
