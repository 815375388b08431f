"""A checkpoint of Llama-7B's shape, 13.5 GB in bfloat16, compressed from disk to disk: peak memory and time.

    python benchmarks/compress_7b.py [--few-bits] [--quick] [--folder DIR] [--json results/compress_7b.jsonl]
    python benchmarks/compress_7b.py --solver gptq [--blocks 4] [--texts 64] [--json results/compress_7b.jsonl]

A quarter of the weights by low rank, or with `--few-bits` all of them rounded to 4 bits, bar: at most 6 GiB of memory.
With `--solver` block by block, by texts of 512 tokens: 4 bits by gptq, or half of the weights by low rank, sequential.
The checkpoint then has `--blocks` blocks, and time is extrapolated to 32; a run that was stopped goes on.
The weights are random; neither time nor memory depends on them. The command is that of a user, in a process of its own,
and the compressed model is then loaded and run. `--folder` needs 20 GB of disk; what is there already is used.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from _harness import RUNS, Benchmark, Option, Run
from rich.table import Table
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import greenformers

KEEP, BITS = 0.25, 4
LOW_RANK = ["--keep", str(KEEP), "--uniform", "--solver", "randomized"]
FEW_BITS = ["--bits", str(BITS), "--bits-by", "rounding"]
BY_BLOCK = {
    "gptq": ["--bits", str(BITS), "--bits-by", "gptq"],
    "sequential": ["--keep", "0.5", "--uniform", "--solver", "sequential"],
}
LENGTH, WHOLE = 512, 32
LIMIT, LIMIT_BITS = 24, 6  # GiB: what the machine has, and what rounding, or a block, may take

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="one layer in place of 32",
    options=(
        Option("--few-bits", "4 bits a weight in place of low rank", bool, default=False),
        Option("--solver", "block by block, with texts", choices=tuple(BY_BLOCK)),
        Option("--blocks", "of the checkpoint, with --solver", int, 4),
        Option("--texts", f"of {LENGTH} tokens, with --solver", int, 64),
        Option("--folder", "for both checkpoints", Path, RUNS / "compress_7b"),
    ),
)


def main(run: Run) -> bool:
    return by_weight(run) if run.given.solver is None else by_block(run)


def by_block(run: Run) -> bool:
    """Block after block, with texts. Whether memory stayed within the limit."""
    solver, folder = run.given.solver, run.given.folder
    blocks, texts = (2, 2) if run.quick else (run.given.blocks, run.given.texts)
    dense, small = folder / f"dense-{blocks}", folder / f"{solver}-{blocks}"
    size = write(dense, config(blocks))
    file = write_texts(dense, folder / f"texts-{texts}.txt", texts, config(1).vocab_size)
    print(f"{size / 1e9:.1f} GB of weights are there", flush=True)
    seconds, peak = compress(dense, [*BY_BLOCK[solver], "--calibrate", str(file), "--length", str(LENGTH)], small)
    each = seconds / blocks
    table = Table(
        "solver", "blocks", "texts", "peak memory, GiB", "limit, GiB", "minutes a block", f"hours for {WHOLE}"
    )
    hours = WHOLE * each / 3600
    table.add_row(solver, str(blocks), str(texts), f"{peak:.2f}", str(LIMIT_BITS), f"{each / 60:.1f}", f"{hours:.1f}")
    run.show(table)
    setting = {"blocks": blocks, "texts": texts, "tokens": LENGTH}
    name = f"{solver}, block by block"
    run.write(
        [
            run.record("peak_memory_compression", 1024 * peak, name, setting),
            run.record("compression_time", seconds, name, setting),
        ]
    )
    return peak < LIMIT_BITS


def write_texts(dense: Path, file: Path, count: int, size: int) -> Path:
    """Texts of random words of so many, and a tokenizer whose tokens are these words, beside the weights."""
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0").save_pretrained(dense)
    ids = torch.randint(1, size, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    file.write_text("".join(" ".join(f"w{number}" for number in row) + "\n" for row in ids.tolist()))
    return file


def compress(dense: Path, options: list[str], small: Path) -> tuple[float, float]:
    """Run the command, and the model that it wrote. The seconds of the command, and its peak memory in GiB."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "greenformers", "compress", str(dense), "--from-disk", *options]
    subprocess.run([*command, "--out", str(small)], check=True)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    model = greenformers.load(small)
    with torch.inference_mode():
        logits = model(input_ids=torch.arange(8)[None]).logits
    assert logits.isfinite().all()
    return seconds, peak


def by_weight(run: Run) -> bool:
    """Weight after weight, without texts. Whether memory stayed within the limit."""
    layers, folder, few = 1 if run.quick else 32, run.given.folder, run.given.few_bits
    options, limit = (FEW_BITS, LIMIT_BITS) if few else (LOW_RANK, LIMIT)
    dense, small = folder / f"dense-{layers}", folder / f"{'bits' if few else 'small'}-{layers}"
    sizes = {"dense": write(dense, config(layers))}
    print(f"{sizes['dense'] / 1e9:.1f} GB of weights are there", flush=True)
    seconds, peak = compress(dense, options, small)
    sizes["small"] = sum(path.stat().st_size for path in small.glob("*.safetensors"))
    table = Table("layers", "dense, GB", "compressed, GB", "peak memory, GiB", "limit, GiB", "minutes")
    gigabytes = (f"{size / 1e9:.2f}" for size in sizes.values())
    table.add_row(str(layers), *gigabytes, f"{peak:.2f}", str(limit), f"{seconds / 60:.1f}")
    run.show(table)
    setting = {"layers": layers} | ({"bits": BITS} if few else {"keep": KEEP})
    run.write(
        [
            run.record("peak_memory_compression", 1024 * peak, "from disk", setting),
            run.record("compression_time", seconds, "from disk", setting),
            *(run.record("size", size / 2**20, name, setting, source="counted") for name, size in sizes.items()),
        ]
    )
    return peak < limit


def config(layers: int) -> LlamaConfig:
    """Touvron 2023, table 2, first row."""
    return LlamaConfig(
        vocab_size=32_000, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=layers,
        num_attention_heads=32, dtype=torch.bfloat16,
    )  # fmt: skip


def write(folder: Path, described: LlamaConfig) -> int:
    """A checkpoint of random weights in bfloat16, a file a layer. Its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in LlamaForCausalLM(described).state_dict().items()}
    files: dict[str, dict[str, torch.Size]] = {}
    for name, shape in shapes.items():
        part = name.split(".")[2] if ".layers." in name else "rest"
        files.setdefault(f"model-{part}.safetensors", {})[name] = shape
    for number, (file, parts) in enumerate(files.items()):
        if not (folder / file).exists():
            draw = torch.Generator().manual_seed(number)
            held = {
                name: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=draw)
                for name, shape in parts.items()
            }
            save_file(held, folder / f"{file}.part", metadata={"format": "pt"})
            (folder / f"{file}.part").rename(folder / file)
    total = sum(2 * shape.numel() for shape in shapes.values())
    weight_map = {name: file for file, parts in files.items() for name in parts}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    described.architectures = ["LlamaForCausalLM"]
    described.save_pretrained(folder)
    return total


if __name__ == "__main__":
    BENCHMARK.run(main)
