"""Predicted against measured time on random networks that the recommender was not calibrated on.

    python benchmarks/recommend.py [--quick] [--json results/recommend.jsonl]

Each setting draws length, width, heads, layers, feed-forward, rank, batch, causal or not, inference or training, and
eight variants out of all, measured interleaved beside the dense network, the least of five runs counting. Times are
compared as they are, and as times the dense network's. Bars: a median relative error of at most 15 %, and in 85 % of
the settings a first choice whose measured time is within 10 % of the best one's.
"""

from dataclasses import asdict, replace

import numpy as np
from _harness import Benchmark, Run
from rich.table import Table

from greenformers.advise.calibration import Draw, calibrate, measured
from greenformers.measure.grid import BASELINE, MODES
from greenformers.measure.record import Record

ERROR, WITHIN, SHARE = 0.15, 1.10, 0.85
BESIDE = 8

BENCHMARK = Benchmark(__file__, __doc__, quick="6 settings in place of 60", seed=1)


def main(run: Run) -> bool:
    prices = calibrate()
    draw = Draw(BENCHMARK.seed)  # calibration draws from 0
    records: list[Record] = []
    errors: dict[str, list[float]] = {mode: [] for mode in MODES}
    relative: dict[str, list[float]] = {mode: [] for mode in MODES}
    losses: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(6 if run.quick else 60):
        network, length, rank, batch = draw.network()
        network = replace(network, layers=draw.source.randint(1, 4))
        mode = draw.source.choice(MODES)
        times = measured(network, length, rank, batch, mode, draw.variants(BESIDE, network.causal))
        predicted = {name: prices[mode].time(amount) for name, (amount, _) in times.items()}
        setting = {"length": length, "rank": rank, "batch": batch, "mode": mode, **asdict(network)}
        for name, (_, seconds) in times.items():
            errors[mode].append(abs(predicted[name] / seconds - 1))
            records.append(run.record("latency", 1e3 * seconds, name, setting))
            records.append(run.record("predicted_latency", 1e3 * predicted[name], name, setting, source="estimated"))
        dense = predicted[BASELINE] / times[BASELINE][1]
        relative[mode] += [abs(predicted[name] / times[name][1] / dense - 1) for name in times if name != BASELINE]
        chosen = min(predicted, key=predicted.__getitem__)
        losses[mode].append(times[chosen][1] / min(seconds for _, seconds in times.values()))
        where = f"{number + 1}: {mode}, N {length}, d {network.hidden}"
        print(f"{where}: {chosen}, {losses[mode][-1]:.2f}x the best", flush=True)
    table = Table(
        "", "settings", "median error", "90 % below", "median error, as times dense",
        "first choice within 10 % of the best",
    )  # fmt: skip
    for name, modes in ((MODES[0], MODES[:1]), (MODES[1], MODES[1:]), ("both", MODES)):
        wrong, ratio, lost = (
            np.array([value for mode in modes for value in values[mode]]) for values in (errors, relative, losses)
        )
        shares = (np.median(wrong), np.quantile(wrong, 0.9), np.median(ratio))
        within = float(np.mean(lost <= WITHIN))
        table.add_row(name, str(len(lost)), *(f"{100 * share:.1f} %" for share in shares), f"{100 * within:.0f} %")
    run.show(table)
    run.write(records)
    return run.quick or bool(np.median(wrong) <= ERROR and within >= SHARE)


if __name__ == "__main__":
    BENCHMARK.run(main)
