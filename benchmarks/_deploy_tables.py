"""The tables of deploy.py: rows are forms of a network, columns are sizes of batches, or costs and quality."""

from collections.abc import Sequence

from rich.table import Table

from greenformers.measure.record import METRICS, Record

COSTS = ("size", "peak_memory_inference", "cold_start", "spearman")
Rows = list[list[str]]


def latencies(records: Sequence[Record]) -> Rows:
    """A head, then milliseconds of a call of each form, by batch x length; with the factor to the first form."""
    cells = {(r.variant, size_of(r)): r for r in records if r.metric == "latency"}
    sizes = list(dict.fromkeys(size for _, size in cells))
    rows = [["ms at batch x tokens", *sizes]]
    variants = dict.fromkeys(variant for variant, _ in cells)
    return rows + [[name, *(_latency(cells.get((name, size))) for size in sizes)] for name in variants]


def costs(records: Sequence[Record]) -> Rows:
    """A head, then size, peak memory at the largest batch, cold start and quality of each form."""
    cells = {(r.variant, r.metric): r for r in records if r.metric in COSTS}  # the last batch is the largest
    metrics = [metric for metric in COSTS if any(key[1] == metric for key in cells)]
    rows = [["", *(f"{METRICS[metric].label}, {METRICS[metric].unit}" for metric in metrics)]]
    variants = dict.fromkeys(variant for variant, _ in cells)
    return rows + [[name, *(_cost(cells.get((name, metric))) for metric in metrics)] for name in variants]


def size_of(record: Record) -> str:
    """Batch x length."""
    return f"{record.setting['batch']}x{record.setting['length']}"


def _latency(record: Record | None) -> str:
    if record is None:
        return ""
    factor = f" ({record.ratio:.2f}x)" if record.ratio and record.variant != record.to else ""
    return f"{record.value:.3g}{factor}" if record.value < 1000 else f"{record.value:.0f}{factor}"


def _cost(record: Record | None) -> str:
    if record is None:
        return ""
    if record.metric == "spearman":
        interval = "" if record.interval is None else " ({:+.2f} to {:+.2f})".format(*record.interval)
        return f"{record.value:.2f}{interval}"
    return f"{record.value:.1f}" if record.value < 100 else f"{record.value:.0f}"


def shown(rows: Rows) -> Table:
    """Rows for the terminal."""
    head, *body = rows
    table = Table(*head)
    for row in body:
        table.add_row(*row)
    return table


def markdown(records: Sequence[Record]) -> str:
    """Both tables of every network, for a page of docs."""
    parts = []
    for network in dict.fromkeys(record.setting["model"] for record in records):
        some = [record for record in records if record.setting["model"] == network]
        for head, *body in (latencies(some), costs(some)):
            lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts[-2] = f"{network}:\n\n{parts[-2]}"
    return "\n\n".join(parts) + "\n"
