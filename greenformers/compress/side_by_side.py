"""The costs of compressed models beside those of the dense one: size, FLOPs, latency, bytes of memory, energy."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.checkpoint.files import line
from greenformers.measure import energy_of as energy
from greenformers.measure.costs import Subject, costs
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.model.example import example_of
from greenformers.solve.loss import output

METERED = ("latency", "peak_memory_inference", "flops")
BATCH, REPEATS = 8, 20
AT_LEAST = 3
"""Least number of timed runs of each model, where time is short."""
COUNTED = 5
"""Number of runs that counting FLOPs and the peak of memory, which is slow, takes as long as."""


def measured(
    models: Mapping[str, PreTrainedModel],
    sizes: Mapping[str, int],
    lengths: Sequence[int | None],
    *,
    benchmark: str = "compress",
    batch: int = BATCH,
    repeats: int = REPEATS,
    country: str = "USA",
    about: dict[str, Any],
    seconds: float = math.inf,
    told: Callable[[str], None] = lambda _: None,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Record]:
    """Records of each model, on batches of random texts of each length, or of images or recordings, without padding.

    Args:
        models: Models by variant, all on one device.
        sizes: Bytes of each model on disk.
        lengths: Lengths in tokens; None for inputs without a length, as images, or with a length of their own.
        benchmark: Name of the benchmark in the records.
        batch: Examples in a batch.
        repeats: Timed runs of each model, interleaved.
        country: Country of the electricity, a 3-letter ISO code.
        about: Context of the records.
        seconds: Seconds that measuring may take; where they are few, there are fewer timed runs, or none.
        told: Function that is called with each text about costs that were not measured.
        progress: Function that is called with the share of the whole that is done.
    """
    records = []
    for name, model in models.items():
        whole = {"parameters": float(parameters(model)), "size": sizes[name] / 2**20}
        records += [
            Record.of(metric, value, benchmark=benchmark, variant=name, source="counted", context=about)
            for metric, value in whole.items()
        ]
    for place, length in enumerate(lengths):
        began = perf_counter()
        plan = planned(models, length, seconds / (len(lengths) - place), batch=batch, repeats=repeats)
        if plan is None:
            where = "" if length is None else f" at {length} tokens"
            told(f"Time, memory and energy{where} were not measured: it would take more than a fifth of the whole")
            continue
        setting = {"batch": plan.batch} if length is None else {"length": length, "batch": plan.batch}
        subjects = subjects_of(models, length, plan.batch)
        done = partial(_told, progress, place, len(lengths))
        measurements = costs(
            subjects, METERED, benchmark=benchmark, setting=setting, repeats=plan.repeats, about=about,
            progress=partial(done, 0),
        )  # fmt: skip
        by_name = {record.variant: record.value for record in measurements if record.metric == "latency"}
        records += measurements
        calls = {name: subject.forward for name, subject in subjects.items()}
        spent_on = energy.energy_of(calls, by_name, country, seconds=plan.energy, progress=partial(done, 0.5))
        records += [
            Record.of(
                metric, value, benchmark=benchmark, variant=name, setting=setting, source=spent.source, by=spent.by,
                context=about,
            )
            for name, spent in spent_on.items()
            for metric, value in (("energy_inference", spent.mwh), ("co2_inference", spent.co2_mg))
        ]  # fmt: skip
        seconds -= perf_counter() - began
    return records


def _told(progress: Callable[[float], None], place: int, lengths: int, before: float, share: float) -> None:
    """Tell the share of the whole, from that of one half of the work at one of the lengths."""
    progress((place + before + share / 2) / lengths)


class Plan(NamedTuple):
    """Settings by which costs are measured.

    Attributes:
        batch: Examples in a batch.
        repeats: Timed runs of each model.
        energy: Seconds of work between two readings of a meter; None for the default.
    """

    batch: int
    repeats: int
    energy: float | None


def planned(
    models: Mapping[str, PreTrainedModel], length: int | None, seconds: float, *, batch: int, repeats: int
) -> Plan | None:
    """The plan that fits into these seconds: all runs, fewer runs, or runs on one example; None where none fits.

    The time of a run is taken from one run of each model, first on one example.
    """
    if seconds == math.inf:
        return Plan(batch, repeats, None)
    single_seconds = round_of(models, length, 1)
    left = seconds - single_seconds
    if batch > 1 and batch * single_seconds <= left / 4:
        batch_seconds = round_of(models, length, batch)
        left -= batch_seconds
        if (plan := _fitting(batch, batch_seconds, left, len(models), repeats)) is not None:
            return plan
    return _fitting(1, single_seconds, left, len(models), repeats)


def _fitting(batch: int, round_seconds: float, left: float, models: int, repeats: int) -> Plan | None:
    """The plan with as many runs as fit; `round_seconds` is the time of one run of every model."""
    left -= COUNTED * round_seconds
    readings = energy.TURNS * models
    if left >= repeats * round_seconds + readings * energy.SECONDS:
        return Plan(batch, repeats, None)
    if left < (AT_LEAST + energy.TURNS) * round_seconds:
        return None
    fewer = max(AT_LEAST, min(repeats, int(0.6 * left / round_seconds)))
    return Plan(batch, fewer, min(energy.SECONDS, max(0.0, (left - fewer * round_seconds) / readings)))


def round_of(models: Mapping[str, PreTrainedModel], length: int | None, size: int) -> float:
    """Seconds that one run of every model takes together."""
    subjects = subjects_of(models, length, size)
    began = perf_counter()
    with torch.inference_mode():
        for subject in subjects.values():
            subject.forward()
    return perf_counter() - began


def subjects_of(models: Mapping[str, PreTrainedModel], length: int | None, size: int) -> dict[str, Subject]:
    """The calls that are measured: each model on the same batch."""
    return {name: Subject(model, on_example(model, length, size)) for name, model in models.items()}


def on_example(model: PreTrainedModel, length: int | None, size: int = BATCH) -> Callable[[], Tensor]:
    """A function that runs a model on random examples, always the same, and gives a scalar with a gradient."""
    batch = example(model, length, size)
    return lambda: output(model(**batch), batch).sum()


def example(model: PreTrainedModel, length: int | None, size: int = BATCH) -> dict[str, Tensor]:
    """A batch of random texts of `length` tokens, or of images or recordings, always the same."""
    return example_of(model, batch=size) if length is None else example_of(model, batch=size, length=length)


def check_length(model: PreTrainedModel, length: int | None) -> None:
    """Check, before the work, that a model takes texts of `length` tokens, or the inputs that its configuration says.

    Raises:
        ValueError: It does not.
    """
    try:
        with torch.inference_mode():
            on_example(model, length, 1)()
    except Exception as error:  # whatever networks raise that take no tokens, or fewer
        inputs = (
            "a batch made from its configuration" if length is None else f"{length} tokens, see --length and --lengths"
        )
        raise ValueError(f"the model cannot be run on {inputs}: {line(error)}") from error
