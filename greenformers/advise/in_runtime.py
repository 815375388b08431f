"""Recipes measured in the runtime that will be used: exported, judged and timed there, not in torch."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from greenformers.checkpoint.files import line
from greenformers.compress.comparison import qualities
from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.export.measure import PAUSE, size_of
from greenformers.export.network import LEAST, Network
from greenformers.export.runtime import RuntimeModel
from greenformers.export.write import LIBRARIES, check_formats, write
from greenformers.measure.energy_of import energy_of
from greenformers.measure.latency import interleaved
from greenformers.measure.record import Record, with_ratios

TORCH = "torch"
RUNTIMES = (TORCH, *LIBRARIES)
"""Names of the runtimes: torch, and the formats of `export` that another runtime reads."""


def check_runtime(runtime: str) -> None:
    """Check that a runtime is known, and that its libraries are installed.

    Raises:
        ValueError: It is unknown.
        MissingExtraError: A library of the extra `export` is not installed.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime must be one of {', '.join(RUNTIMES)}; got {runtime!r}")
    if runtime != TORCH:
        check_formats([runtime])


def compared_in(
    runtime: str,
    models: Mapping[str, PreTrainedModel],
    examples: Examples,
    reader: Reader,
    calibration: Sequence[Mapping[str, Tensor]],
    *,
    length: int,
    batch: int,
    repeats: int,
    country: str,
    about: dict[str, Any],
    progress: Callable[[str, float], None],
) -> tuple[list[Record], dict[str, str]]:
    """Records of size, latency, energy and quality of models in a runtime, and why some of them cannot be there.

    Args:
        runtime: One of `RUNTIMES` but torch.
        models: Models by name, the one as it is first.
        examples: Examples to judge by.
        reader: Reader of the examples.
        calibration: Batches from which int8 layers get the ranges of their inputs.
        length: Length in tokens at which latency is measured.
        batch: Texts in a batch.
        repeats: Timed runs of each model.
        country: Country of the electricity, a 3-letter ISO code.
        about: Context of the records.
        progress: Function that is called with the name of a step and the share of it that is done.

    Returns:
        Records with ratios to the first model, and the reason why by name of each model that cannot be exported.

    Raises:
        ValueError: Raised where the first model cannot be exported.
    """
    files: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (variant, model) in enumerate(models.items()):
            progress("exporting", number / len(models))
            folder = Path(name) / str(number)
            try:
                write(
                    model, folder, [runtime], tokenizer=reader.tokenizer, calibration=calibration,
                    length=max(LEAST, length),
                )  # fmt: skip
                files[variant] = RuntimeModel(runtime, folder, model, reader.tokenizer)
            except ValueError as error:
                if not number:
                    raise
                refused[variant] = line(error)
                continue
            sizes[variant] = size_of(runtime, folder)
        progress("exporting", 1.0)
        progress("judging", 0.0)
        records = qualities(files, examples, reader, benchmark="advice", about=about)
        progress("judging", 1.0)
        example = Network(next(iter(models.values())), reader.tokenizer).batch(batch, length)
        calls = {variant: partial(file.call, *example) for variant, file in files.items()}
        timings = interleaved(calls, repeats=repeats, pause=PAUSE, progress=partial(progress, "measuring"))
        milliseconds = {variant: 1e3 * timing.median for variant, timing in timings.items()}
        energies = energy_of(calls, milliseconds, country)
    setting = {"length": length, "batch": batch, "runtime": runtime}
    for variant, timing in timings.items():
        of, spent = partial(Record.of, benchmark="advice", variant=variant, context=about), energies[variant]
        records += [
            of("size", sizes[variant] / 2**20, source="counted"),
            of("latency", milliseconds[variant], setting=setting, spread=1e3 * (timing.q3 - timing.q1)),
            of("energy_inference", spent.mwh, setting=setting, source=spent.source, by=spent.by),
            of("co2_inference", spent.co2_mg, setting=setting, source=spent.source, by=spent.by),
        ]
    return with_ratios(records, to=next(iter(models))), refused
