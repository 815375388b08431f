"""Tokens a second of language models in 4 bits: `generate`, one text at a time, beside float32 and int8.

    python benchmarks/few_bits_speed.py [--quick] [--json results/few_bits_speed.jsonl]

Two shapes, with random weights: the Llama of `few_bits_language_model.py`, 10 million parameters, and one of GPT-2's
shape, 124 million. A text of 32 tokens is continued by 32, greedily, with a cache; variants take turns. Weights are
rounded to groups of 64, so that 4 bits are 4.4; beside the tokens the time of the 32 tokens alone, and the bytes. Below
it the time of one further token in torch, OpenVINO and ONNX Runtime, 4 bits and float32 in turns in one of them after
the other: threads of another runtime would take time from both.

Bar: with weights of 4 bits at least 1.5 times the tokens of float32.
"""

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import Benchmark, Run, yes
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from greenformers import compress
from greenformers.changes import Bits, Change, Int8
from greenformers.export.cached import Continued, Decoder, TorchDecoder
from greenformers.export.measure import PAUSE, WARMUP
from greenformers.export.network import Network
from greenformers.export.write import reader, write
from greenformers.measure.latency import interleaved
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import Record, with_ratios

PROMPT, NEW, BAR = 32, 32, 1.5
BASELINE, FEW = "float32", "4 bits"
RUNTIMES = {"OpenVINO": "openvino", "ONNX Runtime": "onnx"}
VARIANTS: dict[str, list[Change]] = {
    BASELINE: [], "int8": [Int8()], FEW: [Bits(4, by="rounding")], "2 bits": [Bits(2, by="rounding")],
}  # fmt: skip

BENCHMARK = Benchmark(__file__, __doc__, quick="the small shape, 3 turns in place of 11")


def main(run: Run) -> bool:
    met, records = True, []
    for shape, fresh in list(SHAPES.items())[: 1 if run.quick else None]:
        torch.manual_seed(0)
        dense, models = fresh().eval(), dict[str, Any]()
        for name, changes in VARIANTS.items():
            models[name] = copy.deepcopy(dense)
            if changes:
                compress(models[name], changes)
        setting = {"model": shape}
        times = run.times({name: continued(model) for name, model in models.items()}, repeats=11, quick=3)
        rows = [run.record("tokens_per_second", NEW / time.median, name, setting) for name, time in times.items()]
        with torch.inference_mode():
            tokens = torch.randint(5, 1000, (1, PROMPT))
            once = run.times({name: partial(model, tokens) for name, model in models.items()}, repeats=11, quick=3)
        rows += [run.record("latency", time, name, setting) for name, time in once.items()]
        rows += [
            run.record("size", bytes_of(model) / 2**20, name, setting, source="counted")
            for name, model in models.items()
        ]
        rows = with_ratios(rows, to=BASELINE)
        run.show(shown(shape, rows))
        pace = {row.variant: row.value for row in rows if row.metric == "tokens_per_second"}
        faster = pace[FEW] / pace[BASELINE]
        met &= faster >= BAR
        print(f"{shape}: {FEW} give {faster:.2f} times the tokens of {BASELINE}, at least {BAR}: {yes(faster >= BAR)}")
        further = in_runtimes(run, models, setting)
        run.show(table_of(shape, further))
        records += [*rows, *further]
    run.write(records)
    return met or run.quick


def in_runtimes(run: Run, models: dict[str, Any], setting: dict[str, Any]) -> list[Record]:
    """Records of the time of one token more, with a cache, in each runtime."""
    networks = {name: Network(models[name]) for name in (BASELINE, FEW)}
    rows: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in networks:
            write(models[name], Path(folder) / name, list(RUNTIMES.values()), length=PROMPT)
        for runtime, form in {"torch": None, **RUNTIMES}.items():
            decoders = {
                name: TorchDecoder(network) if form is None else decoder(form, Path(folder) / name, network)
                for name, network in networks.items()
            }
            with torch.inference_mode():
                rounds = 3 if run.quick else 15
                # Each call moves on by a token, and behind each rest is one that is not timed.
                ids = networks[BASELINE].batch(1, PROMPT + WARMUP + 2 * rounds)[0]
                steps = {f"{runtime}, {name}": Continued(held, ids, PROMPT) for name, held in decoders.items()}
                times = interleaved(steps, repeats=rounds, warmup=WARMUP, pause=PAUSE, settle=0.0)
            timed = [run.record("latency_next_token", time, name, setting) for name, time in times.items()]
            rows += with_ratios(timed, to=f"{runtime}, {BASELINE}")
    return rows


def decoder(form: str, folder: Path, network: Network) -> Decoder:
    """What a runtime makes of a file."""
    call: Any = reader(form, folder, network.inputs)
    return call.decoder


def table_of(shape: str, records: list[Record]) -> Table:
    table = Table(shape, "a token, ms", "of the same runtime's float32", title_justify="left")
    for row in records:
        table.add_row(row.variant, f"{row.value:.1f}", f"{row.ratio or 1:.2f}x as fast")
    return table


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192, hidden_size=320, intermediate_size=864, num_hidden_layers=6, num_attention_heads=5,
            max_position_embeddings=256, tie_word_embeddings=True,
        )
    )  # fmt: skip


SHAPES: dict[str, Callable[[], Any]] = {
    "Llama, 10 million": llama, "GPT-2, 124 million": lambda: GPT2LMHeadModel(GPT2Config()),
}  # fmt: skip


def continued(model: Any) -> Callable[[], object]:
    """What continues a text."""
    tokens = torch.randint(5, 1000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(tokens, attention_mask=torch.ones_like(tokens), **given)


def shown(shape: str, records: list[Record]) -> Table:
    table = Table(shape, "MiB", "tokens a second", "times as many", f"{PROMPT} tokens, ms", title_justify="left")
    for name in VARIANTS:
        pace, once, size = (
            next(row for row in records if (row.metric, row.variant) == (metric, name))
            for metric in ("tokens_per_second", "latency", "size")
        )
        table.add_row(name, f"{size.value:.1f}", f"{pace.value:.0f}", f"{pace.ratio or 1:.2f}", f"{once.value:.1f}")
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
