"""Models compressed from disk, one block in memory at a time, beside the same recipes on the whole model.

    python benchmarks/block_by_block.py [--quick] [--json results/block_by_block.jsonl]
    python benchmarks/block_by_block.py --model words [--quick] [--json results/block_by_block.jsonl]

Low rank, few bits and zeros, healed too: from disk a block learns what the block of the original gave, or two or three
blocks what those gave together; with the whole model in memory the network learns what the whole original gives. These
are the commands of a user, on the same 2,000 texts, by which they calibrate and from which they learn. MiniLM-L6 has
sentences of WikiText-2 and of STS-B's training pairs, and is judged by Spearman's correlation on STS-B's 625 dev pairs,
with its interval. `words`, the Llama of 10 million parameters of `few_bits_language_model.py`, has lines of WikiText-2,
and is judged by perplexity on 256 blocks of 256 tokens of its validation part. Stopped, the same command goes on behind
what it had made.

Bar: block by block, by the best of these ways, at least 99 % of the whole model's correlation, or at most 101 % of its
perplexity, for each recipe.
"""

import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data, with_threads, yes
from compress_minilm import LENGTH, minilm, model_folder, pairs, sentences
from few_bits_language_model import HELD, of_words, write
from rich.table import Table
from safetensors.torch import load_file
from sparse_language_model import blocks_of, interval, losses, perplexity
from swap_language_model import LENGTH as BLOCK
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
TEXTS, QUICK_TEXTS, BAR, MOST = 2000, 80, 0.99, 1.01

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="one recipe, few texts, hardly any training; the figures mean nothing",
    options=(
        Option("--model", "minilm or words", default="minilm", choices=("minilm", "words")),
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--runs", "folder of the language model, and of what is done with it", Path, RUNS),
    ),
    threads=2,
)


def main(run: Run) -> bool:
    return language_model(run) if run.given.model == "words" else sentence_encoder(run)


def recipes(quick: bool) -> Iterator[tuple[str, str, list[str]]]:
    """Recipes, ways, and the words of a command that has both; of each recipe first the whole model."""
    for recipe, words in list(RECIPES.items())[:1] if quick else RECIPES.items():
        ways = BLOCKS if "--heal" in words else dict(list(BLOCKS.items())[:1])
        whole: dict[str, list[str]] = {WHOLE: []}
        for how, more in (whole | ways).items():
            yield recipe, how, [*words, *more]


def sentence_encoder(run: Run) -> bool:
    """Spearman's correlation of MiniLM-L6."""
    dense, tokenizer = minilm(run)
    count = QUICK_TEXTS if run.quick else TEXTS
    train, held = pairs(run.given.pairs, "train"), pairs(run.given.pairs, "valid")
    models: dict[str, PreTrainedModel] = {"dense": dense}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if run.quick else run.given.runs / "block_by_block_minilm"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "texts.txt"
        half = count // 2
        lines = [*sentences(run.given.texts, half), *(text for row in train.segments[:half] for text in row)]
        different = list(dict.fromkeys(" ".join(line.split()) for line in lines))
        file.write_text("\n".join(different[:count]) + "\n")
        for recipe, how, words in recipes(run.quick):
            variant = f"{recipe}, {how}"
            out = place(folder, variant)
            seconds[variant] = made(str(model_folder()), file, LENGTH, words, out)
            models[variant] = pretrained(str(out))[0]
            print(f"{variant}: {seconds[variant]:.0f} s", flush=True)
        scores = judge(models, held, Reader.of(dense, tokenizer, LENGTH))
    spearman = {variant: scores[variant]["spearman"][0] for variant in seconds}
    setting = {"texts": count}
    records = [
        run.record("compression_time", took, variant, setting)
        for variant, took in seconds.items()
        if not math.isnan(took)
    ]
    run.write([*records, *run.scores(scores, setting)])
    worst = min(max(others) for others in beside(run, seconds, spearman, "Spearman, %").values())
    print(f"block by block at least {BAR:.0%} of the whole model's: {yes(worst >= BAR)}")
    return run.quick or worst >= BAR


