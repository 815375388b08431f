"""`greenformers swap`: a model in, the same with another attention out, with proof of what it lost and gained."""

import copy
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenformers.changes.attention import places, swap_attention
from greenformers.changes.heal import Healing, lessons
from greenformers.changes.int8 import is_quantised
from greenformers.checkpoint.pretrained import check_length, pretrained
from greenformers.checkpoint.save import check_target, save
from greenformers.compress.command import HEALED, Progress, checkpoints, healed
from greenformers.compress.comparison import card, compared
from greenformers.data._texts import read_texts
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.record import Record
from greenformers.model.positions import extend, reach

ORIGINAL = "original"


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for; the flags of `greenformers swap`, where they are explained."""

    model: str
    out: Path
    attention: str
    options: dict[str, Any]
    layers: Sequence[int] | None
    select: Sequence[str] | None
    length: int | None
    evaluate: Path | None
    lengths: Sequence[int]
    heal: Healing | None
    heal_texts: Path | None
    teacher: str | None
    country: str


def run(wanted: Wanted, about: dict[str, Any], progress: Progress) -> tuple[list[str], list[Record]]:
    """Swap, heal, measure beside the original, save. What was swapped, by path, and the records.

    Raises:
        ValueError: what a user can mend.
        TypeError: an option that the mechanism does not take.
        OSError: a file that cannot be read or written.
        Stopped: a signal ended healing early; the same call goes on with it.
    """
    check_target(wanted.out)
    if wanted.lengths:
        EnergyMeter(wanted.country)  # which knows the country, or says now that it does not
    if (wanted.heal is None) != (wanted.heal_texts is None):
        raise ValueError("healing needs both a number of steps and texts: --heal and --heal-texts")
    read = None if wanted.heal_texts is None else read_texts(wanted.heal_texts)
    judged = None if wanted.evaluate is None else read_texts(wanted.evaluate)
    small, tokenizer = pretrained(wanted.model, needs_tokenizer=any((read, judged)))
    if is_quantised(small):
        raise ValueError(f"{wanted.model} is of 8 bits: swap its attention first, then quantise")
    original = copy.deepcopy(small) if wanted.teacher is None else pretrained(wanted.teacher)[0]
    length = wanted.length or reach(small) or 0
    taught = min(length, reach(original) or length)  # beyond, the original's own positions are copies
    taken = read and tokenizer and wanted.heal and lessons(read.lines, tokenizer, small, wanted.heal, taught)
    made = swap_attention(
        small, wanted.attention, layers=wanted.layers, select=wanted.select, length=wanted.length,
        options=wanted.options,
    )  # fmt: skip
    longest = max(wanted.lengths, default=0)
    if longest > length > 0:
        raise ValueError(f"lengths must be at most {length}, the longest input; got {longest}")
    if (known := reach(original)) is not None and length > known:
        extend(original, length)
    check_length(small, longest)
    models = {ORIGINAL: original, wanted.attention: copy.deepcopy(small)}
    if taken and tokenizer and wanted.heal:
        healed(small, original, taken, tokenizer, wanted.heal, checkpoints(wanted.out, wanted), progress)
        models[HEALED] = small
    records = compared(
        models, judged, tokenizer, benchmark="swap", length=length, lengths=wanted.lengths, unmeasured=[HEALED],
        country=wanted.country, about=about, progress=progress,
    )  # fmt: skip
    if tokenizer is not None:
        tokenizer.model_max_length = length
    words = f"Made from `{Path(wanted.model).name}`: `{wanted.attention}` in {', '.join(f'`{path}`' for path in made)}."
    save(small, wanted.out, card=card(list(models), records, words), tokenizer=tokenizer)
    shutil.rmtree(checkpoints(wanted.out, wanted), ignore_errors=True)
    kept = len(places(small)) - len(made)
    return [f"{len(made)} of {len(made) + kept} attentions are {wanted.attention}", *made], records
