"""BERT-base's shape at ranks 64 and 128, against length: parameters and speed-up, beside figure 3.4 of the thesis.

    python benchmarks/compress_bert_base.py [--quick] [--json results/compress_bert_base.jsonl]

Every call maps the same number of tokens. The baseline is the dense model with SDPA; with eager attention it is there
too. Weights are random: time does not depend on them.
"""

import copy
import csv
from pathlib import Path

import torch
from _harness import REFERENCE, Benchmark, Option, Run
from rich.table import Table
from transformers import BertConfig, BertModel

from greenformers import compress
from greenformers.changes.low_rank import LowRank
from greenformers.compress.side_by_side import on_example
from greenformers.measure.costs import Subject, costs
from greenformers.measure.parameters import parameters
from greenformers.measure.record import METRICS, Record, with_ratios

RANKS = (64, 128)
LENGTHS = (16, 32, 64, 128, 256, 512)
TOKENS = 1024
BASELINE = "dense, SDPA"
FIGURE = "thesis_fig3_4_lrt_inference.csv"

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two layers, three repeats",
    options=(Option("--reference", "folder of the published figures", Path, REFERENCE),),
)


def main(run: Run) -> None:
    models = networks(2 if run.quick else 12)
    records = [
        run.record("parameters", parameters(module), name, {"part": part}, source="counted")
        for name, model in models.items()
        for part, module in (("whole model", model), ("layers", model.encoder))
    ]
    for length in LENGTHS:
        batch = TOKENS // length
        subjects = {name: Subject(model, on_example(model, length, batch)) for name, model in models.items()}
        records += costs(
            subjects, ("latency", "flops"), benchmark=BENCHMARK.name, setting={"length": length, "batch": batch},
            repeats=3 if run.quick else 11, about=run.about,
        )  # fmt: skip
        print(f"N {length}: done", flush=True)
    records = with_ratios(records, to=BASELINE)
    counts = Table("variant", "part", METRICS["parameters"].label, "dense /")
    for record in records:
        if record.metric == "parameters":
            cells = (record.setting["part"], f"{record.value / 1e6:.1f} M", f"{record.ratio:.2f}x")
            counts.add_row(record.variant, *cells)
    run.show(counts, shown(records, published(run.given.reference / FIGURE)))
    run.write(records)


def networks(layers: int) -> dict[str, BertModel]:
    """The dense model with either attention, and one a rank."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    models = {BASELINE: BertModel._from_config(config, attn_implementation="sdpa").eval()}
    models["dense, eager"] = BertModel._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    for rank in RANKS:
        small = copy.deepcopy(models[BASELINE])
        # The linear layers of the thesis' Low-Rank Transformer: those of its layers.
        compress(small, LowRank(rank=rank, solver="randomized", select=("encoder.*",)))
        models[f"rank {rank}"] = small
    return models


def published(path: Path) -> dict[tuple[int, int], float]:
    """Speed-ups of figure 3.4 by length and rank."""
    if not path.exists():
        return {}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {(int(row["sequence_length"]), int(row["rank"])): float(row["speedup_vs_transformer"]) for row in rows}


def shown(records: list[Record], figure: dict[tuple[int, int], float]) -> Table:
    table = Table("N", "batch", "variant", "latency, ms", "IQR", "speed-up", "FLOP ratio", "figure 3.4")
    cells = {(r.setting.get("length"), r.variant, r.metric): r for r in records}
    for record in records:
        if record.metric == "latency":
            length, name = record.setting["length"], record.variant
            rank = int(name.removeprefix("rank ")) if name.startswith("rank") else None
            thesis = figure.get((length, rank)) if rank else None
            table.add_row(
                str(length), str(record.setting["batch"]), name, f"{record.value:.0f}", f"{record.spread:.0f}",
                f"{record.ratio:.2f}x", f"{cells[length, name, 'flops'].ratio:.2f}x",
                f"{thesis:.2f}x" if thesis else "",
            )  # fmt: skip
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