def language_model(run: Run) -> bool:
    """Perplexity of the Llama of WikiText-2."""
    given = run.given
    text, tokenizer, dense = of_words(given.texts, given.runs, 0, quick=run.quick)
    held = blocks_of(text.valid, tokenizer)
    held = held[torch.randperm(len(held), generator=torch.Generator().manual_seed(1))[: 8 if run.quick else HELD]]
    count = QUICK_TEXTS if run.quick else TEXTS
    setting = {"model": given.model, "texts": count}
    seconds: dict[str, float] = {}
    of_blocks: dict[str, Tensor] = {}
    records = [run.record("perplexity", perplexity(losses(dense, held)), "dense", setting)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if run.quick else given.runs / "block_by_block"
        lines = [line.strip() for line in text.train.split("\n") if len(line.split()) > 8]
        model, file = prepared(folder, dense, tokenizer, lines[:count])
        for recipe, how, words in recipes(run.quick):
            variant = f"{recipe}, {how}"
            out = place(folder, variant)
            row = out.with_suffix(".row")
            if not row.is_file():
                took = made(str(model), file, BLOCK, words, out)
                small: Any = pretrained(str(out))[0]
                write({"losses": losses(small, held), "seconds": torch.tensor(took)}, row)
                shutil.rmtree(out)
            stored = load_file(row)
            of_blocks[variant], seconds[variant] = stored["losses"], stored["seconds"].item()
            ppl, whole = perplexity(of_blocks[variant]), f"{recipe}, {WHOLE}"
            between = None if how == WHOLE else list(interval(of_blocks[variant], of_blocks[whole]))
            if not math.isnan(seconds[variant]):
                records.append(run.record("compression_time", seconds[variant], variant, setting))
            own: dict[str, Any] = {"interval": between, "to": whole} if between else {}
            records.append(run.record("perplexity", ppl, variant, setting, **own))
            print(f"{variant}: {ppl:.3f}, {seconds[variant]:.0f} s", flush=True)
    run.write(records)
    ppls = {variant: perplexity(row) for variant, row in of_blocks.items()}
    worst = max(min(others) for others in beside(run, seconds, ppls, "perplexity").values())
    print(f"block by block at most {MOST:.0%} of the whole model's perplexity: {yes(worst <= MOST)}")
    return run.quick or worst <= MOST


def prepared(
    folder: Path, dense: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: list[str]
) -> tuple[Path, Path]:
    """The folder of a model, and a file of texts; a command that was stopped goes on with the very same ones."""
    model, file = folder / "dense", folder / "texts.txt"
    if not file.is_file():
        dense.save_pretrained(model)
        tokenizer.save_pretrained(model)
        part = file.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(file)
    return model, file


def beside(run: Run, seconds: dict[str, float], values: dict[str, float], heading: str) -> dict[str, list[float]]:
    """Print all figures. Of every recipe, those block by block as shares of the whole model's."""
    table = Table("recipe", "how", "seconds", heading, "of the whole model's")
    shares: dict[str, list[float]] = {}
    for name, value in values.items():
        recipe, _, how = name.rpartition(", ")
        share = value / values[f"{recipe}, {WHOLE}"]
        table.add_row(recipe, how, f"{seconds[name]:.0f}", f"{value:.2f}", f"{share:.1%}")
        if how != WHOLE:
            shares.setdefault(recipe, []).append(share)
    run.show(table)
    return shares


def place(folder: Path, variant: str) -> Path:
    """The folder of what a recipe makes, in a folder of them all."""
    return folder / "-".join(re.findall(r"\w+", variant))


def made(model: str, texts: Path, length: int, words: list[str], out: Path) -> float:
    """A recipe applied by the command, unless it was before. Its seconds; nan of what was stopped and went on."""
    took = out.with_suffix(".took")
    if not took.is_file():
        begun = out.with_suffix(".begun")
        stopped = begun.exists()  # what went on has no time of its own
        begun.touch()
        shutil.rmtree(out, ignore_errors=True)
        again = duration(model, texts, length, words, out)
        write({"seconds": torch.tensor(math.nan if stopped else again)}, took)
    return float(load_file(took)["seconds"])


def duration(model: str, texts: Path, length: int, words: list[str], out: Path) -> float:
    """A recipe applied by the command. Its seconds."""
    began = time.perf_counter()
    given = [*texts_for(words, texts), "--length", str(length)]
    command = [sys.executable, "-m", "greenformers", "compress", model, *words, *given, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=with_threads())
    return time.perf_counter() - began


def texts_for(words: list[str], texts: Path) -> list[str]:
    """The options that have a command calibrate by all of these texts, and learn from all of them.

    From disk, blocks learn from the texts to calibrate with, and no others are taken.
    """
    own = ["--calibrate", str(texts), "--limit", str(TEXTS)]
    learns = "--heal" in words and "--from-disk" not in words
    return [*own, "--heal-texts", str(texts)] if learns else own


if __name__ == "__main__":
    BENCHMARK.run(main)
