"""Advice as tables."""

from collections.abc import Sequence

from rich.table import Column, Table

from greenformers.advise.calibration import Prices
from greenformers.advise.checkpoint import Advice, Change, Measured
from greenformers.advise.recommend import Need, Row
from greenformers.measure.grid import BASELINE
from greenformers.measure.record import METRICS


def table(rows: Sequence[Row], need: Need, prices: Prices, top: int | None = None) -> Table:
    """Candidates, the fastest `top` first and the dense network; what cannot be used, and why, at the end."""
    network = need.network
    name = Column("variant", no_wrap=True)
    found = Table("", name, "rank", "time, ms", "memory, MiB", "parameters, M", "why", "evidence of the time")
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


def measured_table(advice: Advice, model: str, batch: int) -> Table:
    """Changes of a trained model, the fastest first; what cannot be, and why, at the end."""
    metric = METRICS[advice.metric]
    why = ["why not"] * any(row.refused for row in advice.rows)
    quality = f"{metric.label}{', %' * (metric.unit == '%')}"
    found = Table(
        "", Column("change", no_wrap=True), "time, ms", "size, MiB", quality, "kept", "CO2, kg a million texts", *why
    )
    found.title = f"{model}: {batch} x {advice.length} tokens"
    found.caption = (
        "Measured on this machine, before any healing. In brackets: times faster, times smaller"
        f"{'; of the quality the 95 % interval of the difference' * any(row.interval for row in advice.rows)}. CO2 by "
        f"energy that is {next(record.source for record in advice.records if record.metric == 'energy_inference')}."
    )
    place = 0
    for row in advice.rows:
        if row.refused is not None:
            found.add_row("-", row.change.name, "", "", "", "", "", row.refused)
            continue
        place += 1
        spread = "" if row.interval is None else f" ({row.interval[0]:+.2f} to {row.interval[1]:+.2f})"
        found.add_row(
            str(place), row.change.name, f"{_short(row.milliseconds)} ({row.speed:.2g}x)",
            f"{row.mib:.3g} ({row.smaller:.2g}x)", f"{row.quality:.4g}{spread}", f"{row.kept:.1%}", f"{row.co2:.2g}",
        )  # fmt: skip
    return found


def words(advice: Advice, loss: float, model: str, texts: str) -> str:
    """What to do, and by which command; and what is faster still, should healing bring it back."""
    chosen, label = advice.chosen(loss), METRICS[advice.metric].label
    first = advice.rows[0]
    if first.speed <= chosen.speed:
        further = ""
    else:
        further = f"Faster still, to be healed first: {_told(first, label)}.\n{_commands(first, model, texts, True)}"
    if chosen.change == Change():
        said = f"None that keeps {1 - loss:.0%} of the quality is faster than the model as it is."
        return "\n".join(filter(None, [said, further]))
    said = f"Advice: {_told(chosen, label)}.\n{_commands(chosen, model, texts, False)}"
    return "\n".join(filter(None, [said, further]))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _told(row: Measured, label: str) -> str:
    return f"{row.change.name}, {row.speed:.2g}x as fast, {row.smaller:.2g}x smaller, keeps {row.kept:.1%} ({label})"


def _commands(row: Measured, model: str, texts: str, healed: bool) -> str:
    return "\n".join(f"  {line}" for line in row.change.commands(model, texts, healed))
