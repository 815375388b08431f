"""The whole way of an export: calibrate, write, judge, measure, and put the folder in place with its card."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.checkpoint.save import beside, replace
from greenformers.compress.parts import split
from greenformers.compress.quality import check_examples
from greenformers.compress.reading import cut_off
from greenformers.data._examples import Examples
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.export import card
from greenformers.export.measure import check_loss, costs, judged, latencies, table_records
from greenformers.export.network import Network
from greenformers.export.write import (
    Checked,
    calibrates,
    check_calibration,
    check_few_bits,
    check_formats,
    write,
)
from greenformers.measure.record import Record

SHORTEST = 16  # the files are checked on texts of at least this length, in tokens
LIMIT = 300
"""Texts to calibrate with."""


class Deployed(NamedTuple):
    """An export.

    Attributes:
        records: Records of differences, sizes, quality and latency.
        checked: Differences of its files, and whether they keep a cache.
        notes: What of the texts was not read.
    """

    records: list[Record]
    checked: Checked
    notes: list[str]


def deploy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    out: Path,
    formats: Sequence[str],
    *,
    examples: Examples | None = None,
    loss: float | None = None,
    length: int = 128,
    lengths: Sequence[int] = (),
    batch: int = 8,
    limit: int = LIMIT,
    about: dict[str, Any],
    progress: Callable[[str, float], None] = lambda _, __: None,
) -> Deployed:
    """Write a model in the forms of several runtimes, with a card; nothing is written where a step fails.

    Args:
        model: A dense or compressed model; it is put into evaluation mode. Of one in half precision the checkpoint and
            the times in torch are those of the model as it is, and all other files hold its weights in float32.
        tokenizer: Its tokenizer, needed for texts.
        out: Folder for the files; an earlier export there is replaced at the end.
        formats: Names of `FORMATS`.
        examples: Texts like those that the model is for: some calibrate int8 layers, the others judge.
        loss: Per cent of the model's quality that a file may lose; None for any.
        length: Longest text in tokens.
        lengths: Lengths in tokens at which latency is measured.
        batch: Texts in a batch whose latency is measured.
        limit: Largest number of texts to calibrate with.
        about: Context of the records.
        progress: Function that is called with the name of a step and the share of it that is done.

    Returns:
        Records of differences, sizes, quality and latency, and what was checked.

    Raises:
        ValueError: The model, the texts or the options do not fit each other, or a file is not as good as the model.
        MissingExtraError: A library of the extra `export` is not installed.
        OSError: The folder cannot be written, or holds anything else than an export.
    """
    check_formats(formats)
    card.check_target(out)
    check_calibration(model, formats, examples is not None)
    check_few_bits(model, formats)
    if loss is not None and examples is None:
        raise ValueError("a loss is judged on texts: give some (--texts)")
    rows, parts = None, dict[str, Examples]()
    if examples is not None:
        rows = Reader.of(model, tokenizer, length)
        parts = _parts(model, examples, rows, formats, loss, limit)
    network = Network(model, tokenizer)
    with beside(out) as place:
        staged = place / out.name
        calibration = None if rows is None or "calibration" not in parts else rows.batches(parts["calibration"])
        longest = max([length, *lengths, SHORTEST])
        checked = write(
            model, staged, formats, tokenizer=tokenizer, calibration=calibration, length=longest, progress=progress
        )
        records = costs(checked, staged, about)
        if rows is not None and "judging" in parts:
            progress("judging", 0.0)
            scores = judged(model, staged, formats, parts["judging"], rows, about)
            progress("judging", 1.0)
            if loss is not None:
                check_loss(scores, loss)
            records += scores
        if lengths:
            progress("measuring", 0.0)
            records += latencies(
                model,
                staged,
                formats,
                lengths,
                tokenizer=tokenizer,
                size=batch,
                about=about,
                progress=partial(progress, "measuring"),
            )
            progress("measuring", 1.0)
        records = table_records(records)
        paired = isinstance(examples, Texts) and examples.paired
        about_it = card.text(network, staged, formats, checked, records, tokenizer, paired=paired)
        (staged / card.FILE).write_text(about_it)
        replace(staged, out)
    return Deployed(records, checked, cut_off(parts.get("judging"), rows))


def _parts(
    model: PreTrainedModel, examples: Examples, rows: Reader, formats: Sequence[str], loss: float | None, limit: int
) -> dict[str, Examples]:
    """Texts that calibrate, where that is needed, and texts that judge.

    Texts without classes, tags or answers calibrate what tells such, and nothing can judge it.
    """
    needed = ["calibration"] if calibrates(model, formats) else []
    if (
        rows.task in ("classifier", "tagger", "answerer")
        and loss is None
        and needed
        and isinstance(examples, Texts)
        and examples.labels is None
    ):
        return split(examples, needed, 0, limit)
    parts = split(examples, ["judging", *needed], 0, limit)
    check_examples(model, parts["judging"], rows)
    if rows.task == "causal_lm":
        rows.batches(parts["judging"])  # raises where they are too short for a block
    return parts
