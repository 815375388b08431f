"""Adaptive depth in translation, Multi30k English to German: BLEU by average exit beside fixed depths, and time.

    python benchmarks/depth_adaptive.py [--quick] [--seeds 2] [--json results/depth_adaptive.jsonl]

Encoders of 3 layers, decoders of 6 with an exit after each (Elbayad 2019): aligned training with every halting, mixed
training with confidence; beside them stacked decoders of 1, 2, 3 and 6 layers trained alone. Greedy search on
test_2016_flickr, BLEU by sacreBLEU; all learn by Muon. Layers are those of the tokens up to the end of each sentence,
and not of what a batch computes behind it; time is that of all translations, in batches of 64, the networks in turn.
Thresholds of confidence are tried on the validation set, and the lowest at most 0.3 BLEU below all layers of its
network is used. Of the haltings one is chosen on the validation set: of those with at least 40 % fewer layers there the
one of the best BLEU. Bar: on the test set, in the mean of the seeds, it computes at least 40 % fewer decoder layers at
most 0.3 BLEU below the stacked decoder of 6. Fixed exits, which adapt to nothing, are shown and do not count. Stopped
at any moment, the same command goes on; with --json a seed that is in the file is not repeated.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast

import torch
from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.data import Pairs
from greenformers.data import load as load_data
from greenformers.measure.intervals import mean_interval
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.measure.translation import bleu_signature, translation_scores
from greenformers.train.generation import translations
from greenformers.train.run import MODEL, ensure, trained
from greenformers.train.settings import Settings

LAYERS, ALONE = 6, (1, 2, 3, 6)
SETTINGS = Settings(
    data="multi30k", vocabulary=6000, length=64, hidden=256, layers=3, decoder_layers=LAYERS, heads=4,
    feed_forward=1024, residual="pre", dropout=0.1, epochs=5, batch=128, learning_rate=1e-3, precision="bf16",
    optimizer="muon", log_every=50, save_every=100, evaluate_every=226,
)  # fmt: skip
QUICK: dict[str, Any] = {
    "limit": 48, "vocabulary": 300, "hidden": 32, "feed_forward": 64, "epochs": 1, "batch": 16, "evaluate_every": 3,
}  # fmt: skip
NETWORKS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "aligned, geometric": {"halting": "geometric"},
    "aligned, multinomial": {"halting": "multinomial"},
    "aligned, sequence": {"halting": "sequence"},
    "mixed": {"train": "mixed"},
}
HALTING = (
    "aligned, confidence",
    "aligned, geometric",
    "aligned, multinomial",
    "aligned, sequence",
    "mixed, confidence",
)
"""Rows in which tokens or sentences leave at exits of their own."""
FULL = f"stacked, {LAYERS} layers"
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FEWER, LOST, ROUNDS, SEEDS = 40.0, 0.3, 3, 2

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="tiny networks, 48 pairs, a few thresholds, one seed; the figures mean nothing",
    threads=1,
    options=(
        data("--folder", "multi30k_en_de", "Multi30k"),
        Option("--runs", "run folders, to go on from", Path, RUNS / "depth_adaptive"),
        Option("--seeds", f"trainings of each network; {SEEDS} if not given", int),
    ),
    json="file the records are added to, and known seeds are read from",
)


def main(run: Run) -> bool:
    seeds = (1 if run.quick else SEEDS) if run.given.seeds is None else run.given.seeds
    base = replace(SETTINGS, folder=str(run.given.folder), **(QUICK if run.quick else {}))
    runs = run.given.runs / ("quick" if run.quick else "small")
    pairs = load_data("multi30k", run.given.folder, base.limit)
    assert isinstance(pairs, Pairs)
    records: list[Record] = []
    for seed in range(seeds):
        records += of_seed(run, replace(base, seed=seed), runs, pairs)
    run.show(table(records))
    best = chosen(records)
    fewer, apart = 100 * (1 - fmean(values(records, best, "layers")) / LAYERS), gaps(records, best)
    met = fewer >= FEWER and fmean(apart) >= -LOST
    print(
        f"{best}, chosen on the validation set: {fewer:.0f} % fewer layers (at least {FEWER:.0f}), BLEU "
        f"{fmean(apart):+.2f} to {LAYERS} stacked layers (at least {-LOST}): {yes(met)}"
    )
    return met or run.quick


def of_seed(run: Run, base: Settings, runs: Path, pairs: Pairs) -> list[Record]:
    """The records of one seed: those that the file of `--json` has, or new ones, which are written."""
    setting = {
        "data": "multi30k", "hidden": base.hidden, "epochs": base.epochs, "optimizer": base.optimizer, "beams": 1,
        "seed": base.seed,
    }  # fmt: skip
    before = [r for r in run.known() if r.benchmark == run.benchmark.name and r.setting.items() >= setting.items()]
    if before:
        return before
    rows = translated(run, base, runs, pairs)
    records: list[Record] = []
    for name in (FULL, *HALTING):
        rows[name].write("valid")
        figures = {"layers": rows[name].layers, "bleu": rows[name].bleu}
        at = setting | {"split": "valid"} | rows[name].way
        records += [run.record(metric, value, name, at, seed=base.seed) for metric, value in figures.items()]
    for _ in range(1 if run.quick else ROUNDS):
        for row in rows.values():
            row.write("test")
    for name, row in rows.items():
        faster = median(rows[FULL].seconds) / median(row.seconds)
        figures = {"parameters": float(row.parameters), "layers": row.layers, "bleu": row.bleu, "speed": faster}
        at = setting | {"split": "test"} | row.way
        records += [run.record(metric, value, name, at, seed=base.seed) for metric, value in figures.items()]
    run.write(records)
    return records


def translated(run: Run, base: Settings, runs: Path, pairs: Pairs) -> "dict[str, Written]":
    """Every network of a seed, trained, resumed or read, in every way that it can write."""
    folders = {f"stacked, {n} layers": replace(base, decoder_layers=n) for n in ALONE}
    folders |= {name: replace(base, depth="adaptive", depth_option=given or None) for name, given in NETWORKS.items()}
    rows: dict[str, Written] = {}
    for name, settings in folders.items():
        folder = runs / f"{name.replace(', ', '-').replace(' ', '-')}-{base.seed}"
        ensure(folder, settings, run.console)
        network = Written(folder, pairs)
        if name in NETWORKS:
            rows |= network.ways(name, THRESHOLDS[::3] if run.quick else THRESHOLDS)
        else:
            rows[name] = network
    return rows


def values(records: Sequence[Record], name: str, metric: str, split: str = "test") -> list[float]:
    """A figure of a row, of every seed."""
    return [r.value for r in records if (r.variant, r.metric, r.setting["split"]) == (name, metric, split)]


def gaps(records: Sequence[Record], name: str) -> list[float]:
    """BLEU of a row less that of all stacked layers, seed by seed."""
    pairs = zip(values(records, name, "bleu"), values(records, FULL, "bleu"), strict=True)
    return [own - full for own, full in pairs]


def chosen(records: Sequence[Record]) -> str:
    """The halting chosen on the validation set: of those with layers few enough there, the one of the best BLEU."""
    layers, bleu = (
        {name: fmean(values(records, name, metric, "valid")) for name in HALTING} for metric in ("layers", "bleu")
    )
    enough = [name for name in HALTING if 100 * (1 - layers[name] / LAYERS) >= FEWER]
    return max(enough, key=lambda name: bleu[name]) if enough else min(HALTING, key=lambda name: layers[name])


def table(records: Sequence[Record]) -> Table:
    """A row for each way to write: means over the seeds; of several with the interval of the difference."""
    shown = Table("decoder", "parameters", "layers a token", "fewer, %", "BLEU", "difference", "times as fast")
    shown.title = f"Multi30k en-de, greedy, {bleu_signature()}"
    for name in dict.fromkeys(record.variant for record in records if record.setting["split"] == "test"):
        apart, layers = gaps(records, name), fmean(values(records, name, "layers"))
        count, bleu, speed = (fmean(values(records, name, metric)) for metric in ("parameters", "bleu", "speed"))
        difference = f"{fmean(apart):+.2f}"
        if len(apart) > 1 and name != FULL:
            low, high = mean_interval(apart)
            difference += f" ({low:+.2f} to {high:+.2f})"
        shown.add_row(
            name, f"{count:,.0f}", f"{layers:.2f}", f"{100 * (1 - layers / LAYERS):.0f}", f"{bleu:.2f}", difference,
            f"{speed:.2f}",
        )  # fmt: skip
    return shown


def counter(counts: list[int], behind: tuple[int, ...]) -> Callable[[Any, tuple[Any, ...], Any], None]:
    """A hook on a decoder that adds up layers and tokens, without those that a batch computes behind the end of a text.

    Args:
        counts: The layers of all tokens, and their number.
        behind: Tokens that are read behind the end alone: padding, and the end itself.
    """

    def count(_: Any, given: tuple[Any, ...], out: Any) -> None:
        steps: Tensor = out.steps[~torch.isin(given[0], torch.tensor(behind, device=given[0].device))]
        counts[0], counts[1] = counts[0] + int(steps.sum()), counts[1] + steps.numel()

    return count


class Written:
    """The translations of a finished run, written in one way of halting.

    Args:
        folder: Folder of the run.
        pairs: The data.
        way: Attributes of its kind of depth that are set before it writes.

    Attributes:
        bleu: BLEU of the last translations.
        layers: Decoder layers of a token in these, on average, see `counter`.
        seconds: Seconds of each call for the test set.
    """

    def __init__(self, folder: Path, pairs: Pairs, way: dict[str, Any] | None = None) -> None:
        self.folder, self.pairs, self.way = folder, pairs, way or {}
        self.model, self.tokenizer = trained(folder).eval(), PreTrainedTokenizerFast.from_pretrained(folder / MODEL)
        self.parameters = parameters(self.model)
        self.bleu, self.layers, self.seconds = 0.0, 0.0, list[float]()

    def ways(self, name: str, thresholds: tuple[float, ...]) -> "dict[str, Written]":
        """The same network at each exit, and by its halting; with the threshold that validation allows."""
        depth: Any = cast(Any, self.model).decoder.depth
        if depth.learns:
            return {name: self}
        at = {n: Written(self.folder, self.pairs, {"halting": "fixed", "exit": n}) for n in range(1, LAYERS + 1)}
        at[LAYERS].write("valid")
        best = 1.0
        for threshold in sorted(thresholds, reverse=True):
            tried = Written(self.folder, self.pairs, {"thresholds": [threshold] * (LAYERS - 1)})
            tried.write("valid")
            if tried.bleu < at[LAYERS].bleu - LOST:
                break
            best = threshold
        chosen = Written(self.folder, self.pairs, {"thresholds": [best] * (LAYERS - 1)})
        return {f"{name}, exit {n}": row for n, row in at.items()} | {f"{name}, confidence": chosen}

    def write(self, split: str) -> None:
        """Translate a split, and judge what was written."""
        sources, references = zip(*self.pairs.split(split), strict=True)
        decoder: Any = cast(Any, self.model).decoder
        hooks, counts = [], [0, 0]
        if decoder.depth is not None:
            for name, value in self.way.items():
                setattr(decoder.depth, name, value)
            behind = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
            hooks.append(decoder.register_forward_hook(counter(counts, behind)))
        start = time.perf_counter()
        texts = list(translations(self.model, self.tokenizer, sources))
        self.seconds += [time.perf_counter() - start] if split == "test" else []
        for hook in hooks:
            hook.remove()
        self.layers = counts[0] / counts[1] if hooks else float(len(decoder.layers))
        self.bleu = translation_scores(texts, references)["bleu"]


if __name__ == "__main__":
    BENCHMARK.run(main)
