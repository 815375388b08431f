"""MiniLM-L6 by `greenformers compress`: low rank, healed, of 8 bits, each beside the others; or with fewer layers.

    python benchmarks/combine_minilm.py [--quick] [--json results/combine_minilm.jsonl]
    python benchmarks/combine_minilm.py --keep-layers 3 [--quick] [--json results/combine_minilm.jsonl]

Calibrated on 1,000 sentences of WikiText-2, healed for 300 steps on 20,000 of these and STS-B's training sentences,
aware of the rounding; judged on STS-B's dev pairs. Bar of the first: with low rank and 8 bits the model as saved is at
least 4 times smaller, and keeps 97 % of Spearman's correlation. The second drops every other layer, and no weights of
those that stay.
"""

import tempfile
from pathlib import Path

from _harness import Benchmark, Option, Run, data, told
from compress_minilm import LENGTH, SENTENCES, model_folder, pairs, sentences
from greenformers.compress.command import DENSE, HEALED, INT8, Wanted
from greenformers.compress.command import run as compressed

from greenformers.changes.heal import Healing
from greenformers.data._texts import Texts
from greenformers.report.table import tables
from greenformers.solve.budget import Budget

SMALLER, KEPT = 4.0, 0.97
STEPS = 300

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any healing; the figures mean little",
    options=(
        data("--data", ".", "folder of wikitext2 and stsb_open"),
        Option("--keep-layers", "so many layers, in place of low rank", int),
    ),
)


def main(run: Run) -> bool:
    given, folder = run.given, model_folder() or run.skip("it needs the extra minilm")
    taught = sentences(given.data / "wikitext2", 500 if run.quick else 20_000)
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        (here / "calibration.txt").write_text("\n".join(taught[:SENTENCES]))
        (here / "lessons.txt").write_text("\n".join([*taught, *pairs(given.data / "stsb_open", "train").lines]))
        _write(here / "stsb_dev.tsv", pairs(given.data / "stsb_open", "valid"))
        _, records = compressed(
            Wanted(
                model=str(folder), out=here / "small", budget=None if given.keep_layers else Budget(0.5),
                solver="sequential_loss", select=None, calibrate=here / "calibration.txt", limit=SENTENCES,
                length=LENGTH, evaluate=here / "stsb_dev.tsv", lengths=[LENGTH], only_if_faster=False, multiple=None,
                seed=0, country="USA", keep_layers=given.keep_layers, heal_texts=here / "lessons.txt", int8=True,
                heal=Healing(3 if run.quick else STEPS, int8=True),
            ),
            run.about,
            told,
        )  # fmt: skip
        stored = (here / "small" / "model.safetensors").stat().st_size
        smaller = (folder / "model.safetensors").stat().st_size / stored
    run.show(*tables(records, 120))
    kept = next(r.ratio or 0 for r in records if (r.variant, r.metric) == (f"{HEALED}, {INT8}", "spearman"))
    print(f"as saved {stored:,} bytes, {smaller:.2f}x smaller than {DENSE}; Spearman {100 * kept:.1f} % of it")
    run.write(records)
    return run.quick or bool(given.keep_layers) or (smaller >= SMALLER and kept >= KEPT)


def _write(path: Path, texts: Texts) -> None:
    rows = [
        "\t".join([*segments, str(score)]) for segments, score in zip(texts.segments, texts.labels or [], strict=True)
    ]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")


if __name__ == "__main__":
    BENCHMARK.run(main)
