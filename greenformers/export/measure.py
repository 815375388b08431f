"""Exported files beside the model in torch: their differences, sizes, quality on texts, and latency."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers._torch import compile_error
from greenformers.compress.comparison import qualities
from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.export.cached import CachedCall, Continued, Decoder, TorchDecoder
from greenformers.export.network import Batch, Call, Network
from greenformers.export.runtime import RuntimeModel
from greenformers.export.write import CHECKPOINTS, FORMATS, PACKED, Checked, reader
from greenformers.measure.latency import Timing, interleaved
from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.model.positions import reach

TORCH, COMPILED = "torch", "torch, compiled"
NAMES = {"openvino": "OpenVINO", "onnx": "ONNX Runtime", "torch": TORCH, "program": "torch.export", PACKED: PACKED}
"""The variant of each format in records: the runtime of its files. The checkpoint runs as the model does."""

QUALITIES = ("spearman", "f1", "accuracy", "bleu", "wer", "perplexity", "cosine")
"""Metrics that may judge; the first that was measured does."""

PAUSE = 0.02
"""Seconds between timed runs: threads of a runtime spin for some milliseconds after its work, and slow the next one."""

WARMUP = 3
"""Runs of each form before the timed ones."""

REPEATS = 20
"""Timed runs of each form."""


def costs(checked: Checked, folder: Path, about: dict[str, Any]) -> list[Record]:
    """Records of the differences that `write` measured, and of the bytes of each format's files."""
    records = [
        Record.of("relative_error", value, benchmark="export", variant=NAMES[name], context=about)
        for name, value in checked.differences.items()
        if name != "torch"
    ]
    return records + [
        Record.of("size", size_of(name, folder) / 2**20, benchmark="export", variant=NAMES[name], context=about)
        for name in checked.differences
    ]


def size_of(name: str, folder: Path) -> int:
    """Bytes of the files of a format: the graph and its weights."""
    path = folder / FORMATS[name]
    beside = path.parent
    whole = beside != folder and name not in CHECKPOINTS
    files = beside.glob(f"{path.stem}.*" if whole else f"{path.stem}*{path.suffix}")
    return sum(file.stat().st_size for file in files)


def judged(
    model: PreTrainedModel,
    folder: Path,
    formats: Sequence[str],
    examples: Examples,
    rows: Reader,
    about: dict[str, Any],
) -> list[Record]:
    """Records of the quality of the model and of each exported file, as its runtime runs it by default."""
    models: dict[str, Any] = {TORCH: model}
    for name in formats:
        if name not in CHECKPOINTS:
            models[NAMES[name]] = RuntimeModel(name, folder, model, rows.tokenizer)
    return qualities(models, examples, rows, benchmark="export", about=about)


def check_loss(records: Sequence[Record], loss: float) -> None:
    """Check that no exported file loses more of the model's quality than is allowed.

    Args:
        records: Records of `judged`.
        loss: Per cent of the quality that may be lost.

    Raises:
        ValueError: A file loses more; the message names each, and the formats that pass.
    """
    metric = next(name for name in QUALITIES if any(record.metric == name for record in records))
    values = {record.variant: record.value for record in records if record.metric == metric}
    own = values.pop(TORCH)
    if not own > 0:
        raise ValueError(f"the texts cannot judge a loss: the model itself has a {metric} of {own:.3g} on them")
    lost = {
        name: 100 * (value / own - 1 if METRICS[metric].less_is_better else 1 - value / own)
        for name, value in values.items()
    }
    worse = {name: share for name, share in lost.items() if not share <= loss}
    if worse:
        words = ", ".join(f"{name} loses {share:.2g} %" for name, share in worse.items())
        others = [name for name in lost if name not in worse]
        passing = f"; {' and '.join(others)} would pass" if others else ""
        raise ValueError(
            f"{words} of the model's {metric}, more than the {loss:g} % of --loss: nothing was written{passing}"
        )


def latencies(
    model: PreTrainedModel,
    folder: Path,
    formats: Sequence[str],
    lengths: Sequence[int],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    size: int = 8,
    repeats: int = REPEATS,
    about: dict[str, Any],
    progress: Callable[[float], None] = lambda _: None,
) -> list[Record]:
    """Records of the model and its exported forms, interleaved, with torch's number of threads, without padding.

    Where the files of a language model keep a cache, also of the tokens that follow texts, up to each length. Where
    torch.compile fails, as without a C++ compiler, there are no records of `COMPILED`.

    Args:
        model: The model that was exported.
        folder: Folder of the export.
        formats: Formats of the files, see `FORMATS`.
        lengths: Lengths in tokens.
        tokenizer: Tokenizer of the model, if it has one.
        size: Examples in a batch.
        repeats: Timed runs of each form.
        about: Context of the records.
        progress: Function that is called with the share of the rounds that is done.

    Raises:
        ValueError: Raised as by `Network` and `reader`.
    """
    network = Network(model, tokenizer)
    calls: dict[str, Call] = {TORCH: network}
    compiled = _compiled(network, network.batch(size, max(lengths))) if lengths else None
    if compiled is not None:
        calls[COMPILED] = compiled
    calls |= {NAMES[name]: reader(name, folder, network.inputs) for name in formats if name not in CHECKPOINTS}
    decoders: dict[str, Decoder] = {name: call.decoder for name, call in calls.items() if isinstance(call, CachedCall)}
    if decoders:
        decoders = {TORCH: TorchDecoder(network)} | decoders
    records, longest = [], reach(model)
    for place, length in enumerate(lengths):

        def done(share: float, place: int = place) -> None:
            progress((place + share) / len(lengths))

        timed = partial(interleaved, repeats=repeats, warmup=WARMUP, pause=PAUSE)
        record = partial(Record.of, benchmark="export", setting={"length": length, "batch": size}, context=about)
        example = network.batch(size, length)
        # A decoder reads one token more in each call, of which one behind each rest is not timed: what reads few tokens
        # is timed less often.
        calls_of_one = 2 if PAUSE else 1
        often = repeats if longest is None else max(1, min(repeats, (longest - 1 - WARMUP) // calls_of_one))
        runs = WARMUP + calls_of_one * often
        first = max(1, length - runs)
        ids = network.batch(size, first + runs)[0]
        timings: dict[str, dict[str, Timing]] = {}
        with torch.inference_mode():
            timings["latency"] = timed({name: partial(call, *example) for name, call in calls.items()}, progress=done)
            if decoders:
                steps = {name: Continued(decoder, ids, first) for name, decoder in decoders.items()}
                timings["latency_next_token"] = timed(steps, repeats=often, settle=0.0)
        records += [
            record(metric, 1e3 * timing.median, variant=name, spread=1e3 * (timing.q3 - timing.q1))
            for metric, of_calls in timings.items()
            for name, timing in of_calls.items()
        ]
    return records


def table_records(records: Sequence[Record]) -> list[Record]:
    """Records with ratios to the model in torch, its column first."""
    order = [TORCH, COMPILED, *(name for name in NAMES.values() if name != TORCH)]
    return with_ratios(sorted(records, key=lambda record: order.index(record.variant)), to=TORCH)


def _compiled(network: Network, example: Batch) -> Call | None:
    with warnings.catch_warnings():
        # Importing Inductor uses deprecated parts of torch.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        try:
            # One program for all lengths, as the exported ones are.
            compiled = torch.compile(network, dynamic=True)
            with torch.inference_mode():
                compiled(*example)
        except compile_error():
            return None
    return compiled
