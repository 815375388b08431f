import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.report import digits, table
from greenformers.report.sections import sections, variants

CONTEXT = {
    "command": "greenformers compare --seed 1",
    "seed": 1,
    "time": "2026-05-09T12:00:00+00:00",
    "python": "3.11.7",
    "greenformers": "0.1.0",
    "torch": "2.13.0",
    "machine": {"cpu": "Example CPU <2 GHz>", "cores": 2, "system": "Linux"},
}
DEMO = {"at": "demo", "data": "digits", "length": 65, "hidden": 64, "layers": 2, "batch": 64}
SHORT = {"at": "layer", "length": 128, "batch": 32, "hidden": 768, "layers": 1}
LONG = {"at": "layer", "length": 4096, "batch": 1, "hidden": 768, "layers": 1}
VARIANTS = ("transformer", "lrt", "linformer", "lrt+linformer")
FIGURES = {
    "demo": {
        "parameters": (104_778, 56_650, 108_938, 60_810),
        "train_accuracy": (99.93, 99.65, 99.79, 98.96),
        "test_accuracy": (97.5, 97.22, 96.94, 96.39),
        "train_time": (21.4, 19.8, 18.1, 16.2),
        "latency": (7.91, 6.62, 6.07, 4.93),
        "peak_memory_training": (41.2, 38.8, 30.3, 28.1),
        "peak_memory_inference": (9.84, 9.11, 6.42, 5.86),
        "flops": (0.968, 0.612, 0.871, 0.515),
        "energy": (0.0892, 0.0825, 0.0754, 0.0675),
        "co2": (0.0412, 0.0381, 0.0348, 0.0312),
    },
    "short": {
        "parameters": (7_087_872, 2_363_904, 7_120_640, 2_396_672),
        "latency": (312.0, 168.0, 305.0, 151.0),
        "train_step": (941.0, 520.0, 960.0, 488.0),
        "peak_memory_inference": (402.0, 371.0, 380.0, 352.0),
        "peak_memory_training": (1260.0, 1121.0, 1183.0, 1042.0),
        "flops": (60.9, 22.1, 59.3, 20.5),
    },
    "long": {
        "parameters": (7_087_872, 2_363_904, 9_185_024, 4_461_056),
        "latency": (2160.0, 1930.0, 402.0, 266.0),
        "train_step": (6700.0, 6320.0, 1240.0, 795.0),
        "peak_memory_inference": (1790.0, 1771.0, 171.0, 152.0),
        "peak_memory_training": (3660.0, 3610.0, 461.0, 402.0),
        "flops": (109.5, 70.7, 60.9, 22.0),
    },
}
NOISY = {"latency": 0.03, "train_step": 0.02}
INTERVALS = {"lrt": [-1.12, 0.56], "linformer": [-1.46, 0.35], "lrt+linformer": [-2.16, -0.06]}
SOURCES = {"parameters": "counted", "flops": "counted", "energy": "estimated", "co2": "estimated"}


def figure(variant: str, setting: dict[str, object], metric: str, value: float) -> Record:
    spread = value * NOISY[metric] if metric in NOISY else None
    source = SOURCES.get(metric, "measured")
    return Record(
        "compare", variant, setting, metric, value, METRICS[metric].unit, spread, source=source, context=CONTEXT
    )


def sample() -> list[Record]:
    """What `greenformers compare` yields: three settings, two baselines in the layer, and training curves."""
    records = [
        figure(variant, setting, metric, value)
        for setting, name in ((DEMO, "demo"), (SHORT, "short"), (LONG, "long"))
        for metric, values in FIGURES[name].items()
        for variant, value in zip(VARIANTS, values, strict=True)
    ]
    eager = {"parameters": 1.0, "latency": 1.35, "train_step": 1.4, "peak_memory_inference": 2.1, "flops": 1.0}
    records += [
        figure("transformer (eager)", setting, metric, FIGURES[name][metric][0] * factor)
        for setting, name in ((SHORT, "short"), (LONG, "long"))
        for metric, factor in eager.items()
    ]
    for index, variant in enumerate(VARIANTS):
        for step in range(0, 230, 5):
            loss = 2.3 * math.exp(-step / (60 + 8 * index)) + 0.05 + 0.04 * math.sin(step + index)
            records.append(figure(variant, {**DEMO, "step": step}, "train_loss", loss))
        for epoch in range(1, 11):
            accuracy = FIGURES["demo"]["test_accuracy"][index] * (1 - math.exp(-epoch / 1.6))
            records.append(figure(variant, {**DEMO, "epoch": epoch}, "test_accuracy", accuracy))
    paired = [
        replace(record, interval=INTERVALS.get(record.variant))
        if record.metric == "test_accuracy" and record.setting == DEMO
        else record
        for record in records
    ]
    return with_ratios(paired, "transformer")


