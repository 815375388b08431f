"""A Llama trained on Tiny Shakespeare, its softmax attention then swapped for linear attention and healed.

    python benchmarks/swap_language_model.py [--steps N] [--quick] [--json results/swap_language_model.jsonl]
    python benchmarks/swap_language_model.py --speed [--json results/swap_language_model.jsonl]

Characters, 4 layers of 128, blocks of 256. Swapped in all layers or in every other one, healed towards the original's
logits and hidden states on the training part; perplexity a character on the validation part. Beside them the original
trained on for as many steps, which says what more steps alone give. `--speed`: tokens a second of `generate` behind
contexts of 1K to 16K, and the bytes the cache holds there. Bar: linear attention at 16K within 10 % of its pace at 1K.
Stopped at any moment, the first command goes on where the trained model is there.
"""

import argparse
import copy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compress_minilm import told
from rich.console import Console
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, logging
from transformers.cache_utils import DynamicCache

from greenformers.changes.attention import swap_attention
from greenformers.changes.heal import Healing, heal
from greenformers.compress.quality import judge
from greenformers.data import Text, train_tokenizer
from greenformers.data._texts import Texts
from greenformers.data.tinyshakespeare import load
from greenformers.measure.latency import interleaved
from greenformers.measure.record import METRICS, Record, append, context, with_ratios
from greenformers.report.table import tables
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import Schedule, fit

ATTENTION, LAYERS, LENGTH = "linear_transformer", 4, 256
TRAINING = Schedule(steps=2500, batch_size=16, learning_rate=2e-3, evaluate_every=500, log_every=100, save_every=100)
STEPS, BATCH, RATE = 400, 16, 1e-3
CONTEXTS, NEW, BAR = (1024, 4096, 16384), 32, 0.9


def network(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """With fresh weights."""
    torch.manual_seed(0)
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
    """The model, trained; with a folder, for checkpoints, gone on with from the newest."""
    objective = CausalLM(text, tokenizer, LENGTH)
    fit(model, objective, schedule, label="training", console=Console(stderr=True), folder=folder, resume=bool(folder))
    return model.eval()


def trained(text: Text, tokenizer: PreTrainedTokenizerFast, folder: Path, schedule: Schedule) -> LlamaForCausalLM:
    """The original: read where it is there already."""
    if not (folder / "config.json").is_file():
        steps = folder.with_name(f"{folder.name}.steps")
        learnt(network(tokenizer), text, tokenizer, schedule, steps).save_pretrained(folder)
        shutil.rmtree(steps)
    return LlamaForCausalLM.from_pretrained(folder).eval()


def quality(
    original: LlamaForCausalLM, text: Text, tokenizer: PreTrainedTokenizerFast, steps: int, about: dict[str, Any]
) -> list[Record]:
    """Perplexity of all networks, before healing and after."""
    models = {"softmax": original}
    for name, layers in (("linear", range(LAYERS)), ("every other linear", range(1, LAYERS, 2))):
        models[name] = made = copy.deepcopy(original)
        swap_attention(made, ATTENTION, layers=list(layers))
        models[f"{name}, healed"] = healed = copy.deepcopy(made)
        heal(
            healed, original, text.train.split("\n"), tokenizer, Healing(steps, BATCH, RATE), length=LENGTH,
            progress=told,
        )  # fmt: skip
        print(f"{name} is healed", file=sys.stderr, flush=True)
    longer = Schedule(steps=steps, batch_size=BATCH, learning_rate=RATE, evaluate_every=steps)
    models["softmax, trained on"] = learnt(copy.deepcopy(original), text, tokenizer, longer, None)
    held = Texts("validation", [(line,) for line in text.valid.split("\n")])
    return [
        Record(
            "swap_language_model", name, {"length": LENGTH, "steps": steps}, metric, value, METRICS[metric].unit,
            context=about,
        )
        for name, metrics in judge(models, held, tokenizer, LENGTH).items()
        for metric, (value, _) in metrics.items()
    ]  # fmt: skip


def speed(original: LlamaForCausalLM, contexts: tuple[int, ...], about: dict[str, Any]) -> list[Record]:
    """Tokens a second of `generate`, contexts and networks taking turns, and what the cache holds."""
    linear = copy.deepcopy(original)
    swap_attention(linear, ATTENTION, length=contexts[-1] + NEW)
    calls, held = {}, {}
    for name, model in (("softmax", original), ("linear", linear)):
        for length in contexts:
            calls[name, length], held[name, length] = continuation(model, length)
    timings = interleaved({str(key): call for key, call in calls.items()}, repeats=15, warmup=1)
    found = []
    for name, length in calls:
        for metric, value in (
            ("tokens_per_second", NEW / timings[str((name, length))].median),
            ("cache", held[name, length] / 2**20),
        ):
            unit = METRICS[metric].unit
            found.append(Record("swap_language_model", name, {"context": length}, metric, value, unit, context=about))
    return found


def continuation(model: LlamaForCausalLM, length: int) -> tuple[Callable[[], object], int]:
    """What continues a context by `NEW` tokens, and the bytes that the cache of the context holds."""
    tokens = torch.randint(5, 60, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        past = model(tokens[:, :-1], past_key_values=DynamicCache(), use_cache=True).past_key_values
    size = sum(x.numel() * x.element_size() for layer in past.layers for x in tensors(layer))

    def call() -> object:
        # The copy is part of softmax's time, but a small one beside reading it `NEW` times.
        own = copy.deepcopy(past)
        return model.generate(tokens, past_key_values=own, max_new_tokens=NEW, do_sample=False)  # type: ignore[misc]

    return call, size


def tensors(layer: Any) -> list[Tensor]:
    """What a layer of a cache holds."""
    state = getattr(layer, "state", None)
    return [layer.keys, layer.values] if state is None else list(state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tinyshakespeare"), help="folder of the text")
    parser.add_argument("--runs", type=Path, default=Path("runs/swap_language_model"), help="folder of the original")
    parser.add_argument("--steps", type=int, default=STEPS, help="of healing")
    parser.add_argument("--speed", action="store_true", help="only time the networks")
    parser.add_argument("--quick", action="store_true", help="hardly any training; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    if not given.data.is_dir():
        parser.exit(message=f"skipped: no folder {given.data}\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    text = load(given.data)
    tokenizer = train_tokenizer("characters", [text.train], max_length=LENGTH)
    schedule = Schedule(steps=20, batch_size=16) if given.quick else TRAINING
    folder = given.runs / ("quick" if given.quick else "original")
    original = trained(text, tokenizer, folder, schedule)
    contexts = CONTEXTS[:2] if given.quick else CONTEXTS
    words = "python benchmarks/swap_language_model.py" + " --speed" * given.speed + " --quick" * given.quick
    words += f" --steps {given.steps}" * (given.steps != STEPS)
    about = context(words, 0)
    met = True
    if given.speed:
        records = speed(original, contexts, about)
    else:
        records = quality(original, text, tokenizer, 4 if given.quick else given.steps, about)
    records = with_ratios(records, to="softmax")
    for table in tables(records, 120):
        Console(width=120).print(table)
    if given.speed:
        pace = {r.setting["context"]: r.value for r in records if (r.variant, r.unit) == ("linear", "1/s")}
        met = pace[contexts[-1]] >= BAR * pace[contexts[0]]
        print(f"linear attention at the longest context within 10 % of the shortest: {'yes' if met else 'no'}")
    if given.json:
        append(given.json, records)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
