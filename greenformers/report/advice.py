"""Advice as tables."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Column, Table

from greenformers.advise.calibration import Prices
from greenformers.advise.checkpoint import MARGIN, Advice, Measured, command, healed, name_of
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


def measured_table(advice: Advice, model: str) -> Table:
    """Changes of a trained model, the fastest first; what cannot be, and why, at the end."""
    metric, at = METRICS[advice.metric], advice.setting
    why = ["why not"] * any(row.refused for row in advice.rows)
    quality = f"{metric.label}{', %' * (metric.unit == '%')}"
    name = Column("change", no_wrap=True)
    found = Table("", name, "time, ms", "size, MiB", quality, "kept", "CO2, kg a million texts", *why)
    size = f"{at.batch} examples" if at.length is None else f"{at.batch} x {at.length} tokens"
    found.title = escape(f"{model}: {size}")
    spread = "; of the quality the 95 % interval of the difference" * any(row.interval for row in advice.rows)
    source = next(record.source for record in advice.records if record.metric == "energy_inference")
    found.caption = (
        "Measured on this machine, before any healing; judged on texts of their own lengths. In brackets: times "
        f"faster, times smaller{spread}. CO2 by energy that is {source}."
    )
    place = 0
    for row in advice.rows:
        if row.refused is not None:
            found.add_row("-", name_of(row.recipe), "", "", "", "", "", escape(row.refused))
            continue
        place += 1
        difference = "" if row.interval is None else f" ({row.interval[0]:+.2f} to {row.interval[1]:+.2f})"
        found.add_row(
            str(place), name_of(row.recipe), f"{_short(row.milliseconds)} ({_short(row.speed, 2)}x)",
            f"{_short(row.mib)} ({_short(row.smaller, 2)}x)", f"{_short(row.quality, 4)}{difference}",
            f"{row.quality_share:.1%}", _short(row.co2, 2),
        )  # fmt: skip
    return found


def words(advice: Advice, loss: float, model: str, texts: str) -> str:
    """What to do, and by which command; and what is faster still, should healing bring it back."""
    chosen, label, first = advice.chosen(loss), METRICS[advice.metric].label, advice.rows[0]
    if not chosen.recipe:
        said = [f"None that keeps {100 * (1 - loss):g} % of the quality is faster than the model as it is."]
    else:
        said = [f"Advice: {_told(chosen, label)}.", command(chosen.recipe, model, texts, advice.setting)]
    if first.speed >= MARGIN * chosen.speed and first.quality_share < 1 - loss:
        further = command(healed(first.recipe, advice.setting), model, texts, advice.setting)
        said += [f"Faster still, to be healed first: {_told(first, label)}.", further]
    return "\n".join(f"  {line}" if line.startswith("greenformers ") else line for line in said)


def _short(value: float, digits: int = 3) -> str:
    return f"{value:,.0f}" if value >= 10 ** min(digits, 3) else f"{value:.{digits}g}"


def _told(row: Measured, label: str) -> str:
    return (
        f"{name_of(row.recipe)}, {row.speed:.2g}x as fast, {row.smaller:.2g}x smaller, "
        f"keeps {row.quality_share:.1%} ({label})"
    )
