"""MiniLM-L6 in 8 bits to 1 a weight, by several ways, and of low rank in few bits: bytes against quality against time.

    python benchmarks/few_bits.py [--quick] [--json results/few_bits.jsonl] [--picture docs/few_bits.png]

Linear layers and embeddings; calibrated on 300 sentences of WikiText-2, without training, but for rows of 3 and of
2 bits that are healed for 300 steps, aware of the rounding or by products of rank 16 beside rounded weights, on 20,000
such and STS-B's training sentences, labels unread. Quality is Spearman's correlation on 1,000 training pairs of STS-B
and on its 625 dev pairs, and the mean cosine to the original's embeddings; times are of 8 texts of 128 tokens in torch,
all models in turns. A run that was stopped goes on behind what it had made.

Bars: 8 bits keep 99.9 % of the correlation on dev, 4 bits by GPTQ with groups of 64 keep 99 %, 3 bits healed 98 %. The
weights of MiniLM come with the extra `minilm`.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data, told, yes
from compress_minilm import LENGTH, minilm, pairs, sentences
from matplotlib.figure import Figure
from prune_minilm import draw, of, quality, timed_batch
from rich.table import Table

import greenformers
from greenformers import compress
from greenformers.changes import Bits, Change, Heal, Int8, LowRank, Product
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import batches
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import Record, with_ratios
from greenformers.report.plot import new_figure, save, settle

SENTENCES, LEARNT, STEPS, TRAIN = 300, 20_000, 300, 1000
ROUNDS = 20
WAYS = ("rounding", "awq", "gptq")
HEALED, ADAPTED, ADDED = "healed, gptq", "gptq, adapters", 16
KEPT = {"8 bits rounding": 0.999, "4 bits gptq": 0.99, f"3 bits {HEALED}": 0.98}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="a few sentences and rows; the figures mean little",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--picture", "file the picture is drawn into", Path),
        Option("--runs", "folder of what has been made, to go on from", Path, RUNS / "few_bits_minilm"),
    ),
)


def main(run: Run) -> bool:
    given = run.given
    dense, tokenizer = minilm(run)
    lines = sentences(given.texts, 500 if run.quick else LEARNT)
    calibration = batches(lines[: 50 if run.quick else SENTENCES], tokenizer, "encoder", LENGTH, 64)
    train, dev = pairs(given.pairs, "train"), pairs(given.pairs, "valid")
    trained: dict[str, Any] = {"texts": [*lines, *train.lines], "tokenizer": tokenizer, "length": LENGTH}
    models: dict[str, Any] = {"dense": dense}
    kinds: dict[str, str] = {}
    for label, (kind, changes) in recipes(run.quick).items():
        kinds[label], folder = kind, given.runs / label.replace(" ", "_")
        if folder.exists() and not run.quick:
            models[label] = greenformers.load(folder)
            continue
        models[label] = copy.deepcopy(dense)
        learns = any(change.trains for change in changes)
        learnt = {**trained, "teacher": dense, "progress": told} if learns else {}
        compress(models[label], changes, calibration=calibration, **learnt)
        if not run.quick:
            greenformers.save(models[label], folder, tokenizer=tokenizer)
        print(label, flush=True)
    records = [run.record("size", bytes_of(model) / 2**20, name, source="counted") for name, model in models.items()]
    for texts in (train.at(range(TRAIN)), dev):
        judged = run.scores(judge(models, texts, Reader.of(dense, tokenizer, LENGTH)), {"texts": texts.name})
        records += with_ratios(judged, to="dense")
    batch = timed_batch()
    with torch.inference_mode():
        times = run.times({name: partial(model, **batch) for name, model in models.items()}, ROUNDS, 2)
    records += with_ratios([run.record("latency", time, name) for name, time in times.items()], to="dense")
    run.show(shown(records, list(models)))
    run.write(records)
    if given.picture:
        save(picture(records, kinds), given.picture)
    return run.quick or bars(records)


def recipes(quick: bool) -> dict[str, tuple[str, list[Change]]]:
    """What is done to the original, by name, and of what kind it is."""
    rows: dict[str, tuple[str, list[Change]]] = {"int8": ("int8", [Int8()])}
    for bits in (4,) if quick else (8, 6, 4, 3, 2):
        rows |= {f"{bits} bits {way}": (way, [Bits(bits, by=way)]) for way in WAYS}
        if bits in (2, 3):
            rows[f"{bits} bits {HEALED}"] = (HEALED, [Heal(STEPS, aware=True), Bits(bits)])
            rows[f"{bits} bits gptq, rank {ADDED}"] = ("gptq and rank", [Bits(bits, rank=ADDED)])
            rows[f"{bits} bits {ADAPTED}"] = (ADAPTED, [Bits(bits), Heal(STEPS, adapters=ADDED)])
    if quick:
        return rows
    rows |= {f"{bits:g} bits gptq": ("gptq", [Bits(bits)]) for bits in (1.58, 1)}
    rows["3.4 bits in the mean"] = ("a budget", [Bits(budget=3.4)])
    rows["product 8 kmeans"] = ("codebooks", [Product(8, by="kmeans")])
    rows["4 bits by row"] = ("gptq", [Bits(4, per="row")])
    rows["4 bits by row, int8 inputs"] = ("int8 inputs", [Bits(4, per="row", inputs=8)])
    for keep in (0.75, 0.5):
        low, kind = LowRank(keep=keep, solver="sequential_loss"), f"rank {keep}, gptq"
        rows[f"rank {keep}"] = (kind, [low])
        rows |= {f"rank {keep}, {bits} bits": (kind, [low, Bits(bits)]) for bits in (8, 4, 3)}
    return rows


def shown(records: list[Record], names: list[str]) -> Table:
    table = Table(
        "weights", "MiB", "Spearman, train", "of dense", "dev", "of dense", "difference", "cosine, dev", "as fast"
    )
    for name in names:
        train, dev = (of(records, "spearman", name, texts) for texts in ("train", "valid"))
        low, high = dev.interval or (0.0, 0.0)
        table.add_row(
            name, f"{of(records, 'size', name).value:.1f}", f"{train.value:.2f}", f"{train.ratio or 0:.1%}",
            f"{dev.value:.2f}", f"{dev.ratio or 0:.1%}", f"{low:+.2f} to {high:+.2f}",
            f"{of(records, 'cosine', name, 'valid').value:.4f}", f"{of(records, 'latency', name).ratio or 0:.2f}x",
        )  # fmt: skip
    return table


def picture(records: list[Record], kinds: dict[str, str]) -> Figure:
    """What is left of the correlation against bytes, a line for each way."""
    figure = new_figure(8.6, 5.0, "MiniLM-L6 in few bits")
    axes = figure.add_subplot()
    lines = {kind: [name for name in kinds if kinds[name] == kind] for kind in dict.fromkeys(kinds.values())}
    draw(axes, records, lines, lambda name: of(records, "size", name).value)
    axes.set_xlabel("MiB")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axes.legend()
    settle(figure)
    return figure


def bars(records: list[Record]) -> bool:
    """Whether the bars are met."""
    met = True
    for name, least in KEPT.items():
        share = quality(records, name)
        met &= share >= least
        print(f"{name}: {share:.2%} kept, at least {least:.1%}: {yes(share >= least)}")
    return met


if __name__ == "__main__":
    BENCHMARK.run(main)
