import gc
import time
from itertools import pairwise, permutations

import pytest
import torch
from torch import nn

from greenformers.measure.latency import interleaved


def recorded(*names, **options):
    """The names in the order in which `interleaved` runs them, and what it returns."""
    ran = []
    timings = interleaved({name: lambda name=name: ran.append(name) for name in names}, **options)
    return ran, timings


@pytest.mark.usefixtures("one_thread")
def test_a_layer_planted_twice_takes_twice_as_long():
    torch.manual_seed(0)
    # A fraction of a millisecond: a scheduler shares out cores by milliseconds, so most samples are undisturbed
    # however busy the machine is.
    layer, x = nn.Linear(128, 128), torch.randn(512, 128)
    with torch.inference_mode():
        times = interleaved({"one": lambda: layer(x), "two": lambda: layer(layer(x))}, repeats=600, warmup=10)
    assert times["two"].median / times["one"].median == pytest.approx(2.0, abs=0.15)


def test_times_are_seconds_of_the_call_alone():
    timing = interleaved({"sleep": lambda: time.sleep(0.01)}, repeats=11)["sleep"]
    assert 0.01 <= timing.q1 <= timing.median <= timing.q3
    assert timing.median < 0.05


def test_quartiles_are_those_of_the_samples():
    timing = interleaved({"nothing": lambda: None}, repeats=5)["nothing"]
    assert (timing.q1, timing.median, timing.q3) == tuple(sorted(timing.samples)[1:4])


def test_each_call_runs_once_a_round_after_its_warm_up():
    ran, timings = recorded("a", "b", "c", repeats=7, warmup=2)
    assert ran[:6] == ["a", "a", "b", "b", "c", "c"]
    rounds = [ran[start : start + 3] for start in range(6, len(ran), 3)]
    assert len(rounds) == 7
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert list(timings) == ["a", "b", "c"]
    assert all(len(timing.samples) == 7 for timing in timings.values())


def test_every_call_follows_every_other_in_an_order_fixed_by_the_seed():
    ran, _ = recorded("a", "b", "c", repeats=30, warmup=0)
    assert set(pairwise(ran)) >= set(permutations("abc", 2))
    assert recorded("a", "b", "c", repeats=30, warmup=0)[0] == ran
    assert recorded("a", "b", "c", repeats=30, warmup=0, seed=1)[0] != ran


def test_min_time_adds_rounds():
    start = time.perf_counter()
    timing = interleaved({"sleep": lambda: time.sleep(0.001)}, repeats=1, min_time=0.1)["sleep"]
    assert time.perf_counter() - start >= 0.1
    assert len(timing.samples) > 5


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_during_the_timing(enabled):
    seen = []

    def call():
        seen.append(gc.isenabled())
        if len(seen) > 4:
            raise KeyError("planted")

    try:
        gc.enable() if enabled else gc.disable()
        with pytest.raises(KeyError, match="planted"):
            interleaved({"call": call}, warmup=1)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen == [enabled] + [False] * 4


def test_training_steps_train_and_inference_records_no_gradient():
    layer, x = nn.Linear(5, 3), torch.randn(7, 5)
    interleaved({"step": lambda: layer(x).sum().backward()}, repeats=2, warmup=1)
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), 3 * 7.0))
    outputs = []
    with torch.inference_mode():
        interleaved({"forward": lambda: outputs.append(layer(x))}, repeats=1, warmup=0)
    assert outputs[0].is_inference()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_is_waited_for():
    x = torch.randn(4096, 4096, device="cuda")
    calls = {"one": lambda: x @ x, "two": lambda: x @ x @ x}
    times = interleaved(calls, device="cuda")
    assert times["two"].median / times["one"].median == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"min_time": -0.5}, "min_time must be at least 0 seconds, got -0.5"),
        ({"device": "meta"}, "device must be a CPU or CUDA device, got meta"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        interleaved({"call": lambda: None}, **options)


def test_no_calls_is_an_error():
    with pytest.raises(ValueError, match="at least one call"):
        interleaved({})


def test_behind_a_rest_runs_are_untimed_until_a_processor_is_as_fast_as_it_was():
    runs = []

    def call():
        runs.append(time.perf_counter())
        time.sleep(0.004)

    (timing,) = interleaved({"call": call}, repeats=3, warmup=0, pause=0.01, settle=0.02).values()
    assert len(timing.samples) == 3
    gaps = [later - earlier for earlier, later in pairwise(runs)]
    assert sum(gap > 0.012 for gap in gaps) >= 2  # a rest before each sample
    assert len(runs) >= 3 * 5
    runs.clear()
    interleaved({"call": call}, repeats=3, warmup=0, pause=0.01, settle=0.0)
    assert len(runs) == 6
