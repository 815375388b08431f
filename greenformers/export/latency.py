"""Latency of an exported network: eager, compiled, as a program of torch.export, and in onnxruntime."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from greenformers._torch import compile_error
from greenformers.export.export import FORMATS, Call, Tensors, batch, reader
from greenformers.measure.latency import interleaved
from greenformers.measure.record import Record, with_ratios

EAGER, COMPILED = "eager", "compiled"
NAMES = {"torch": "torch.export", "onnx": "onnxruntime"}
"""The variant of each format in records: the runtime of its files."""


def differences(by_format: Mapping[str, float], about: dict[str, Any]) -> list[Record]:
    """Records of the differences that `export` measured.

    Args:
        by_format: Differences by format.
        about: Context of the records.
    """
    return [
        Record.of("relative_error", value, benchmark="export", variant=NAMES[name], context=about)
        for name, value in by_format.items()
    ]


def latencies(
    model: PreTrainedModel,
    folder: Path,
    formats: Sequence[str],
    lengths: Sequence[int],
    *,
    size: int = 8,
    repeats: int = 20,
    about: dict[str, Any],
    progress: Callable[[float], None] = lambda _: None,
) -> list[Record]:
    """Records of the model and its exported forms, interleaved, with torch's number of threads, without padding.

    Where torch.compile fails, as without a C++ compiler, there are no records of `COMPILED`.

    Args:
        model: The model that was exported.
        folder: Folder with the files.
        formats: Formats of the files, see `FORMATS`.
        lengths: Lengths in tokens.
        size: Examples in a batch.
        repeats: Timed runs of each form.
        about: Context of the records.
        progress: Function that is called with the share of the rounds that is done.

    Raises:
        ValueError: Raised as by `Tensors` and `reader`.
    """
    network = Tensors(model)
    calls: dict[str, Call] = {EAGER: network}
    compiled = _compiled(network, batch(model, size, max(lengths))) if lengths else None
    if compiled is not None:
        calls[COMPILED] = compiled
    calls |= {NAMES[name]: reader(name, folder / FORMATS[name]) for name in formats}
    records = []
    for place, length in enumerate(lengths):

        def done(share: float, place: int = place) -> None:
            progress((place + share) / len(lengths))

        example, setting = batch(model, size, length), {"length": length, "batch": size}
        with torch.inference_mode():
            timings = interleaved(
                {name: partial(call, *example) for name, call in calls.items()}, repeats=repeats, progress=done
            )
        records += [
            Record.of(
                "latency", 1e3 * timing.median, benchmark="export", variant=name, setting=setting,
                spread=1e3 * (timing.q3 - timing.q1), context=about,
            )
            for name, timing in timings.items()
        ]  # fmt: skip
    return with_ratios(records, to=EAGER)


def _compiled(network: Tensors, example: tuple[torch.Tensor, torch.Tensor]) -> Call | None:
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
