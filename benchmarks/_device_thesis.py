"""The thesis' grid of time and memory, and Linformer's table 3, on an accelerator, beside the published cells."""

import csv
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import torch
from _harness import Run
from rich.table import Table

from greenformers.measure.bench import bench
from greenformers.measure.bench_options import How
from greenformers.measure.grid import EAGER, Cell, Network, cells
from greenformers.measure.record import Record

LENGTHS, RANKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), (4, 8, 16, 32, 64, 128, 256, 512)
TABLE3 = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536), (128, 256, 512, 1024, 2048)
MEMORY = 16 * 2**30
"""Bytes within which the largest batch is looked for: the memory of the accelerator of the published table."""

QUICK = Network(hidden=32, heads=2, feed_forward=64, layers=2)


def grid(run: Run, device: torch.device) -> bool:
    """Figures 3.4, 3.5 and 3.7: LRT and Linformer at all lengths and ranks, inference and training.

    Memory is the peak of activations of the batch; the published one is that of weights and activations of one sequence
    (thesis_memory.py has that of ours).
    """
    network, lengths, ranks = (QUICK, (16, 32), (4, 8)) if run.quick else (Network(), LENGTHS, RANKS)
    how = How(repeats=3 if run.quick else 9, device=str(device), tokens=64 if run.quick else 32_768)
    records = measured(run, cells(("lrt", "linformer"), lengths, ranks, network), network, how)
    for metric, mode in (("latency", "inference"), ("train_step", "training")):
        for variant in ("lrt", "linformer"):
            name = f"thesis_fig3_{4 if mode == 'inference' else 7}_{variant}_{mode}"  # Linformer's training has none
            path = run.given.references / f"{name}.csv"
            published = read(path, "rank", "speedup_vs_transformer")
            run.show(beside(f"{variant}, {mode}: times as fast", records, variant, metric, published))
            shares = read(path, "rank", "memory_ratio_vs_transformer")
            less = {at: round(1 / share, 2) for at, share in shares.items() if share}
            title = f"{variant}, {mode}: times less peak memory"
            run.show(beside(title, records, variant, f"peak_memory_{mode}", less))
    return True


def table3(run: Run, device: torch.device) -> bool:
    """Linformer's table 3: inference at equal tokens, and the largest batch, by length and k."""
    network, (lengths, ks) = (QUICK, ((16, 32), (4, 8))) if run.quick else (Network(), TABLE3)
    tokens, memory = (64, 2**24) if run.quick else (65_536, MEMORY)
    how = How(modes=("inference",), tokens=tokens, memory=memory, repeats=3 if run.quick else 7, device=str(device))
    records = measured(run, cells(("linformer",), lengths, ks, network), network, how)
    path = run.given.references / "linformer_table3_inference.csv"
    for metric, column, about in (
        ("latency", "time_saved_x", "time saved"), ("largest_batch_inference", "memory_saved_x", "memory saved"),
    ):  # fmt: skip
        published = read(path, "projected_dim", column)
        run.show(beside(f"Linformer, {about}", records, "linformer", metric, published))
    return True


def measured(run: Run, plan: Sequence[Cell], network: Network, how: How) -> list[Record]:
    """Records of all cells; those that the file of `--json` has are not measured again."""
    records = [record for record in run.known() if record.benchmark == "bench" and of_part(record, network, how)]
    for new in bench(plan, network, how, run.about, records):
        run.write(new)
        records += new
        (length, *_), mode = [record.setting["length"] for record in new], new[0].metric
        print(f"N {length:,}, {mode}: {len(new)} records", flush=True)
    return records


def of_part(record: Record, network: Network, how: How) -> bool:
    """Whether a record has the network, the device and the tokens of a part: one file holds several parts."""
    at = record.setting
    same = (at["hidden"], at["device"]) == (network.hidden, how.device)
    return same and at["batch"] == max(1, how.tokens // at["length"])


def read(path: Path, size: str, column: str) -> dict[tuple[int, int], float]:
    """Published cells by length and rank or k; none where the file is not there."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(int(row["sequence_length"]), int(row[size])): float(row[column]) for row in rows if row.get(column)}


def beside(
    title: str, records: Iterable[Record], variant: str, metric: str, published: dict[tuple[int, int], float]
) -> Table:  # fmt: skip
    """A row for each length, a column for each rank: beside SDPA, beside eager attention, (published, beside eager).

    Where eager attention, or SDPA, ran out of memory, the second figure is left out.
    """
    records = [record for record in records if record.metric == metric]
    eager = {record.setting["length"]: record for record in records if record.variant == EAGER and record.ratio}
    own = {
        (record.setting["length"], record.setting["rank"]): f"{saved(record):.2f}"
        + (f" {saved(record) / saved(eager[n]):.2f}" if (n := record.setting["length"]) in eager else "")
        for record in records
        if record.variant == variant
    }
    ranks = sorted({rank for _, rank in own})
    table = Table("N", *map(str, ranks), title=title)
    for length, _ in groupby(sorted(own), key=lambda key: key[0]):
        row = [
            own[length, rank] + (f" ({published[length, rank]:g})" if (length, rank) in published else "")
            if (length, rank) in own
            else ""
            for rank in ranks
        ]
        table.add_row(f"{length:,}", *row)
    return table


def saved(record: Record) -> float:
    """How many times less it takes than the dense network."""
    return record.ratio or 0.0
