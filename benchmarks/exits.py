"""Early exits of a classifier and of a sentence encoder: what is lost, and how much faster real texts are answered.

    python benchmarks/exits.py [--only minilm] [--quick] [--json results/exits.jsonl]

Of MiniLM-L6, a BERT of six layers, as a classifier of SST-2 (three epochs on 6,920 sentences) and as the sentence
encoder that it is. Exits stand after all layers but the last, and learn from sentences without labels: those that SST-2
is trained on, or sentences of STS-B's training pairs; a quarter of them chooses the threshold. The layers stay as they
are. For every share that may be lost: accuracy on dev and test of SST-2, or Spearman's correlation on dev of STS-B,
with 95 % intervals of the difference; and the time of the sentences of dev in batches of 1, 8 and 32 of similar length,
with and without exits in turns, for what a text costs depends on what it says. FLOPs are those of these sentences.

Bars: at 1 % lost 1.6 times as fast, in batches of 1 and of 32. Published beside: DeeBERT about 40 % of BERT's time
saved (Xin 2020, arXiv:2004.12993), PABEE 1.57x (Zhou 2020, arXiv:2006.04152), of language models CALM up to 3x
(Schuster 2022, arXiv:2207.07061). The weights of MiniLM come with the extra `minilm`; stopped, it goes on.
"""

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data, told, yes
from compress_minilm import minilm, model_folder, pairs
from prune_sst2 import train
from rich.table import Table
from transformers import AutoTokenizer, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

import greenformers
from greenformers import compress
from greenformers.changes import Exits
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._rows import Batches
from greenformers.data._texts import Texts
from greenformers.data.sst2 import load
from greenformers.measure.flops import flops
from greenformers.measure.record import Record, with_ratios

LENGTH, STEPS, ROUNDS, TIMED = 64, 300, 5, 320
SIZES, FASTER, LOST = (1, 8, 32), 1.6, 0.01
SHARES = {"sst2": (0.01, 0.02, 0.05), "minilm": (0.01, 0.05, 0.1)}
"""Shares that may be lost: of predictions that differ, or the distance of embeddings. The first has the bars."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--phrases", "sst2", "SST-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--only", "one of the two networks", choices=tuple(SHARES)),
        Option("--steps", "training steps of the exits", int, STEPS),
        Option("--classifier", "folder of the trained classifier", Path, RUNS / "students_sst2" / "teacher"),
        Option("--runs", "folder of the networks with exits", Path, RUNS / "exits"),
    ),
)


def main(run: Run) -> bool:
    model_folder() or run.skip("it needs the extra minilm")
    met, records = True, []
    for name in SHARES if run.given.only is None else (run.given.only,):
        new = study(run, name, *{"sst2": classifier, "minilm": encoder}[name](run))
        records += new
        lost, speeds = bars(new)
        for size, speed in speeds.items():
            print(f"{name}: {speed:.2f}x in batches of {size}, at least {FASTER:g}: {yes(speed >= FASTER)}")
        print(f"{name}: {100 * lost:.2f} % lost, at most {100 * LOST:g}: {yes(lost <= LOST)}")
        met &= lost <= LOST and all(speeds[size] >= FASTER for size in (1, 32))
    run.show(shown(records))
    run.write(records)
    return met or run.quick


Study = tuple[PreTrainedModel, PreTrainedTokenizerBase, list[str], list[Texts]]
"""A network, its tokenizer, sentences to learn from, and texts to judge by, the first of which are timed."""


def classifier(run: Run) -> Study:
    given, texts = run.given, load(run.given.phrases)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    home = given.classifier if not run.quick or (given.classifier / "config.json").is_file() else given.runs / "quick"
    if not (home / "config.json").is_file():
        torch.manual_seed(0)
        model = BertForSequenceClassification.from_pretrained(model_folder(), num_labels=2)
        train(model, tokenizer, texts.train, 0, steps=4 if run.quick else -1)
        model.save_pretrained(home)
    model = BertForSequenceClassification.from_pretrained(home).eval()
    judged = [
        Texts(f"sst2 {split}", list(part.texts), [float(label) for label in part.labels])
        for split in ("valid", "test")
        for part in [getattr(texts, split)]
    ]
    return model, tokenizer, [text for (text,) in texts.train.texts], judged


def encoder(run: Run) -> Study:
    model, tokenizer = minilm(run)
    learnt = sorted({text for pair in pairs(run.given.pairs, "train").segments for text in pair})
    return model, tokenizer, learnt, [pairs(run.given.pairs, "valid")]


def study(
    run: Run, name: str, dense: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str],
    judged: Sequence[Texts],
) -> list[Record]:  # fmt: skip
    """Exits of one network at every share, judged and timed."""
    models: dict[str, Any] = {f"{name}, dense": dense}
    weights = digest(dense)
    records: list[Record] = []
    for share in SHARES[name][:1] if run.quick else SHARES[name]:
        change = Exits(8 if run.quick else run.given.steps, lose=0.05 if run.quick else share)
        variant, home = f"{name}, {change.label}", run.given.runs / f"{name}-{share:g}-{run.given.steps}-{weights}"
        if run.quick or not (home / "config.json").is_file():
            began, small = time.monotonic(), copy.deepcopy(dense)
            texts = sentences[:300] if run.quick else sentences
            report = compress(small, change, texts=texts, tokenizer=tokenizer, length=LENGTH, progress=told)
            print(f"{variant}: {report.steps[0].report.summary}", flush=True)
            records.append(run.record("compression_time", time.monotonic() - began, variant))
            if not run.quick:
                greenformers.save(small, home, tokenizer=tokenizer)
            models[variant] = small
        else:
            models[variant] = greenformers.load(home)
    reader = Reader.of(dense, tokenizer, LENGTH)
    for part in judged:
        part = part.at(range(40)) if run.quick else part
        records += run.scores(judge(models, part, reader), {"texts": part.name}, f"{name}, dense")
    alone: list[Any] = [(text,) for row in judged[0].segments for text in row][: 32 if run.quick else TIMED]
    records += costs(run, models, Reader.of(dense, tokenizer, LENGTH).rows(Texts("timed", alone)))
    return with_ratios(records, to=f"{name}, dense")


def digest(model: PreTrainedModel) -> str:
    """What tells a network's weights from those of others: exits of these are not to be taken for its own."""
    weights = hashlib.sha256()
    for weight in model.state_dict().values():
        weights.update(weight.numpy().tobytes())
    return weights.hexdigest()[:8]


