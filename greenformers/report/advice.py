"""The advice of `recommend` as tables and as text: for a network to be, and for a trained model."""

import shlex
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Column, Table

from greenformers.advise.prices import Prices
from greenformers.advise.recommend import MEASURED, Need, Row, group_of
from greenformers.measure.grid import BASELINE
from greenformers.measure.record import METRICS
from greenformers.search.advice import MARGIN, Advice, Measured
from greenformers.search.bound import Bound
from greenformers.search.recipes import Recipe, command, export_command, healed, name_of

APART = ("", "not studied", "known to lose", "apart: attention that compares no two tokens")
"""Headings of groups of candidates, see `greenformers.advise.recommend.ordered`."""


def table(rows: Sequence[Row], need: Need, prices: Prices, top: int | None = None) -> Table:
    """A table of the candidates in their order, with what they lose; at the end those that cannot be used, and why.

    Args:
        rows: Candidates, in the order of the table.
        need: Network, batch and length that they are for.
        prices: Costs that the times are estimated from.
        top: Number of usable candidates of each group that are listed, beside the dense network; None for all.
    """
    network = need.network
    name = Column("variant", no_wrap=True)
    ranking = Table(
        "", name, "rank", "time, ms", "memory, MiB", "parameters, M", "loses", "why", "evidence of the time"
    )
    ranking.title = (
        f"{need.mode.capitalize()}: {need.batch} x {need.length} tokens, d {network.hidden}, {network.heads} heads, "
        f"f {network.feed_forward}, {network.layers} layers{', causal' if network.causal else ''}"
    )
    places, left_out, group = [0] * len(APART), 0, 0
    for row in rows:
        cell, usable = row.cell, row.refused is None
        own = group_of(row)
        places[own] += usable
        if usable and top is not None and places[own] > top and cell.variant != BASELINE:
            left_out += 1
            continue
        if usable and own != group:
            group = own
            ranking.add_section()
            ranking.add_row("", f"[italic]{APART[group]}[/]", *[""] * 7)
        predicted = row.memory == row.memory  # not nan, which stands for no prediction
        ranking.add_row(
            str(sum(places)) if usable else "-", cell.variant, "" if cell.rank is None else str(cell.rank),
            f"{1e3 * row.seconds:.3g}" if predicted else "", f"{row.memory / 2**20:.0f}" if predicted else "",
            f"{row.parameters / 1e6:.2f}" if predicted else "", "" if row.lost is None else str(row.lost),
            row.refused or row.reason, row.evidence,
        )  # fmt: skip
    ranking.caption = _caption(rows, prices, left_out)
    return ranking


def _caption(rows: Sequence[Row], prices: Prices, left_out: int) -> str:
    estimated = any(row.evidence.startswith("estimated") for row in rows)
    said = [
        "Estimated times are arithmetic with three rates of this machine: half of them are off by more than "
        f"{100 * prices.error:.0f} %." if estimated else "",
        "Measured times are those of one layer, as often as there are layers."
        if any(row.evidence == MEASURED for row in rows) else "",
        "Memory and parameters: arithmetic, of the layers. Loses: validation loss a byte against dense attention's, by "
        "a small language model of two layers, with its options as they are by default.",
        f"{left_out} slower candidates are left out: --top shows more." if left_out else "",
    ]  # fmt: skip
    return " ".join(filter(None, said))