def plain(records: list[Record], width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=False)
    for part in table.tables(records, width):
        console.print(part)
    return [line.rstrip() for line in console.export_text().splitlines()]


def four() -> list[Record]:
    return [record for record in sample() if record.variant in VARIANTS]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,230"),
        (-3.14159, "-3.14"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert digits.number(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0123, "0.012x"),
        (0.5, "0.50x"),
        (1.04, "1.04x"),
        (1.1, "1.1x"),
        (4.24, "4.2x"),
        (9.96, "10x"),
        (1e4, "10,000x"),
    ],
)
def test_ratios_have_two_digits_or_three_near_one(ratio, text):
    assert digits.times(ratio) == text


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([7_087_872, 2_363_904], "", ("M", 1e6)),
        ([0.0892, 0.0412], "Wh", ("mWh", 1e-3)),
        ([402, 1260], "MiB", ("MiB", 1)),
        ([2048, 4096], "MiB", ("GiB", 1024)),
        ([1e-9], "ms", ("µs", 1e-3)),
        ([0, math.nan], "ms", ("ms", 1)),
        ([97.5], "%", ("%", 1)),
    ],
)
def test_a_row_is_shown_in_the_unit_in_which_it_reads_well(values, unit, expected):
    assert digits.scale(values, unit) == expected


def test_sections_are_named_by_what_tells_them_apart():
    all_sections = sections(sample())
    assert [(section.name, section.title, section.detail) for section in all_sections] == [
        ("Demo", "Demo", "data digits, length 65, hidden 64, layers 2, batch 64"),
        ("Layer", "Layer, length 128, batch 32", "hidden 768, layers 1"),
        ("Layer", "Layer, length 4096, batch 1", "hidden 768, layers 1"),
    ]
    assert {section.baseline for section in all_sections} == {"transformer"}


def test_other_benchmarks_need_no_place():
    speed = [
        Record("layer_speed", "lrt", {"length": length, "batch": 1}, "latency", 2.0, "ms") for length in (128, 512)
    ]
    assert [section.title for section in sections(speed)] == ["Length 128", "Length 512"]
    assert [section.title for section in sections(speed[:1])] == ["Layer speed"]
    assert sections(sample() + speed)[-1].title == "Layer speed, length 512"


def test_curves_are_no_cells_and_repeats_count_once():
    first = sections(sample())[0]
    assert first.metrics == [metric for metric in METRICS if metric in FIGURES["demo"]]
    assert first.cells["test_accuracy", "lrt"].value == 97.22
    assert list(first.points["test_accuracy", "epoch", "lrt"]) == list(range(1, 11))
    again = sections([*sample(), figure("lrt", DEMO, "test_accuracy", 98.0)])[0]
    assert again.cells["test_accuracy", "lrt"].value == 98.0


def test_four_variants_are_one_table_in_100_columns():
    assert len(table.tables(four())) == 1
    lines = plain(four(), 100)
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == list(VARIANTS)
    rows = [line for line in lines if line.startswith(" ") and line.strip()][1:]
    assert len(rows) == sum(map(len, FIGURES.values())) + 1  # no row is wrapped; one is of intervals
    text = "\n".join(lines)
    for title in ("\nDemo", "\nLayer, length 128, batch 32", "\nLayer, length 4096, batch 1"):
        assert text.count(title + "\n") == 1
    assert "266±8 (8.1x)" in text
    assert "97.2 (~-0.3)" in text
    assert re.search(r"Difference, 95 % interval +– +-1.1 to \+0.6 +-1.5 to \+0.3 +-2.2 to -0.1\n", text)
    assert "67.5 est. (1.3x)" in text
    assert "times better than transformer" in text


def test_intervals_of_cosines_have_digits_behind_the_point() -> None:
    record = Record.of("cosine", 0.98, benchmark="b", variant="v", setting={"texts": "t"}, interval=[-0.0213, -0.0188])
    assert table.interval(record) == "-0.021 to -0.019"
    assert table.interval(replace(record, interval=None)) == "–"


