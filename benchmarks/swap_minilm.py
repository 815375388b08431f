"""MiniLM-L6 with another attention in every other layer, healed; and the same with half of its Linear weights.

    python benchmarks/swap_minilm.py [--quick] [--json results/swap_minilm.jsonl]
    python benchmarks/swap_minilm.py --speed [--json results/swap_minilm.jsonl]
    python benchmarks/swap_minilm.py --picture docs/swap_minilm.png --json results/swap_minilm.jsonl

Layers 1, 3 and 5 get a window of 64 on either side, or Linformer with k 128. Healed for a fixed number of AdamW steps
towards the original's hidden states and embeddings, on sentences of WikiText-2 and STS-B and reviews of IMDB of up to
512 tokens. Judged: Spearman on STS-B's dev pairs, and the mean cosine to the original's embeddings of 200 IMDB test
reviews at 512 tokens. `--speed`: latency of 8 texts of 512 tokens, interleaved, beside SDPA and eager attention.
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
from compress_minilm import CHOICE, LENGTH, model_folder, pairs, sentences, told
from matplotlib.figure import Figure
from rich.console import Console
from transformers import AutoTokenizer, BertModel, PreTrainedModel, PreTrainedTokenizerBase, logging

from greenformers.changes.attention import swap_attention
from greenformers.changes.heal import Healing, heal
from greenformers.compress.quality import judge
from greenformers.compress.side_by_side import measured
from greenformers.data._texts import Texts, batches
from greenformers.data.imdb import load as load_reviews
from greenformers.measure.record import METRICS, Record, append, context, read, with_ratios
from greenformers.report.curves import save
from greenformers.report.plot import COLOURS, HATCHES, grid, house, new_figure, settle
from greenformers.report.table import tables
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import compress

LONG, LAYERS, HEALED = 512, (1, 3, 5), ", healed"
ATTENTIONS = {"sliding_window": {"window": 64}, "linformer": {"k": 128}}
STEPS, BATCH, RATE = 200, 32, 5e-4
SHORT_TEXTS, REVIEWS, JUDGED = 6000, 1500, 200


def variants(dense: BertModel, calibration: list[dict[str, torch.Tensor]]) -> dict[str, PreTrainedModel]:
    """All networks, before healing."""
    low = copy.deepcopy(dense)
    compress(low, Budget(CHOICE[0], CHOICE[2]), solver=CHOICE[1], calibration=calibration)
    found: dict[str, PreTrainedModel] = {"dense": dense, "low rank": low}
    for attention, options in ATTENTIONS.items():
        for prefix, base in (("", dense), ("low rank + ", low)):
            found[prefix + attention] = made = copy.deepcopy(base)
            swap_attention(made, attention, layers=LAYERS, options=options)
    return found


def scores(
    models: dict[str, PreTrainedModel],
    judged: list[tuple[Texts, int]],
    tokenizer: PreTrainedTokenizerBase,
    about: dict[str, object],
) -> list[Record]:
    """Of all models on short pairs and long texts."""
    return [
        Record(
            "swap_minilm", name, {"texts": texts.name, "length": length, "steps": STEPS}, metric, value,
            METRICS[metric].unit, interval=interval, to="dense" if interval else None, context=about,
        )
        for texts, length in judged
        for name, metrics in judge(models, texts, tokenizer, length).items()
        for metric, (value, interval) in metrics.items()
    ]  # fmt: skip


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
        found = {
            r.variant: value(r)
            for r in records
            if r.metric == metric and (metric == "spearman" or r.setting["length"] == LONG)
        }
        for label, ending, colour, shift in (("as it is", "", COLOURS[2], 0.2), ("healed", HEALED, COLOURS[1], -0.2)):
            at = [place for place, name in enumerate(names) if name + ending in found]
            places = [place + (shift if metric != "latency" and names[place] + HEALED in found else 0) for place in at]
            bars = axes.barh(
                places, [found[names[place] + ending] for place in at], 0.38, color=colour, label=label,
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


def speed(models: dict[str, PreTrainedModel], about: dict[str, object]) -> list[Record]:
    """Latency, FLOPs and size, the eager baseline beside."""
    eager = copy.deepcopy(models["dense"])
    eager.set_attn_implementation("eager")
    models = {**models, "dense, eager": eager}
    sizes = {name: sum(p.numel() * p.element_size() for p in model.parameters()) for name, model in models.items()}
    return measured(models, sizes, [LONG], benchmark="swap_minilm", vocabulary=30522, about=about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="wikitext2, stsb_open and imdb")
    parser.add_argument("--quick", action="store_true", help="hardly any healing; the figures mean little")
    parser.add_argument("--speed", action="store_true", help="only time the networks")
    parser.add_argument("--picture", type=Path, help="only draw the records of --json")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    if given.picture:
        save(picture(with_ratios(read(given.json), to="dense")), given.picture)
        return 0
    folder = model_folder()
    if folder is None or not given.data.is_dir():
        parser.exit(message="skipped: it needs the extra minilm and --data\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    dense, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    words = sentences(given.data / "wikitext2", 50 if given.quick else SHORT_TEXTS)
    models = variants(dense, batches(words[:1000], tokenizer, "encoder", LENGTH, 64))
    about = context("python benchmarks/swap_minilm.py" + " --speed" * given.speed + " --quick" * given.quick, 0)
    if given.speed:
        records = speed(models, about)
    else:
        reviews = load_reviews(given.data / "imdb")
        taught = [row[0] for row in reviews.train.texts[:: 500 if given.quick else 4500 // REVIEWS]][:REVIEWS]
        lessons = [*words, *pairs(given.data / "stsb_open", "train").lines, *taught]
        held = [tuple(row) for row in reviews.test.texts[:: len(reviews.test.texts) // JUDGED]][:JUDGED]
        judged = [
            (pairs(given.data / "stsb_open", "valid"), LENGTH),
            (Texts("imdb test", held[: 8 if given.quick else None]), LONG),
        ]
        healed = {}
        for name in [name for name in models if name != "dense"]:
            healed[name + HEALED] = made = copy.deepcopy(models[name])
            heal(
                made, dense, lessons, tokenizer, Healing(2 if given.quick else STEPS, BATCH, RATE), length=LONG,
                progress=told,
            )  # fmt: skip
            print(f"{name} is healed", flush=True)
        records = scores({**models, **healed}, judged, tokenizer, about)
    records = with_ratios(records, to="dense")
    for table in tables(records, 120):
        Console(width=120).print(table)
    if given.json:
        append(given.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
