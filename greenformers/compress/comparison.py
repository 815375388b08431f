"""What was made of a model beside the original: quality, size and cost, as records and on the card."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.compress.quality import judge
from greenformers.compress.side_by_side import BATCH, REPEATS, measured
from greenformers.data._texts import Texts
from greenformers.measure.parameters import bytes_of
from greenformers.measure.record import METRICS, Record, with_ratios


def compared(
    models: Mapping[str, PreTrainedModel],
    texts: Texts | None,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    benchmark: str,
    length: int,
    lengths: Sequence[int],
    unmeasured: Sequence[str] = (),
    batch: int = BATCH,
    repeats: int = REPEATS,
    country: str,
    about: dict[str, Any],
    progress: Callable[[str, float], None],
) -> list[Record]:
    """Records of all models, with ratios to the first.

    Args:
        models: by name, the original first.
        texts: to judge by; None for no judgement.
        tokenizer: of all of them.
        benchmark: name of the records.
        length: longest text, in tokens.
        lengths: to measure costs at.
        unmeasured: models whose costs are another's: only their weights differ.
        batch: texts at once, where costs are measured.
        repeats: timed runs of each model.
        country: whose electricity: a 3-letter ISO code.
        about: context of the records.
        progress: called as work goes on.

    Raises:
        ValueError: the texts cannot judge such a model.
    """
    records: list[Record] = []
    if texts is not None and tokenizer is not None:
        progress("judging", 0.0)
        records = [
            Record.of(
                metric, value, benchmark=benchmark, variant=name, setting={"texts": texts.name}, interval=interval,
                to=next(iter(models)) if interval else None, context=about,
            )
            for name, scores in judge(models, texts, tokenizer, length).items()
            for metric, (value, interval) in scores.items()
        ]  # fmt: skip
        progress("judging", 1.0)
    progress("measuring", 0.0)
    timed = {name: model for name, model in models.items() if name not in unmeasured}
    sizes = {name: bytes_of(model) for name, model in timed.items()}
    first = next(iter(models.values()))
    vocabulary = first.config.get_text_config().vocab_size if lengths else 1
    costs = measured(
        timed, sizes, lengths, benchmark=benchmark, vocabulary=vocabulary, batch=batch, repeats=repeats,
        country=country, about=about,
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
