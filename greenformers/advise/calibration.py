"""What time costs on this machine: a few networks are measured once, and a price is fitted to each kind of work.

Time of a call = sum over kinds of work of price x amount, prices not negative (`greenformers.measure.trace.Work`, and
layers). Fitted to relative errors, those of outliers counting less. A time is the least of its repeats: other load on
a machine only adds to it.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
"""How many networks of each mode are measured, each dense and with so many variants."""
REPEATS = 5
ROUNDS = 10
LEAST = 0.02
"""Relative errors below this count alike."""


@dataclass(frozen=True)
class Prices:
    """Prices of one mode.

    Attributes:
        seconds: of each feature of `Work`, and of a layer.
        error: median relative error on the networks they were fitted to.
        count: how many those were, times variants.
    """

    seconds: tuple[float, ...]
    error: float
    count: int

    def time(self, amounts: Sequence[float]) -> float:
        """Seconds of a call."""
        return float(np.dot(self.seconds, amounts))


def amounts(network: Network, cell: Cell, batch: int, mode: str, device: str = "cpu") -> tuple[list[float], Work]:
    """What a call amounts to, for `Prices.time`, and its work. All layers are alike: two are looked at."""
    works = []
    for layers in (1, 2)[: network.layers]:
        one = Network(**{**asdict(network), "layers": layers})
        shape = (batch, cell.length, network.hidden)
        works.append(trace(lambda one=one: Stack(one, cell), shape, training=mode == "training", device=device))  # type: ignore[misc]
    first, last = works[0], works[-1]
    further = network.layers - 1
    found = [a + further * (b - a) for a, b in zip(first.features(), last.features(), strict=True)]
    if mode == "training":  # without gradients a layer's tensors are gone when the next one runs
        last.peak = first.peak + further * (last.peak - first.peak)
    return [*found, float(network.layers)], last


def fit(rows: Sequence[tuple[Sequence[float], float]]) -> Prices:
    """Prices from (amounts, seconds).

    Raises:
        ValueError: too few rows.
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
    """Networks and variants at random, every variant once before any comes again."""

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
        """The dense one, and so many others that can be causal, or not."""
        found = [BASELINE]
        while len(found) <= count:
            fitting = [name for name in self._left if name in self._all[causal] and name not in found]
            if fitting:
                found.append(fitting[0])
                self._left.remove(fitting[0])
            else:
                self._left += self.source.sample(self._all[False], len(self._all[False]))
        return found


def measured(
    network: Network, length: int, rank: int, batch: int, mode: str, names: Sequence[str], device: str = "cpu"
) -> dict[str, tuple[list[float], float]]:
    """(amounts, seconds) of each variant, interleaved."""
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
    """Prices of each mode on this machine, from its cache or measured."""
    place = _place(device)
    if place.exists():
        kept = json.loads(place.read_text())
        return {mode: Prices(tuple(kept[mode]["seconds"]), kept[mode]["error"], kept[mode]["count"]) for mode in MODES}
    rows: dict[str, list[tuple[list[float], float]]] = {mode: [] for mode in MODES}
    draw = Draw(0)
    for number in range(SETTINGS):
        for mode in MODES:  # in turns: the load of a machine drifts
            network, length, rank, batch = draw.network()
            names = draw.variants(BESIDE, network.causal)
            rows[mode] += measured(network, length, rank, batch, mode, names, device).values()
        progress("calibrating on this machine", (number + 1) / SETTINGS)
    found = {mode: fit(some) for mode, some in rows.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    part_ = place.with_suffix(".part")
    part_.write_text(json.dumps({mode: asdict(prices) for mode, prices in found.items()}))
    part_.rename(place)
    return found


def _place(device: str) -> Path:
    """A file a machine and version."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    where: dict[str, Any] = {"machine": context("", 0)["machine"], "threads": torch.get_num_threads(), "device": gpu}
    # Prices are of what these two count.
    counted = [hashlib.sha256(Path(str(file)).read_bytes()).hexdigest() for file in (__file__, counting.__file__)]
    what = [torch.__version__, version("greenformers"), *counted]
    key = hashlib.sha256(json.dumps([where, what], sort_keys=True).encode()).hexdigest()[:16]
    return root / "greenformers" / f"calibration-{key}.json"