def measured_table(advice: Advice, model: str) -> Table:
    """A table of recipes for a trained model, the fastest first; changes that are refused are at the end.

    Args:
        advice: Measurements of each recipe.
        model: Name of the model in the title.
    """
    metric, at = METRICS[advice.metric], advice.setting
    why = ["why not"] * any(row.refused for row in advice.rows)
    quality = f"{metric.label}{', %' * (metric.unit == '%')}"
    name = Column("change", no_wrap=True)
    ranking = Table("", name, "time, ms", "size, MiB", quality, "kept", "CO2, kg a million texts", *why)
    size = f"{at.batch} examples" if at.length is None else f"{at.batch} x {at.length} tokens"
    ranking.title = escape(f"{model}: {size}")
    spread = "; of the quality the 95 % interval of the difference" * any(row.interval for row in advice.rows)
    source = next(record.source for record in advice.records if record.metric == "energy_inference")
    ranking.caption = (
        "Measured on this machine, before any healing; judged on texts of their own lengths. In brackets: times "
        f"faster, times smaller{spread}. CO2 by energy that is {source}."
    )
    place = 0
    for row in advice.rows:
        if row.refused is not None:
            ranking.add_row("-", name_of(row.recipe), "", "", "", "", "", escape(row.refused))
            continue
        place += 1
        difference = "" if row.interval is None else f" ({row.interval[0]:+.2f} to {row.interval[1]:+.2f})"
        ranking.add_row(
            str(place), name_of(row.recipe), f"{_short(row.milliseconds)} ({_short(row.speed, 2)}x)",
            f"{_short(row.mib)} ({_short(row.smaller, 2)}x)", f"{_short(row.quality, 4)}{difference}",
            f"{row.quality_share:.1%}", _short(row.co2, 2),
        )  # fmt: skip
    return ranking


def words(advice: Advice, bound: Bound, model: str, texts: str) -> str:
    """The advice as text: the recipe and its command, a faster one that loses more, and a search with healing.

    Args:
        advice: Measurements of each recipe.
        bound: What the best recipe must keep to.
        model: Folder or name of the model, for the commands.
        texts: File of texts, for the commands.
    """
    chosen, label, first = advice.chosen(bound), METRICS[advice.metric].label, advice.rows[0]
    at = advice.setting
    runtime = next((record.setting["runtime"] for record in advice.records if "runtime" in record.setting), None)

    def line_of(recipe: Recipe) -> str:
        """The command that makes a recipe, and writes it for the runtime."""
        line = command(recipe, model, texts, at)
        return line if runtime is None else f"{line} && {export_command(runtime, texts, at.length)}"

    if bound.lose is None and chosen.speed < (bound.faster or 1):
        said = [f"Nothing that was tried is {bound.faster:g}x as fast."]
    elif not chosen.recipe:
        condition = f" that keeps {100 * (1 - bound.lose):g} % of the quality" if bound.lose is not None else ""
        said = [f"No recipe{condition} is faster than the model as it is."]
    else:
        said = []
    if chosen.recipe:
        said += [f"{'The fastest' if said else 'Advice'}: {_told(chosen, label)}."]
        said += [line_of(chosen.recipe)]
    if bound.lose is not None and first.speed >= MARGIN * chosen.speed and first.quality_share < 1 - bound.lose:
        further = line_of(healed(first.recipe, at.rows))
        said += [f"Faster still, but it needs healing (further training): {_told(first, label)}.", further]
    asked = ["--lose", f"{100 * bound.lose:g}%"] if bound.lose is not None else ["--faster", f"{bound.faster:g}x"]
    where = [] if runtime is None else ["--runtime", runtime]
    long = [] if at.length is None else ["--length", str(at.length), "--lengths", str(at.length)]
    more = shlex.join(["greenformers", "compress", model, "--texts", texts, *long, *asked, *where, "--out", "small"])
    said += ["A search with healing finds better ones, in half an hour:", more]
    return "\n".join(f"  {line}" if line.startswith("greenformers ") else line for line in said)


def _short(value: float, digits: int = 3) -> str:
    return f"{value:,.0f}" if value >= 10 ** min(digits, 3) else f"{value:.{digits}g}"


def _told(row: Measured, label: str) -> str:
    return (
        f"{name_of(row.recipe)}, {row.speed:.2g}x as fast, {row.smaller:.2g}x smaller, "
        f"keeps {row.quality_share:.1%} ({label})"
    )
