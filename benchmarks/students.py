"""Students of MiniLM-L6: fewer and narrower layers, down to a vector for each token; time and size against quality.

    python benchmarks/students.py [--quick] [--json results/students.jsonl] [--picture docs/students.png]
    python benchmarks/students.py --starts [--seed N] [--json results/students.jsonl] [--picture docs/starts.png]

Learned from 163,000 sentences without labels, of WikiText-2, IMDB, SST-2, STS-B and Multi30k, none of which is in the
dev part of STS-B; the teacher is asked once for each, and what it gives is kept. Judged by Spearman's correlation on
1,000 training pairs of STS-B and on its 625 dev pairs; timed in torch on 8 texts of 128 tokens, all models in turns.
STS-B is kind to bags of words, so beside it: how often a sentence is nearer to one that means the same than to the
words of this one in another order; a bag of words cannot tell, and is right in half of the cases.
Stopped, the same command goes on; `--part` and `--only` divide it, and records of earlier parts are read from the file
of `--json`. Time and size are those of students that have learned nothing yet, on which they do not depend.
`--starts`: a student of 3 layers of 192 that begins as what is left of its teacher, in coordinates or in directions, or
with random weights, for 600 steps each with three seeds. `--device cuda`: students learn there, and are judged and
timed on the CPU.

Bars: 3 layers of 192 keep 95 % of the correlation on dev, 3 layers of 384 keep 99 %, each within an hour; a vector for
each token keeps 85 % at 300 times the speed. Published: 3 of 6 layers by sentence-transformers -1.2 % at 2.8 times the
speed, 1 layer -5.4 % at 4.0 times; TinyBERT of 4 layers of 312 96.8 % of BERT on GLUE, 7.5 times smaller and 9.4 times
as fast (Jiao 2020, arXiv:1909.10351). The weights of MiniLM come with the extra `minilm`.
"""

import copy
import json
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _corpus import SOURCES, corpus
from _harness import RUNS, SEED, Benchmark, Option, Run, data, told, yes
from compress_minilm import LENGTH, minilm, pairs
from matplotlib.figure import Figure
from prune_minilm import draw, kinds_in, of, quality, timed_batch
from rich.table import Table
from torch import Tensor

import greenformers
from greenformers import compress
from greenformers.changes import Change, Heal, Int8, Layers, Narrow
from greenformers.compress.quality import embed, judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import Record, read, with_ratios
from greenformers.report.plot import looks, new_figure, save, settle
from greenformers.static.folder import StaticEncoder
from greenformers.static.judge import judged
from greenformers.static.learn import learned_by

CALIBRATION, TRAIN = 600, 1000
ROUNDS, DIMS = 20, (256, 384)
BESIDE = Path("results/prune_minilm.jsonl")
OTHERS = ("layers", "heads and neurons", "low rank", "int8", "together", "together, int8")
STARTS, STEPS = ("pruned", "pca", "random"), 600
STATIC = "a vector for each token"
KEPT = {"3 layers of 192": 0.95, "3 layers of 384": 0.99, f"{STATIC}, 256": 0.85}
FASTER = 300
SAME = 4.0  # of 5, from which on two sentences mean the same
WEIGHTS = {"embeddings": 1.0, "similarities": 10.0}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="few sentences and steps; the figures mean little",
    options=(
        data("--pairs", "stsb_open", "STS-B"),
        *SOURCES,
        Option("--only", "the students whose name holds this, which learn and are judged"),
        Option("--part", "what students are worth, or the time they take, alone", choices=("quality", "time")),
        Option("--device", "where students learn; they are judged and timed on the CPU", default="cpu"),
        Option("--starts", "compare what students begin with", bool, default=False),
        SEED,
        Option("--picture", "file the picture is drawn into", Path),
        Option("--beside", "records of pruning, low rank, int8 and their mixtures", Path, BESIDE),
        Option("--runs", "folder of students and of what the teacher gives", Path, RUNS / "students"),
    ),
)


