"""Calibration by several processes: all-MiniLM-L6 made low rank by texts, by 1, 2 and 4 processes of torchrun.

    python benchmarks/calibrate_together.py [--quick] [--json results/calibrate_together.jsonl]

`greenformers compress MODEL --calibrate TEXTS --solver loss` (passes forward and backward, sums of outer products) as a
user would start it, one thread a process, on two numbers of texts: from one to the other time grows by the passes over
texts alone, and what is left is what each process does by itself, of which the decompositions are most. In turns,
medians; beside them the greatest difference of a factor's product from that of one process. More processes than cores
tell how far they are from each other's results, not how fast they are. Bars: two processes pass over texts at least 1.7
times as fast as one; products are the same to 1e-5.
"""

import json
import subprocess
import sys
from os import environ
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from _corpus import SOURCES, corpus
from _harness import Benchmark, Option, Run, data, yes
from compress_minilm import model_folder
from rich.table import Table
from safetensors.torch import load_file

PROCESSES, ROUNDS = (1, 2, 4), 3
TEXTS, QUICK = (500, 2500), (128, 256)
BAR, SAME = 1.7, 1e-5
NAME, RECIPE = "low rank 0.5 by loss", ["--keep", "0.5", "--solver", "loss"]

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="few texts, once; the figures mean nothing",
    options=(
        data("--pairs", "stsb_open", "STS-B"),
        *SOURCES,
        Option("--rounds", "runs of each number of processes", int, ROUNDS),
    ),
)


def main(run: Run) -> bool:
    model, few = model_folder() or run.skip("it needs the extra minilm"), QUICK if run.quick else TEXTS
    given = run.given
    lines = corpus(given.pairs, given.wikitext, given.reviews, given.phrases, given.captions)
    times: dict[tuple[int, int], list[float]] = {}
    far: dict[int, float] = {}
    with TemporaryDirectory(prefix="greenformers-") as place:
        folder = Path(place)
        for count in few:
            (folder / f"{count}.txt").write_text("\n".join(lines[:count]) + "\n")
        for round_ in range(1 if run.quick else given.rounds):
            for count in few:
                for processes in PROCESSES:
                    out = folder / f"{round_}-{count}-{processes}"
                    seconds = compress(model, folder / f"{count}.txt", out, processes)
                    times.setdefault((processes, count), []).append(seconds)
                    first = folder / f"{round_}-{count}-1"
                    far[processes] = max(far.get(processes, 0.0), difference(first, out))
                    print(f"{processes} processes, {count} texts: {times[processes, count][-1]:.1f} s", flush=True)
    table = Table("processes", "s a 1,000 texts", "x one's", "s by themselves", "products differ by")
    speeds = {}
    for processes in PROCESSES:
        low, high = (median(times[processes, count]) for count in few)
        each = (high - low) / (few[1] - few[0])
        speeds[processes] = each
        alone = low - each * few[0]
        ratio = speeds[1] / each
        table.add_row(str(processes), f"{1000 * each:.2f}", f"{ratio:.2f}", f"{alone:.1f}", f"{far[processes]:.1g}")
        setting = {"processes": processes, "threads": 1}
        of_time = [
            run.record("compression_time", median(times[processes, count]), NAME, setting | {"texts": count})
            for count in few
        ]
        run.write([*of_time, run.record("relative_error", far[processes], NAME, setting)])
    run.show(table)
    fast, same = speeds[1] / speeds[2] >= BAR, max(far.values()) <= SAME
    print(f"two processes at least {BAR} times as fast: {yes(fast)}; products the same to {SAME:g}: {yes(same)}")
    return run.quick or (fast and same)


def compress(model: Path, texts: Path, out: Path, processes: int) -> float:
    """Seconds that the change took, as the report has them."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    words = [
        "compress",
        str(model),
        "--calibrate",
        str(texts),
        "--limit",
        "1000000",
        "--lengths",
        "",
        "--out",
        str(out),
    ]
    subprocess.run(
        [sys.executable, *launcher, "-m", "greenformers", *words, *RECIPE],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    seconds: float = json.loads((out / "compression.json").read_text())["steps"][0]["seconds"]
    return seconds


def difference(first: Path, other: Path) -> float:
    """The greatest relative difference of a low-rank layer's product."""
    (a, b) = (load_file(folder / "model.safetensors") for folder in (first, other))
    far = 0.0
    pairs = {
        name: name.removesuffix("encoder.weight") + "decoder.weight" for name in a if name.endswith("encoder.weight")
    }
    pairs = {name: partner for name, partner in pairs.items() if partner in a}
    assert len(pairs) > 30, f"{len(pairs)} low-rank layers: there must be those of all six layers"
    for name, partner in pairs.items():
        x, y = (weights[partner].double() @ weights[name].double() for weights in (a, b))
        far = max(far, ((x - y).norm() / x.norm()).item())
    return far


if __name__ == "__main__":
    BENCHMARK.run(main)
