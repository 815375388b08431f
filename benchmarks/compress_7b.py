"""A checkpoint of Llama-7B's shape, 13.5 GB in bfloat16, compressed from disk to disk: peak memory and time.

    python benchmarks/compress_7b.py [--few-bits] [--quick] [--folder DIR] [--json results/compress_7b.jsonl]
    python benchmarks/compress_7b.py --solver gptq [--blocks 4] [--texts 64] [--json results/compress_7b.jsonl]
    python benchmarks/compress_7b.py --solver gptq --stopped [--blocks 4] [--json results/compress_7b.jsonl]

A quarter of the weights by low rank, bar: at most 24 GiB of memory; with `--few-bits` all of them rounded to 4 bits,
and at most 6 GiB.
With `--solver` block by block, by texts of 512 tokens: 4 bits by gptq, or half of the weights by low rank, sequential.
Checkpoints then have two and `--blocks` blocks, what lies between is the time of a block, and 32 blocks are foreseen by
it. With `--stopped` the command is killed when its second block is finished, and started again; bar: the same bits.
The weights are random; neither time nor memory depends on them. The command is that of a user, in a process of its own,
and the compressed model is then loaded and run. `--folder` needs 20 GB of disk; what is there already is used.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from _harness import RUNS, Benchmark, Option, Run, with_threads, yes
from rich.table import Table
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import greenformers
from greenformers.measure.record import Record

KEEP, BITS = 0.25, 4
LOW_RANK = ["--keep", str(KEEP), "--uniform", "--solver", "randomized"]
FEW_BITS = ["--bits", str(BITS), "--bits-by", "rounding"]
BY_BLOCK = {
    "gptq": ["--bits", str(BITS), "--bits-by", "gptq"],
    "sequential": ["--keep", "0.5", "--uniform", "--solver", "sequential"],
}
LENGTH, FEW, WHOLE, NARROWER = 512, 2, 32, 4
LIMIT, LIMIT_BITS = 24, 6  # GiB: what the machine has, and what rounding, or a block, may take

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="one layer in place of 32; or, with --solver, three blocks of a quarter of the widths, and two texts",
    options=(
        Option("--few-bits", "4 bits a weight in place of low rank", bool, default=False),
        Option("--solver", "block by block, with texts", choices=tuple(BY_BLOCK)),
        Option("--blocks", "of the larger checkpoint, with --solver", int, 4),
        Option("--texts", f"of {LENGTH} tokens, with --solver", int, 64),
        Option("--stopped", "with --solver: stop behind two blocks, go on, compare the bits", bool, default=False),
        Option("--folder", "for the checkpoints", Path, RUNS / "compress_7b"),
    ),
)


def main(run: Run) -> bool:
    if run.given.solver is None:
        if run.given.stopped:
            run.refuse("--stopped is of --solver")
        return by_weight(run)
    if run.given.blocks <= FEW:
        run.refuse(f"--blocks must be above {FEW}, got {run.given.blocks}")
    return stopped(run) if run.given.stopped else by_block(run)


def by_block(run: Run) -> bool:
    """Block after block, with texts. Whether memory stayed within the limit."""
    solver, texts, sizes = run.given.solver, texts_of(run), (FEW, blocks_of(run))
    table = Table("solver", "blocks", "texts", "peak memory, GiB", "limit, GiB", "minutes")
    seconds, peaks = dict[int, float](), dict[int, float]()
    records: list[Record] = []
    for blocks in sizes:
        dense, options, small = prepared(run, blocks)
        remove(small)  # what goes on takes less time
        seconds[blocks], peaks[blocks] = compress(dense, options, small)
        minutes = seconds[blocks] / 60
        table.add_row(
            solver, str(blocks), str(texts), f"{peaks[blocks]:.2f}", str(LIMIT_BITS), f"{minutes:.1f}"
        )  # fmt: skip
        name, setting = f"{solver}, block by block", {"blocks": blocks, "texts": texts, "tokens": LENGTH}
        records += [
            run.record("peak_memory_compression", 1024 * peaks[blocks], name, setting),
            run.record("compression_time", seconds[blocks], name, setting),
        ]
    few, most = sizes
    each = (seconds[most] - seconds[few]) / (most - few)
    foreseen = seconds[most] + (WHOLE - most) * each
    setting = {"texts": texts, "tokens": LENGTH}
    records += [
        run.record("compression_time", each, f"{solver}, a block", setting),
        run.record(
            "compression_time", foreseen, f"{solver}, foreseen", setting | {"blocks": WHOLE}, source="estimated"
        ),
    ]
    run.show(table)
    run.write(records)
    print(f"{each / 60:.1f} minutes a block, {foreseen / 3600:.1f} hours for {WHOLE} by these")
    met = max(peaks.values()) < LIMIT_BITS
    print(f"at most {LIMIT_BITS} GiB of memory: {yes(met)}")
    return met


def stopped(run: Run) -> bool:
    """Killed behind its second block and started again. Whether it then wrote the bits of a run that went through."""
    dense, options, whole = prepared(run, blocks_of(run))
    if not whole.is_dir():
        compress(dense, options, whole)
    again = whole.with_name(f"{whole.name}-again")
    remove(again)
    process = subprocess.Popen(command(dense, options, again), env=with_threads())
    while not (there := list(again.parent.glob(f"{again.name}.unfinished-*/block-{FEW - 1}.json"))):
        if process.poll() is not None:
            raise RuntimeError(f"it ended with status {process.returncode} before it was stopped")
        time.sleep(0.05)
    process.kill()
    process.wait()
    print(f"killed, with {len(list(there[0].parent.glob('block-*.json')))} blocks finished", flush=True)
    compress(dense, options, again)
    digests = [
        {file.name: digest(file) for file in sorted(folder.glob("*.safetensors"))} for folder in (whole, again)
    ]  # fmt: skip
    differing = sum(digests[0].get(name) != digests[1].get(name) for name in digests[0].keys() | digests[1].keys())
    setting = {"blocks": blocks_of(run), "texts": texts_of(run), "tokens": LENGTH}
    run.write([run.record("failures", differing, f"{run.given.solver}, stopped behind two blocks", setting)])
    print(f"the same bits in all {len(digests[0])} files: {yes(differing == 0)}")
    return differing == 0


def blocks_of(run: Run) -> int:
    """Blocks of the larger checkpoint."""
    return FEW + 1 if run.quick else int(run.given.blocks)


def texts_of(run: Run) -> int:
    """Texts to calibrate with."""
    return 2 if run.quick else int(run.given.texts)


def prepared(run: Run, blocks: int) -> tuple[Path, list[str], Path]:
    """A checkpoint of so many blocks, the options of the command, and the folder for what it writes."""
    solver, texts = run.given.solver, texts_of(run)
    folder = run.given.folder / "quick" if run.quick else run.given.folder
    described = config(blocks, NARROWER if run.quick else 1)
    dense = folder / f"dense-{blocks}"
    size = write(dense, described)
    file = write_texts(dense, folder / f"texts-{texts}.txt", texts, described.vocab_size)
    print(f"{size / 1e9:.1f} GB of weights are there", flush=True)
    options = [*BY_BLOCK[solver], "--calibrate", str(file), "--length", str(LENGTH)]
    return dense, options, folder / f"{solver}-{blocks}-{texts}"


def remove(small: Path) -> None:
    """Remove what was written there, finished or not."""
    for path in (small, *small.parent.glob(f"{small.name}.unfinished-*")):
        shutil.rmtree(path, ignore_errors=True)


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_texts(dense: Path, file: Path, count: int, size: int) -> Path:
    """Texts of random words of so many, and a tokenizer whose tokens are these words, beside the weights."""
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0").save_pretrained(dense)
    ids = torch.randint(1, size, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    file.write_text("".join(" ".join(f"w{number}" for number in row) + "\n" for row in ids.tolist()))
    return file


def command(dense: Path, options: list[str], small: Path) -> list[str]:
    """The command of a user."""
    words = ["compress", str(dense), "--from-disk", *options, "--out", str(small)]
    return [sys.executable, "-m", "greenformers", *words]


def compress(dense: Path, options: list[str], small: Path) -> tuple[float, float]:
    """Run the command, and the model that it wrote. The seconds of the command, and its peak memory in GiB."""
    began = time.perf_counter()
    process = subprocess.Popen(command(dense, options, small), env=with_threads())
    _, status, usage = os.wait4(process.pid, 0)  # what all children have taken would be that of the largest
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    seconds, peak = time.perf_counter() - began, usage.ru_maxrss / 2**20
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


def config(layers: int, narrower: int = 1) -> LlamaConfig:
    """Touvron 2023, table 2, first row; its vocabulary and widths are divided by `narrower`."""
    return LlamaConfig(
        vocab_size=32_000 // narrower, hidden_size=4096 // narrower, intermediate_size=11_008 // narrower,
        num_hidden_layers=layers, num_attention_heads=32 // narrower, dtype=torch.bfloat16,
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