def students(quick: bool) -> dict[str, list[Change]]:
    """What is made of the teacher, by name."""
    heal = {"weights": WEIGHTS, "learning_rate": 1e-3}
    steps = (20, 20, 20, 20) if quick else (1000, 6000, 3000, 3000)
    return {
        "3 layers of 384": [Layers(3), Heal(steps[0], **heal | {"learning_rate": 5e-4})],
        "3 layers of 192": [Narrow(192, layers=3), Heal(steps[1], **heal)],
        "6 layers of 192": [Narrow(192), Heal(steps[2], **heal)],
        "1 layer of 384": [Layers(1, by="top"), Heal(steps[3], **heal)],
    }


def main(run: Run) -> bool:
    given = run.given
    names = (*students(run.quick), STATIC)
    if given.only and not any(given.only in name for name in names):
        run.refuse(f"--only must be a part of {'; '.join(names)}; got {given.only!r}")
    dense, tokenizer = minilm(run)
    sentences = corpus(given.pairs, given.wikitext, given.reviews, given.phrases, given.captions)
    sentences = sentences[:400] if run.quick else sentences
    learnt = Learnt(
        dense, tokenizer, sentences, given.runs / ("quick-teacher" if run.quick else "teacher"), given.device
    )
    return starts(run, learnt) if given.starts else final(run, learnt)


class Learnt:
    """The teacher, and what students learn from.

    Attributes:
        dense: The teacher.
        teacher: The teacher, where students learn.
        tokenizer: Its tokenizer.
        sentences: Sentences without labels.
        cache: Folder of what the teacher gives to them.
        calibration: Some of them, in batches.
    """

    def __init__(self, dense: Any, tokenizer: Any, sentences: list[str], cache: Path, device: str) -> None:
        self.dense, self.tokenizer, self.sentences, self.cache = dense, tokenizer, sentences, cache
        self.teacher = dense if device == "cpu" else copy.deepcopy(dense).to(device)
        self.reader = Reader.of(dense, tokenizer, LENGTH)
        drawn = Texts("corpus", [(text,) for text in sentences[:CALIBRATION]])
        self.calibration = self.reader.batches(drawn)

    def student(
        self, changes: list[Change], folder: Path | None = None, seed: int = 0,
        progress: Callable[[str, float], None] = told,
    ) -> tuple[Any, list[dict[str, float]]]:  # fmt: skip
        """A student, and the log of its training; one that was stopped goes on from the folder."""
        small = copy.deepcopy(self.teacher)
        report = compress(
            small, changes, calibration=self.calibration, texts=self.sentences, tokenizer=self.tokenizer, length=LENGTH,
            folder=folder, teacher=self.teacher, teacher_cache=self.cache, seed=seed, progress=progress,
        )  # fmt: skip
        return small.to("cpu"), [dict(entry) for step in report.steps for entry in step.report.log]


def final(run: Run, learnt: Learnt) -> bool:
    """All students beside each other: what they are worth, then the time they take."""
    given = run.given
    records = [record for record in run.known() if record.metric != "loss"]
    if given.part != "time":
        records = newer(records, worth(run, learnt))
    if given.part != "quality":
        records = newer(records, timed(run, learnt))
    names = [record.variant for record in records if record.metric == "size"]
    told_of = {record.variant for record in records if record.metric == "spearman"}
    if not names or not told_of >= set(names):
        print("the table is shown once all students have been judged and timed")
        return True
    run.show(shown(records, names))
    if given.picture:
        save(picture(records, read(given.beside) if given.beside.is_file() else []), given.picture)
    return run.quick or bars(records)


def newer(records: list[Record], new: list[Record]) -> list[Record]:
    """All records, of those of one thing the new one."""

    def of_what(record: Record) -> tuple[str, str, Any]:
        return record.metric, record.variant, record.setting.get("texts")

    replaced = {of_what(record) for record in new}
    return [*(record for record in records if of_what(record) not in replaced), *new]


def chosen(run: Run) -> dict[str, list[Change]]:
    """The students that `--only` leaves, by name."""
    return {name: changes for name, changes in students(run.quick).items() if (run.given.only or name) in name}


