"""Real labels: core promoters, Linformer from scratch beside k-mers and a small convolutional network.

    python benchmarks/genome_promoters.py [--quick] [--out runs/promoters] [--json results/genome_promoters.jsonl]

5,919 human sequences of 70 bases, core promoter or not (EPDnew, as published with DNABERT); drawn into train, valid and
test five times. The network reads 6-mers with a stride of 1, as DNABERT does, without any pre-training; its judges are
those of `greenformers genome finetune` (all variants: which base is at which place), gradient boosting on 6-mer counts,
and convolutions as GenomicBenchmarks has them. Intervals are of the difference on the same test sequences. Work that
was stopped goes on where it was, from the run folders in --out.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _harness import RUNS, Benchmark, Option, Run, data
from _promoter_peers import boosting, convolutions

from greenformers.genome import judge
from greenformers.genome.baselines import kmer_counts
from greenformers.genome.encode import Encoding
from greenformers.genome.files import Region
from greenformers.genome.finetune import finetune
from greenformers.genome.people import People
from greenformers.genome.risk import Chances
from greenformers.genome.settings import Finetuning
from greenformers.genome.tokenizer import kmer_tokens

NAME = "dnabert_prom_core"
NETWORK = Finetuning(
    hidden=128, layers=2, heads=4, feed_forward=256, dropout=0.2, k=32, length=72, residual="pre", pooling="mean",
    batch=32, epochs=12, patience=4, learning_rate=1e-3, decay=0.999,
)  # fmt: skip

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="600 sequences, one epoch, two draws",
    options=(
        data("--data", ".", "folder of the data sets", f"{NAME}/prom_core_dev.tsv.gz"),
        Option("--out", "folder of the runs", Path, RUNS / "promoters"),
    ),
)


def main(run: Run) -> None:
    out = run.given.out / ("quick" if run.quick else "full")
    sequences, tokens = out / "sequences.tsv", out / "tokens"
    if not tokens.exists():
        encoded(run.given.data / NAME / "prom_core_dev.tsv.gz", sequences, 600 if run.quick else None)
        people = People.load(sequences)
        kmer_tokens((people.text(number) for number in range(len(people.names))), size=4101).save_pretrained(tokens)
    settings = replace(NETWORK, sequences=str(sequences), tokens=str(tokens), epochs=1 if run.quick else 12)
    chances = finetune(settings, out / "risk", 2 if run.quick else 5, run.console)
    people = People.load(sequences)
    judged = judge.records(settings, chances, judge.features(people), people, others=others(people, settings, chances))
    records = [replace(record, benchmark=BENCHMARK.name, context=run.about) for record in judged]
    run.show(judge.table(records))
    run.write(records)


def others(people: People, settings: Finetuning, chances: Sequence[Chances]) -> dict[str, list[Chances]]:
    """What other models say to the same draws."""
    draws = [
        people.splits(settings.split + at, settings.valid_share, settings.test_share) for at in range(len(chances))
    ]
    texts = [people.text(number) for number in range(len(people.names))]
    counts = kmer_counts(texts, judge.KMER)
    return {
        f"gradient boosting, {judge.KMER}-mer counts": [
            boosting(counts, people.labels, draw, seed) for seed, draw in enumerate(draws)
        ],
        "convolutions, bases": [convolutions(texts, people.labels, draw, seed) for seed, draw in enumerate(draws)],
    }


def encoded(source: Path, out: Path, limit: int | None) -> None:
    """Write the sequences as `genome encode` does, both haplotypes alike."""
    with gzip.open(source, "rt") as file:
        rows = [line.split() for line in file][1:][:limit]
    about = Encoding(source, Region("core_promoter", 0, len(rows[0][0]))).settings()
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{number}\t{label}\t{sequence}\n" for number, (sequence, label) in enumerate(rows, start=1)]
    out.write_text(f"#{json.dumps(about)}\nperson\tphenotype\tsequence\n" + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    BENCHMARK.run(main)
