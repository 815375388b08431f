"""A Llama trained on Tiny Shakespeare, its softmax attention then swapped for linear attention and healed.

    python benchmarks/swap_language_model.py [--steps N] [--quick] [--json results/swap_language_model.jsonl]
    python benchmarks/swap_language_model.py --speed [--json results/swap_language_model.jsonl]

Characters, 4 layers of 128, blocks of 256. Swapped in all layers or in every other one, healed towards the original's
logits and hidden states on the training part; perplexity a character on the validation part. Beside them the original
trained on for as many steps, which says what more steps alone give. `--speed`: tokens a second of `generate` behind
contexts of 1K to 16K, and the bytes the cache holds there. Bar: linear attention at 16K within 10 % of its pace at 1K.
Stopped at any moment, the first command goes on where the trained model is there.
"""

import copy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data, told, yes
from rich.console import Console
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache

from greenformers import compress
from greenformers.changes.attention import Attention
from greenformers.changes.heal import Heal
from greenformers.compress.quality import judge
from greenformers.data import Text, train_tokenizer
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.data.tinyshakespeare import load
from greenformers.measure.record import Record, with_ratios
from greenformers.report.table import tables
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import fit
from greenformers.train.schedule import Schedule

ATTENTION, LAYERS, LENGTH = "linear_transformer", 4, 256
TRAINING = Schedule(steps=2500, batch_size=16, learning_rate=2e-3, evaluate_every=500, log_every=100, save_every=100)
STEPS, BATCH, RATE = 400, 16, 1e-3
CONTEXTS, NEW, BAR = (1024, 4096, 16384), 32, 0.9

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "tinyshakespeare", "folder of the text"),
        Option("--runs", "folder of the original", Path, RUNS / "swap_language_model"),
        Option("--steps", "of healing", int, STEPS),
        Option("--speed", "only time the networks", bool, default=False),
    ),
)


def main(run: Run) -> bool:
    given, met = run.given, True
    text = load(given.data)
    tokenizer = train_tokenizer("characters", [text.train], max_length=LENGTH)
    schedule = Schedule(steps=20, batch_size=16) if run.quick else TRAINING
    original = trained(text, tokenizer, given.runs / ("quick" if run.quick else "original"), schedule)
    contexts = CONTEXTS[:2] if run.quick else CONTEXTS
    if given.speed:
        records = speed(run, original, contexts)
    else:
        records = quality(run, original, text, tokenizer, 4 if run.quick else given.steps)
    records = with_ratios(records, to="softmax")
    run.show(*tables(records, 120))
    if given.speed:
        pace = {r.setting["context"]: r.value for r in records if (r.variant, r.unit) == ("linear", "1/s")}
        met = pace[contexts[-1]] >= BAR * pace[contexts[0]]
        print(f"linear attention at the longest context within 10 % of the shortest: {yes(met)}")
    run.write(records)
    return met


def network(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """With fresh weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=344, num_hidden_layers=LAYERS,
            num_attention_heads=4, max_position_embeddings=LENGTH, pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip


def learnt(
    model: LlamaForCausalLM, text: Text, tokenizer: PreTrainedTokenizerFast, schedule: Schedule, folder: Path | None
) -> LlamaForCausalLM:
    """The model, trained; with a folder, for checkpoints, gone on with from the newest.

    Raises:
        KeyboardInterrupt: A signal ended it early.
    """
    console = Console(stderr=True)
    objective = CausalLM(text, tokenizer, LENGTH)
    history = fit(model, objective, schedule, label="training", console=console, folder=folder, resume=bool(folder))
    if history.stopped is not None:
        raise KeyboardInterrupt
    return model.eval()


def trained(
    text: Text, tokenizer: PreTrainedTokenizerFast, folder: Path, schedule: Schedule,
    fresh: LlamaForCausalLM | None = None,
) -> LlamaForCausalLM:  # fmt: skip
    """The original, by default of `network`: read where it is there already."""
    if not (folder / "config.json").is_file():
        steps = folder.with_name(f"{folder.name}.steps")
        learnt(fresh or network(tokenizer), text, tokenizer, schedule, steps).save_pretrained(folder)
        shutil.rmtree(steps)
    return LlamaForCausalLM.from_pretrained(folder).eval()


def quality(
    run: Run, original: LlamaForCausalLM, text: Text, tokenizer: PreTrainedTokenizerFast, steps: int
) -> list[Record]:
    """Perplexity of all networks, before healing and after."""
    models = {"softmax": original}
    for name, layers in (("linear", range(LAYERS)), ("every other linear", range(1, LAYERS, 2))):
        models[name] = model = copy.deepcopy(original)
        compress(model, Attention(ATTENTION, layers=tuple(layers)))
        models[f"{name}, healed"] = healed = copy.deepcopy(model)
        compress(
            healed, Heal(steps, BATCH, RATE), texts=text.train.split("\n"), tokenizer=tokenizer, teacher=original,
            length=LENGTH, progress=told,
        )  # fmt: skip
        print(f"{name} is healed", file=sys.stderr, flush=True)
    longer = Schedule(steps=steps, batch_size=BATCH, learning_rate=RATE, evaluate_every=steps)
    models["softmax, trained on"] = learnt(copy.deepcopy(original), text, tokenizer, longer, None)
    held = Texts("validation", [(line,) for line in text.valid.split("\n")])
    return run.scores(
        judge(models, held, Reader.of(original, tokenizer, LENGTH)), {"length": LENGTH, "steps": steps}, "softmax"
    )


def speed(run: Run, original: LlamaForCausalLM, contexts: tuple[int, ...]) -> list[Record]:
    """Tokens a second of `generate`, contexts and networks taking turns, and what the cache holds."""
    linear = copy.deepcopy(original)
    compress(linear, Attention(ATTENTION, length=contexts[-1] + NEW))
    calls, held = {}, {}
    for name, model in (("softmax", original), ("linear", linear)):
        for length in contexts:
            calls[name, length], held[name, length] = continuation(model, length)
    timings = run.times({str(key): call for key, call in calls.items()}, repeats=15)
    records = []
    for name, length in calls:
        pace, setting = NEW / timings[str((name, length))].median, {"context": length}
        records.append(run.record("tokens_per_second", pace, name, setting))
        records.append(run.record("cache", held[name, length] / 2**20, name, setting))
    return records


def continuation(model: LlamaForCausalLM, length: int) -> tuple[Callable[[], object], int]:
    """What continues a context by `NEW` tokens, and the bytes that the cache of the context holds."""
    tokens = torch.randint(5, 60, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        past = model(tokens[:, :-1], past_key_values=DynamicCache(), use_cache=True).past_key_values
    size = sum(x.numel() * x.element_size() for layer in past.layers for x in tensors(layer))

    def call() -> object:
        # The copy is part of softmax's time, but a small one beside reading it `NEW` times.
        own = copy.deepcopy(past)
        return model.generate(  # type: ignore[misc]
            tokens, past_key_values=own, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
        )

    return call, size


def tensors(layer: Any) -> list[Tensor]:
    """What a layer of a cache holds."""
    state = getattr(layer, "state", None)
    return [layer.keys, layer.values] if state is None else list(state)


if __name__ == "__main__":
    BENCHMARK.run(main)
