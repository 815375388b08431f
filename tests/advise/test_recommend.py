"""Advice: order, refusals, evidence, and the sentence about where the thesis' finding holds."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from greenformers.advise import recommend as module
from greenformers.advise.known import Known
from greenformers.advise.prices import KINDS, Prices
from greenformers.advise.recommend import Need, Row, finding, group_of, measured, ordered, recommend
from greenformers.advise.work import Amounts, amount
from greenformers.measure.bench import How, setting
from greenformers.measure.grid import BASELINE, Cell, Network, Stack
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.measure.trace import Work
from greenformers.report.advice import APART, table

pytestmark = pytest.mark.usefixtures("traced_once")

NETWORK = Network(hidden=32, heads=2, feed_forward=64, layers=2)
NEED = Need(NETWORK, length=64, batch=2)
WIDE = Need(Network(hidden=128, heads=2, feed_forward=256, layers=1), length=64, batch=2)
"""Wide enough that the products of its dense linear layers are not narrow, and those at rank 16 are."""
NAMES = ["lrt", "linformer", "lrt+linformer"]


def priced(**features: float) -> dict[str, Prices]:
    """Only some kinds of work cost anything."""
    prices = Prices(tuple(features.get(name, 0.0) for name in KINDS), 0.05)
    return {"inference": prices, "training": prices}


ALL = priced(wide=1.0, narrow=1.0, batched=1.0, attention=1.0, elementwise=1.0)


def advised(need: Need = NEED, prices: dict[str, Prices] = ALL, **options: object) -> list[Row]:
    return recommend(need, prices, **{"ranks": (4, 8), "names": NAMES, **options})  # type: ignore[arg-type]


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {row.cell.name: row for row in rows}


def test_all_candidates_the_fastest_first() -> None:
    shares: list[float] = []
    rows = advised(progress=lambda _, share: shares.append(share))
    assert set(by_name(rows)) == {BASELINE, *(f"{name} {rank}" for name in NAMES for rank in (4, 8))}
    order = [(group_of(row), row.seconds) for row in rows]
    assert order == sorted(order)
    assert all(row.refused is None and row.evidence == "estimated" for row in rows)
    assert shares[-1] == 1.0
    for row in rows:
        own = Amounts(NETWORK, 2, "inference").of(row.cell)
        assert row.seconds == ALL["inference"].time(own.features)


@pytest.mark.slow
def test_ranks_that_do_not_fit_are_left_out_and_names_are_all_by_default() -> None:
    assert set(by_name(advised(ranks=(4, 33, 65)))) == {BASELINE, *(f"{name} 4" for name in NAMES)}
    assert {row.cell.variant for row in recommend(NEED, ALL, ranks=(4,))} >= {BASELINE, *NAMES}


@pytest.mark.parametrize("mode", ["inference", pytest.param("training", marks=pytest.mark.slow)])
def test_parameters_and_memory_are_real_ones(mode: str) -> None:
    for row in advised(replace(NEED, mode=mode)):
        stack = Stack(NETWORK, row.cell)
        assert row.parameters == parameters(stack) == sum(p.numel() for p in stack.parameters())
        peak = Amounts(NETWORK, 2, mode).of(row.cell).work.peak
        assert row.memory == 4 * row.parameters + peak  # in training the peak holds the gradients


def test_reasons_compare_with_the_dense_network() -> None:
    rows = by_name(advised())
    dense, lrt = rows[BASELINE], rows["lrt 4"]
    assert dense.reason == "what the others are compared with"
    assert lrt.reason == (
        f"{dense.seconds / lrt.seconds:.2g}x as fast, {lrt.parameters / dense.parameters:.0%} of the parameters, "
        f"{lrt.memory / dense.memory:.0%} of the memory"
    )


def test_what_needs_more_memory_is_refused_with_numbers() -> None:
    free = advised()
    limit = sorted(row.memory for row in free)[2]
    rows = advised(replace(NEED, memory=limit))
    fits = [row for row in rows if row.refused is None]
    assert [row.cell for row in fits] == [row.cell for row in free if row.memory <= limit]
    assert rows[: len(fits)] == fits
    assert fits
    for row in rows[len(fits) :]:
        assert row.refused == f"needs {row.memory / 2**20:.0f} MiB, more than {limit / 2**20:.0f} MiB"
        assert (row.memory > limit, row.reason) == (True, "")
    big = Need(Network(hidden=256, heads=2, feed_forward=1024, layers=2), 64, memory=2**20)
    (dense,) = advised(big, names=[])
    assert dense.refused == f"needs {dense.memory / 2**20:.0f} MiB, more than 1 MiB"
    assert dense.memory > 6 * 2**20  # of weights alone


def test_causal_linformer_stands_last_with_its_reason() -> None:
    rows = advised(replace(NEED, network=replace(NETWORK, causal=True)))
    assert [row.cell.variant for row in rows[-2:]] == ["linformer", "lrt+linformer"]
    for row in rows[-2:]:
        assert "linformer" in str(row.refused).lower()
        assert math.isnan(row.seconds)
        assert row.reason == ""
    assert {row.cell.variant for row in rows[:-2]} == {BASELINE, "lrt"}
    assert "does not arise" in finding(replace(NEED, network=replace(NETWORK, causal=True)), ALL, 4)


def test_a_control_that_cannot_be_as_small_stands_last_with_its_reason() -> None:
    need = replace(NEED, network=Network(hidden=64, heads=16, feed_forward=256, layers=1))
    *rows, last = advised(need, names=["narrow", "lrt"], ranks=(4,))
    assert {row.cell.name for row in rows} == {BASELINE, "lrt 4"}
    assert all(row.refused is None for row in rows)
    assert (last.cell.name, last.parameters, last.reason) == ("narrow 4", 0, "")
    assert str(last.refused).startswith(
        "no dense network of 16 heads costs as little as that of width 64 with the rank"
    )


def test_a_narrower_network_of_as_many_flops_is_a_candidate() -> None:
    rows = by_name(advised(names=["lrt", "narrow_flops"], ranks=(8,)))
    dense, narrow = rows[BASELINE], rows["narrow_flops 8"]
    assert narrow.refused is None
    assert 0 < narrow.parameters < dense.parameters


def test_an_unknown_name_is_refused_with_its_reason() -> None:
    assert "variant must be one of" in str(advised(names=["reformed"])[-1].refused)


def test_sizes_out_of_range() -> None:
    for change in ({"length": 0}, {"batch": 0}):
        with pytest.raises(ValueError, match="length and batch must be at least 1"):
            advised(replace(NEED, **change))


def test_measured_times_are_taken_only_of_this_very_cell() -> None:
    cell = Cell("lrt", 4, 64)
    same = Record("bench", "lrt", setting(cell, NETWORK, How(tokens=128)), "latency", 5.0, "ms")
    first = by_name(advised(names=["lrt"], records=[replace(same, value=1e-9)]))["lrt 4"]
    assert (first.cell, first.seconds, first.evidence) == (cell, pytest.approx(1e-12), "measured here")
    rows = by_name(advised(names=["lrt"], records=[replace(same, value=9.0), same]))
    assert rows["lrt 4"].seconds == pytest.approx(0.005)  # the last
    assert [name for name, row in rows.items() if row.evidence == "measured here"] == ["lrt 4"]
    others = [
        replace(same, benchmark="compare"),
        replace(same, variant="star"),
        replace(same, metric="train_step"),
        *(replace(same, setting={**same.setting, **change}) for change in (
            {"length": 65}, {"batch": 1}, {"rank": 5}, {"hidden": 64}, {"layers": 1}, {"device": "cuda"},
            {"causal": True}, {"compiled": True}, {"slots": {"residual": "pre"}},
        )),
    ]  # fmt: skip
    assert {row.evidence for row in advised(names=["lrt"], records=others)} == {"estimated"}
    training = advised(
        replace(NEED, mode="training"), names=["lrt"], records=[same, replace(same, metric="train_step")]
    )
    assert by_name(training)["lrt 4"].evidence == "measured here"


def test_where_products_alone_cost_lrt_is_always_ahead() -> None:
    words = finding(WIDE, priced(wide=1.0), 16)
    assert words.startswith(
        "At rank 16 and N 128 to 4096, the Low-Rank Transformer is faster than Linformer up to N 4096 (up to N 512 in "
    )
    assert "Cahyawijaya 2021: the change is later here)" in words


def test_where_scores_alone_cost_linformer_is_always_ahead() -> None:
    assert finding(WIDE, priced(scores=1.0), 16) == (
        "At rank 16 and N 128 to 4096, the Low-Rank Transformer is faster than Linformer at no length (up to N 512 in "
        "Cahyawijaya 2021: the change is earlier here). Both together are the fastest from N 128."
    )


@pytest.mark.parametrize(("last", "place"), [(256, "earlier"), (512, "the same"), (1024, "later")])
def test_the_length_of_the_change_is_found(last: int, place: str) -> None:
    at = []
    for length in (last, 2 * last):
        batch = max(1, WIDE.length * WIDE.batch // length)
        cells = [Cell(name, 16, length) for name in NAMES[:2]]
        lrt, linformer = (amount(WIDE.network, cell, batch, "inference").features for cell in cells)
        wide, scores = Work.FEATURES.index("wide"), Work.FEATURES.index("scores")
        at.append((linformer[wide] - lrt[wide]) / (lrt[scores] - linformer[scores]))
    prices = priced(wide=1.0, scores=math.sqrt(at[0] * at[1]))
    words = finding(WIDE, prices, 16)
    change = f"(up to N 512 in Cahyawijaya 2021: the change is {place} here)"
    assert f"faster than Linformer up to N {last} {change}." in words


def test_lengths_below_the_rank_are_left_out() -> None:
    wide = Need(Network(hidden=512, heads=2, feed_forward=512, layers=1), 64)
    assert finding(wide, ALL, 200).startswith("At rank 200 and N 256 to 4096")
    wide = replace(wide, network=Network(hidden=5120, heads=2, feed_forward=5120, layers=1))
    assert finding(wide, ALL, 5000) == "At rank 5000 no length is long enough for Linformer."


def test_the_table_numbers_what_can_be_used() -> None:
    need = replace(NEED, network=replace(NETWORK, causal=True))
    rows = advised(need)
    shown = table(rows, need, ALL["inference"])
    columns = [list(column.cells) for column in shown.columns]
    headings = [place for place, cell in enumerate(columns[1]) if "[italic]" in cell]
    assert headings
    columns = [[cell for place, cell in enumerate(column) if place not in headings] for column in columns]
    assert columns[0] == [*(str(n + 1) for n in range(len(rows) - 2)), "-", "-"]
    assert columns[1] == [row.cell.variant for row in rows]
    assert columns[3][-2:] == columns[4][-2:] == columns[5][-2:] == ["", ""]
    assert columns[7][-1] == rows[-1].refused
    assert shown.title == "Inference: 2 x 64 tokens, d 32, 2 heads, f 64, 2 layers, causal"
    assert "three rates of this machine: half of them are off by more than 5 %" in str(shown.caption)
    out = io.StringIO()
    Console(width=120, file=out).print(shown)
    assert "linformer" in out.getvalue()


def test_what_is_known_to_lose_stands_behind_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"lrt": Known(0.0, -0.01, 0.01, 2), "linformer": Known(0.5, 0.4, 0.6, 2), "lrt+linformer": None}
    monkeypatch.setattr(module, "known", lambda variant, **_: losses.get(variant))
    rows = advised(ranks=(4,))
    assert [row.cell.variant for row in rows][2:] == ["lrt+linformer", "linformer"]
    assert {row.cell.variant for row in rows[:2]} == {BASELINE, "lrt"}
    losses["lrt+linformer"] = Known(-0.5, -0.6, -0.4, 2, blind=True)
    assert advised(ranks=(4,))[-1].cell.variant == "lrt+linformer"
    shown = [str(cell) for cell in table(advised(ranks=(4,)), NEED, ALL["inference"]).columns[1].cells]
    assert [cell for cell in shown if "[italic]" in cell] == [
        f"[italic]{APART[2]}[/]", f"[italic]{APART[3]}[/]",
    ]  # fmt: skip
    losses |= {
        "lrt": Known(0.0, 0.0, 0.0, 0, unstudied="rank"),
        "linformer": Known(0.1, -0.1, 0.3, 2, unstudied="rank"),
    }
    rows = by_name(advised(ranks=(4,)))
    assert [group_of(rows[name]) for name in ("lrt 4", "linformer 4")] == [1, 2]
    cells = list(table(list(rows.values()), NEED, ALL["inference"]).columns[6].cells)
    assert {"rank not studied", "+0.10 (-0.10 to +0.30) nats, not certain, rank not studied"} <= set(cells)


def test_promising_candidates_are_timed_and_the_others_corrected_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = advised()
    seconds = {row.cell: row.seconds for row in rows}
    wrong = {"lrt": 2.0, "linformer": 0.5, "lrt+linformer": 1.0, BASELINE: 1.0}
    best: dict[int, Cell] = {}  # the first of each group is its fastest
    for row in rows:
        if row.cell.variant != BASELINE:
            best.setdefault(group_of(row), row.cell)
    groups: list[list[str]] = []

    def timed(_: Need, group: list[Cell]) -> dict[Cell, float]:
        groups.append([cell.variant for cell in group])
        return {cell: wrong[cell.variant] * seconds[cell] for cell in group}

    monkeypatch.setattr(module, "_timed", timed)
    monkeypatch.setattr(module, "HOPEFUL", 1.0001)
    after = {row.cell: row for row in measured(NEED, rows, 10.0)}
    (group,) = groups
    assert group[0] == BASELINE
    for cell, row in after.items():
        assert (row.evidence == "measured here") == (cell in best.values() or cell.variant == BASELINE)
    for first in best.values():
        other = next(cell for cell in seconds if cell.variant == first.variant and cell != first)
        assert after[other].evidence == f"estimated by {first.name}"
        assert after[other].seconds == pytest.approx(wrong[first.variant] * seconds[other])
    order = [(group_of(row), row.seconds) for row in measured(NEED, rows, 10.0)]
    assert order == sorted(order)


def test_the_best_of_every_group_are_timed_however_fast_another_group_is(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"lrt": Known(0.0, -0.01, 0.01, 2), "linformer": Known(0.5, 0.4, 0.6, 2)}
    losses["lrt+linformer"] = Known(-0.5, -0.6, -0.4, 2, blind=True)
    monkeypatch.setattr(module, "known", lambda variant, **_: losses.get(variant))
    seconds = {"lrt 4": 1.0, "lrt 8": 3.0, "linformer 4": 0.9, "linformer 8": 1.5, "lrt+linformer 4": 0.1}
    rows = ordered([replace(row, seconds=seconds.get(row.cell.name, 1.0)) for row in advised()])
    order: list[str] = []

    def timed(_: Need, group: list[Cell]) -> dict[Cell, float]:
        order.extend(cell.name for cell in group)
        return dict.fromkeys(group, 1.0)

    monkeypatch.setattr(module, "_timed", timed)
    measured(NEED, rows, 10.0)
    assert order == [BASELINE, "lrt 4", "linformer 4", "linformer 8", "lrt+linformer 4"]


def test_what_is_timed_stands_beside_the_dense_network_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    estimates = {row.cell: row.seconds for row in advised(names=["lrt"])}
    dense, known, other = (Cell(*cell, 64) for cell in ((BASELINE, None), ("lrt", 4), ("lrt", 8)))
    # Recorded while the machine was half as fast as it is now.
    records = [
        Record("bench", cell.variant, setting(cell, NETWORK, How(tokens=128)), "latency", 1e3 * seconds, "ms")
        for cell, seconds in ((dense, 4 * estimates[other]), (known, 2 * estimates[other]))
    ]
    monkeypatch.setattr(module, "_timed", lambda _, group: {cell: 1.0 if cell == dense else 0.5 for cell in group})
    rows = by_name(measured(NEED, advised(names=["lrt"], records=records), 10.0))
    assert {row.evidence for row in rows.values()} == {"measured here"}
    assert rows["lrt 4"].reason.startswith("2x as fast")
    assert rows["lrt 8"].reason.startswith("2x as fast")


def test_timed_here_is_a_layer_as_often_as_there_are() -> None:
    rows = measured(NEED, advised(names=["lrt"], ranks=(4,)), 10.0)
    assert {row.evidence for row in rows} == {"measured here"}
    assert all(row.seconds > 0 for row in rows)
    assert rows == ordered(rows)
