"""Decoders of one size on the same text: ours as it is by default beside Llama and GPT-2 of transformers.

    python benchmarks/decoder_shapes.py [--steps 5000] [--quick] [--json results/decoder_shapes.jsonl]

Tiny Shakespeare by characters (Karpathy 2015), 3 layers of d 128, f 512, 4 heads, batches of 16 texts of 128
characters, the same for all; AdamW, learning rate 2e-3 with linear warmup over a tenth of the steps and linear decay,
gradients clipped at 1, no dropout. The gated feed-forward of ours and of Llama has half as many weights again as
GPT-2's. Validation loss in nats a character over 200 texts that are in no batch. Bar: the mean over seeds of our
default at most Llama's after 300 steps, and at most Llama's + 0.01 after 5,000.
"""

from collections.abc import Callable
from statistics import mean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from _harness import Benchmark, Option, Run, data, yes
from rich.table import Table
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, set_seed

from greenformers.data import Text
from greenformers.data import load as load_data
from greenformers.measure.record import Record
from greenformers.model import GreenformerConfig, GreenformerForCausalLM

LENGTH, BATCH, RATE, TEXTS = 128, 16, 2e-3, 200
WIDTH, LAYERS, HEADS, INNER = 128, 3, 4, 512
OURS, LLAMA = "greenformers", "llama"
MARGINS = {300: 0.0, 5000: 0.01}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "tinyshakespeare", "folder of the text", "."),
        Option("--steps", "of each training; 300 if not given", int),
        Option("--seeds", "trainings of each; 3 if not given", int),
        Option("--networks", "which, separated by commas; all if not given"),
    ),
)


def ours(vocabulary: int, intermediate_size: int = INNER, **slots: Any) -> nn.Module:
    return GreenformerForCausalLM(
        GreenformerConfig(
            vocab_size=vocabulary, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=intermediate_size, max_position_embeddings=LENGTH, **slots,
        )
    )  # fmt: skip


def llama(vocabulary: int) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=INNER, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


def gpt2(vocabulary: int) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER, n_positions=LENGTH,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip


MODELS: dict[str, Callable[[int], nn.Module]] = {
    OURS: ours,
    LLAMA: llama,
    "gpt2": gpt2,
    "gated, of GPT-2's size": lambda vocabulary: ours(vocabulary, intermediate_size=INNER * 2 // 3),
    "transformer_xl": lambda vocabulary: ours(vocabulary, attention="transformer_xl"),
}


class Training(NamedTuple):
    """One training of one network from a seed."""

    variant: str
    seed: int
    steps: int

    def setting(self) -> dict[str, Any]:
        """What tells its records from others."""
        return {
            "length": LENGTH, "batch": BATCH, "hidden": WIDTH, "layers": LAYERS, "heads": HEADS, "feed_forward": INNER,
            "learning_rate": RATE, "steps": self.steps, "seed": self.seed,
        }  # fmt: skip


def main(run: Run) -> bool:
    given = run.given
    steps, seeds = given.steps or (4 if run.quick else 300), given.seeds or (1 if run.quick else 3)
    text = load_data("tinyshakespeare", given.data)
    assert isinstance(text, Text)
    characters = {each: at for at, each in enumerate(sorted(set(text.train)))}
    train, valid = (
        torch.tensor([characters[each] for each in part if each in characters]) for part in (text.train, text.valid)
    )
    variants = list(MODELS) if given.networks is None else given.networks.split(",")
    if not {OURS, LLAMA} <= set(variants) <= set(MODELS):
        run.refuse(f"--networks must be of {', '.join(MODELS)}, {OURS} and {LLAMA} among them; got {given.networks}")
    trainings = [Training(variant, seed, steps) for seed in range(seeds) for variant in variants]
    records = run.trainings(
        trainings,
        lambda training: (training.variant, training.setting()),
        lambda training: trained(run, training, train, valid, len(characters)),
        lambda own: f"loss {own[0].value:.4f}",
    )
    table = Table("network", "loss by seed", "mean", "parameters", title=f"nats a character after {steps} steps")
    means = {}
    for variant in variants:
        own = [r for r in records if r.variant == variant and r.setting["steps"] == steps]
        losses = [r.value for r in own if r.metric == "loss"]
        means[variant] = mean(losses)
        size = next(r.value for r in own if r.metric == "parameters")
        table.add_row(variant, ", ".join(f"{loss:.4f}" for loss in losses), f"{means[variant]:.4f}", f"{size:,.0f}")
    run.show(table)
    margin = MARGINS.get(steps, 0.0)
    met = means[OURS] <= means[LLAMA] + margin
    print(f"at most Llama's{f' + {margin}' if margin else ''}: {yes(met)}")
    return met or run.quick


def trained(run: Run, training: Training, train: Tensor, valid: Tensor, vocabulary: int) -> list[Record]:
    """Train one network; its loss on the validation texts and its size."""
    set_seed(training.seed)
    model, steps = MODELS[training.variant](vocabulary).train(), training.steps
    draw = torch.Generator().manual_seed(training.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    warmup = steps / 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup), 1.0)
    )
    for _ in range(steps):
        starts = torch.randint(len(train) - LENGTH - 1, (BATCH,), generator=draw)
        optimiser.zero_grad()
        loss_of(model, torch.stack([train[start : start + LENGTH + 1] for start in starts])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    texts = valid[: TEXTS * (LENGTH + 1)].view(TEXTS, -1)
    with torch.no_grad():
        loss = loss_of(model.eval(), texts).item()
    figures = {"loss": loss, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    setting = training.setting()
    return [
        run.record(metric, value, training.variant, setting, seed=training.seed) for metric, value in figures.items()
    ]


def loss_of(model: nn.Module, texts: Tensor) -> Tensor:
    """Cross-entropy in nats of each character after the first (B, N + 1)."""
    logits = model(texts[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())


if __name__ == "__main__":
    BENCHMARK.run(main)
