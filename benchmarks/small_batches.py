"""Time of one sentence of 18 tokens in torch: MiniLM-L6, dense and compressed, as it is and by torch.compile.

    python benchmarks/small_batches.py --threads N [--quick] [--json results/small_batches.jsonl]

Batches of 1 x 18, 8 x 18 and 8 x 128 tokens; all variants take turns. Compiling takes minutes, and a C++ compiler.
"Rank" is low rank at half of the weights. The error is that of the last hidden state, relative to the dense model's; of
low rank without healing, it is large. The weights come with the extra `minilm`. Bar: at 1 x 18 the fastest int8 form
takes at most 60 % of the time of the dense model as it is.
"""

import copy
from functools import partial
from typing import Any

import torch
from _harness import Benchmark, Run, yes
from compress_minilm import minilm
from rich.table import Table
from torch import Tensor, nn

from greenformers import compress
from greenformers._torch import compile_error
from greenformers.changes import Change, Int8, LowRank

BATCHES = {(1, 18): 101, (8, 18): 41, (8, 128): 9}  # with rounds of turns
RANK = LowRank(keep=0.5, solver="svd")
CHANGES: dict[str, list[Change]] = {"dense": [], "rank": [RANK], "int8": [Int8()], "rank, int8": [RANK, Int8()]}
COMPILED = ("dense", "int8")
BAR = 0.6

BENCHMARK = Benchmark(__file__, __doc__, quick="dense and int8 as they are, 3 turns", threads=1)


def main(run: Run) -> bool:
    models = variants(run)
    with torch.inference_mode():
        return timed(run, models)


def timed(run: Run, models: dict[str, Any]) -> bool:
    """Times and errors of the models, and whether the bar was met."""
    threads = torch.get_num_threads()
    table = Table("ms (of dense)", *models, title=f"MiniLM-L6; threads: {threads}")
    records, met = [], False
    for (size, length), repeats in BATCHES.items():
        ids = torch.randint(1000, 20000, (size, length), generator=torch.Generator().manual_seed(0))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        times = run.times({name: partial(model, **given) for name, model in models.items()}, repeats, 3, warmup=3)
        dense = times["dense"].median
        exact = models["dense"](**given).last_hidden_state
        setting = {"batch": size, "length": length, "threads": threads}
        for name, timing in times.items():
            records.append(run.record("latency", timing, name, setting, ratio=dense / timing.median, to="dense"))
            records.append(run.record("relative_error", error(models[name], given, exact), name, setting))
        table.add_row(
            f"{size} x {length}",
            *(f"{1e3 * timing.median:.2f} ({timing.median / dense:.2f})" for timing in times.values()),
        )
        met |= (size, length) == (1, 18) and min(times[name].median for name in times if "int8" in name) <= BAR * dense
    run.show(table)
    print(f"int8 takes at most {BAR} of dense: {yes(met)}")
    run.write(records)
    return met


def variants(run: Run) -> dict[str, Any]:
    """The models by name; those compiled are left out where that fails."""
    dense, _ = minilm(run)
    models: dict[str, Any] = {}
    for name, changes in CHANGES.items():
        if run.quick and "rank" in name:
            continue
        model = copy.deepcopy(dense)
        if changes:
            compress(model, changes)
        models[name] = model
        if name in COMPILED and not run.quick and (fast := compiled(model)) is not None:
            models[f"{name}, compiled"] = fast
    return models


def compiled(model: nn.Module) -> Any:
    """The model compiled for every batch and length; None where torch cannot, for want of a C++ compiler say."""
    fast = torch.compile(model, dynamic=True)
    try:
        with torch.inference_mode():
            for size, length in BATCHES:
                ids = torch.ones(size, length, dtype=torch.long)
                fast(input_ids=ids, attention_mask=ids)
    except compile_error() as error:
        print(f"left out: compiling failed: {error}")
        return None
    return fast


def error(model: Any, given: dict[str, Tensor], exact: Tensor) -> float:
    """How far the last hidden state is from that of the dense model, relative to it."""
    return ((model(**given).last_hidden_state - exact).norm() / exact.norm()).item()


if __name__ == "__main__":
    BENCHMARK.run(main)