def worth(run: Run, learnt: Learnt) -> list[Record]:
    """Records of how well students do, which learn here; each is written as it is known."""
    given, dense = run.given, learnt.dense
    records: list[Record] = []
    for name, changes in chosen(run).items():
        folder = given.runs / f"{'quick-' if run.quick else ''}{name.replace(' ', '-')}"
        small, seconds = student_in(learnt, changes, folder)
        models = {"dense": dense, name: small, f"{name}, int8": copy.deepcopy(small)}
        compress(models[f"{name}, int8"], Int8())
        print(f"{name}: {'stopped in between' if seconds is None else f'{seconds / 60:.1f} min'}", flush=True)
        new = told_ofall(run, learnt, models, {})
        if seconds is not None:
            new.append(run.record("compression_time", seconds, name))
        run.write(new)
        records = newer(records, new)
    for dims in DIMS if (given.only or STATIC) in STATIC else ():
        encoder, _ = learned_by(
            dense, learnt.sentences, tokenizer=learnt.tokenizer, dims=dims, length=LENGTH, cache=learnt.cache,
            progress=told,
        )  # fmt: skip
        new = told_ofall(run, learnt, {"dense": dense}, {f"{STATIC}, {dims}": encoder})
        run.write(new)
        records = newer(records, new)
    return records


def told_ofall(
    run: Run, learnt: Learnt, models: Mapping[str, Any], encoders: Mapping[str, StaticEncoder]
) -> list[Record]:
    """Correlations on both sets of pairs with their ratios to those of the teacher, and how often the order is told."""
    records = []
    for texts in (pairs(run.given.pairs, "train").at(range(TRAIN)), pairs(run.given.pairs, "valid")):
        scored = run.scores(judge(models, texts, learnt.reader), {"texts": texts.name})
        for name, encoder in encoders.items():
            _, ours = judged(learnt.dense, learnt.tokenizer, encoder, texts, LENGTH, {})
            scored.append(
                run.record("spearman", ours.value, name, {"texts": texts.name}, interval=ours.interval, to="dense")
            )
        records += with_ratios(scored, to="dense")
    encode: dict[str, Callable[[list[str]], Tensor]] = {
        name: partial(embed, model, tokenizer=learnt.tokenizer, length=LENGTH) for name, model in models.items()
    }
    encode |= {name: encoder.encode for name, encoder in encoders.items()}
    for name, share in order_told(encode, pairs(run.given.pairs, "valid")).items():
        records.append(run.record("accuracy", 100 * share, name, {"texts": "stsb valid, words in another order"}))
    return records


def timed(run: Run, learnt: Learnt) -> list[Record]:
    """Records of time and size, which do not depend on what a student has learned: it is taken as it begins."""
    models: dict[str, Any] = {"dense": learnt.dense}
    for name, changes in students(run.quick).items():
        models[name] = copy.deepcopy(learnt.dense)
        compress(models[name], changes[:-1], calibration=learnt.calibration)
        models[f"{name}, int8"] = copy.deepcopy(models[name])
        compress(models[f"{name}, int8"], Int8())
    vocabulary = len(learnt.dense.get_input_embeddings().weight)
    tables = {f"{STATIC}, {dims}": torch.randn(vocabulary, dims) for dims in DIMS}
    encoders = {name: StaticEncoder.of(weight, learnt.tokenizer) for name, weight in tables.items()}
    sizes = {name: bytes_of(model) for name, model in models.items()}
    sizes |= {name: encoder.weight.numel() * 4 for name, encoder in encoders.items()}
    records = [run.record("size", size / 2**20, name, source="counted") for name, size in sizes.items()]
    batch = timed_batch()
    ids = batch["input_ids"]
    flat, places = ids.flatten(), torch.arange(0, ids.numel(), LENGTH)
    calls: dict[str, Any] = {name: partial(model, **batch) for name, model in models.items()}
    calls |= {name: partial(encoder.vectors, flat, places) for name, encoder in encoders.items()}
    with torch.inference_mode():
        times = run.times(calls, ROUNDS, 2)
    records += with_ratios([run.record("latency", time, name) for name, time in times.items()], to="dense")
    run.write(records)
    return records


