"""MiniLM-L6, a real sentence encoder, compressed and healed: what distillation on unlabelled text brings back.

    python benchmarks/heal_minilm.py [--quick] [--json results/heal_minilm.jsonl]

Compressed by the choice of compress_minilm.py to 50 % and 25 % of its Linear weights, then healed: a fixed number of
AdamW steps towards the original's hidden states and embeddings, on sentences of WikiText-2 and, without their scores,
of STS-B's training part. Judged on STS-B's dev pairs, on which nothing was chosen. Bar: Spearman at least 99 % of the
dense model's at 50 % and 96 % at 25 %.
"""

import argparse
import copy
import sys
import time
from pathlib import Path

import torch
from compress_minilm import LENGTH, model_folder, pairs, sentences, told
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, BertModel, logging

from greenformers.changes.heal import Healing, heal
from greenformers.compress.quality import judge
from greenformers.data._texts import batches
from greenformers.measure.record import METRICS, Record, append, context, with_ratios
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import compress

BARS = {0.5: 0.99, 0.25: 0.96}
STEPS, BATCH, RATE = 300, 64, 5e-4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/wikitext2"), help="WikiText-2")
    parser.add_argument("--pairs", type=Path, default=Path("../shared/data/stsb_open"), help="STS-B")
    parser.add_argument("--quick", action="store_true", help="hardly any healing; the figures mean little")
    parser.add_argument("--keep", type=float, choices=BARS, help="one share; by default both")
    parser.add_argument("--steps", type=int, help=f"of healing; {STEPS} if not given")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    folder = model_folder()
    if folder is None or not given.texts.is_dir() or not given.pairs.is_dir():
        parser.exit(message="skipped: it needs the extra minilm, --texts and --pairs\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dense, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    calibration = batches(sentences(given.texts, 50 if given.quick else 1000), tokenizer, "encoder", LENGTH, 64)
    texts = [*sentences(given.texts, 500 if given.quick else 20_000), *pairs(given.pairs, "train").lines]
    judged = pairs(given.pairs, "train" if given.quick else "valid")
    steps = given.steps or (3 if given.quick else STEPS)
    about = context("python benchmarks/heal_minilm.py" + " --quick" * given.quick, 0)
    console, met, records = Console(width=120), True, []
    table = Table("kept", "", "spearman", "of dense", "95 % interval of the difference", "bar", "seconds")
    for share in (given.keep,) if given.keep else BARS:
        torch.manual_seed(0)
        small = copy.deepcopy(dense)
        compress(small, Budget(share, "hull"), solver="sequential_loss", calibration=calibration)
        healed, start = copy.deepcopy(small), time.monotonic()
        healing = Healing(steps, batch_size=BATCH, learning_rate=RATE)
        heal(healed, dense, texts, tokenizer, healing, length=LENGTH, progress=told)
        seconds = time.monotonic() - start
        models = {"dense": dense, "compressed": small, "healed": healed}
        setting = {"keep": share, "steps": steps, "batch": BATCH, "texts": judged.name}
        found = with_ratios(
            [
                Record(
                    "heal_minilm", name, setting, metric, value, METRICS[metric].unit, interval=interval,
                    to="dense" if interval else None, context=about,
                )
                for name, scores in judge(models, judged, tokenizer, LENGTH).items()
                for metric, (value, interval) in scores.items()
            ],
            to="dense",
        )  # fmt: skip
        records += found
        for record in found:
            if record.metric != "spearman":
                continue
            interval = "" if record.interval is None else f"{record.interval[0]:+.4f} to {record.interval[1]:+.4f}"
            last = record.variant == "healed"
            met &= not last or (record.ratio or 0) >= BARS[share]
            table.add_row(
                f"{100 * share:.0f} %", record.variant, f"{record.value:.4f}",
                "" if record.variant == "dense" else f"{100 * (record.ratio or 0):.1f} %", interval,
                f"{100 * BARS[share]:.0f} %" if last else "", f"{seconds:.0f}" if last else "",
            )  # fmt: skip
    console.print(table)
    if given.json:
        append(given.json, records)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
