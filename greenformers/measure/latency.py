"""Time of calls, compared fairly: they run interleaved, so that heat and other load fall on all alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

SETTLE = 0.05
"""Seconds after which a processor that has rested is as fast as it was before."""


@dataclass(frozen=True)
class Timing:
    """Time of one call, in seconds.

    Attributes:
        median: Median of the samples.
        q1: Lower quartile of the samples.
        q3: Upper quartile of the samples.
        samples: Seconds of the call in each round, in the order of the rounds.
    """

    median: float
    q1: float
    q3: float
    samples: tuple[float, ...]


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 30,
    warmup: int = 3,
    min_time: float = 0.0,
    pause: float = 0.0,
    settle: float = SETTLE,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Timing]:
    """Time each call once a round, for many rounds, in an order drawn anew each round.

    Each call is first run `warmup` times untimed. Gradients are recorded as the caller has it: wrap this in
    `torch.inference_mode()` for inference, or pass whole training steps. Releasing the result of a call is not
    timed, and Python's garbage collection is off during the rounds.

    Args:
        calls: Calls, by name.
        repeats: Least number of rounds, and so of samples of each call.
        warmup: Untimed runs of each call beforehand.
        min_time: Seconds that all rounds take together at least; rounds are added until they do.
        pause: Seconds of rest before each sample, so that threads of the call before it have come to rest.
        settle: Seconds for which the call then runs untimed, once at least, as a processor that has rested is slow at
            first, whatever it computes: MiniLM-L6 in OpenVINO took 44 ms after 0.05 s of rest and 92 ms after 0.2 s,
            where one run after the other takes 35. Three of its six layers were 1.72 times as fast by the first run
            after 0.02 s, 1.91 by the second, and 1.96 after 0.05 s of runs.
        device: Device that the calls compute on, "cpu" or a CUDA device, which is waited for around each call.
        seed: Seed of the order within the rounds, which is shuffled so that no call always follows the same one.
        progress: Function that is called after each round with the share of the rounds that is done.

    Returns:
        The timing of each call, by name, in the order of `calls`.

    Raises:
        ValueError: Raised where there are no calls, a number is out of range, or the device is neither CPU nor CUDA.
    """
    if not calls:
        raise ValueError("calls must name at least one call, got none")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    if warmup < 0:
        raise ValueError(f"warmup must be at least 0, got {warmup}")
    if min_time < 0:
        raise ValueError(f"min_time must be at least 0 seconds, got {min_time}")
    wait = _waiter(torch.device(device))

    for call in calls.values():
        for _ in range(warmup):
            call()

    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    shuffle = random.Random(seed).shuffle
    rounds = 0
    with _no_garbage_collection():
        start = time.perf_counter()
        while rounds < repeats or time.perf_counter() - start < min_time:
            shuffle(order)
            for name in order:
                if pause:
                    time.sleep(pause)
                    rested = time.perf_counter()
                    calls[name]()
                    while time.perf_counter() - rested < settle:
                        calls[name]()
                samples[name].append(_seconds(calls[name], wait))
            rounds += 1
            progress(min(1.0, rounds / repeats))
    return {name: _timing(times) for name, times in samples.items()}


def _seconds(call: Callable[[], object], wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    result = call()
    wait()
    seconds = time.perf_counter() - start
    del result  # held until here: freeing its memory is no part of the call's time
    return seconds


def _timing(samples: list[float]) -> Timing:
    q1, median, q3 = (float(value) for value in np.percentile(samples, [25, 50, 75]))
    return Timing(median, q1, q3, tuple(samples))


def _waiter(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device has finished. A CPU call has finished when it returns."""
    if device.type == "cpu":
        return lambda: None
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    raise ValueError(f"device must be a CPU or CUDA device, got {device}")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off: a collection would be charged to the call that it happens to interrupt."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
