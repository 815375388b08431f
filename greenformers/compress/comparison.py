"""What was made of a model beside the original: quality, size and cost, as records and on the card."""

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
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import METRICS, Record, with_ratios

LEAST, SHARE = 10.0, 0.25
"""Seconds that measuring may always take; and of what the work took before, which makes it a fifth of the whole."""


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
    told: Callable[[str], None] = lambda _: None,
    progress: Callable[[str, float], None],
) -> list[Record]:
    """Records of all models, with ratios to the first.

    Args:
        models: by name, the original first.
        examples: to judge by; None for no judgement.
        reader: of all of them.
        benchmark: name of the records.
        lengths: to measure costs at; None for what has no length.
        unmeasured: models whose costs are another's: only their weights differ.
        batch: examples at once, where costs are measured.
        repeats: timed runs of each model.
        country: whose electricity: a 3-letter ISO code.
        about: context of the records.
        worked: seconds that the work took before: measuring takes a fifth of the whole at most, or `LEAST`; None for as
            long as it takes.
        told: is told what was not measured.
        progress: called as work goes on.

    Raises:
        ValueError: the examples cannot judge such a model.
    """
    records: list[Record] = []
    began = perf_counter()
    if examples is not None and reader is not None:
        progress("judging", 0.0)
        records = [
            Record.of(
                metric, value, benchmark=benchmark, variant=name, setting={"texts": examples.name}, interval=interval,
                to=next(iter(models)) if interval else None, context=about,
            )
            for name, scores in judge(models, examples, reader).items()
            for metric, (value, interval) in scores.items()
        ]  # fmt: skip
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


def card(models: Sequence[str], records: Sequence[Record], made: str) -> str:
    """A part of the model card: how it was made, and a table with a column a model."""
    lines = [
        "## Before and after",
        "",
        made,
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
