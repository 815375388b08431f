"""Translation, Multi30k English to German: the encoder-decoder dense and with LED in every map, at equal steps.

    python benchmarks/multi30k.py [--blocks] [--quick] [--json results/multi30k.jsonl] [--page docs/multi30k.md]

BLEU and chrF by sacreBLEU on test_2016_flickr, with case, beam of 4. Stopped at any moment, the same command goes on.
With --blocks also the Lite Transformer (Wu 2020, f = d) and the Evolved Transformer (So 2019, f = 4 d, two cells for
three layers), each as wide as the parameters of the Transformer allow.
"""

import json
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table

from greenformers.measure.parameters import parameters
from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.measure.translation import bleu_signature
from greenformers.model import GreenformerConfig, GreenformerForSeq2SeqLM
from greenformers.train import checkpoint
from greenformers.train.evaluate import evaluate
from greenformers.train.run import ensure, trained
from greenformers.train.settings import Settings

BASELINE = "transformer"
VARIANTS = [BASELINE, "lrt"]
BLOCKS = ["lite", "evolved"]
SETTINGS = Settings(
    data="multi30k", vocabulary=6000, length=64, hidden=256, layers=3, decoder_layers=3, heads=4, feed_forward=1024,
    rank=64, residual="pre", dropout=0.1, epochs=5, batch=128, learning_rate=1e-3, precision="bf16",
    log_every=50, save_every=100, evaluate_every=226,
)  # fmt: skip
QUICK: dict[str, Any] = {
    "limit": 150,
    "vocabulary": 500,
    "hidden": 32,
    "rank": 8,
    "epochs": 2,
    "batch": 16,
    "evaluate_every": 9,
}
SHOWN = 8  # sentences

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--folder", "multi30k_en_de", "Multi30k"),
        Option("--blocks", "Lite and Evolved Transformer of as many parameters too", bool),
        Option("--runs", "run folders, to go on from", Path, RUNS / "multi30k"),
        Option("--page", "Markdown file for the table and sample translations", Path),
    ),
)


def main(run: Run) -> None:
    base = replace(SETTINGS, folder=str(run.given.folder), **(QUICK if run.quick else {}))
    runs = run.given.runs / ("quick" if run.quick else "small")
    setting = {"data": "multi30k", "split": "test", "hidden": base.hidden, "epochs": base.epochs, "beams": 4}
    records, texts = [], {}
    for variant in [*VARIANTS, *(BLOCKS if run.given.blocks else [])]:
        settings = replace(base, variant=variant)
        if variant in BLOCKS:
            settings = as_large(settings, runs / BASELINE)
            run.console.print(f"{variant}: width {settings.hidden}, {settings.layers} layers on either side")
        ensure(runs / variant, settings, run.console)
        scores, texts[variant] = judged(runs / variant)
        figures = {"parameters": float(parameters(trained(runs / variant)))} | scores
        records += [run.record(name, value, variant, setting) for name, value in figures.items()]
    records = with_ratios(records, to=BASELINE)
    run.show(table(records))
    run.write(records)
    if run.given.page:
        run.given.page.write_text(page(records, texts, run.about))


def as_large(settings: Settings, baseline: Path) -> Settings:
    """The settings of the widest network of a block that has no more parameters than the one of a finished run."""
    model = trained(baseline)
    marks = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    given = {name: getattr(model.config, name) for name in (*marks, "max_position_embeddings")}

    def of_width(d: int) -> Settings:
        shape: dict[str, Any] = {"hidden": d, "feed_forward": d}
        if settings.variant == "evolved":
            cells = max(1, round(settings.layers * 2 / 3))
            shape |= {"feed_forward": 4 * d, "layers": cells, "decoder_layers": cells}
        return replace(settings, residual=None, **shape)  # its residuals are its own

    def size(d: int) -> int:
        with torch.device("meta"):
            return parameters(GreenformerForSeq2SeqLM(GreenformerConfig(**given | of_width(d).sizes())))

    step = 2 * settings.heads  # half of the width has the heads, or the width has twice as many
    widths = range(step, 4 * settings.hidden + 1, step)
    return of_width(widths[bisect_right(widths, parameters(model), key=size) - 1])


def judged(run: Path) -> tuple[dict[str, float], list[str]]:
    """Scores on the test split and every translation; computed once a run."""
    kept = run / "test.json"
    if not kept.exists():
        evaluation = evaluate(run, "test")
        checkpoint.replace(kept, json.dumps({"scores": evaluation.scores, "texts": evaluation.texts}))
    found = json.loads(kept.read_text())
    return found["scores"], found["texts"]


def table(records: list[Record]) -> Table:
    """A row a variant."""
    found = {(record.variant, record.metric): record for record in records}
    metrics = list(dict.fromkeys(record.metric for record in records))
    variants = list(dict.fromkeys(record.variant for record in records))
    shown = Table("variant", *(METRICS[name].label for name in metrics), title=f"Multi30k en-de, {bleu_signature()}")
    for variant in variants:
        shown.add_row(variant, *(f"{found[variant, name].value:,.4g}" for name in metrics))
    return shown


def page(records: list[Record], texts: dict[str, list[str]], about: dict[str, Any]) -> str:
    """The table and some sentences as Markdown."""
    found = {(record.variant, record.metric): record.value for record in records}
    lines = ["# Multi30k, English to German", "", f"Made by `{about['command']}`. {bleu_signature()}.", ""]
    lines += ["| variant | parameters | BLEU | chrF | loss (nats a token) |", "|---|---:|---:|---:|---:|"]
    for variant in texts:
        figures = {name: found[variant, name] for name in ("parameters", "bleu", "chrf", "loss")}
        lines.append(
            f"| {variant} | {figures['parameters']:,.0f} | {figures['bleu']:.1f} | {figures['chrf']:.1f} "
            f"| {figures['loss']:.3f} |"
        )
    lines += ["", "The first sentences of the test set:", ""]
    for place in range(min(SHOWN, len(texts[BASELINE]))):
        source, target, _ = texts[BASELINE][place].split("\n", 2)
        lines += [f"- {source}", f"  - {target}"]
        for variant in texts:
            # What a network that has hardly learnt writes may itself hold line breaks.
            written = texts[variant][place].split("\n", 2)[2].split(":", 1)[1]
            lines.append(f"  - {variant}: {' '.join(written.split())}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    BENCHMARK.run(main)
