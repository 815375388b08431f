"""Work from one layer and one slice, rates of a machine, and times from both."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from greenformers.advise.prices import ERRORS, KINDS, MULTIPLES, RATE_OF, Prices, Rates, prices, rates
from greenformers.advise.work import Amounts, amount
from greenformers.measure.grid import Cell, Network, Stack, ranked
from greenformers.measure.parameters import parameters
from greenformers.measure.trace import Work, trace

NETWORK = Network(hidden=64, heads=4, feed_forward=512, layers=3)
NAMES = {True: ("transformer", "performer", "local_blocks"), False: ("lrt", "linformer", "longformer", "nystromformer")}
"""Variants by whether they are causal, which together have all kinds of work."""


def cell(name: str, length: int) -> Cell:
    return Cell(name, 8 if ranked(name) else None, length)


@pytest.mark.parametrize(("name", "causal"), [(name, causal) for causal, names in NAMES.items() for name in names])
@pytest.mark.parametrize(("mode", "within"), [("inference", 0.08), ("training", 0.13)])
def test_one_layer_in_one_slice_tells_the_work_of_all(mode: str, within: float, name: str, causal: bool) -> None:
    network, batch, at = replace(NETWORK, causal=causal), 23, cell(name, 256)
    own = amount(network, at, batch, mode)
    whole = trace(partial(Stack, network, at), (batch, at.length, 64), training=mode == "training")
    assert own.parameters == parameters(Stack(network, at))
    assert own.features[-1] == 3
    for kind in (*Work.FEATURES, "peak"):
        if getattr(whole, kind):
            share = getattr(own.work, kind) / getattr(whole, kind)
            assert share == pytest.approx(1, abs=within), kind


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", ["sliding_window", "linear_transformer", "linformer", "reformer"])
def test_low_rank_adds_what_it_adds_to_the_dense_network(name: str, mode: str) -> None:
    at = Cell(f"lrt+{name}", 8, 64)
    composed, whole = Amounts(NETWORK, 3, mode).of(at), amount(NETWORK, at, 3, mode)
    assert composed.parameters == whole.parameters
    for kind in Work.FEATURES:
        if getattr(whole.work, kind):
            assert getattr(composed.work, kind) == pytest.approx(getattr(whole.work, kind), rel=0.02), kind
    assert composed.memory == pytest.approx(whole.memory, rel=0.1)


def test_an_amount_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = Amounts(NETWORK, 2, "inference")
    first = amounts.of(cell("lrt", 16))
    monkeypatch.setattr("greenformers.advise.work.amount", None)
    assert amounts.of(cell("lrt", 16)) is first


def test_times_are_amounts_by_multiples_of_rates() -> None:
    machine = Rates(multiply=2.0, stream=3.0, operation=5.0)
    by_mode = prices(machine)
    assert set(by_mode) == set(MULTIPLES) == set(ERRORS)
    for mode, own in by_mode.items():
        assert own.error == ERRORS[mode]
        for place, kind in enumerate(KINDS):
            single = [float(other == kind) for other in KINDS]
            assert own.time(single) == pytest.approx(MULTIPLES[mode][place] * getattr(machine, RATE_OF[kind]))
    assert Prices((1.0, 2.0), 0.1).time([3.0, 4.0]) == 11.0


def test_rates_are_of_this_machine() -> None:
    machine = rates()
    assert 1e-5 < machine.multiply < 1
    assert 1e-3 < machine.stream < 10
    assert 1e-5 < machine.operation < 1


def test_multiples_are_one_for_each_kind_and_none_negative() -> None:
    assert set(RATE_OF) == set(KINDS)
    assert set(RATE_OF.values()) == set(Rates.__dataclass_fields__)
    for multiples in MULTIPLES.values():
        assert len(multiples) == len(KINDS)
        assert min(multiples) >= 0


def test_the_study_says_what_the_error_is() -> None:
    text = (Path(__file__).parents[2] / "docs/studies/recommend.md").read_text()
    for mode, error in ERRORS.items():
        assert re.search(rf"\| {mode}, estimated \|[^|]*\| {100 * error:.0f} %", text), mode
