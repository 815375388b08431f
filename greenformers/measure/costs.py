"""The costs of several modules side by side: parameters, FLOPs, latency and peak memory, in inference and training."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.flops import flops
from greenformers.measure.latency import Timing, interleaved
from greenformers.measure.memory import peak_memory
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record

MIB = 2**20
INFERENCE = ("parameters", "latency", "peak_memory_inference", "flops")
TRAINING = ("train_step", "peak_memory_training", "flops_training")


@dataclass(frozen=True)
class Subject:
    """A module, and a call that runs it.

    Attributes:
        module: The module, on its device.
        forward: Function that runs a forward pass and returns a scalar with a gradient, as a loss or a sum.
    """

    module: nn.Module
    forward: Callable[[], Tensor]

    def step(self) -> None:
        """Run a forward and a backward pass; gradients are dropped at the end, as `peak_memory` asks."""
        self.forward().backward()
        self.module.zero_grad(set_to_none=True)


def costs(
    subjects: Mapping[str, Subject],
    metrics: Collection[str] = INFERENCE + TRAINING,
    *,
    benchmark: str,
    setting: dict[str, Any],
    repeats: int,
    about: dict[str, Any],
    progress: Callable[[float], None] = lambda _: None,
) -> list[Record]:
    """Measure every subject, the timed figures in one interleaved run.

    Args:
        subjects: Modules with their calls, by variant; all on one device.
        metrics: Names of metrics, of `INFERENCE` and `TRAINING`.
        benchmark: Name of the benchmark in the records.
        setting: Setting of the records.
        repeats: Timed runs of each subject.
        about: Context of the records.
        progress: Function that is called with the share that is done; counting and timing are equal parts of each mode.

    Raises:
        ValueError: Raised where a metric is not among those.
    """
    unknown = set(metrics) - set(INFERENCE + TRAINING)
    if unknown:
        raise ValueError(f"metrics must be of {', '.join(INFERENCE + TRAINING)}; got {', '.join(sorted(unknown))}")
    measurements: dict[str, dict[str, float | Timing]] = {name: {} for name in subjects}
    parts = [bool(set(metrics) & set(mode)) for mode in (INFERENCE, TRAINING) for _ in ("counted", "timed")]

    def done(part: int, share: float) -> None:
        if parts[part]:
            progress((sum(parts[:part]) + share) / sum(parts))

    device = next(parameter.device for subject in subjects.values() for parameter in subject.module.parameters())
    modes = [(part, part.training) for subject in subjects.values() for part in subject.module.modules()]
    for subject in subjects.values():
        subject.module.eval()
    with torch.inference_mode():
        for number, (name, subject) in enumerate(subjects.items()):
            done(0, number / len(subjects))
            if "parameters" in metrics:
                measurements[name]["parameters"] = parameters(subject.module)
            if "flops" in metrics:
                measurements[name]["flops"] = flops(subject.forward) / 1e9
            if "peak_memory_inference" in metrics:
                measurements[name]["peak_memory_inference"] = peak_memory(subject.forward, device) / MIB
        if "latency" in metrics:
            warmup = int("peak_memory_inference" not in metrics)  # measuring the peak ran each call once
            timings = interleaved(
                {name: item.forward for name, item in subjects.items()}, repeats=repeats, warmup=warmup, device=device,
                progress=partial(done, 1),
            )  # fmt: skip
            for name, timing in timings.items():
                measurements[name]["latency"] = timing
    for number, (name, subject) in enumerate(subjects.items() if parts[2] else ()):
        done(2, number / len(subjects))
        subject.module.train()
        if "flops_training" in metrics:
            measurements[name]["flops_training"] = flops(subject.step) / 1e9
        if "peak_memory_training" in metrics:
            measurements[name]["peak_memory_training"] = peak_memory(subject.step, device) / MIB
    if "train_step" in metrics:
        warmup = int("peak_memory_training" not in metrics)
        timings = interleaved(
            {name: item.step for name, item in subjects.items()}, repeats=repeats, warmup=warmup, device=device,
            progress=partial(done, 3),
        )  # fmt: skip
        for name, timing in timings.items():
            measurements[name]["train_step"] = timing
    for part, mode in modes:
        part.training = mode
    return [
        _record(metric, value, benchmark, name, setting, about)
        for name, values in measurements.items()
        for metric, value in values.items()
    ]


def _record(
    metric: str, value: float | Timing, benchmark: str, variant: str, setting: dict[str, Any], about: dict[str, Any]
) -> Record:
    record = partial(Record.of, metric, benchmark=benchmark, variant=variant, setting=setting, context=about)
    if isinstance(value, Timing):
        return record(1e3 * value.median, spread=1e3 * (value.q3 - value.q1))
    return record(value, source="counted" if metric in ("parameters", "flops", "flops_training") else "measured")
