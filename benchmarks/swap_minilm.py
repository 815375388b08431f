"""MiniLM-L6 with another attention in every other layer, healed; and the same with half of its Linear weights.

    python benchmarks/swap_minilm.py [--quick] [--json results/swap_minilm.jsonl]
    python benchmarks/swap_minilm.py --speed [--json results/swap_minilm.jsonl]
    python benchmarks/swap_minilm.py --picture docs/swap_minilm.png --json results/swap_minilm.jsonl

Layers 1, 3 and 5 get a window of 64 on either side, or Linformer with k 128. Healed for a fixed number of AdamW steps
towards the original's hidden states and embeddings, on sentences of WikiText-2 and STS-B and reviews of IMDB of up to
512 tokens. Judged: Spearman on STS-B's dev pairs, and the mean cosine to the original's embeddings of 200 IMDB test
reviews at 512 tokens. `--speed`: latency of 8 texts of 512 tokens, interleaved, beside SDPA and eager attention.
"""

import copy
from pathlib import Path

import torch
from _harness import DATA, Benchmark, Option, Run, told
from compress_minilm import CHOICE, LENGTH, low_rank, minilm, pairs, sentences
from matplotlib.figure import Figure
from transformers import BertModel, PreTrainedModel, PreTrainedTokenizerBase

from greenformers import compress
from greenformers.changes.attention import Attention
from greenformers.changes.heal import Heal
from greenformers.compress.quality import judge
from greenformers.compress.side_by_side import measured
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches
from greenformers.data.imdb import load as load_reviews
from greenformers.measure.record import Record, with_ratios
from greenformers.report.curves import save
from greenformers.report.plot import COLOURS, HATCHES, grid, house, new_figure, settle
from greenformers.report.table import tables

LONG, LAYERS, HEALED = 512, (1, 3, 5), ", healed"
ATTENTIONS = {"sliding_window": {"window": 64}, "linformer": {"k": 128}}
STEPS, BATCH, RATE = 200, 32, 5e-4
SHORT_TEXTS, REVIEWS, JUDGED = 6000, 1500, 200

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any healing; the figures mean little",
    options=(
        Option("--data", "folder of wikitext2, stsb_open and imdb", Path, DATA),
        Option("--speed", "only time the networks", bool, default=False),
        Option("--picture", "only draw the records of --json", Path),
    ),
)


def main(run: Run) -> None:
    given = run.given
    if given.picture:
        if not given.json:
            run.refuse("--picture draws the records of --json, which is not given")
        save(picture(with_ratios(run.known(), to="dense")), given.picture)
        return
    run.need("--data", given.data)
    dense, tokenizer = minilm(run)
    words = sentences(given.data / "wikitext2", 50 if run.quick else SHORT_TEXTS)
    models = variants(dense, batches(words[:1000], tokenizer, "encoder", LENGTH, 64))
    records = speed(run, models) if given.speed else quality(run, models, tokenizer, words)
    records = with_ratios(records, to="dense")
    run.show(*tables(records, 120))
    run.write(records)


def variants(dense: BertModel, calibration: list[dict[str, torch.Tensor]]) -> dict[str, PreTrainedModel]:
    """All networks, before healing."""
    low = copy.deepcopy(dense)
    compress(low, low_rank(*CHOICE), calibration=calibration)
    models: dict[str, PreTrainedModel] = {"dense": dense, "low rank": low}
    for attention, options in ATTENTIONS.items():
        for prefix, base in (("", dense), ("low rank + ", low)):
            models[prefix + attention] = model = copy.deepcopy(base)
            compress(model, Attention(attention, layers=LAYERS, options=options))
    return models


def quality(
    run: Run, models: dict[str, PreTrainedModel], tokenizer: PreTrainedTokenizerBase, words: list[str]
) -> list[Record]:
    """Scores of all models, before healing and after, on short pairs and long texts."""
    folder, dense = run.given.data, models["dense"]
    reviews = load_reviews(folder / "imdb")
    taught = [row[0] for row in reviews.train.texts[:: 500 if run.quick else 4500 // REVIEWS]][:REVIEWS]
    lessons = [*words, *pairs(folder / "stsb_open", "train").lines, *taught]
    held = [tuple(row) for row in reviews.test.texts[:: len(reviews.test.texts) // JUDGED]][:JUDGED]
    judged = [
        (pairs(folder / "stsb_open", "valid"), LENGTH),
        (Texts("imdb test", held[: 8 if run.quick else None]), LONG),
    ]
    healed = {}
    for name in [name for name in models if name != "dense"]:
        healed[name + HEALED] = model = copy.deepcopy(models[name])
        healing = Heal(2 if run.quick else STEPS, BATCH, RATE)
        compress(model, healing, texts=lessons, tokenizer=tokenizer, teacher=dense, length=LONG, progress=told)
        print(f"{name} is healed", flush=True)
    records = []
    for texts, length in judged:
        setting = {"texts": texts.name, "length": length, "steps": 2 if run.quick else STEPS}
        records += run.scores(judge({**models, **healed}, texts, Reader.of(dense, tokenizer, length)), setting)
    return records


@house
def picture(records: list[Record]) -> Figure:
    """What each network keeps of the original's quality, before healing and after, and its time, at 512 tokens."""
    figure = new_figure(11.4, 3.8, "MiniLM-L6 with another attention in three of its six layers")
    panels = [
        ("spearman", "Spearman on STS-B dev (% of dense)", lambda r: 100 * (r.ratio or 0)),
        ("cosine", "Cosine to dense, reviews of 512 tokens", lambda r: r.value),
        ("latency", "Latency at 512 tokens (% of dense, SDPA)", lambda r: 100 / (r.ratio or 1)),
    ]
    names = list(dict.fromkeys(r.variant.removesuffix(HEALED) for r in records if r.metric == "latency"))[::-1]
    for axes, (metric, words, value) in zip(grid(figure, 1, 3, sharey=True), panels, strict=True):
        values = {
            r.variant: value(r)
            for r in records
            if r.metric == metric and (metric == "spearman" or r.setting["length"] == LONG)
        }
        for label, ending, colour, shift in (("as it is", "", COLOURS[2], 0.2), ("healed", HEALED, COLOURS[1], -0.2)):
            at = [place for place, name in enumerate(names) if name + ending in values]
            places = [place + (shift if metric != "latency" and names[place] + HEALED in values else 0) for place in at]
            bars = axes.barh(
                places, [values[names[place] + ending] for place in at], 0.38, color=colour, label=label,
                hatch=HATCHES[1] if ending else "", edgecolor="white",
            )  # fmt: skip
            axes.bar_label(bars, fmt="%.3g", padding=2)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(words)
        axes.margins(x=0.15)
        if metric == "spearman":
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.18), ncols=2)
    settle(figure)
    return figure


def speed(run: Run, models: dict[str, PreTrainedModel]) -> list[Record]:
    """Latency, FLOPs and size, the eager baseline beside."""
    eager = copy.deepcopy(models["dense"])
    eager.set_attn_implementation("eager")
    models = {**models, "dense, eager": eager}
    sizes = {name: sum(p.numel() * p.element_size() for p in model.parameters()) for name, model in models.items()}
    return measured(models, sizes, [LONG], benchmark=BENCHMARK.name, about=run.about)


if __name__ == "__main__":
    BENCHMARK.run(main)
