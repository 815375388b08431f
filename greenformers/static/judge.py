"""A static encoder beside its teacher: quality on texts, time and size, as records."""

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from greenformers.compress.answers import spearman_difference
from greenformers.compress.quality import embed
from greenformers.data._texts import Texts
from greenformers.measure.correlation import spearman
from greenformers.measure.latency import interleaved
from greenformers.measure.parameters import bytes_of
from greenformers.measure.quality import evaluating
from greenformers.measure.record import Record, with_ratios
from greenformers.static.folder import StaticEncoder

TEACHER, STATIC, BENCHMARK = "teacher", "static", "static"
BATCH, REPEATS = 8, 20


def check_pairs(examples: Texts) -> None:
    """Check that texts are pairs with scores, by which encoders are judged.

    Raises:
        ValueError: They are not.
    """
    if examples.label_kind != "score" or not examples.paired:
        raise ValueError(
            f"{examples.name}: encoders are judged by a table with the columns sentence1, sentence2 and score"
        )


def judged(
    teacher: PreTrainedModel,
    tokenizer: Any,
    encoder: StaticEncoder,
    examples: Texts,
    length: int,
    about: dict[str, Any],
) -> list[Record]:
    """Records of Spearman's correlation of the cosines of pairs with their scores.

    Raises:
        ValueError: The texts are no pairs with scores.
    """
    check_pairs(examples)
    scores = np.asarray(examples.labels)
    rows = {
        TEACHER: embed(teacher, examples.lines, tokenizer, length),
        STATIC: torch.nn.functional.normalize(encoder.encode(examples.lines), dim=1),
    }
    cosines = {name: (x[::2] * x[1::2]).sum(1).numpy() for name, x in rows.items()}
    interval = spearman_difference(cosines[STATIC], cosines[TEACHER], scores)
    return [
        Record.of(
            "spearman", 100 * spearman(values, scores), benchmark=BENCHMARK, variant=name,
            setting={"texts": examples.name}, interval=interval if name == STATIC else None,
            to=TEACHER if name == STATIC else None, context=about,
        )
        for name, values in cosines.items()
    ]  # fmt: skip


@torch.inference_mode()
def costs(
    teacher: PreTrainedModel, tokenizer: Any, encoder: StaticEncoder, texts: list[str], length: int,
    about: dict[str, Any],
) -> list[Record]:  # fmt: skip
    """Records of the time of a batch of texts, behind their tokenizer, and of the bytes of all weights.

    Args:
        teacher: The teacher.
        tokenizer: Its tokenizer.
        encoder: The static encoder.
        texts: Texts of the kind that will be encoded; the first `BATCH` are timed.
        length: Longest text in tokens.
        about: Context of the records.
    """
    chosen = texts[:BATCH]
    batch = dict(tokenizer(chosen, truncation=True, max_length=length, padding=True, return_tensors="pt"))
    tokens = encoder.tokens(chosen)
    with evaluating(teacher):
        times = interleaved(
            {TEACHER: lambda: teacher(**batch), STATIC: lambda: encoder.vectors(*tokens)}, repeats=REPEATS
        )
    setting = {"batch": len(chosen), "length": int(batch["input_ids"].shape[1])}
    records = [
        Record.of(
            "latency", 1e3 * time.median, benchmark=BENCHMARK, variant=name, setting=setting,
            spread=1e3 * (time.q3 - time.q1), context=about,
        )
        for name, time in times.items()
    ]  # fmt: skip
    sizes = {TEACHER: bytes_of(teacher), STATIC: encoder.weight.numel() * encoder.weight.element_size()}
    return records + [
        Record.of("size", size / 2**20, benchmark=BENCHMARK, variant=name, source="counted", context=about)
        for name, size in sizes.items()
    ]


def compared(
    teacher: PreTrainedModel, tokenizer: Any, encoder: StaticEncoder, texts: list[str], examples: Texts | None,
    length: int, about: dict[str, Any],
) -> list[Record]:  # fmt: skip
    """All records, with ratios to the teacher; without scored pairs there is no judgement."""
    records = [] if examples is None else judged(teacher, tokenizer, encoder, examples, length, about)
    return with_ratios(records + costs(teacher, tokenizer, encoder, texts, length, about), to=TEACHER)
