"""A compressed language model of Llama's kind, served by OpenVINO GenAI: tokens a second beside the dense model.

    python benchmarks/serving.py [--quick] [--json results/serving.jsonl]

A Llama of 110 million parameters (d 1,024, 8 layers, 8,000 subwords of WikiText-2) with random weights, on which time
does not depend, as it is, of low rank at half and at a quarter of the weights, in 4 bits, and of low rank in 4 bits.
Each is written as `greenformers export --formats openvino` writes it: low-rank layers are two products, and 4 bits
stay packed. `openvino_genai.LLMPipeline` reads the folders (extra `genai`) and continues one text of 32 tokens by 64,
greedily; beside it `generate` of the same models in torch. All take turns.

Bars: every compressed form faster than the dense model, in OpenVINO GenAI.
"""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _harness import Benchmark, Run, data, installed, yes
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from greenformers import compress
from greenformers.changes import Bits, Change, LowRank
from greenformers.data import Text, load, train_tokenizer
from greenformers.export.write import FORMATS, write
from greenformers.measure.record import with_ratios

PROMPT, NEW, VOCABULARY, DENSE = 32, 64, 8000, "dense"
HALF = LowRank(keep=0.5, uniform=True, solver="randomized")
QUARTER = HALF.but(keep=0.25)
FORMS: dict[str, list[Change]] = {
    DENSE: [], "low rank 0.5": [HALF], "low rank 0.25": [QUARTER], "4 bits": [Bits(4, by="rounding")],
    "low rank 0.5, 4 bits": [HALF, Bits(4, by="rounding")],
}  # fmt: skip
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
QUICK = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="a small model, 3 turns in place of 9; the figures mean nothing",
    options=(data("--text", "wikitext2", "WikiText-2"),),
    threads=2,
)


def main(run: Run) -> bool:
    if not installed("openvino_genai", "openvino_tokenizers"):
        return True
    tokenizer = subwords(run.given.text)
    torch.manual_seed(0)
    sizes: dict[str, Any] = QUICK if run.quick else SIZES
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=512, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, **sizes,
    )  # fmt: skip
    dense = LlamaForCausalLM(config).eval()
    pipelines: dict[str, Callable[[], Any]] = {}
    in_torch: dict[str, Callable[[], Any]] = {}
    written = {}
    with tempfile.TemporaryDirectory(prefix="greenformers-") as place:
        for name, changes in FORMS.items():
            model, folder = copy.deepcopy(dense), Path(place) / name
            if changes:
                compress(model, changes)
            checked = write(model, folder, ["openvino"], tokenizer=tokenizer, length=16)
            if checked.unread:
                raise SystemExit(f"OpenVINO GenAI cannot read {name}: {checked.unread}")
            home = (folder / FORMATS["openvino"]).parent
            written[name] = sum(path.stat().st_size for path in home.iterdir()) / 2**20
            pipelines[name], in_torch[name] = served(home, torch.get_num_threads()), continued(model)
            print(f"{name}: {written[name]:.0f} MiB written", flush=True)
        records = []
        for runtime, calls in (("OpenVINO GenAI", pipelines), ("torch", in_torch)):
            times = run.times(calls, repeats=9, quick=3)
            setting = {"runtime": runtime, "prompt": PROMPT, "new": NEW, **sizes}
            rows = [run.record("tokens_per_second", NEW / time.median, name, setting) for name, time in times.items()]
            records += with_ratios(rows, to=DENSE)
    records += [run.record("size", size, name, sizes, source="counted") for name, size in written.items()]
    table = Table("form", "MiB", "OpenVINO GenAI, tokens/s", "x dense", "torch, tokens/s", "x dense")
    for name in FORMS:
        rates = [r for r in records if r.variant == name and r.metric == "tokens_per_second"]
        first = [next(r.value for r in records if r.variant == DENSE and r.setting == rate.setting) for rate in rates]
        cells = [cell for rate, base in zip(rates, first, strict=True) for cell in (rate.value, rate.value / base)]
        table.add_row(name, f"{written[name]:.0f}", *(f"{cell:.2f}" for cell in cells))
    run.show(table)
    run.write(records)
    paces = {r.variant: r.value for r in records if r.setting.get("runtime") == "OpenVINO GenAI"}
    met = all(pace > paces[DENSE] for name, pace in paces.items() if name != DENSE)
    print(f"every compressed form faster than dense: {yes(met)}")
    return run.quick or met


def subwords(folder: Path) -> PreTrainedTokenizerFast:
    """Subwords of WikiText-2."""
    text = load("wikitext2", folder)
    assert isinstance(text, Text)
    return train_tokenizer("bpe", [text.train[:2_000_000]], vocab_size=VOCABULARY, max_length=512)


def served(folder: Path, threads: int) -> Callable[[], Any]:
    """A continuation by OpenVINO GenAI."""
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(str(folder), "CPU", INFERENCE_NUM_THREADS=threads)
    ids = openvino.Tensor(torch.arange(5, 5 + PROMPT)[None].numpy())
    tokens = openvino_genai.TokenizedInputs(ids, openvino.Tensor(torch.ones(1, PROMPT, dtype=torch.long).numpy()))
    how = openvino_genai.GenerationConfig(max_new_tokens=NEW, ignore_eos=True, do_sample=False)
    return lambda: pipeline.generate(tokens, how)


def continued(model: Any) -> Callable[[], Any]:
    """A continuation by `generate`."""
    ids = torch.arange(5, 5 + PROMPT)[None]
    return lambda: model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
    )


if __name__ == "__main__":
    BENCHMARK.run(main)
