"""Prices of work on this machine, in seconds: they are fitted once to the measured times of a few networks.

Time of a call = sum over kinds of work of price x amount, prices not negative; kinds are those of
`greenformers.measure.trace.Work`, and layers. Relative errors are fitted, and outliers count less. A time is the least
of its repeats, as other load on a machine only adds to it.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from greenformers.advise.least_squares import nonnegative
from greenformers.measure import trace as counting
from greenformers.measure.bench import call
from greenformers.measure.grid import BASELINE, MODES, Cell, Network, Stack, ranked, variants
from greenformers.measure.latency import interleaved
from greenformers.measure.record import context
from greenformers.measure.trace import Work, trace

SETTINGS, BESIDE = 20, 3
"""Number of networks that are measured in each mode, and of variants that are measured beside the dense one."""
REPEATS = 5
"""Timed runs of each network."""
ROUNDS = 10
"""Rounds of the fit, each with weights by the errors of the one before."""
LEAST = 0.02
"""Relative errors below this have the same weight."""


@dataclass(frozen=True)
class Prices:
    """Prices of one mode.

    Attributes:
        seconds: Seconds of a unit of each feature of `Work`, and of a layer.
        error: Median relative error on the measured calls.
        count: Number of measured calls that the prices were fitted to.
    """

    seconds: tuple[float, ...]
    error: float
    count: int

    def time(self, amounts: Sequence[float]) -> float:
        """Seconds of a call, from its amounts of each kind of work."""
        return float(np.dot(self.seconds, amounts))


def amounts(network: Network, cell: Cell, batch: int, mode: str, device: str = "cpu") -> tuple[list[float], Work]:
    """Amounts of work in a call, for `Prices.time`, and its whole work. As layers are alike, at most two are traced.

    Args:
        network: Sizes of the network.
        cell: Variant, rank and length.
        batch: Sequences at once.
        mode: "inference" or "training".
        device: Device that the call would run on.
    """
    works = []
    for layers in (1, 2)[: network.layers]:
        shallow = Network(**{**asdict(network), "layers": layers})
        shape = (batch, cell.length, network.hidden)
        works.append(trace(partial(Stack, shallow, cell), shape, training=mode == "training", device=device))
    first, last = works[0], works[-1]
    further = network.layers - 1
    features = [a + further * (b - a) for a, b in zip(first.features(), last.features(), strict=True)]
    if mode == "training":  # without gradients a layer's tensors are freed before the next one runs
        last.peak = first.peak + further * (last.peak - first.peak)
    return [*features, float(network.layers)], last


def fit(rows: Sequence[tuple[Sequence[float], float]]) -> Prices:
    """Fit prices to measured calls.

    Args:
        rows: Amounts of work and seconds of each call.

    Raises:
        ValueError: Raised where there are fewer than 4 rows.
    """
    if len(rows) < 4:
        raise ValueError(f"prices need at least 4 measured calls, got {len(rows)}")
    X, y = np.array([row for row, _ in rows]), np.array([seconds for _, seconds in rows])
    A = X / y[:, None]
    size = np.abs(A).mean(0) + 1e-300
    weight = np.ones(len(y))
    for _ in range(ROUNDS):
        scaled = nonnegative(A / size * weight[:, None], weight)
        seconds = scaled / size
        errors = np.abs(A @ seconds - 1)
        weight = 1 / np.sqrt(np.maximum(errors, LEAST))
    return Prices(tuple(map(float, seconds)), float(np.median(errors)), len(y))


class Draw:
    """Random networks and variants; every variant comes once before any comes again.

    Args:
        seed: Seed of the draws.
    """

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self._all = {causal: variants(causal) for causal in (False, True)}
        self._left: list[str] = []

    def network(self) -> tuple[Network, int, int, int]:
        """A network of one layer, a length, a rank and a batch."""
        draw = self.source
        length = int(2 ** draw.uniform(5, 11.5))
        hidden = draw.choice([128, 192, 256, 384, 512, 768])
        heads = draw.choice([h for h in (2, 4, 6, 8, 12) if hidden % h == 0 and hidden // h >= 16])
        rank = min(draw.choice([8, 16, 32, 64, 96, 128, 192]), length // 2, hidden // 2)
        feed_forward, causal = draw.choice([2, 4]) * hidden, draw.random() < 0.3
        network = Network(hidden=hidden, heads=heads, feed_forward=feed_forward, layers=1, causal=causal)
        return network, length, rank, max(1, draw.choice([256, 512, 1024, 2048]) // length)

    def variants(self, count: int, causal: bool) -> list[str]:
        """Names of the dense network and of `count` variants, which have a causal form where `causal`."""
        names = [BASELINE]
        while len(names) <= count:
            fitting = [name for name in self._left if name in self._all[causal] and name not in names]
            if fitting:
                names.append(fitting[0])
                self._left.remove(fitting[0])
            else:
                self._left += self.source.sample(self._all[False], len(self._all[False]))
        return names


def measured(
    network: Network, length: int, rank: int, batch: int, mode: str, names: Sequence[str], device: str = "cpu"
) -> dict[str, tuple[list[float], float]]:
    """Amounts of work and measured seconds of each variant, timed interleaved.

    Args:
        network: Sizes of the network.
        length: Tokens in a sequence, N.
        rank: Rank of the variants that have one.
        batch: Sequences at once.
        mode: "inference" or "training".
        names: Names of variants.
        device: Device to measure on.
    """
    cells = {name: Cell(name, rank if ranked(name) else None, length) for name in names}
    x = torch.randn(batch, length, network.hidden, device=device)
    calls = {}
    for name, cell in cells.items():
        calls[name] = call(Stack(network, cell).to(device).train(mode == "training"), x, mode)
    with torch.inference_mode(mode == "inference"):
        times = interleaved(calls, repeats=REPEATS, warmup=1, device=device)
    least = {name: min(timing.samples) for name, timing in times.items()}
    return {name: (amounts(network, cell, batch, mode, device)[0], least[name]) for name, cell in cells.items()}


def calibrate(device: str = "cpu", progress: Callable[[str, float], None] = lambda *_: None) -> dict[str, Prices]:
    """Prices of this machine by mode, read from its cache, or measured where there is none yet.

    Args:
        device: Device to measure on.
        progress: Function that is called with a text and the share that is done.

    Raises:
        OSError: Raised where the cache cannot be written.
    """
    place = _place(device)
    if place.exists():
        cached = json.loads(place.read_text())
        return {
            mode: Prices(tuple(cached[mode]["seconds"]), cached[mode]["error"], cached[mode]["count"]) for mode in MODES
        }
    rows: dict[str, list[tuple[list[float], float]]] = {mode: [] for mode in MODES}
    draw = Draw(0)
    for number in range(SETTINGS):
        for mode in MODES:  # in turns, as the load of a machine drifts
            network, length, rank, batch = draw.network()
            names = draw.variants(BESIDE, network.causal)
            rows[mode] += measured(network, length, rank, batch, mode, names, device).values()
        progress("calibrating on this machine", (number + 1) / SETTINGS)
    prices = {mode: fit(calls) for mode, calls in rows.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    part_ = place.with_suffix(".part")
    part_.write_text(json.dumps({mode: asdict(fitted) for mode, fitted in prices.items()}))
    part_.rename(place)
    return prices


def _place(device: str) -> Path:
    """The cache file of prices, another for each machine, device and version."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    machine: dict[str, Any] = {"machine": context("", 0)["machine"], "threads": torch.get_num_threads(), "device": gpu}
    # Prices hold for the amounts that these two files count.
    counted = [hashlib.sha256(Path(str(file)).read_bytes()).hexdigest() for file in (__file__, counting.__file__)]
    versions = [torch.__version__, version("greenformers"), *counted]
    key = hashlib.sha256(json.dumps([machine, versions], sort_keys=True).encode()).hexdigest()[:16]
    return root / "greenformers" / f"calibration-{key}.json"