def test_what_does_not_fit_goes_below_with_the_baseline():
    assert len(table.tables(sample(), 120)) == 1
    _, second = table.tables(sample(), 100)
    assert [str(column.header) for column in second.columns] == ["", "transformer", "transformer (eager)"]
    lines = plain(sample(), 100)
    assert max(map(len, lines)) <= 100
    assert lines.count("Demo") == 1  # measured there: nothing but the baseline


def test_a_colour_says_better_or_worse():
    cells = {
        (row.label, column): cell
        for row in table.rows(sections(sample())[0], VARIANTS)
        for column, cell in zip(VARIANTS, row.cells, strict=True)
    }
    assert cells[digits.label("latency", "ms"), "lrt"].verdict == "better"
    assert cells[digits.label("parameters", "k"), "linformer"].verdict == "worse"
    assert cells[digits.label("test_accuracy", "%"), "lrt"] == table.Cell("97.2", "~-0.3", "same")
    assert cells[digits.label("test_accuracy", "%"), "lrt+linformer"] == table.Cell("96.4", "-1.1", "worse")
    assert cells[digits.label("parameters", "k"), "transformer"] == table.Cell("105")


def test_a_difference_within_the_spread_is_noise():
    short = sections(sample())[1]
    assert table.change(short, short.cells["latency", "linformer"]) == table.Cell("", "~1.02x", "same")
    assert table.change(short, short.cells["latency", "lrt"]) == table.Cell("", "1.9x", "better")
    assert table.change(short, short.cells["flops", "transformer (eager)"]) == table.Cell("", "1.00x", "same")


def test_another_baseline_is_named():
    rated = sample()
    rated[-1:] = [replace(figure("lrt", LONG, "latency", 1930.0), ratio=1.5, to="transformer (eager)")]
    section = sections(rated)[2]
    assert table.change(section, section.cells["latency", "lrt"]).change == "1.5x vs transformer (eager)"


def test_markdown_is_one_rectangular_table():
    lines = table.markdown(sample()).splitlines()
    rows = lines[: lines.index("")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}
    assert rows[0] == "|  | transformer | lrt | linformer | lrt+linformer | transformer (eager) |"
    assert rows[2] == "| **Demo** |  |  |  |  |  |"
    assert f"| {digits.label('flops', 'GFLOP')} | 110 | 70.7 (1.5x) | 60.9 (1.8x) | 22.0 (5.0x) | 110 (1.00x) |" in rows
    assert lines[-1].endswith("Layer: hidden 768, layers 1.")


def test_names_are_text_and_not_markup():
    records = [replace(record, variant="[red]<b>|*") for record in four() if record.variant == "lrt"]
    assert r"\[red\]\<b\>\|\*" in table.markdown(records)
    assert "[red]<b>|*" in plain(records, 100)[0]


def test_a_failed_figure_is_not_available():
    lines = table.markdown([figure("lrt", LONG, "latency", math.nan)])
    assert "| n/a |" in lines


@pytest.mark.parametrize("build", [table.tables, table.markdown])
def test_nothing_to_tabulate_is_an_error(build):
    with pytest.raises(ValueError, match="a table needs at least one record"):
        build([])
    with pytest.raises(ValueError, match=r"metric must be one of .*, got 'beauty'"):
        build([replace(four()[0], metric="beauty")])


def test_curves_alone_are_tabulated_by_their_ends():
    points = [
        figure(name, {**LONG, "step": step}, "train_loss", 3.0 - step) for name in ("a", "b") for step in (2, 0, 1)
    ]
    text = table.markdown(points)
    assert "| Training loss (nats) | 1.00 | 1.00 |" in text
    assert "Of curves alone: their last points." in text
    # Where there are figures, they stand alone.
    text = table.markdown([*points, figure("a", LONG, "latency", 1.0)])
    assert "Training loss" not in text
    assert "curves" not in text


def test_a_variant_that_has_no_costs_stands_where_its_scores_do() -> None:
    """A step that was judged and not measured, before the one that follows it."""
    steps = ("transformer", "low rank", "healed", "int8")
    costs = [
        Record.of("size", 1.0, benchmark="compress", variant=name, setting={}) for name in steps if name != "healed"
    ]
    scores = [
        Record.of("accuracy", 90.0, benchmark="compress", variant=name, setting={"texts": "a.tsv"}) for name in steps
    ]
    assert variants(sections([*costs, *scores])) == list(steps)
