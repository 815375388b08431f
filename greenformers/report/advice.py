"""Advice as a table."""

from collections.abc import Sequence

from rich.table import Table

from greenformers.advise.calibration import Prices
from greenformers.advise.recommend import Need, Row
from greenformers.measure.grid import BASELINE


def table(rows: Sequence[Row], need: Need, prices: Prices, top: int | None = None) -> Table:
    """Candidates, the fastest `top` first and the dense network; what cannot be used, and why, at the end."""
    network = need.network
    found = Table("", "variant", "rank", "time, ms", "memory, MiB", "parameters, M", "why", "evidence of the time")
    found.title = (
        f"{need.mode.capitalize()}: {need.batch} x {need.length} tokens, d {network.hidden}, {network.heads} heads, "
        f"f {network.feed_forward}, {network.layers} layers{', causal' if network.causal else ''}"
    )
    caption = (
        f"Interpolated: from {prices.count} calls measured on this machine, median error {100 * prices.error:.0f} %. "
        "Memory and parameters: arithmetic, of the layers."
    )
    place = left_out = 0
    for row in rows:
        cell, usable = row.cell, row.refused is None
        place += usable
        if usable and top is not None and place > top and cell.variant != BASELINE:
            left_out += 1
            continue
        known = row.memory == row.memory  # not nan
        found.add_row(
            str(place) if usable else "-", cell.variant, "" if cell.rank is None else str(cell.rank),
            f"{1e3 * row.seconds:.3g}" if known else "", f"{row.memory / 2**20:.0f}" if known else "",
            f"{row.parameters / 1e6:.2f}" if known else "", row.refused or row.reason, row.evidence,
        )  # fmt: skip
    if left_out:
        caption += f" {left_out} slower candidates are left out: --top shows more."
    found.caption = caption
    return found