def order_told(encode: Mapping[str, Callable[[list[str]], Tensor]], texts: Texts) -> dict[str, float]:
    """The share of pairs of one meaning that are nearer than the first is to the second's words in another order."""
    assert texts.labels is not None
    same = [pair for pair, score in zip(texts.segments, texts.labels, strict=True) if score >= SAME]
    first, second = ([pair[place] for pair in same] for place in (0, 1))
    draw = random.Random(0)
    mixed = [" ".join(draw.sample(words, len(words))) for words in map(str.split, second)]
    shares = {}
    for name, vectors_of in encode.items():
        x, y, z = (F.normalize(vectors_of(column), dim=1) for column in (first, second, mixed))
        gap = ((x * y).sum(1) - (x * z).sum(1)).round(decimals=6)  # of sums in another order
        shares[name] = float((gap.sign() + 1).mean() / 2)
    return shares


def student_in(learnt: Learnt, changes: list[Change], folder: Path) -> tuple[Any, float | None]:
    """A student and the seconds that it took, None where it was stopped and went on; both are kept, and read again."""
    marked = folder / "seconds.json"
    if not marked.is_file():
        steps = folder.with_name(f"{folder.name}.steps")
        stopped, began = steps.exists(), time.monotonic()
        small, _ = learnt.student(changes, steps)
        greenformers.save(small, folder, tokenizer=learnt.tokenizer)
        marked.write_text(json.dumps(None if stopped else time.monotonic() - began))
    return greenformers.load(folder), json.loads(marked.read_text())


def shown(records: list[Record], names: list[str]) -> Table:
    table = Table(
        "student", "MiB", "Spearman, train", "of dense", "dev", "of dense", "difference", "order", "as fast", "minutes"
    )
    spent = {record.variant: record.value / 60 for record in records if record.metric == "compression_time"}
    for name in names:
        train, dev = (of(records, "spearman", name, texts) for texts in ("train", "valid"))
        low, high = dev.interval or (0.0, 0.0)
        minutes = f"{spent[name]:.1f}" if name in spent else ""
        table.add_row(
            name, f"{of(records, 'size', name).value:.1f}", f"{train.value:.2f}", f"{train.ratio or 0:.1%}",
            f"{dev.value:.2f}", f"{dev.ratio or 0:.1%}", f"{low:+.2f} to {high:+.2f}",
            f"{of(records, 'accuracy', name).value:.0f} %", f"{of(records, 'latency', name).ratio or 0:.2f}x", minutes,
        )  # fmt: skip
    return table


def picture(records: list[Record], beside: list[Record]) -> Figure:
    """What is left of the correlation against time, a line for each kind, and what other kinds have shown."""
    figure = new_figure(8.6, 5.0, "Students of MiniLM-L6, and what is made of it without training")
    axes = figure.add_subplot()
    names = [record.variant for record in records if record.metric == "size" and record.variant != "dense"]
    lines = {
        "students": [name for name in names if not name.startswith(STATIC) and "int8" not in name],
        "students, int8": [name for name in names if "int8" in name],
        STATIC: [name for name in names if name.startswith(STATIC)],
    }
    kinds = kinds_in(beside)
    others = {name: kinds[name] for name in OTHERS if name in kinds}
    both = [*records, *beside]
    draw(axes, both, lines | others, lambda name: of(both, "latency", name).ratio or 0)
    axes.set_xlabel("times as fast")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda faster, _: f"{faster:g}")
    axes.set_ylim(96, 100.5)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    settle(figure)
    return figure


def bars(records: list[Record]) -> bool:
    """Whether the bars are met."""
    met = True
    for name, least in KEPT.items():
        held = quality(records, name)
        fine, words = held >= least, ""
        if not name.startswith(STATIC):  # which has no bar of time
            # Of one that was stopped in between the time is not known, and so the bar not met.
            times = (r.value for r in records if (r.metric, r.variant) == ("compression_time", name))
            spent = next(times, float("nan"))
            fine, words = fine and spent <= 3600, f", in {spent / 60:.0f} min, at most 60"
        met &= fine
        print(f"{name}: {held:.2%} kept, at least {least:.0%}{words}: {yes(fine)}")
    faster = of(records, "latency", f"{STATIC}, {DIMS[0]}").ratio or 0
    print(f"{STATIC}: {faster:,.0f} times as fast, at least {FASTER}: {yes(faster >= FASTER)}")
    return met and faster >= FASTER


