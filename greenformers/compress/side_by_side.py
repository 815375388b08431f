"""The costs of a compressed model beside the dense one's: size, FLOPs, latency, memory, energy."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.checkpoint.load import line
from greenformers.measure import energy_of as energy
from greenformers.measure.costs import Subject, costs
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.model.example import example_of
from greenformers.solve.loss import output

METERED = ("latency", "peak_memory_inference", "flops")
BATCH, REPEATS = 8, 20
AT_LEAST = 3
"""Timed runs of each model, where time is short."""
COUNTED = 5
"""Runs that it takes to count FLOPs and see the peak of memory, which is slow."""


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
        models: by variant, all on one device.
        sizes: bytes of each on disk.
        lengths: in tokens; None for what has no length, as images, or one of its own.
        benchmark: name of the records.
        batch: examples at once.
        repeats: timed runs of each, interleaved.
        country: whose electricity: a 3-letter ISO code.
        about: context of the records.
        seconds: that all of it may take; there are fewer timed runs then, or none.
        told: is told what was left out.
        progress: is told the share that is done; costs and energy of each length as equal parts.
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
        found = costs(
            subjects, METERED, benchmark=benchmark, setting=setting, repeats=plan.repeats, about=about,
            progress=partial(done, 0),
        )  # fmt: skip
        by_name = {record.variant: record.value for record in found if record.metric == "latency"}
        records += found
        calls = {name: subject.forward for name, subject in subjects.items()}
        spent_on = energy.energy_of(calls, by_name, country, seconds=plan.energy, progress=partial(done, 0.5))
        for name, (spent, source) in spent_on.items():
            records.append(
                Record.of(
                    "energy_inference", spent, benchmark=benchmark, variant=name, setting=setting, source=source,
                    context=about,
                )
            )  # fmt: skip
        seconds -= perf_counter() - began
    return records


def _told(progress: Callable[[float], None], place: int, lengths: int, before: float, share: float) -> None:
    """Tell the share of the whole, from that of one half of the work at one of the lengths."""
    progress((place + before + share / 2) / lengths)


class Plan(NamedTuple):
    """How costs are measured.

    Attributes:
        batch: Examples at once.
        repeats: Timed runs of each model.
        energy: Seconds of work between two readings of a meter; None for the usual.
    """

    batch: int
    repeats: int
    energy: float | None


def planned(
    models: Mapping[str, PreTrainedModel], length: int | None, seconds: float, *, batch: int, repeats: int
) -> Plan | None:
    """What can be measured in so many seconds: all of it, fewer runs, or runs of one example; None where nothing can.

    How long a run takes is seen by one of each model, of one example first.
    """
    if seconds == math.inf:
        return Plan(batch, repeats, None)
    one = round_of(models, length, 1)
    left = seconds - one
    if batch > 1 and batch * one <= left / 4:
        each = round_of(models, length, batch)
        left -= each
        if (plan := _fitting(batch, each, left, len(models), repeats)) is not None:
            return plan
    return _fitting(1, one, left, len(models), repeats)


def _fitting(batch: int, each: float, left: float, models: int, repeats: int) -> Plan | None:
    """As many runs as fit; `each` is the time of one of every model."""
    left -= COUNTED * each
    readings = energy.TURNS * models
    if left >= repeats * each + readings * energy.SECONDS:
        return Plan(batch, repeats, None)
    if left < (AT_LEAST + energy.TURNS) * each:
        return None
    fewer = max(AT_LEAST, min(repeats, int(0.6 * left / each)))
    return Plan(batch, fewer, min(energy.SECONDS, max(0.0, (left - fewer * each) / readings)))


def round_of(models: Mapping[str, PreTrainedModel], length: int | None, size: int) -> float:
    """Seconds that one run of every model takes."""
    subjects = subjects_of(models, length, size)
    began = perf_counter()
    with torch.inference_mode():
        for subject in subjects.values():
            subject.forward()
    return perf_counter() - began


def subjects_of(models: Mapping[str, PreTrainedModel], length: int | None, size: int) -> dict[str, Subject]:
    """What is measured: each model on the same batch."""
    return {name: Subject(model, on_example(model, length, size)) for name, model in models.items()}


def on_example(model: PreTrainedModel, length: int | None, size: int = BATCH) -> Callable[[], Tensor]:
    """A call of a model on a batch of random examples, always the same, to a number that can be differentiated."""
    batch = example(model, length, size)
    return lambda: output(model(**batch), batch).sum()


def example(model: PreTrainedModel, length: int | None, size: int = BATCH) -> dict[str, Tensor]:
    """A batch of random texts of so many tokens, or of images or recordings, always the same."""
    return example_of(model, batch=size) if length is None else example_of(model, batch=size, length=length)


def check_length(model: PreTrainedModel, length: int | None) -> None:
    """See that a model takes so many tokens, or what its configuration says, before the work and not after it.

    Raises:
        ValueError: It does not.
    """
    try:
        with torch.inference_mode():
            on_example(model, length, 1)()
    except Exception as error:  # whatever networks raise that take no tokens, or fewer
        what = (
            "a batch made from its configuration" if length is None else f"{length} tokens, see --length and --lengths"
        )
        raise ValueError(f"the model cannot be run on {what}: {line(error)}") from error
