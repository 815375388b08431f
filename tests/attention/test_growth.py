"""What a row claims of time and memory is measured between N = 1K and 16K."""

import math

import pytest
import torch
from rows import ROWS

from greenformers.measure.flops import flops
from greenformers.measure.latency import interleaved
from greenformers.measure.memory import peak_memory

SHORT, LONG = 1024, 16384


def call(row, length):
    module = row.build_large(length)
    q, k, v = (torch.randn(1, 2, length, 32, requires_grad=torch.is_grad_enabled()) for _ in range(3))
    mask = torch.ones(1, length, dtype=torch.bool)
    return lambda: module(q, k, v, mask)


def exponent(short, long):
    return math.log(long / short) / math.log(LONG / SHORT)


def claimed(measure):
    return pytest.mark.parametrize("row", [row for row in ROWS if getattr(row, measure) is not None], ids=str)


# A tenth above the claim is for what is constant or logarithmic.
@claimed("time")
def test_flops_grow_as_claimed(row):
    with torch.inference_mode():
        assert exponent(*(flops(call(row, length)) for length in (SHORT, LONG))) <= row.time + 0.1


@claimed("memory")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_memory_grows_as_claimed(row, training):
    peaks = []
    for length in (SHORT, LONG):
        with torch.set_grad_enabled(training):
            forward = call(row, length)
            peaks.append(peak_memory(lambda forward=forward: forward().sum().backward() if training else forward()))
    assert exponent(*peaks) <= row.memory + 0.1


@pytest.mark.slow
@claimed("time")
def test_time_grows_as_claimed(row):
    with torch.inference_mode():
        timings = interleaved({str(length): call(row, length) for length in (SHORT, LONG)}, repeats=30)
    # The fastest run: the least disturbed one.
    assert exponent(*(min(timing.samples) for timing in timings.values())) <= row.time + 0.1


def test_quadratic_growth_is_found():
    """The measure itself: the mask and scores of plain attention grow with N^2."""
    peaks = []
    for length in (256, 1024):
        q = torch.randn(1, 1, length, 8)
        peaks.append(peak_memory(lambda q=q: (q @ q.mT).softmax(-1) @ q))
    assert math.log(peaks[1] / peaks[0]) / math.log(4) > 1.9
