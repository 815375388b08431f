"""Translation, Multi30k English to German: dense and with low-rank linear layers, at equal steps.

    python benchmarks/multi30k.py [--blocks] [--quick] [--seeds 3] [--ways lrt,narrow] [--rates 0.5,1,2] [--epochs 5]
        [--json results/multi30k.jsonl] [--page docs/multi30k.md]

BLEU and chrF by sacreBLEU on test_2016_flickr, with case, beam of 4. Beside low rank stand dense networks of smaller
width with as many parameters (narrow) or FLOPs (narrow_flops), each trained by Muon and by AdamW, and low rank that is
dense for the first quarter of the steps (lrt dense first). The learning rate of each is that of the grid with the least
loss on the validation set, after a training with seed 0: AdamW's at 0.5, 1 and 2 times 1e-3, Muon's at five times
these. With several seeds, intervals are of the mean over them, seed by seed. Time is that of all steps, from some of
them of all networks by turns. Bar: low rank, in the way that is best on the validation set, at most 1 BLEU below the
dense network, in no more time. Stopped at any moment, the same command goes on; what the file of --json has is not
repeated.

With --blocks also the Lite Transformer (Wu 2020, f = d) and the Evolved Transformer (So 2019, f = 4 d, two cells for
three layers), each as wide as the parameters of the Transformer allow, by Muon at the same grid.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from _study import Study, Trained, Values, beside, means, study
from _train_times import bar, train_times
from _ways import DENSE, OPTIONS, Plan, Way, ways
from rich.table import Table

from greenformers.measure.parameters import parameters
from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.measure.translation import bleu_signature
from greenformers.model import GreenformerConfig, GreenformerForSeq2SeqLM
from greenformers.train import checkpoint
from greenformers.train.evaluate import evaluate
from greenformers.train.run import trained
from greenformers.train.settings import Settings

BLOCKS = ("lite", "evolved")
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
JUDGED = ("parameters", "bleu", "chrf", "loss")
LOST = 1.0

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--folder", "multi30k_en_de", "Multi30k"),
        Option("--blocks", "Lite and Evolved Transformer of as many parameters too", bool),
        Option("--runs", "run folders, to go on from", Path, RUNS / "multi30k"),
        Option("--epochs", f"passes over the training pairs; {SETTINGS.epochs} if not given", int),
        Option("--page", "Markdown file for the table and sample translations", Path),
        *OPTIONS,
    ),
)


def main(run: Run) -> bool:
    base = replace(SETTINGS, folder=str(run.given.folder), **(QUICK if run.quick else {}))
    runs = run.given.runs / ("quick" if run.quick else "small")
    if run.given.epochs is not None:
        base, runs = replace(base, epochs=run.given.epochs), runs.with_name(f"{runs.name}-{run.given.epochs}")
    plan = Plan.asked(run, ways())
    setting = {"data": "multi30k", "hidden": base.hidden, "epochs": base.epochs}
    tested = setting | {"split": "test", "beams": 4}

    def judge(name: str, own: Trained) -> dict[str, float]:
        return figures(run, own, name, tested | {"seed": own.settings.seed} | own.rates)

    ran = study(run, plan, base, runs, "loss", setting, judge=judge)
    if run.given.blocks:
        dense, blocks = ran.best[DENSE][0].at_hand(run), dict[str, Way]()
        for name in BLOCKS:
            blocks[name] = Way(name, more=as_large(replace(base, variant=name), dense))
            run.console.print(f"{name}: {blocks[name].more}")
        more = study(run, replace(plan, ways=blocks), base, runs, "loss", setting, judge=judge)
        ran = Study("loss", {**ran.tried, **more.tried}, {**ran.best, **more.best}, {**ran.judged, **more.judged})
    values = {metric: {name: [each[metric] for each in own] for name, own in ran.judged.items()} for metric in JUDGED}
    times = train_times(run, ran, setting)
    run.show(ran.table(), table(ran, values, times))
    averages = [own for metric in ("bleu", "chrf", "loss") for own in means(run, metric, values[metric], tested)]
    run.write([*with_ratios(averages, to=DENSE), *times.values()])
    if run.given.page:
        texts = {name: judged(own[0].at_hand(run))[1] for name, own in ran.best.items()}
        run.given.page.write_text(page(values, texts, run.about))
    return bar(ran, "bleu", values["bleu"], times, "lrt", LOST) or run.quick


def figures(run: Run, own: Trained, name: str, setting: Mapping[str, Any]) -> dict[str, float]:
    """What is known of a training on the test split; what is not is found out, and written."""
    known = {metric: run.remembered(metric, name, setting) for metric in JUDGED}
    values = {metric: record.value for metric, record in known.items() if record is not None}
    if len(values) == len(JUDGED):
        return values
    folder = own.at_hand(run)
    scores = {"parameters": float(parameters(trained(folder)))} | judged(folder)[0]
    run.write(run.record(metric, scores[metric], name, setting, seed=own.settings.seed) for metric in JUDGED)
    return {metric: scores[metric] for metric in JUDGED}


def as_large(settings: Settings, baseline: Path) -> dict[str, Any]:
    """What makes settings those of the widest network of a block with no more parameters than a finished run has."""
    model = trained(baseline)
    marks = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    given = {name: getattr(model.config, name) for name in (*marks, "max_position_embeddings")}

    def of_width(d: int) -> dict[str, Any]:
        shape: dict[str, Any] = {"hidden": d, "feed_forward": d, "residual": None}  # its residuals are its own
        if settings.variant == "evolved":
            cells = max(1, round(settings.layers * 2 / 3))
            shape |= {"feed_forward": 4 * d, "layers": cells, "decoder_layers": cells}
        return shape

    def size(d: int) -> int:
        sizes = replace(settings, **of_width(d)).sizes()
        with torch.device("meta"):
            return parameters(GreenformerForSeq2SeqLM(GreenformerConfig(**given | sizes)))

    step = 2 * settings.heads  # half of the width has the heads, or the width has twice as many
    widths = range(step, 4 * settings.hidden + 1, step)
    return of_width(widths[bisect_right(widths, parameters(model), key=size) - 1])


def judged(run: Path) -> tuple[dict[str, float], list[str]]:
    """Scores on the test split and every translation; computed once a run."""
    path = run / "test.json"
    if not path.exists():
        evaluation = evaluate(run, "test")
        checkpoint.replace(path, json.dumps({"scores": evaluation.scores, "texts": evaluation.texts}))
    content = json.loads(path.read_text())
    return content["scores"], content["texts"]


def table(ran: Study, values: Mapping[str, Values], times: Mapping[str, Record]) -> Table:
    """A row a way: the means over seeds, and the differences of BLEU to the dense network."""
    shown = Table(
        "variant", "rate", *(METRICS[name].label for name in values), "BLEU, beside transformer", "time of transformer",
        title=f"Multi30k en-de, {bleu_signature()}",
    )  # fmt: skip
    for name, trainings in ran.best.items():
        shown.add_row(
            name, f"{trainings[0].rate:g}", *(f"{fmean(own[name]):,.4g}" for own in values.values()),
            beside(values["bleu"], name), f"{1 / (times[name].ratio or 1):.2f}",
        )  # fmt: skip
    return shown


def page(values: Mapping[str, Values], texts: dict[str, list[str]], about: dict[str, Any]) -> str:
    """The table and some sentences as Markdown."""
    lines = ["# Multi30k, English to German", "", f"Made by `{about['command']}`. {bleu_signature()}.", ""]
    lines += ["| variant | parameters | BLEU | to the transformer | chrF | loss (nats a token) |"]
    lines += ["|---|---:|---:|---|---:|---:|"]
    for variant in texts:
        figures = {name: fmean(values[name][variant]) for name in ("parameters", "bleu", "chrf", "loss")}
        lines.append(
            f"| {variant} | {figures['parameters']:,.0f} | {figures['bleu']:.1f} | {beside(values['bleu'], variant)} "
            f"| {figures['chrf']:.1f} | {figures['loss']:.3f} |"
        )
    lines += ["", "The first sentences of the test set:", ""]
    for place in range(min(SHOWN, len(texts[DENSE]))):
        source, target, _ = texts[DENSE][place].split("\n", 2)
        lines += [f"- {source}", f"  - {target}"]
        for variant in texts:
            # What a network that has hardly learnt writes may itself hold line breaks.
            written = texts[variant][place].split("\n", 2)[2].split(":", 1)[1]
            lines.append(f"  - {variant}: {' '.join(written.split())}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    BENCHMARK.run(main)