def starts(run: Run, learnt: Learnt) -> bool:
    """What a student begins with, at equal steps."""
    seeds = (0,) if run.quick else ((0, 1, 2) if run.given.seed is None else (run.given.seed,))
    steps = 20 if run.quick else STEPS
    trainings = [(start, seed) for seed in seeds for start in STARTS]
    dev = pairs(run.given.pairs, "valid")

    def train(wish: tuple[str, int]) -> list[Record]:
        start, seed = wish
        recipe: list[Change] = [
            Narrow(192, layers=3, start=start), Heal(steps, weights=WEIGHTS, learning_rate=1e-3)
        ]  # fmt: skip
        folder = learnt.cache.with_name(f"starts-{start}-{seed}")
        small, log = learnt.student(recipe, None if run.quick else folder, seed, lambda *_: None)
        setting = {"seed": seed, "steps": steps}
        new = [
            run.record("loss", entry["eval_distance"], start, setting | {"step": int(entry["step"])}, seed=seed)
            for entry in log
            if "eval_distance" in entry
        ]
        score = judge({start: small}, dev, learnt.reader)[start]["spearman"][0]
        return [*new, run.record("spearman", score, start, setting | {"texts": dev.name}, seed=seed)]

    def said(new: list[Record]) -> str:
        return f"distance {new[0].value:.4f} -> {new[-2].value:.4f}, Spearman {new[-1].value:.2f}"

    records = run.trainings(trainings, lambda wish: (wish[0], {"seed": wish[1], "steps": steps}), train, said)
    records = [record for record in records if record.setting.get("steps") == steps and record.variant in STARTS]
    table = Table("begins with", "Spearman on dev, of each seed", "distance at the start", "half way", "at the end")
    for start in STARTS:
        curve = curves(records, start)
        scores = [r.value for r in records if (r.variant, r.metric) == (start, "spearman")]
        at = [f"{sum(curve[step]) / len(curve[step]):.4f}" for step in (0, steps // 2, steps)]
        table.add_row(start, ", ".join(f"{score:.2f}" for score in scores), *at)
    run.show(table)
    if run.given.picture:
        save(curve_picture(records), run.given.picture)
    best = {start: min(r.value for r in records if (r.variant, r.metric) == (start, "spearman")) for start in STARTS}
    worst = max(r.value for r in records if (r.variant, r.metric) == ("random", "spearman"))
    better = all(best[start] > worst for start in STARTS if start != "random")
    print(f"both beginnings from the teacher are better than random weights, every seed: {yes(better)}")
    return run.quick or better


def curves(records: list[Record], start: str) -> Mapping[int, list[float]]:
    """Distances from the teacher by step, of every seed."""
    steps: dict[int, list[float]] = {}
    for record in records:
        if record.variant == start and record.metric == "loss":
            steps.setdefault(record.setting["step"], []).append(record.value)
    return steps


def curve_picture(records: list[Record]) -> Figure:
    figure = new_figure(7.2, 4.4, "A student of 3 layers of 192: what it begins with")
    axes = figure.add_subplot()
    for start, look in looks(STARTS).items():
        curve = curves(records, start)
        places = sorted(curve)
        means = [sum(curve[at]) / len(curve[at]) for at in places]
        axes.plot(places, means, label=start, color=look.colour, linestyle=look.line)
        low, high = ([bound(curve[at]) for at in places] for bound in (min, max))
        axes.fill_between(places, low, high, alpha=0.2, color=look.colour)
    axes.set_xlabel("steps")
    axes.set_yscale("log")
    axes.set_ylabel("distance from the teacher")
    axes.legend()
    settle(figure)
    return figure


if __name__ == "__main__":
    BENCHMARK.run(main)
