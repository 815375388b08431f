"""The longest sequence that fits a budget of bytes, as bars and a table, beside table 5.3 of Cahyawijaya 2021."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from rich.table import Table

from greenformers.measure.record import Record
from greenformers.report.plot import grid, house, new_figure, settle

BARS, THESIS = ("#0072B2", "#595959"), "#D55E00"
"""Colours of the bars, dark enough for white figures, and the colour of the mark of the published figure."""

PUBLISHED = {
    ("transformer (eager)", "one a nucleotide"): "Transformer, one token a nucleotide",
    ("linformer", "one a nucleotide"): "Linformer, one token a nucleotide",
    ("transformer (eager)", "subwords"): "Transformer + subword tokens",
    ("linformer", "subwords"): "Linformer + subword tokens",
}
"""Name of a row in the thesis, by variant and tokens."""


@house
def lengths(title: str, records: Sequence[Record], published: Mapping[str, float]) -> Figure:
    """A figure of the longest sequences as bars, on a logarithmic scale where none is 0.

    Args:
        title: Title of the figure.
        records: Records of one mode, in nucleotides, with "recompute" and "tokens" in their settings.
        published: Lengths of the thesis in nucleotides, by its name of the row; may be empty.
    """
    names = list(dict.fromkeys(row_of(record) for record in records))
    figure = new_figure(8.6, 1.6 + 0.55 * len(names), title)
    axes = grid(figure, 1, 1, sharey=False)[0]
    kinds = list(dict.fromkeys(record.setting["tokens"] for record in records))
    if all(record.value > 0 for record in records):
        axes.set_xscale("log")
        least, most = (end(record.value for record in records) for end in (min, max))
        axes.set_xlim(least / 8, 4 * most)  # the shortest bar has room for its figure
    for record in records:
        place, number = names.index(row_of(record)), kinds.index(record.setting["tokens"])
        y = place + 0.4 * (number - (len(kinds) - 1) / 2)
        axes.barh(y, record.value, 0.36, color=BARS[number], label=f"tokens: {kinds[number]}" if not place else None)
        axes.annotate(f"{record.value:,.0f}", (record.value, y), (-4, 0), textcoords="offset points", ha="right",
                      va="center", fontsize=8, color="white", fontweight="bold")  # fmt: skip
        if theirs := _theirs(record, published):
            axes.plot(theirs, y, "|", color=THESIS, markersize=13, markeredgewidth=2.5)
            # Right of both, so that it stands on neither.
            axes.annotate(f"thesis {theirs:,.0f}", (max(theirs, record.value), y), (6, 0), textcoords="offset points",
                          va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Longest sequence (nucleotides)")
    figure.legend(loc="outside lower right", ncols=len(kinds))
    settle(figure)
    return figure


def row_of(record: Record) -> str:
    """The name of a record's row: its variant, and whether activations are recomputed in the backward pass."""
    return f"{record.variant}, recomputed" if record.setting["recompute"] else record.variant


def table(title: str, records: Sequence[Record], published: Mapping[str, float]) -> Table:
    """The same lengths as a table.

    Args:
        title: Title of the table.
        records: Records as in `lengths`, with "token_count" in their settings.
        published: Lengths of the thesis in nucleotides, by its name of the row; may be empty.
    """
    shown = Table("network", "tokens", "tokens are", "nucleotides", "times", *["thesis"] * bool(published), title=title)
    for record in records:
        theirs = _theirs(record, published)
        shown.add_row(
            row_of(record),
            f"{record.setting['token_count']:,}",
            record.setting["tokens"],
            f"{record.value:,.0f}",
            "" if record.ratio is None else f"{record.ratio:.1f}",
            *[f"{theirs:,.0f}" if theirs else ""] * bool(published),
        )
    return shown


def _theirs(record: Record, published: Mapping[str, float]) -> float | None:
    if record.setting["recompute"] or record.setting["mode"] != "training":
        return None
    return published.get(PUBLISHED.get((record.variant, record.setting["tokens"]), ""))
