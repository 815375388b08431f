"""Adaptive depth in translation, Multi30k English to German: BLEU by average exit beside fixed depths, and time.

    python benchmarks/depth_adaptive.py [--quick] [--json results/depth_adaptive.jsonl]

Encoders of 3 layers, decoders of 6 with an exit after each (Elbayad 2019): aligned training with every halting, mixed
training with confidence; beside them stacked decoders of 1, 2, 3 and 6 layers trained alone. Greedy search on
test_2016_flickr, BLEU by sacreBLEU; layers are those of all tokens computed; time is that of all translations, in
batches of 64, the networks in turn. Thresholds of confidence are tried on the validation set, and the lowest at most
0.3 BLEU below all layers of its network is used. Bar: some halting computes at least 40 % fewer decoder layers at most
0.3 BLEU below the stacked decoder of 6. Stopped at any moment, the same command goes on.
"""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, cast

from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.data import Pairs
from greenformers.data import load as load_data
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
    log_every=50, save_every=100, evaluate_every=226,
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
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FEWER, LOST, ROUNDS = 40.0, 0.3, 3

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="tiny networks, 48 pairs, a few thresholds; the figures mean nothing",
    threads=1,
    options=(
        data("--folder", "multi30k_en_de", "Multi30k"),
        Option("--runs", "run folders, to go on from", Path, RUNS / "depth_adaptive"),
    ),
)


def main(run: Run) -> bool:
    base = replace(SETTINGS, folder=str(run.given.folder), **(QUICK if run.quick else {}))
    runs = run.given.runs / ("quick" if run.quick else "small")
    pairs = load_data("multi30k", run.given.folder, base.limit)
    assert isinstance(pairs, Pairs)
    folders = {f"stacked, {n} layers": replace(base, decoder_layers=n) for n in ALONE}
    folders |= {name: replace(base, depth="adaptive", depth_option=given or None) for name, given in NETWORKS.items()}
    rows: dict[str, Written] = {}
    for name, settings in folders.items():
        folder = runs / name.replace(", ", "-").replace(" ", "-")
        ensure(folder, settings, run.console)
        network = Written(folder, pairs)
        if name in NETWORKS:
            rows |= network.ways(name, THRESHOLDS[::3] if run.quick else THRESHOLDS)
        else:
            rows[name] = network
    full = rows[f"stacked, {LAYERS} layers"]
    for _ in range(1 if run.quick else ROUNDS):
        for row in rows.values():
            row.write("test")
    shown = Table(
        "decoder", "parameters", "layers a token", "fewer, %", "BLEU", "difference", "time, s", "times as fast"
    )
    shown.title = f"Multi30k en-de, greedy, {bleu_signature()}"
    records: list[Record] = []
    met = False
    for name, row in rows.items():
        fewer, difference = 100 * (1 - row.layers / LAYERS), row.bleu - full.bleu
        met |= "stacked" not in name and fewer >= FEWER and difference >= -LOST
        seconds, faster = median(row.seconds), median(full.seconds) / median(row.seconds)
        figures = {"parameters": float(row.parameters), "layers": row.layers, "bleu": row.bleu, "speed": faster}
        setting = {"data": "multi30k", "split": "test", "hidden": base.hidden, "epochs": base.epochs, "beams": 1}
        records += [run.record(metric, value, name, setting) for metric, value in figures.items()]
        shown.add_row(
            name, f"{row.parameters:,}", f"{row.layers:.2f}", f"{fewer:.0f}", f"{row.bleu:.2f}", f"{difference:+.2f}",
            f"{seconds:.1f}", f"{faster:.2f}",
        )  # fmt: skip
    run.show(shown)
    run.write(records)
    print(f"{FEWER:.0f} % fewer layers at most {LOST} BLEU below {LAYERS} stacked layers: {yes(met)}")
    return met


class Written:
    """The translations of a finished run, written in one way of halting.

    Args:
        folder: Folder of the run.
        pairs: The data.
        way: Attributes of its kind of depth that are set before it writes.

    Attributes:
        bleu: BLEU of the last translations.
        layers: Decoder layers of a token in these, on average.
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
        return {f"{name}, exit {n}": row for n, row in at.items()} | {f"{name}, confidence above {best}": chosen}

    def write(self, split: str) -> None:
        """Translate a split, and judge what was written."""
        sources, references = zip(*self.pairs.split(split), strict=True)
        decoder: Any = cast(Any, self.model).decoder
        counts = [0, 0]

        def count(*given: Any) -> None:
            steps: Tensor = given[-1].steps
            counts[0], counts[1] = counts[0] + int(steps.sum()), counts[1] + int((steps > 0).sum())

        hooks = []
        if decoder.depth is not None:
            for name, value in self.way.items():
                setattr(decoder.depth, name, value)
            hooks.append(decoder.depth.register_forward_hook(count))
        start = time.perf_counter()
        texts = list(translations(self.model, self.tokenizer, sources))
        self.seconds += [time.perf_counter() - start] if split == "test" else []
        for hook in hooks:
            hook.remove()
        self.layers = counts[0] / counts[1] if hooks else float(len(decoder.layers))
        self.bleu = translation_scores(texts, references)["bleu"]


if __name__ == "__main__":
    BENCHMARK.run(main)
