"""Tables of the costs of training runs, and those of the Greenformers thesis (Cahyawijaya 2021) computed again."""

from collections.abc import Mapping
from dataclasses import fields

from rich import box
from rich.table import Table
from rich.text import Text

from greenformers.advise.cost import Cost, Range
from greenformers.advise.cost_options import Answer
from greenformers.advise.efficiency import efficiency, mean_speed_up
from greenformers.advise.published import LOW_RANK, RUNS, SHARES, SPEED_UPS, low_rank
from greenformers.report.digits import number

_HEADS = {
    "petaflops_days": "Compute\nPF/s-days",
    "usd": "Price\nUSD",
    "co2_kg": "CO2\nkg",
    "kwh": "Energy\nkWh",
    "hours": "Time\nh",
}
_COMPARED = ("petaflops_days", "usd", "co2_kg")
_HARMONIC = "1/sum(P/E)"
_PRINTED = "printed"
_OURS = "again"


def cost_table(answers: Mapping[str, Answer]) -> Table:
    """A table of the costs of a base run and of its faster variants.

    Args:
        answers: Costs by name of the run, as `greenformers.advise.cost_options.answer` gives them.
    """
    shown = [
        field.name
        for field in fields(Cost)
        if any(getattr(answer.cost, field.name) is not None for answer in answers.values())
    ]
    means = any(answer.mean is not None for answer in answers.values())
    table = _table("", "Run", "Efficiency\nfactor", *["thesis,\neq. 3.10"] * means, *(_HEADS[name] for name in shown))
    for name, answer in answers.items():
        factors = [f"{answer.efficiency:.2f}"]
        if means:
            factors.append("–" if answer.mean is None else f"{answer.mean:.2f}")
        table.add_row(Text(name), *factors, *(_figure(name, getattr(answer.cost, name)) for name in shown))
    if means:
        _caption(
            table,
            "Efficiency factor: 1 / sum(P/E); P: share of the base's time; E: speed-up. "
            "Cahyawijaya 2021, eq. 3.10: sum(P E).",
        )
    return table


def thesis_tables() -> list[Table]:
    """Tables 1.1 and 3.2 of the thesis, with our computation beside each printed figure."""
    return [_table_1_1(), _table_3_2()]


def _table_1_1() -> Table:
    table = _table("Cahyawijaya 2021, table 1.1: published training runs", "Model", "Year", *_pairs())
    for name, run in RUNS.items():
        table.add_row(name, str(run.year), *_compared(run.printed, run.again))
    return _caption(
        table,
        f"{_OURS}: from the hours, watts and prices of Strubell 2019; BERT-large is 4 times BERT-base.\n"
        "GPT-3: 6 x parameters x tokens; energy of Patterson 2021. –: not published, or nothing to work it out from.\n",
    )


def _table_3_2() -> Table:
    factors = (f"Factor\n\n{_PRINTED}", f"\n\n{_HARMONIC}", "\n\nsum(P E)")
    table = _table("Cahyawijaya 2021, table 3.2: BERT-base as a Low-Rank Transformer", "Rank", *factors, *_pairs())
    base = RUNS["BERT-base"].printed
    table.add_row("dense", "1.00", "1.00", "1.00", *_compared(base, base))
    for rank, (printed, costs) in sorted(LOW_RANK.items(), reverse=True):
        speed_ups = SPEED_UPS[rank]
        ours = (efficiency(speed_ups, SHARES), mean_speed_up(speed_ups, SHARES))
        shown = (f"{factor:.2f}" for factor in (printed, *ours))
        table.add_row(str(rank), *shown, *_compared(costs, low_rank(rank)))
    taken = ", ".join(f"{share:.0%} at length {length}" for length, share in SHARES.items())
    return _caption(
        table,
        f"{_OURS}: BERT-base's cost / {_HARMONIC}; P: {taken} of the base's time;\n"
        "E: figure 3.7. The times of the lengths add up, so the mean is harmonic; the thesis prints sum(P E).",
    )


def _pairs() -> list[str]:
    """Headings of two columns for each measure: the printed figure, and ours."""
    return [f"{_HEADS[name]}\n{which}" for name in _COMPARED for which in (_PRINTED, _OURS)]


def _compared(printed: Cost, ours: Cost) -> list[str]:
    return [_figure(name, getattr(cost, name)) for name in _COMPARED for cost in (printed, ours)]


def _figure(name: str, figure: Range | float | None) -> str:
    if figure is None:
        return "–"
    ends = (figure.low, figure.high) if isinstance(figure, Range) else (figure,)
    return "-".join(dict.fromkeys(_rounded(name, end) for end in ends))


def _rounded(name: str, value: float) -> str:
    """Small values have three digits; others have those of the thesis: tenths of a kg, else whole units."""
    if value < (1000 if name == "petaflops_days" else 10):
        text = number(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:,.{1 if name == 'co2_kg' and value < 10_000 else 0}f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=index > 0)
    return table


def _caption(table: Table, text: str) -> Table:
    table.caption = Text(text, style="dim")
    return table
