"""Sentence encoders on a CPU: ours in torch and exported, beside ONNX Runtime, OpenVINO with NNCF, and torchao.

    python benchmarks/deploy.py [--model base] [--quick] [--json results/deploy.jsonl]
    python benchmarks/deploy.py --json results/deploy.jsonl --markdown

Every form of a network has a process of its own, in an environment of its library's own, which the first run makes
below `--environments`. Processes are timed in turns, with equal threads: from texts to the mean over tokens, the
tokenizer included. Beside it stand the size on disk, the peak memory, the seconds from the start of a process to its
first answer, and Spearman's correlation on STS-B's dev pairs, with the interval of its difference from torch's. What
needs calibration gets 300 sentences of WikiText-2; nothing is trained. `--model base` has BERT-base's shape, and random
weights: it is there for its costs. `--markdown` measures nothing, and prints the records of `--json` as tables.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from time import monotonic

import numpy as np
from _deploy_forms import DENSE, Deployment, make
from _deploy_tables import costs, latencies, markdown, shown
from _deploy_workers import Worker, alone, in_turns
from _harness import RUNS, Benchmark, Option, Run, data
from compress_minilm import LENGTH, model_folder, pairs, sentences

from greenformers.compress.answers import spearman_difference
from greenformers.measure.correlation import spearman
from greenformers.measure.latency import Timing
from greenformers.measure.record import Record, with_ratios

NETWORKS = {"minilm": "all-MiniLM-L6", "base": "BERT-base, random weights"}
SIZES = "1x18,8x18,1x128,32x18,1x512,8x128,8x512,32x128,32x512"
TEXTS, ROUNDS, STARTS, SECONDS = 300, 5, 3, 0.3
LARGE, LARGE_ROUNDS = 8192, 3  # tokens of a call above which every process is alone, and its rounds
QUICK_SIZES, QUICK_TEXTS, QUICK_ROUNDS, QUICK_PAIRS = "1x18,8x128", 16, 2, 100

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two sizes of batches, two rounds, few texts; the figures mean little",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--model", "minilm, or base for BERT-base's shape", default="minilm", choices=NETWORKS),
        Option("--sizes", "batch x tokens of the calls, smallest first; tokens are 512 at most", default=SIZES),
        Option("--small", "folders of compressed models to stand beside, with commas", default=""),
        Option(
            "--forms", "parts of the names of the forms that are measured, with semicolons; all by default", default=""
        ),
        Option("--environments", "folder of the peers' environments", Path, RUNS / "deploy"),
        Option("--markdown", "print the tables of the records of --json, and measure nothing", bool, default=False),
    ),
    threads=2,
)


def main(run: Run) -> None:
    if run.given.markdown and not run.given.json:
        run.refuse("--markdown is of the records of --json")
    if run.given.markdown:
        # The figures of a quick run, which mean little, may be in the file too.
        whole = [record for record in run.known() if "--quick" not in record.context["command"]]
        print(markdown(whole), end="")
        return
    sizes, records = parsed(run), []
    with tempfile.TemporaryDirectory() as name:
        for some in measured(run, Path(name), sizes):
            some = with_ratios(some, to=DENSE)
            run.write(some)
            records += some
    run.show(shown(latencies(records)), shown(costs(records)))


def parsed(run: Run) -> list[tuple[int, int]]:
    """The sizes of the calls: batch and length."""
    given = QUICK_SIZES if run.quick and run.given.sizes == SIZES else run.given.sizes
    try:
        sizes = [(int(batch), int(length)) for batch, length in (size.split("x") for size in given.split(","))]
    except ValueError:
        run.refuse(f"--sizes must be like {QUICK_SIZES}, got {given!r}")
    for batch, length in sizes:
        if batch < 1 or not 3 <= length <= 512:
            run.refuse(f"--sizes must have batches of 1 at least, and 3 to 512 tokens, got {batch}x{length}")
    return sizes


def measured(run: Run, here: Path, sizes: Sequence[tuple[int, int]]) -> Iterator[list[Record]]:
    """Records of all forms, in lists of what was measured together: costs, each size of calls, quality."""
    given, about = run.given, {"model": NETWORKS[run.given.model]}
    network, lines = here / "network", sentences(given.texts, TEXTS)
    write_network(run, network)
    texts = write(here / "texts.json", lines[: QUICK_TEXTS if run.quick else TEXTS])
    options = ["random"] if given.model == "base" else []
    small = [Path(name) for name in given.small.split(",") if name]
    forms = make(network, texts, here, given.environments, given.threads, options, small, given.forms)
    yield [run.record("size", form.size, form.variant, about) for form in forms]
    with ExitStack() as stack:
        workers, starts = start(run, forms, write(here / "first.json", lines[:1]), about)
        for worker in workers.values():
            stack.enter_context(worker)
        yield starts
        if given.model == "minilm":  # first, as large calls may be too much for the memory
            yield quality(run, workers, here, about)
        for batch, length in sizes:
            texts = write(here / "batch.json", words(lines, batch, length))
            large = batch * length > LARGE
            rounds = QUICK_ROUNDS if run.quick else LARGE_ROUNDS if large else ROUNDS
            timed = alone if large else in_turns
            try:
                samples, peaks = timed(workers, rounds, texts=str(texts), length=length, seconds=SECONDS)
            except RuntimeError as error:
                print(f"left out: {batch}x{length}, and larger ones: {error}", flush=True)
                break  # one of the processes is gone
            at = about | {"batch": batch, "length": length}
            yield [run.record("latency", timing(times), name, at) for name, times in samples.items()]
            yield [run.record("peak_memory_inference", peak, name, at) for name, peak in peaks.items()]
            print(f"{batch}x{length}: done", flush=True)


def write_network(run: Run, folder: Path) -> None:
    """The dense network and its tokenizer; BERT-base's shape has weights drawn with a seed, and MiniLM's tokenizer."""
    source = model_folder() or run.skip("it needs the extra minilm")
    if run.given.model == "minilm":
        shutil.copytree(source, folder)
        return
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig(num_hidden_layers=2 if run.quick else 12)).save_pretrained(folder)
    for path in source.glob("*token*"):
        shutil.copy(path, folder)


def write(path: Path, texts: Sequence[str]) -> Path:
    """A file of texts."""
    path.write_text(json.dumps(texts))
    return path


def words(lines: Sequence[str], batch: int, length: int) -> list[str]:
    """Texts of so many words each, and so of no fewer tokens, to which they are cut."""
    stream = cycle(" ".join(lines).split())
    return [" ".join(islice(stream, length)) for _ in range(batch)]


def start(
    run: Run, forms: Sequence[Deployment], first: Path, about: dict[str, str]
) -> tuple[dict[str, Worker], list[Record]]:
    """A process of each form that has answered, and records of the time that this took; one that fails is said."""
    workers: dict[str, Worker] = {}
    records: list[Record] = []
    for form in forms:
        seconds: list[float] = []
        try:
            for _ in range(1 if run.quick else STARTS):
                if form.variant in workers:
                    workers.pop(form.variant).close()
                began = monotonic()
                worker = Worker(form.command, run.given.threads, first.with_name(f"{form.variant}.log"))
                worker.ask("time", texts=str(first), length=LENGTH, seconds=0)
                seconds.append(monotonic() - began)
                workers[form.variant] = worker
        except RuntimeError as error:
            print(f"left out: {form.variant} does not start: {error}", flush=True)
            continue
        low, median, high = np.percentile(seconds, [25, 50, 75])
        records.append(run.record("cold_start", median, form.variant, about, spread=high - low))
    return workers, records


def timing(samples: Sequence[float]) -> Timing:
    """Milliseconds of all rounds as their median and quartiles."""
    low, median, high = (float(value) / 1e3 for value in np.percentile(samples, [25, 50, 75]))
    return Timing(median, low, high, tuple(value / 1e3 for value in samples))


def quality(run: Run, workers: dict[str, Worker], here: Path, about: dict[str, str]) -> list[Record]:
    """Spearman's correlation on STS-B's dev pairs, with the interval of the difference to torch's."""
    judging = pairs(run.given.pairs, "valid")
    assert judging.labels is not None
    scores = np.asarray(judging.labels)[: QUICK_PAIRS if run.quick else None]
    texts, rows = write(here / "pairs.json", judging.lines[: 2 * len(scores)]), here / "rows.npy"
    records: list[Record] = []
    cosines: dict[str, np.ndarray] = {}
    for name, worker in workers.items():
        worker.ask("embed", texts=str(texts), length=LENGTH, to=str(rows))
        embeddings = np.load(rows)
        embeddings /= np.linalg.norm(embeddings, axis=-1, keepdims=True)
        cosines[name] = (embeddings[::2] * embeddings[1::2]).sum(-1)
        interval = None
        if name != DENSE and DENSE in cosines:
            interval = spearman_difference(cosines[name], cosines[DENSE], scores)
        records.append(run.record("spearman", 100 * spearman(cosines[name], scores), name, about, interval=interval))
    return records


if __name__ == "__main__":
    BENCHMARK.run(main)
