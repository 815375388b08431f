"""A trained Llama without half of its weights, by SparseGPT, Wanda and magnitude, beside the published order.

    python benchmarks/sparse_language_model.py [--quick] [--json results/sparse_language_model.jsonl]

The Llama of `swap_language_model.py`: characters of Tiny Shakespeare, 4 layers of 128; trained where it is not there
yet. Calibrated on 128 blocks of 256 characters of the training part; perplexity a character on the validation part,
with 95 % intervals of the difference from magnitude, block by block (bootstrap). Published for LLaMA-2-7B on WikiText-2
(Sun 2023, arXiv:2306.11695): dense 5.12; half of the weights 14.89 by magnitude, 6.51 by SparseGPT, 6.42 by Wanda; 2:4
54.6, 10.17 and 11.02.

Bar: SparseGPT and Wanda are better than magnitude, for half of the weights and 2:4, beyond the interval.
"""

import copy
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from _harness import RUNS, Benchmark, Option, Run, data, yes
from rich.table import Table
from swap_language_model import LENGTH, TRAINING, trained
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from greenformers import compress
from greenformers.changes import Sparse
from greenformers.data import train_tokenizer
from greenformers.data.tinyshakespeare import load
from greenformers.measure.record import Record
from greenformers.train.schedule import Schedule

BLOCKS, RESAMPLES = 128, 2000
CELLS = [(keep, "any") for keep in (0.7, 0.5, 0.3)] + [(0.5, "2:4")]
SOLVERS = ("magnitude", "wanda", "sparsegpt")

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "tinyshakespeare", "folder of the text"),
        Option("--runs", "folder of the original", Path, RUNS / "swap_language_model"),
    ),
)


def main(run: Run) -> bool:
    text = load(run.given.data)
    tokenizer = train_tokenizer("characters", [text.train], max_length=LENGTH)
    schedule = Schedule(steps=20, batch_size=16) if run.quick else TRAINING
    dense = trained(text, tokenizer, run.given.runs / ("quick" if run.quick else "original"), schedule)
    blocks = blocks_of(text.train, tokenizer)
    drawn = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))[:BLOCKS]
    calibration = [{"input_ids": part} for part in blocks[drawn].split(16)]
    held = blocks_of(text.valid, tokenizer)
    whole = losses(dense, held)
    records, met = [run.record("perplexity", perplexity(whole), "dense")], True
    for keep, pattern in CELLS:
        by_solver: dict[str, Tensor] = {}
        for solver in SOLVERS:
            small = copy.deepcopy(dense)
            needed = None if solver == "magnitude" else calibration
            compress(small, Sparse(keep, pattern=pattern, by=solver), calibration=needed)
            by_solver[solver] = losses(small, held)
            print(f"keep {keep} {pattern} {solver}: {perplexity(by_solver[solver]):.3f}", flush=True)
        for solver, of_blocks in by_solver.items():
            low, high = interval(of_blocks, by_solver["magnitude"])
            setting = {"keep": keep, "pattern": pattern}
            compared = None if solver == "magnitude" else [low, high]
            to = "magnitude" if compared else None
            records.append(run.record("perplexity", perplexity(of_blocks), solver, setting, interval=compared, to=to))
            met &= solver == "magnitude" or keep != 0.5 or high < 0
        low, high = interval(by_solver["sparsegpt"], by_solver["wanda"])
        print(f"keep {keep} {pattern}: SparseGPT minus Wanda {low:+.3f} to {high:+.3f}")
    run.show(shown(records))
    run.write(records)
    print(f"SparseGPT and Wanda better than magnitude at half of the weights: {yes(met)}")
    return met or run.quick


def blocks_of(text: str, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """A text as blocks (S, LENGTH) of tokens; what is left at its end is dropped."""
    ids = torch.tensor(tokenizer(text, truncation=False, add_special_tokens=False)["input_ids"])
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


@torch.inference_mode()
def losses(model: LlamaForCausalLM, blocks: Tensor) -> Tensor:
    """The mean loss of the tokens of each block, in nats."""
    parts = []
    for part in blocks.split(16):
        logits = model(input_ids=part).logits[:, :-1]
        parts.append(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none").view(len(part), -1))
    return torch.cat(parts).double().mean(1)


def perplexity(of_blocks: Tensor) -> float:
    return math.exp(of_blocks.mean().item())


def interval(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The 95 % interval of the difference of perplexities on the same blocks, drawn with replacement."""
    drawn = torch.randint(len(a), (RESAMPLES, len(a)), generator=torch.Generator().manual_seed(0))
    low, high = (a[drawn].mean(1).exp() - b[drawn].mean(1).exp()).quantile(torch.tensor([0.025, 0.975]).double())
    return low.item(), high.item()


def shown(records: list[Record]) -> Table:
    table = Table("weights kept", *SOLVERS, title=f"Perplexity a character; dense {records[0].value:.3f}")
    for keep, pattern in CELLS:
        row = {
            record.variant: f"{record.value:.3f}"
            + (f" ({record.interval[0]:+.3f} to {record.interval[1]:+.3f})" if record.interval else "")
            for record in records
            if record.setting == {"keep": keep, "pattern": pattern}
        }
        table.add_row(f"{keep:g} {pattern}", *(row[solver] for solver in SOLVERS))
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
