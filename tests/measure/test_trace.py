"""What a call would do, against what it does."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from greenformers.measure.bench import call
from greenformers.measure.flops import flops
from greenformers.measure.grid import BASELINE, MODES, Cell, Network, Stack
from greenformers.measure.memory import peak_memory
from greenformers.measure.trace import Work, trace

USUAL = {BASELINE: None, "lrt": 8, "linformer": 8, "lrt+linformer": 8}
each_variant = pytest.mark.parametrize("variant", USUAL)
each_mode = pytest.mark.parametrize("mode", MODES)


def builder(variant: str, length: int = 64, layers: int = 2) -> Callable[[], Stack]:
    return lambda: Stack(Network(32, 2, 64, layers), Cell(variant, USUAL[variant], length))


def traced(build: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> Work:
    return trace(build, shape, training=mode == "training")


def products(work: Work) -> float:
    return work.wide + work.narrow + work.batched + work.attention


@pytest.mark.parametrize(("variant", "batch"), [*((variant, 3) for variant in USUAL), ("lrt+linformer", 1)])
@each_mode
def test_its_flops_are_those_of_the_call(variant: str, mode: str, batch: int) -> None:
    shape = (batch, 64, 32)
    work = traced(builder(variant), shape, mode)
    real = call(builder(variant)().train(mode == "training"), torch.randn(shape), mode)
    assert products(work) == flops(real)
    assert work.attention > 0


@each_variant
@each_mode
def test_its_peak_is_that_of_the_call(variant: str, mode: str) -> None:
    shape = (3, 64, 32)
    real = call(builder(variant)().train(mode == "training"), torch.randn(shape), mode)
    assert traced(builder(variant), shape, mode).peak == pytest.approx(peak_memory(real), rel=0.25)


@each_variant
@each_mode
def test_work_grows_linearly_in_layers(variant: str, mode: str) -> None:
    work_1, work_2, work_4 = (traced(builder(variant, layers=layers), (2, 64, 32), mode) for layers in (1, 2, 4))
    if mode == "inference":
        assert products(work_2) == 2 * products(work_1)
    # In training the first layer is cheaper: nobody asks for the gradient of its input.
    assert products(work_4) - products(work_2) == 2 * (products(work_2) - products(work_1))
    assert work_4.scores == 4 * work_1.scores
    for name in Work.FEATURES:
        first, second, last = (getattr(work, name) for work in (work_1, work_2, work_4))
        assert last - second == pytest.approx(2 * (second - first), rel=1e-3, abs=1)


@each_mode
def test_what_the_module_and_the_input_hold_is_no_part_of_the_peak(mode: str) -> None:
    wide = nn.Linear(1024, 1024, bias=False)
    work = traced(lambda: nn.Linear(1024, 1024, bias=False), (2, 1024), mode)
    x = torch.randn(2, 1024)
    assert work.peak == pytest.approx(peak_memory(call(wide, x, mode)), rel=0.01)
    held = 4 * 1024**2
    # Of the weight's size is at most its gradient, in training.
    assert work.peak < (1.1 * held if mode == "training" else 0.1 * held)


def test_views_of_the_input_hold_nothing() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1, 4).mT.unsqueeze(0)[:, :2]

    work = trace(Views, (1024, 1024), training=False)
    assert work.peak <= 64


class Into(nn.Module):
    """A product that is written where its caller wants it."""

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_empty(5, 7)
        torch.mm(x, x.new_ones(90, 7), out=out)
        return out


def test_an_output_is_no_operand() -> None:
    work = trace(Into, (5, 90), training=False)
    assert work.wide + work.narrow == 2 * 5 * 90 * 7
    assert work.moved == 4 * (5 * 90 + 90 * 7 + 5 * 7)


def test_products_are_told_apart_by_their_sides() -> None:
    wide = trace(lambda: nn.Linear(64, 64), (64, 64), training=False)
    assert (wide.wide, wide.narrow, wide.batched) == (2 * 64**3, 0, 0)
    for sizes, rows in (((63, 64), 64), ((64, 63), 64), ((64, 64), 63)):
        narrow = trace(lambda sizes=sizes: nn.Linear(*sizes), (rows, sizes[0]), training=False)
        assert (narrow.wide, narrow.narrow) == (0, 2 * rows * sizes[0] * sizes[1])


class Kinds(nn.Module):
    """One operation of each kind that is no product."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() + x.gather(1, x.new_zeros(4, 8, dtype=torch.long)).sort().values


def test_kinds_are_told_apart_and_what_is_free_is_no_operation() -> None:
    work = trace(Kinds, (4, 8), training=False)
    entries = 4 * 8
    assert work.exponential == entries * (4 + 4)
    assert work.gathered == entries * (4 + 8 + 4)
    assert work.sorted == entries * (4 + 4 + 8)
    # The zeros and what they are made like, a sum of two, the sum of all.
    assert work.elementwise == entries * ((4 + 8) + (4 + 4 + 4) + 4) + 4
    assert work.operations == 6


class Counted(TorchDispatchMode):
    """Counts what is no view and is run."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and "empty" not in str(func) and "_unsafe_view" not in str(func)
        return func(*args, **(kwargs or {}))


@each_variant
def test_as_many_operations_as_are_run(variant: str) -> None:
    module, x = builder(variant)().eval(), torch.randn(2, 64, 32)
    with torch.no_grad(), Counted() as counted:
        module(x).sum()
    assert traced(builder(variant), (2, 64, 32), "inference").operations == counted.count


def test_features_are_in_order_of_their_names() -> None:
    work = Work(1e9, 2e9, 3e9, 4e9, 5e9, 6e9, 7e9, 8e9, 9e9, 10e9, 11e3)
    assert work.features() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "feed_forward"), [("inference", 64), ("training", 3072)])
def test_nothing_is_allocated(mode: str, feed_forward: int) -> None:
    length = 1_000_000
    network = Network(768, 12, feed_forward, 1)
    start, works = time.perf_counter(), []

    def run() -> None:
        works.append(traced(lambda: Stack(network, Cell("linformer", 128, length)), (1, length, 768), mode))

    real = peak_memory(run)
    assert time.perf_counter() - start < 20
    assert works[0].peak > length * 768 * 4
    assert real < 2**20
    assert products(works[0]) > 2 * length * 768 * (2 * 768 + 2 * 128 + 2 * feed_forward)
