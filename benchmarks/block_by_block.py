"""MiniLM-L6 compressed from disk, one block in memory at a time, beside the same recipes on the whole model.

    python benchmarks/block_by_block.py [--quick] [--json results/block_by_block.jsonl]

Low rank, few bits and zeros, healed too: from disk a block learns what the block of the original gave, or two or three
blocks what those gave together; with the whole model in memory the network learns what the whole original gives. These
are the commands of a user, on the same sentences of WikiText-2 and STS-B's training pairs; then Spearman's correlation
on STS-B's 625 dev pairs, with its interval.

Bar: block by block, by the best of these ways, at least 99 % of the whole model's correlation, for each recipe.
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
WHOLE = "whole"
BLOCKS = {
    "block by block": ["--from-disk"], "two at once": ["--from-disk", "--blocks-at-once", "2"],
    "three at once": ["--from-disk", "--blocks-at-once", "3"],
}  # fmt: skip
"""Ways from disk; the last two are for recipes that are healed."""
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
            ways = BLOCKS if "--heal" in words else dict(list(BLOCKS.items())[:1])
            whole: dict[str, list[str]] = {WHOLE: []}
            for how, more in (whole | ways).items():
                variant, out = f"{recipe}, {how}", Path(name) / f"{len(models)}"
                seconds[variant] = made(file, [*words, *more], out)
                models[variant] = pretrained(str(out))[0]
                print(f"{variant}: {seconds[variant]:.0f} s", flush=True)
        scores = judge(models, held, Reader.of(dense, tokenizer, LENGTH))
    table = Table("recipe", "how", "seconds", "Spearman, %", "of the whole model's")
    records, met = [], True
    for recipe in dict.fromkeys(name.rpartition(", ")[0] for name in seconds):
        entire, *others = (name for name in seconds if name.rpartition(", ")[0] == recipe)
        shares = {name: scores[name]["spearman"][0] / scores[entire]["spearman"][0] for name in (entire, *others)}
        met = met and max(shares[name] for name in others) >= BAR
        for name, share in shares.items():
            spearman = scores[name]["spearman"][0]
            table.add_row(recipe, name.rpartition(", ")[2], f"{seconds[name]:.0f}", f"{spearman:.2f}", f"{share:.1%}")
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
