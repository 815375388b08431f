"""Tables in a terminal of 80 columns: every figure whole, nothing cut."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table
from test_table import sample

from greenformers.advise.cost_options import Options, answer
from greenformers.measure.record import Record
from greenformers.report.cost import cost_table, thesis_tables
from greenformers.report.fit import fitted
from greenformers.report.table import tables
from greenformers.speech.evaluate import table as of_speech


def shown(parts: list, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def cells(table: Table) -> list[str]:
    return [str(cell) for column in table.columns for cell in column.cells]


def speech() -> Table:
    setting = {"split": "test"}
    figures = {"parameters": 1_234_567, "cer": 7.91, "wer": 23.25, "latency": 812.0, "mean_length": 28.4}
    records = [
        Record("speech", name, setting, metric, value, "", ratio=2.5, to="digits-dense", interval=[-1.25, 3.75])
        for name in ("digits-dense", "digits-rank-32")
        for metric, value in figures.items()
    ]
    return of_speech(records)


COST = [
    *thesis_tables(),
    cost_table(answer(Options(base="BERT-base", speedup="128:2,512:3", shares="128:0.9,512:0.1"))),
]


@pytest.mark.parametrize("table", [*COST, speech()], ids=["table-1.1", "table-3.2", "cost", "speech"])
def test_at_80_columns_every_figure_is_whole(table: Table) -> None:
    text = shown(fitted(table, 80))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for cell in cells(table):
        assert cell in text
    heads = [word for column in table.columns for word in str(column.header).split()]
    assert all(word in text for word in heads)


def test_records_fit_80_columns_too() -> None:
    text = shown(tables(sample(), 80))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for figure in ("266±8 (8.1x)", "67.5 est. (1.3x)", "2,160"):
        assert figure in text


def test_a_table_that_fits_is_one_table() -> None:
    table = Table("name", "a", "b", title="title", caption="caption")
    table.add_row("x", "1", "2")
    (part,) = fitted(table, 80)
    assert shown([part]) == shown([table])


def test_every_part_names_its_rows_and_columns_of_one_heading_stay_together() -> None:
    table = Table("name", "one\nours", "one\ntheirs", "two\nours", "\ntheirs", title="the title", caption="the caption")
    table.add_row("row", *(digit * 12 for digit in "1234"))
    text = shown(fitted(table, 50), 50)
    first, second = (part for part in re.split(r"\n\s*\n", text) if "row" in part)
    assert all(word in first for word in ("the title", "row", "1" * 12, "2" * 12))
    assert all(word in second for word in ("the caption", "row", "3" * 12, "4" * 12))


def test_sentences_are_broken_and_figures_are_not() -> None:
    table = Table("name", "figure", "why")
    table.add_row("x", "1,234,567 (12.5x)", "a sentence that goes on for much longer than its column is wide, here")
    text = shown(fitted(table, 60), 60)
    assert "1,234,567 (12.5x)" in text
    assert max(map(len, text.splitlines())) <= 60
