"""MiniLM-L6 compressed from disk, one block in memory at a time, beside the same recipes on the whole model.

    python benchmarks/block_by_block.py [--quick] [--json results/block_by_block.jsonl]

Low rank, few bits, and both healed: from disk a block learns what the block of the original gave, with the whole model
in memory the network learns what the whole original gives. Both are the commands of a user, on the same sentences of
WikiText-2 and STS-B's training pairs; then Spearman's correlation on STS-B's 625 dev pairs, with its interval.

Bar: block by block at least 99 % of the whole model's correlation, for each recipe.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import Benchmark, Run, data, yes
from compress_minilm import LENGTH, minilm, model_folder, pairs, sentences
from rich.table import Table
from transformers import PreTrainedModel

from greenformers.checkpoint.pretrained import pretrained
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader

LOW_RANK = ["--keep", "0.5", "--uniform", "--solver", "sequential"]
SPARSE = ["--sparse", "0.5", "--sparse-pattern", "2:4"]
RECIPES = {
    "low rank 0.5": LOW_RANK, "low rank 0.5, healed": [*LOW_RANK, "--heal", "300"],
    "3 bits, GPTQ": ["--bits", "3", "--bits-by", "gptq"],
    "2:4 sparse": SPARSE,
    "2:4 sparse, healed": [*SPARSE, "--heal", "300"],
}  # fmt: skip
WHOLE, BLOCKS = "whole", "block by block"
TEXTS, QUICK_TEXTS, BAR = 1000, 80, 0.99

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="one recipe, few sentences; the figures mean nothing",
    options=(data("--texts", "wikitext2", "WikiText-2"), data("--pairs", "stsb_open", "STS-B")),
    threads=2,
)


def main(run: Run) -> bool:
    dense, tokenizer = minilm(run)
    count = QUICK_TEXTS if run.quick else TEXTS
    train, held = pairs(run.given.pairs, "train"), pairs(run.given.pairs, "valid")
    models: dict[str, PreTrainedModel] = {"dense": dense}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "texts.txt"
        lines = [*sentences(run.given.texts, count), *(text for row in train.segments[:count] for text in row)]
        file.write_text("\n".join(dict.fromkeys(" ".join(line.split()) for line in lines)) + "\n")
        for recipe, words in list(RECIPES.items())[:1] if run.quick else RECIPES.items():
            for how in (WHOLE, BLOCKS):
                variant, out = f"{recipe}, {how}", Path(name) / f"{len(models)}"
                seconds[variant] = made(file, [*words, *(["--from-disk"] if how == BLOCKS else [])], out)
                models[variant] = pretrained(str(out))[0]
                print(f"{variant}: {seconds[variant]:.0f} s", flush=True)
        scores = judge(models, held, Reader.of(dense, tokenizer, LENGTH))
    table = Table("recipe", "seconds, whole", "block by block", "Spearman, whole, %", "block by block, %", "of it")
    records, met = [], True
    for recipe in dict.fromkeys(name.rpartition(", ")[0] for name in seconds):
        variants = [f"{recipe}, {how}" for how in (WHOLE, BLOCKS)]
        values = [scores[variant]["spearman"][0] for variant in variants]
        share = values[1] / values[0]
        met = met and share >= BAR
        table.add_row(
            recipe, *(f"{seconds[variant]:.0f}" for variant in variants), *(f"{x:.2f}" for x in values), f"{share:.1%}"
        )
    for variant, took in seconds.items():
        records.append(run.record("compression_time", took, variant, {"texts": 2 * count}))
    records += run.scores(scores, {"texts": 2 * count})
    run.show(table)
    run.write(records)
    print(f"block by block at least {BAR:.0%} of the whole model's: {yes(met)}")
    return run.quick or met


def made(texts: Path, words: list[str], out: Path) -> float:
    """A recipe applied by the command. Its seconds."""
    began = time.perf_counter()
    at = ["--calibrate" if "--heal" not in words else "--texts", str(texts), "--length", str(LENGTH)]
    command = [sys.executable, "-m", "greenformers", "compress", str(model_folder()), *words, *at, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    BENCHMARK.run(main)
