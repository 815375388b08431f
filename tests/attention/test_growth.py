"""What a row claims of time and memory is measured between N = 1K and 16K, in inference and in training."""

import math

import pytest
import torch
from rows import ROWS

from greenformers.attention import Shape, build
from greenformers.measure.flops import flops
from greenformers.measure.latency import interleaved
from greenformers.measure.memory import peak_memory

SHORT, LONG = 1024, 16384
BRIEF = 4096  # of memory and FLOPs, which are exact
SLACK = 0.1  # above the claimed exponent, for logarithms and for what a cache no longer holds

in_both_modes = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])


def claimed(measure):
    return pytest.mark.parametrize("row", [row for row in ROWS if getattr(row, measure) is not None], ids=str)


def call(module, training, batch=1):
    """What runs the mechanism at its longest input, padded at the end; in training forward and backward."""
    shape = module.shape
    sizes = (batch, shape.heads, shape.max_len, shape.head_dim)
    q, k, v = (torch.randn(sizes, requires_grad=training) for _ in range(3))
    mask = (torch.arange(shape.max_len) < shape.max_len * 7 // 8).expand(batch, -1)

    def run():
        with torch.set_grad_enabled(training):
            out = module(q, k, v, mask)
        if training:
            out.sum().backward()

    return run


def exponent(short, long, factor=LONG / SHORT):
    """e, where what is measured grows with N^e while N grows by `factor`."""
    return math.log(long / short) / math.log(factor)


def time_exponent(make, training, short=SHORT, long=LONG, **options):
    """Of the time of a sequence. Both calls take equally many positions, so that caches weigh on both alike."""
    calls = {
        "short": call(make(short), training, batch=long // short),
        "long": call(make(long), training),
    }
    timings = interleaved(calls, **options)
    # The fastest run is the least disturbed one.
    short_time, long_time = (min(timings[name].samples) for name in ("short", "long"))
    return exponent(short_time / (long // short), long_time, long / short)


def plain(length):
    """Dense attention with all its scores, which the measures must find to be quadratic."""
    q = torch.randn(1, 1, length, 8)
    return lambda: (q @ q.mT).softmax(-1) @ q


def full(length):
    return build("full", Shape(heads=2, head_dim=32, max_len=length))


@claimed("time")
def test_flops_grow_as_claimed(row):
    counts = [flops(call(row.build_large(length), training=True)) for length in (SHORT, BRIEF)]
    assert exponent(*counts, factor=BRIEF / SHORT) <= row.time + SLACK


@claimed("memory")
@in_both_modes
def test_memory_grows_as_claimed(row, training):
    most, scale = row.memory + SLACK, 1 if row.time is not None else 2  # shorter where time is quadratic
    short, long, longer = (length // scale for length in (SHORT, BRIEF, 2 * BRIEF))

    def peak(length):
        return peak_memory(call(row.build_large(length), training))

    first, last = peak(short), peak(long)
    enough = exponent(first + short**2, last + long**2, long / short) > most  # a byte for each pair would be found
    if not enough or exponent(first, last, long / short) > most:  # or slices are not yet full
        long, last = longer, peak(longer)
    assert exponent(first, last, long / short) <= most


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@claimed("time")
@in_both_modes
def test_time_grows_as_claimed(row, training):
    assert time_exponent(row.build_large, training) <= row.time + SLACK


def test_quadratic_memory_and_flops_are_found():
    peaks, counts = ([measure(plain(length)) for length in (256, 1024)] for measure in (peak_memory, flops))
    assert exponent(*peaks, factor=4) > 1.9
    assert exponent(*counts, factor=4) == pytest.approx(2)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_quadratic_time_is_found():
    assert time_exponent(full, training=False, long=4096, repeats=5) > 1.7
