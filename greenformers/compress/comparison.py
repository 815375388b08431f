"""Compressed models beside the original: quality, size and costs, as records and on the card."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from greenformers.compress.quality import judge
from greenformers.compress.side_by_side import BATCH, REPEATS, measured
from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import METRICS, Record, with_ratios

LEAST, SHARE = 10.0, 0.25
"""Seconds that measuring may always take; and its time as a share of that of the work before it, so that measuring
takes a fifth of the whole."""


def compared(
    models: Mapping[str, PreTrainedModel],
    examples: Examples | None,
    reader: Reader | None,
    *,
    benchmark: str,
    lengths: Sequence[int | None],
    unmeasured: Sequence[str] = (),
    batch: int = BATCH,
    repeats: int = REPEATS,
    country: str,
    about: dict[str, Any],
    worked: float | None = None,
    judged: Sequence[str] | None = None,
    told: Callable[[str], None] = lambda _: None,
    progress: Callable[[str, float], None],
) -> list[Record]:
    """Records of all models, with ratios to the first.

    Args:
        models: Models by name, the original first.
        examples: Examples to judge by; None for no judgement.
        reader: Reader of the examples, for all models.
        benchmark: Name of the benchmark in the records.
        lengths: Lengths in tokens at which costs are measured; None for inputs without a length.
        unmeasured: Names of models that differ from another only in their weights, and so have its costs.
        batch: Examples in a batch when costs are measured.
        repeats: Timed runs of each model.
        country: Country of the electricity, a 3-letter ISO code.
        about: Context of the records.
        worked: Seconds that the work before took: measuring takes a fifth of the whole at most, or `LEAST`. None for no
            limit.
        judged: Names of the models that are judged; None for all.
        told: Function that is called with each text about costs that were not measured.
        progress: Function that is called as work goes on.

    Raises:
        ValueError: The examples cannot judge these models.
    """
    records: list[Record] = []
    began = perf_counter()
    if examples is not None and reader is not None:
        progress("judging", 0.0)
        of = {name: model for name, model in models.items() if judged is None or name in judged}
        records = qualities(of, examples, reader, benchmark=benchmark, about=about)
        progress("judging", 1.0)
    progress("measuring", 0.0)
    timed = {name: model for name, model in models.items() if name not in unmeasured}
    sizes = {name: bytes_of(model) for name, model in timed.items()}
    seconds = math.inf if worked is None else max(LEAST, SHARE * (worked + perf_counter() - began))
    costs = measured(
        timed, sizes, lengths, benchmark=benchmark, batch=batch, repeats=repeats, country=country, about=about,
        seconds=seconds, told=told, progress=partial(progress, "measuring"),
    )  # fmt: skip
    progress("measuring", 1.0)
    order = list(models)  # of columns, also where a model has scores alone
    rows = sorted([*costs, *records], key=lambda record: order.index(record.variant))
    return with_ratios(rows, to=order[0])


def qualities(
    models: Mapping[str, PreTrainedModel], examples: Examples, reader: Reader, *, benchmark: str, about: dict[str, Any]
) -> list[Record]:
    """Records of the scores of models, with intervals of their differences from the first.

    Args:
        models: Models by name.
        examples: Examples to judge by.
        reader: Reader of the examples, for all models.
        benchmark: Name of the benchmark in the records.
        about: Context of the records.

    Raises:
        ValueError: The examples cannot judge these models.
    """
    kind = "texts" if isinstance(examples, Texts) else "examples"
    return [
        Record.of(
            metric, value, benchmark=benchmark, variant=name, setting={kind: examples.name}, interval=interval,
            to=next(iter(models)) if interval else None, context=about,
        )
        for name, scores in judge(models, examples, reader).items()
        for metric, (value, interval) in scores.items()
    ]  # fmt: skip


def card(models: Sequence[str], records: Sequence[Record], origin: str) -> str:
    """A part of the model card: the origin of the model, and a table with a column for each model."""
    lines = [
        "## Before and after",
        "",
        origin,
        "",
        "| | setting | " + " | ".join(models) + " |",
        "|---|---|" + "---:|" * len(models),
    ]
    values: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        setting = ", ".join(f"{key} {value}" for key, value in record.setting.items())
        kind = "" if record.source == "measured" else f" ({record.source})"
        text = f"{record.value:,.4g} {record.unit}{kind}".strip()
        values.setdefault((METRICS[record.metric].label, setting), {})[record.variant] = text
    for (label, at), row in values.items():
        lines.append(f"| {label} | {at} | " + " | ".join(row.get(name, "") for name in models) + " |")
    return "\n".join(lines)
