"""MiniLM-L6 by `greenformers compress`: low rank, healed, of 8 bits, each beside the others; or with fewer layers.

    python benchmarks/combine_minilm.py [--quick] [--json results/combine_minilm.jsonl]
    python benchmarks/combine_minilm.py --keep-layers 3 [--quick] [--json results/combine_minilm.jsonl]

Calibrated on 1,000 sentences of WikiText-2, healed for 300 steps on 20,000 of these and STS-B's training sentences,
aware of the rounding; judged on STS-B's dev pairs. Bar of the first: with low rank and 8 bits the model as saved is at
least 4 times smaller, and keeps 97 % of Spearman's correlation. The second drops every other layer, and no weights of
those that stay.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from compress_minilm import LENGTH, SENTENCES, model_folder, pairs, sentences, told
from greenformers.compress.command import DENSE, HEALED, INT8, Wanted, run
from rich.console import Console
from transformers import logging

from greenformers.changes.heal import Healing
from greenformers.data._texts import Texts
from greenformers.measure.record import append, context
from greenformers.report.table import tables
from greenformers.solve.budget import Budget

SMALLER, KEPT = 4.0, 0.97
STEPS = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="wikitext2 and stsb_open")
    parser.add_argument("--keep-layers", type=int, help="so many layers, in place of low rank")
    parser.add_argument("--quick", action="store_true", help="hardly any healing; the figures mean little")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    folder = model_folder()
    if folder is None or not given.data.is_dir():
        parser.exit(message="skipped: it needs the extra minilm and --data\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    layers = "" if given.keep_layers is None else f" --keep-layers {given.keep_layers}"
    about = context(f"python benchmarks/combine_minilm.py{layers}" + " --quick" * given.quick, 0)
    taught = sentences(given.data / "wikitext2", 500 if given.quick else 20_000)
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        (here / "calibration.txt").write_text("\n".join(taught[:SENTENCES]))
        (here / "lessons.txt").write_text("\n".join([*taught, *pairs(given.data / "stsb_open", "train").lines]))
        _write(here / "stsb_dev.tsv", pairs(given.data / "stsb_open", "valid"))
        _, records = run(
            Wanted(
                model=str(folder), out=here / "small", budget=None if given.keep_layers else Budget(0.5),
                solver="sequential_loss", select=None, calibrate=here / "calibration.txt", limit=SENTENCES,
                length=LENGTH, evaluate=here / "stsb_dev.tsv", lengths=[LENGTH], only_if_faster=False, multiple=None,
                seed=0, country="USA", keep_layers=given.keep_layers, heal_texts=here / "lessons.txt", int8=True,
                heal=Healing(3 if given.quick else STEPS, int8=True),
            ),
            about,
            told,
        )  # fmt: skip
        stored = (here / "small" / "model.safetensors").stat().st_size
        smaller = (folder / "model.safetensors").stat().st_size / stored
    for table in tables(records, 120):
        Console(width=120).print(table)
    kept = next(r.ratio or 0 for r in records if (r.variant, r.metric) == (f"{HEALED}, {INT8}", "spearman"))
    print(f"as saved {stored:,} bytes, {smaller:.2f}x smaller than {DENSE}; Spearman {100 * kept:.1f} % of it")
    if given.json:
        append(given.json, records)
    return 0 if given.quick or given.keep_layers or (smaller >= SMALLER and kept >= KEPT) else 1


def _write(path: Path, texts: Texts) -> None:
    rows = [
        "\t".join([*segments, str(score)]) for segments, score in zip(texts.segments, texts.labels or [], strict=True)
    ]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
