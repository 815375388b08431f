"""Estimated, then measured times of random networks, as `greenformers recommend` has them, beside times measured anew.

    python benchmarks/recommend.py [--quick] [--json results/recommend.jsonl]
    python benchmarks/recommend.py --multiples [--quick]

Each setting draws length, width, heads, layers, feed-forward, rank, batch, causal or not, inference or training, and
eight variants out of all. They are estimated (arithmetic with three rates of the machine), then timed as the command
times them (one layer of each), and then measured whole, interleaved beside the dense network, the least of five runs
counting. Bars: of times of one layer, as often as there are layers, a median error of at most 8 %, no mechanism off by
more than 10 % in the median, and in 95 % of the settings a first choice whose measured time is within 10 % of the best
one's. `--multiples` measures networks of other draws and fits the multiples of `greenformers.advise.prices`.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from _harness import Benchmark, Option, Run
from rich.table import Table

from greenformers.advise.prices import KINDS, RATE_OF, Rates, prices, rates
from greenformers.advise.recommend import MEASURED, Need, measured, recommend
from greenformers.advise.work import LOW_RANK, amount
from greenformers.measure.bench import call
from greenformers.measure.grid import BASELINE, MODES, Cell, Network, Stack, ranked, variants
from greenformers.measure.latency import interleaved
from greenformers.measure.record import Record

ERROR, BIAS, WITHIN, SHARE = 0.08, 0.10, 1.10, 0.95
SETTINGS, BESIDE, REPEATS, SECONDS = 60, 8, 5, 60.0
FITTED, ROUNDS, LEAST = 40, 10, 0.02

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="6 settings in place of 60",
    seed=1,
    options=(Option("--multiples", "fit the multiples of rates, which are printed", bool, default=False),),
)


def main(run: Run) -> bool:
    if run.given.multiples:
        multiples(8 if run.quick else FITTED)
        return True
    by_mode, draw = prices(rates()), Draw(BENCHMARK.seed)
    errors: dict[str, list[float]] = {"estimated": [], "timed": []}
    of_mechanism: dict[str, list[float]] = defaultdict(list)
    losses: list[float] = []
    for number in range(6 if run.quick else SETTINGS):
        network, length, rank, batch = draw.network()
        network, mode = replace(network, layers=draw.source.randint(1, 4)), draw.source.choice(MODES)
        need = Need(network, length, batch, mode)
        names = draw.variants(BESIDE, network.causal)
        rows = [row for row in recommend(need, by_mode, [rank], names[1:]) if row.refused is None]
        advised = measured(need, rows, SECONDS)
        timed = {row.cell: row.seconds for row in advised}
        looked_at = {row.cell for row in advised if row.evidence == MEASURED}
        whole = times(network, [row.cell for row in rows], batch, mode)
        setting = {"length": length, "rank": rank, "batch": batch, "mode": mode, **asdict(network)}
        records: list[Record] = []
        for row in rows:
            name, seconds = row.cell.variant, whole[row.cell]
            errors["estimated"].append(row.seconds / seconds - 1)
            records.append(run.record("latency", 1e3 * seconds, name, setting))
            told = {"estimated": row.seconds}
            if row.cell in looked_at:  # the others are estimates still, corrected by what was timed
                told["timed"] = timed[row.cell]
                errors["timed"].append(timed[row.cell] / seconds - 1)
                of_mechanism[name.removeprefix(f"{LOW_RANK}+")].append(timed[row.cell] / seconds - 1)
            for how, value in told.items():
                at = setting | {"how": how}
                records.append(run.record("predicted_latency", 1e3 * value, name, at, source="estimated"))
        run.write(records)
        losses.append(whole[min(timed, key=timed.__getitem__)] / min(whole.values()))
        print(f"{number + 1}: {mode}, N {length}, d {network.hidden}: {losses[-1]:.2f}x the best", flush=True)
    run.show(shown(errors, of_mechanism))
    within = float(np.mean(np.array(losses) <= WITHIN))
    off = {name: float(np.median(values)) for name, values in of_mechanism.items()}
    worst = max(off, key=lambda name: abs(off[name]))
    error = float(np.median(np.abs(errors["timed"])))
    print(
        f"first choice within 10 % of the best: {within:.0%}; most off: {worst}, {off[worst]:+.1%}; error {error:.1%}"
    )
    return run.quick or (error <= ERROR and abs(off[worst]) <= BIAS and within >= SHARE)


def shown(errors: dict[str, list[float]], of_mechanism: dict[str, list[float]]) -> Table:
    table = Table("", "networks", "median error", "90 % below", "median off")
    for name, values in [*errors.items(), *sorted(of_mechanism.items())]:
        wrong = np.array(values)
        table.add_row(
            name, str(len(wrong)), f"{np.median(np.abs(wrong)):.1%}", f"{np.quantile(np.abs(wrong), 0.9):.1%}",
            f"{np.median(wrong):+.1%}",
        )  # fmt: skip
    return table


def times(network: Network, cells: Sequence[Cell], batch: int, mode: str) -> dict[Cell, float]:
    """Measured seconds of networks, interleaved."""
    x = torch.randn(batch, cells[0].length, network.hidden)
    calls = {}
    for number, cell in enumerate(cells):
        calls[str(number)] = call(Stack(network, cell).train(mode == "training"), x, mode)
    with torch.inference_mode(mode == "inference"):
        timings = interleaved(calls, repeats=REPEATS, warmup=1)
    return {cell: min(timings[str(number)].samples) for number, cell in enumerate(cells)}


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


def multiples(settings: int) -> None:
    """Measure networks, fit how many times as dear as the rates each kind of work is, and print it."""
    machine, draw = rates(), Draw(0)
    print(f"rates: {machine}")
    rows: dict[str, list[tuple[list[float], float]]] = {mode: [] for mode in MODES}
    for number in range(settings):
        for mode in MODES:  # in turns, as the load of a machine drifts
            network, length, rank, batch = draw.network()
            names = draw.variants(3, network.causal)
            cells = [Cell(name, rank if ranked(name) else None, length) for name in names]
            for cell, seconds in times(network, cells, batch, mode).items():
                rows[mode].append((amount(network, cell, batch, mode).features, seconds))
        print(f"{number + 1} of {settings}", flush=True)
    for mode, measurements in rows.items():
        fitted, error = fit(measurements, machine)
        print(f'    "{mode}": ({", ".join(f"{value:.3g}" for value in fitted)}),  # error {error:.1%}')


def fit(rows: Sequence[tuple[list[float], float]], machine: Rates) -> tuple[list[float], float]:
    """Multiples that fit measured seconds, none negative, and their median error; outliers count less."""
    from scipy.optimize import nnls

    by = np.array([getattr(machine, RATE_OF[kind]) for kind in KINDS])
    A = np.array([np.array(amounts) * by / seconds for amounts, seconds in rows])
    size, weight = np.abs(A).mean(0) + 1e-300, np.ones(len(A))
    for _ in range(ROUNDS):
        multiple = nnls(A / size * weight[:, None], weight)[0] / size
        errors = np.abs(A @ multiple - 1)
        weight = 1 / np.sqrt(np.maximum(errors, LEAST))
    return multiple.tolist(), float(np.median(errors))


if __name__ == "__main__":
    BENCHMARK.run(main)
