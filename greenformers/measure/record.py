"""Records: measured figures, each one line of JSON with its setting, its source and its context."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from greenformers.measure.contexts import fold, unfold
from greenformers.measure.record_fields import check_fields


class Metric(NamedTuple):
    """Meaning of a figure.

    Attributes:
        label: Name of the metric, for people.
        unit: Unit of the figure; empty where it has none.
        less_is_better: Whether a smaller figure is better.
    """

    label: str
    unit: str
    less_is_better: bool = True


METRICS: dict[str, Metric] = {
    "parameters": Metric("Parameters", "", True),
    "train_accuracy": Metric("Train accuracy", "%", False),
    "test_accuracy": Metric("Test accuracy", "%", False),
    "accuracy": Metric("Accuracy", "%", False),
    "bleu": Metric("BLEU", "", False),
    "chrf": Metric("chrF", "", False),
    "rouge_1": Metric("ROUGE-1", "", False),
    "rouge_2": Metric("ROUGE-2", "", False),
    "rouge_l": Metric("ROUGE-L", "", False),
    "cer": Metric("Character error rate", "%"),
    "wer": Metric("Word error rate", "%"),
    "false_words": Metric("Words written of silence and noise", ""),
    "time_error": Metric("Error of the times of words", "ms"),
    "mean_length": Metric("Mean length", "characters", False),
    "token_length": Metric("Characters a token, in sequences", "characters", False),
    "vocabulary_length": Metric("Characters a token, in the vocabulary", "characters", False),
    "odds_ratio": Metric("Odds ratio", "", False),
    "longest_sequence": Metric("Longest sequence", "nucleotides", False),
    "checks": Metric("Checks", "", False),
    "failures": Metric("Failures", ""),
    "unknown": Metric("Tokens not in the vocabulary", "%"),
    "auc": Metric("Area under the ROC curve", "%", False),
    "f1": Metric("F1", "%", False),
    "precision": Metric("Precision", "%", False),
    "recall": Metric("Recall", "%", False),
    "estimated_errors": Metric("Estimated number of wrong labels", ""),
    "spearman": Metric("Spearman's correlation", "%", False),
    "pearson": Metric("Pearson's correlation", "%", False),
    "rmse": Metric("Root mean squared error", ""),
    "mean_score": Metric("Mean over tasks", "%", False),
    "loss": Metric("Loss", "nats"),
    "perplexity": Metric("Perplexity", ""),
    "divergence": Metric("Kullback-Leibler divergence from the original", "nats"),
    "bits_per_character": Metric("Bits a character", "bits"),
    "train_loss": Metric("Training loss", "nats"),
    "train_time": Metric("Training time", "s"),
    "train_step": Metric("Forward and backward", "ms"),
    "latency": Metric("Inference latency", "ms"),
    "speed": Metric("Times as fast as the original", "", False),
    "quality_share": Metric("Quality kept of the original's", "%", False),
    "smaller": Metric("Times smaller than the original", "", False),
    "latency_next_token": Metric("Latency of the next token", "ms"),
    "predicted_latency": Metric("Predicted latency", "ms"),
    "tokens_per_second": Metric("Tokens a second", "1/s", False),
    "peak_memory_training": Metric("Peak memory, training", "MiB"),
    "held_memory_training": Metric("Weights, gradients and the optimiser's state", "MiB"),
    "peak_memory_inference": Metric("Peak memory, inference", "MiB"),
    "memory_training": Metric("Weights and activations, training", "MiB"),
    "memory_inference": Metric("Weights and activations, inference", "MiB"),
    "cache": Metric("Cache of the context", "MiB"),
    "flops": Metric("FLOPs, inference", "GFLOP"),
    "flops_training": Metric("FLOPs, training", "GFLOP"),
    "compression_time": Metric("Compression time", "s"),
    "peak_memory_compression": Metric("Peak memory, compression", "MiB"),
    "size": Metric("Size on disk", "MiB"),
    "cold_start": Metric("Start to first answer", "s"),
    "real_time_factor": Metric("Real-time factor", ""),
    "first_word": Metric("Delay of the first word", "s"),
    "word_delay": Metric("Median delay of a word", "s"),
    "energy_inference": Metric("Energy, inference", "mWh"),
    "energy_training": Metric("Energy, forward and backward", "mWh"),
    "co2_inference": Metric("CO2, inference", "mg"),
    "co2_training": Metric("CO2, forward and backward", "mg"),
    "largest_batch_inference": Metric("Largest batch, inference", "", False),
    "largest_batch_training": Metric("Largest batch, training", "", False),
    "out_of_memory_inference": Metric("Out of memory, inference, at", "MiB", False),
    "out_of_memory_training": Metric("Out of memory, training, at", "MiB", False),
    "keys_read": Metric("Keys read, of those in sight", "%"),
    "layers": Metric("Layers a position", ""),
    "at_one_layer": Metric("Positions at one layer", "%"),
    "at_all_layers": Metric("Positions at all layers", "%"),
    "cosine": Metric("Cosine to dense", "", False),
    "relative_error": Metric("Relative error", ""),
    "distance": Metric("Distance to the original's states", ""),
    "cumulative_spectrum": Metric("Cumulative spectrum", "", False),
    "suggested_k": Metric("Suggested k", ""),
    "effective_context": Metric("Relative effective context", "tokens", False),
    "energy": Metric("Energy, training", "Wh"),
    "co2": Metric("CO2, training", "g"),
    "petaflops_days": Metric("Compute, training", "petaflop/s-days"),
    "usd": Metric("Price, training", "USD"),
}


@dataclass(frozen=True)
class Record:
    """One figure of one variant in one setting. `Record.of` takes the unit from `METRICS`, and checks the figure.

    Attributes:
        benchmark: Name of the benchmark that was run ("compare", "layer_speed").
        variant: Name of the variant that it was run on ("transformer", "lrt+linformer").
        setting: Setting that tells this figure from others of the variant ({"length": 4096, "batch": 1}).
        metric: Name of the metric, a key of `METRICS`.
        value: The figure, in `unit`.
        unit: Unit of the figure.
        spread: How far apart repeated measurements lie, in `unit`. Of draws, whose number is in `setting`, the standard
            deviation; of scores in percent the width of their own 95 % interval; of other figures the interquartile
            range, in records of `bench` the whole range.
        ratio: Factor by which the figure is better than that of variant `to` in the same setting (2.0: half the cost,
            or twice the score).
        to: Name of the variant that `ratio` compares with.
        interval: Low and high end of the 95 % confidence interval of `value` minus the value of `to`, in `unit`, where
            a paired test was made; a difference with 0 between them is within noise.
        source: "measured", "counted" (parameters, FLOPs) or "estimated" (energy without a power meter).
        by: Sources of an energy, in words, see `measure.energy.EnergyMeter`; None for other figures.
        context: Versions, machine, seed, command and time.
    """

    benchmark: str
    variant: str
    setting: dict[str, Any]
    metric: str
    value: float
    unit: str
    spread: float | None = None
    ratio: float | None = None
    to: str | None = None
    interval: list[float] | None = None
    source: str = "measured"
    by: str | None = None
    context: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        metric: str,
        value: float,
        *,
        benchmark: str,
        variant: str,
        setting: Mapping[str, Any] | None = None,
        spread: float | None = None,
        ratio: float | None = None,
        to: str | None = None,
        interval: Sequence[float] | None = None,
        source: str = "measured",
        by: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Record:
        """A record of a metric of `METRICS`, in its unit. The fields are those of `Record`.

        Raises:
            ValueError: Raised where the metric is not in `METRICS`, or the value is not a finite number.
        """
        record = cls(
            benchmark, variant, dict(setting or {}), metric, value, metric_of(metric).unit, spread, ratio, to,
            None if interval is None else list(interval), source, by, dict(context or {}),
        )  # fmt: skip
        _check(record)
        return replace(record, value=float(value))


def metric_of(name: str) -> Metric:
    """The entry of a metric in `METRICS`.

    Raises:
        ValueError: Raised where `METRICS` lacks the metric; the message names the closest ones.
    """
    if name not in METRICS:
        close = get_close_matches(name, METRICS, n=3, cutoff=0.4)
        said = f"the closest are {', '.join(close)}" if close else f"it has {', '.join(METRICS)}"
        raise ValueError(f"metric must be one of greenformers.measure.record.METRICS, got {name!r}; {said}")
    return METRICS[name]


def _check(record: Record) -> None:
    """Raise a ValueError where metric, unit or value of a record do not fit `METRICS`."""
    unit = metric_of(record.metric).unit
    if record.unit != unit:
        raise ValueError(f"unit of {record.metric} must be {unit!r}, got {record.unit!r}")
    if not isinstance(record.value, Real) or not math.isfinite(record.value):
        raise ValueError(f"{record.metric} of {record.variant!r} must be a finite number, got {record.value}")


def _check_ratios(records: Sequence[Record]) -> None:
    """Raise a ValueError where a ratio calls a figure better that is worse by the metric's direction, or the reverse.

    Each record is compared with the only record of variant `to` in the same setting. A ratio of rounds may lie on the
    other side of 1 than that of medians: where either is within a tenth of 1, the record passes.
    """

    def key(record: Record, variant: str) -> str:
        return json.dumps([record.benchmark, record.metric, record.setting, variant], sort_keys=True, default=str)

    references: dict[str, list[float]] = {}
    for record in records:
        references.setdefault(key(record, record.variant), []).append(record.value)
    for record in records:
        values = references.get(key(record, record.to), []) if record.to is not None else []
        if record.ratio is None or len(values) != 1 or min(values[0], record.value, record.ratio) <= 0:
            continue
        better = _times_better(record.metric, record.value, values[0])
        if min(abs(math.log(better)), abs(math.log(record.ratio))) > 0.1 and (better > 1) != (record.ratio > 1):
            raise ValueError(
                f"ratio of {record.metric} of {record.variant!r} must say how many times better than {record.to!r} it "
                f"is, {better:.3g}, got {record.ratio:.3g}"
            )


def _times_better(metric: str, value: float, reference: float) -> float:
    return reference / value if METRICS[metric].less_is_better else value / reference


def context(command: str, seed: int) -> dict[str, Any]:
    """Versions, machine, seed, command and time that a figure depends on. It names no host and no path.

    Args:
        command: Command line, as typed.
        seed: Seed of the run.
    """
    # Not above: --help imports this file, and answers at once.
    import platform
    from importlib.metadata import version

    names = ("greenformers", "torch", "transformers")
    return {
        "command": command,
        "seed": seed,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """The machine, as far as figures depend on it."""
    import platform

    import torch

    from greenformers.measure.rated_power import processor

    # Where a process cannot be tied to some cores, as on macOS, it has all of them.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    here: dict[str, Any] = {
        "cpu": processor(), "cores": cores, "threads": torch.get_num_threads(),
        "system": platform.system(),
    }  # fmt: skip
    return here | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def check_machine(records: Sequence[Record], path: Path) -> None:
    """Check that the figures of a file are of this machine, by those that say on which they were measured.

    Raises:
        ValueError: One was measured on another.
    """
    here = machine()
    for there in (record.context["machine"] for record in records if "machine" in record.context):
        if there != here:
            differ = [name for name in {**there, **here} if there.get(name) != here.get(name)]
            words = [", ".join(f"{name} {own.get(name, 'not told')}" for name in differ) for own in (there, here)]
            raise ValueError(f"{path} has figures of {words[0]}, and this is {words[1]}: name another file")


def with_ratios(records: Sequence[Record], to: str, *, across: Sequence[str] = ()) -> list[Record]:
    """The same records, each with its ratio to variant `to` in the same setting, where that was measured.

    Args:
        records: Records of any metrics and settings.
        to: Name of the variant that the others are compared with.
        across: Keys of settings in which that variant may differ, such as "rank", which a dense network lacks.
    """

    def key(record: Record) -> tuple[str, str, str]:
        at = {name: value for name, value in record.setting.items() if name not in across}
        return (record.benchmark, json.dumps(at, sort_keys=True), record.metric)

    base = {key(record): record.value for record in records if record.variant == to}
    rated = []
    for record in records:
        ratio = None
        reference = base.get(key(record))
        if reference is not None and record.value == reference:
            ratio = 1.0  # two that make no error are alike
        elif reference and record.value:
            ratio = _times_better(record.metric, record.value, reference)
        beside = record.to if record.interval else None  # of an interval of a difference
        rated.append(replace(record, ratio=ratio, to=to if ratio is not None else beside))
    return rated


def append(path: str | Path, records: Iterable[Record]) -> None:
    """Add records to a JSONL file, each context once (see `contexts`). If the disk fills, the file is left as it was.

    Args:
        path: File of records; it and its folder are made where they are missing.
        records: Records to add.

    Raises:
        ValueError: Raised where a record's metric or unit does not fit `METRICS`, its value is not a finite number, or
            its ratio runs against the metric's direction; nothing is written then.
        OSError: Raised where the file cannot be written.
    """
    path, records = Path(path), list(records)
    for record in records:
        _check(record)
    _check_ratios(records)
    path.parent.mkdir(exist_ok=True)
    ids = _contexts(path) if path.is_file() else ()
    text = "" if not path.is_file() or _ends_in_a_line(path) else "\n"
    text += "".join(json.dumps(row) + "\n" for row in fold(map(asdict, records), ids))
    # Unbuffered: a buffer would be written again when the file closes, after the truncation.
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            if path.is_file():  # a device cannot be truncated
                os.truncate(path, before)
            raise OSError(error.errno, error.strerror, str(path)) from error


def _ends_in_a_line(path: Path) -> bool:
    """Whether a file is empty or ends where a line does, which an editor may have left out."""
    return path.read_bytes()[-1:] in (b"", b"\n")


def read(path: str | Path) -> list[Record]:
    """All records of a JSONL file.

    Raises:
        OSError: Raised where the file cannot be read.
        ValueError: Raised where a line is no record, or its metric, unit or value does not fit `METRICS`; the message
            names the file and the line.
    """
    records: list[Record] = []
    contexts: dict[str, Any] = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a file of records, it is no text") from error
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = unfold(json.loads(line), contexts)
            if record is not None:
                records.append(Record(**record))
                check_fields(vars(records[-1]))
                _check(records[-1])
        except (json.JSONDecodeError, RecursionError, TypeError) as error:
            if number == len(lines) and not text.endswith("\n"):
                about = "it is cut off: remove it, and what it held is measured again"
            else:
                about = f"not a record ({str(error).removeprefix('Record.__init__() ')})"
            raise ValueError(f"{path}, line {number}: {about}") from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return records


def _contexts(path: Path) -> set[str]:
    """Ids of the contexts that a file holds."""
    contexts: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        if line.startswith('{"id": '):
            unfold(json.loads(line), contexts)
    return set(contexts)
