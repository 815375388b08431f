"""MiniLM-L6, a real sentence encoder, compressed and healed: what distillation on unlabelled text brings back.

    python benchmarks/heal_minilm.py [--quick] [--json results/heal_minilm.jsonl]

Compressed by the choice of compress_minilm.py to 50 % and 25 % of its Linear weights, then healed: a fixed number of
AdamW steps towards the original's hidden states and embeddings, on sentences of WikiText-2 and, without their scores,
of STS-B's training part. Judged on STS-B's dev pairs, on which nothing was chosen. Bar: Spearman at least 99 % of the
dense model's at 50 % and 96 % at 25 %.
"""

import copy
import time

import torch
from _harness import Benchmark, Option, Run, data, told
from compress_minilm import LENGTH, minilm, pairs, sentences
from rich.table import Table

from greenformers import compress
from greenformers.changes.heal import Heal
from greenformers.changes.low_rank import LowRank
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import batches
from greenformers.measure.record import with_ratios

BARS = {0.5: 0.99, 0.25: 0.96}
STEPS, BATCH, RATE = 300, 64, 5e-4

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any healing; the figures mean little",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--keep", "one share; by default both", float, choices=BARS),
        Option("--steps", f"of healing; {STEPS} if not given", int),
    ),
)


def main(run: Run) -> bool:
    given = run.given
    dense, tokenizer = minilm(run)
    calibration = batches(sentences(given.texts, 50 if run.quick else 1000), tokenizer, "encoder", LENGTH, 64)
    texts = [*sentences(given.texts, 500 if run.quick else 20_000), *pairs(given.pairs, "train").lines]
    judged = pairs(given.pairs, "train" if run.quick else "valid")
    steps = given.steps or (3 if run.quick else STEPS)
    met, records = True, []
    table = Table("kept", "", "spearman", "of dense", "95 % interval of the difference", "bar", "seconds")
    for share in (given.keep,) if given.keep else BARS:
        torch.manual_seed(0)
        small = copy.deepcopy(dense)
        compress(small, LowRank(keep=share, solver="sequential_loss"), calibration=calibration)
        healed, start = copy.deepcopy(small), time.monotonic()
        healing = Heal(steps, batch_size=BATCH, learning_rate=RATE)
        compress(healed, healing, texts=texts, tokenizer=tokenizer, teacher=dense, length=LENGTH, progress=told)
        seconds = time.monotonic() - start
        scores = judge(
            {"dense": dense, "compressed": small, "healed": healed}, judged, Reader.of(dense, tokenizer, LENGTH)
        )
        setting = {"keep": share, "steps": steps, "batch": BATCH, "texts": judged.name}
        own = with_ratios(run.scores(scores, setting), to="dense")
        records += own
        for record in own:
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
    run.show(table)
    run.write(records)
    return met or run.quick


if __name__ == "__main__":
    BENCHMARK.run(main)