def costs(run: Run, models: dict[str, Any], rows: Any) -> list[Record]:
    """Time of all sentences in batches of each size, and their FLOPs in batches of one."""
    records = []
    for size in SIZES:
        batches = list(Batches(rows, size))

        def call(model: Any, batches: Sequence[Any] = batches) -> None:
            for batch in batches:
                model(**batch)

        calls: dict[str, Callable[[], None]] = {name: partial(call, model) for name, model in models.items()}
        with torch.inference_mode():
            times = run.times(calls, ROUNDS, 1)
            counts = {name: flops(calls[name]) for name in calls} if size == 1 else {}
        setting = {"batch": size, "sentences": len(rows)}
        records += [run.record("latency", times[name], name, setting) for name in times]
        records += [run.record("flops", counts[name] / 1e9, name, setting, source="counted") for name in counts]
    return records


def bars(records: Sequence[Record]) -> tuple[float, dict[int, float]]:
    """The share of quality that is lost at the first of the shares, on dev, and how much faster each batch is."""
    variants = list(dict.fromkeys(record.variant for record in records if record.metric == "latency"))
    mine = [record for record in records if record.variant == variants[1]]
    speeds = {record.setting["batch"]: record.ratio or 1.0 for record in mine if record.metric == "latency"}
    quality = next(record for record in mine if record.metric in ("accuracy", "spearman"))
    return 1 - (quality.ratio or 1.0), speeds


def shown(records: Sequence[Record]) -> Table:
    table = Table("variant", "quality", "difference", *(f"batches of {size}" for size in SIZES), "fewer FLOPs")
    for variant in dict.fromkeys(record.variant for record in records if record.metric == "latency"):
        mine = [record for record in records if record.variant == variant]
        scores = [record for record in mine if record.metric in ("accuracy", "spearman")]
        quality = ", ".join(f"{record.value:.2f}" for record in scores)
        differences = [
            f"{record.interval[0]:+.2f} to {record.interval[1]:+.2f}" for record in scores if record.interval
        ]
        times = [f"{record.value:.0f} ms, {record.ratio or 1:.2f}x" for record in mine if record.metric == "latency"]
        fewer = [f"{record.ratio or 1:.2f}x" for record in mine if record.metric == "flops"]
        table.add_row(variant, quality, ", ".join(differences), *times, *fewer)
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
