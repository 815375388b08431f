"""Predicted against measured time on random networks that the recommender was not calibrated on.

    python benchmarks/recommend.py [--quick] [--json results/recommend.jsonl]

Each setting draws length, width, heads, layers, feed-forward, rank, batch, causal or not, inference or training, and
eight variants out of all, measured interleaved beside the dense network, the least of five runs counting. Times are
compared as they are, and as times the dense network's. Bars: a median relative error of at most 15 %, and in 85 % of
the settings a first choice whose measured time is within 10 % of the best one's.
"""

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from greenformers.advise.calibration import Draw, calibrate, measured
from greenformers.measure.grid import BASELINE, MODES
from greenformers.measure.record import Record, append, context

ERROR, WITHIN, SHARE = 0.15, 1.10, 0.85
BESIDE = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 settings in place of 60")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    prices = calibrate()
    about = context("python benchmarks/recommend.py" + " --quick" * given.quick, 1)
    draw = Draw(1)  # calibration draws from 0
    records: list[Record] = []
    errors: dict[str, list[float]] = {mode: [] for mode in MODES}
    relative: dict[str, list[float]] = {mode: [] for mode in MODES}
    losses: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(6 if given.quick else 60):
        network, length, rank, batch = draw.network()
        network = replace(network, layers=draw.source.randint(1, 4))
        mode = draw.source.choice(MODES)
        found = measured(network, length, rank, batch, mode, draw.variants(BESIDE, network.causal))
        predicted = {name: prices[mode].time(amount) for name, (amount, _) in found.items()}
        setting = {"length": length, "rank": rank, "batch": batch, "mode": mode, **asdict(network)}
        for name, (_, seconds) in found.items():
            errors[mode].append(abs(predicted[name] / seconds - 1))
            blank = Record("recommend", name, setting, "latency", 1e3 * seconds, "ms", context=about)
            told = replace(blank, metric="predicted_latency", value=1e3 * predicted[name], source="estimated")
            records += [blank, told]
        dense = predicted[BASELINE] / found[BASELINE][1]
        relative[mode] += [abs(predicted[name] / found[name][1] / dense - 1) for name in found if name != BASELINE]
        chosen = min(predicted, key=predicted.__getitem__)
        losses[mode].append(found[chosen][1] / min(seconds for _, seconds in found.values()))
        where = f"{number + 1}: {mode}, N {length}, d {network.hidden}"
        print(f"{where}: {chosen}, {losses[mode][-1]:.2f}x the best", flush=True)
    table = Table(
        "",
        "settings",
        "median error",
        "90 % below",
        "median error, as times dense",
        "first choice within 10 % of the best",
    )
    for name, chosen_modes in ((MODES[0], MODES[:1]), (MODES[1], MODES[1:]), ("both", MODES)):
        wrong = np.array([error for mode in chosen_modes for error in errors[mode]])
        ratio = np.array([error for mode in chosen_modes for error in relative[mode]])
        lost = np.array([loss for mode in chosen_modes for loss in losses[mode]])
        table.add_row(name, str(len(lost)), f"{100 * np.median(wrong):.1f} %", f"{100 * np.quantile(wrong, 0.9):.1f} %",
                      f"{100 * np.median(ratio):.1f} %",
                      f"{100 * np.mean(lost <= WITHIN):.0f} %")  # fmt: skip
    Console(width=100).print(table)
    if given.json:
        append(given.json, records)
    return 0 if given.quick or (np.median(wrong) <= ERROR and np.mean(lost <= WITHIN) >= SHARE) else 1


if __name__ == "__main__":
    sys.exit(main())
