"""`greenformers compress`: a model folder in, a smaller one out, with proof of what it lost."""

import copy
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes._report import CompressionReport
from greenformers.changes.heal import Distillation, Healing, heal, lessons
from greenformers.changes.int8 import is_quantised, quantise
from greenformers.changes.layers import drop_layers
from greenformers.checkpoint.pretrained import check_length, pretrained
from greenformers.checkpoint.save import check_target, save
from greenformers.checkpoint.structure import mark, ranks_of
from greenformers.compress.comparison import card, compared
from greenformers.compress.compress import compress
from greenformers.data._texts import Texts, batches, read_texts, task_of
from greenformers.lowrank.factorize import CALIBRATED, SOLVERS
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.record import Record
from greenformers.solve.budget import Budget
from greenformers.train.run import Stopped

DENSE, SHALLOW, LOW_RANK, HEALED, INT8 = "dense", "fewer layers", "low rank", "healed", "int8"
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for; the flags of `greenformers compress`, where they are explained."""

    model: str
    out: Path
    budget: Budget | None
    solver: str
    select: Sequence[str] | None
    calibrate: Path | None
    limit: int
    length: int
    evaluate: Path | None
    lengths: Sequence[int]
    only_if_faster: bool
    multiple: int | None
    seed: int
    country: str
    keep_layers: int | None = None
    heal: Healing | None = None
    heal_texts: Path | None = None
    teacher: str | None = None
    int8: bool = False


def run(wanted: Wanted, about: dict[str, Any], progress: Progress) -> tuple[CompressionReport | None, list[Record]]:
    """Compress, measure what came of each step beside the original, save.

    Raises:
        ValueError: what a user can mend.
        OSError: a file that cannot be read or written.
        Stopped: a signal ended healing early; the same call goes on with it.
    """
    _check(wanted)
    taught = wanted.heal_texts or wanted.calibrate
    read = None if wanted.heal is None or taught is None else read_texts(taught)
    seen = None if wanted.calibrate is None else read_texts(wanted.calibrate)
    judged = None if wanted.evaluate is None else read_texts(wanted.evaluate)
    small, tokenizer = pretrained(wanted.model, needs_tokenizer=any((seen, judged, read)))
    if is_quantised(small) or (wanted.budget is not None and ranks_of(small)):
        raise ValueError(
            f"{wanted.model} is compressed already: its maps are low rank, or of 8 bits; greenformers.load and "
            "greenformers.merge make low-rank ones dense again"
        )
    dense = copy.deepcopy(small) if wanted.teacher is None else pretrained(wanted.teacher)[0]
    calibration = None if seen is None or tokenizer is None else _calibration(seen, tokenizer, small, wanted)
    taken = read and tokenizer and wanted.heal and lessons(read.lines, tokenizer, small, wanted.heal, wanted.length)
    example: Any = None
    lengths = [*wanted.lengths, *([] if seen is None and judged is None else [wanted.length])]
    if wanted.budget is not None and (wanted.budget.of != "parameters" or wanted.only_if_faster):
        lengths.append(max(wanted.lengths, default=128))
        example = {"input_ids": torch.zeros(8, lengths[-1], dtype=torch.long)}
    check_length(dense, max(lengths, default=0))
    models, report = {DENSE: dense}, None
    if wanted.keep_layers is not None:
        drop_layers(small, wanted.keep_layers)
        models[SHALLOW] = copy.deepcopy(small)
    if wanted.budget is not None:
        report = compress(
            small, wanted.budget, solver=wanted.solver, select=wanted.select, calibration=calibration, example=example,
            multiple=wanted.multiple, only_if_faster=wanted.only_if_faster, seed=wanted.seed, progress=progress,
        )  # fmt: skip
        if all(layer.rank is None for layer in report.layers):
            raise ValueError("no map became low rank: the budget, or what is faster, leaves all of them dense")
        models[LOW_RANK] = copy.deepcopy(small)
    if taken and tokenizer and wanted.heal:
        healed(small, dense, taken, tokenizer, wanted.heal, checkpoints(wanted.out, wanted), progress)
        models[HEALED] = copy.deepcopy(small)
    if wanted.int8:
        for name in list(models):
            models[INT8 if name == DENSE else f"{name}, {INT8}"] = eight = copy.deepcopy(models[name])
            quantise(eight)
        small = eight
        mark(small)
    records = compared(
        models, judged, tokenizer, benchmark="compress", length=wanted.length, lengths=wanted.lengths,
        unmeasured=[name for name in models if HEALED in name and len(models) > 2], country=wanted.country, about=about,
        progress=progress,
    )  # fmt: skip
    made = card(list(models), records, _made(wanted))
    save(small, wanted.out, report, card=made, tokenizer=tokenizer)
    shutil.rmtree(checkpoints(wanted.out, wanted), ignore_errors=True)
    return report, records


def _check(wanted: Wanted) -> None:
    """What can be said before any file is read."""
    check_target(wanted.out)
    for name in ("limit", "length"):
        if getattr(wanted, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(wanted, name)}")
    if wanted.solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {wanted.solver!r}")
    if wanted.solver in CALIBRATED and wanted.calibrate is None:
        raise ValueError(f"solver {wanted.solver!r} needs texts: name a file with --calibrate")
    if wanted.lengths:
        EnergyMeter(wanted.country)  # which knows the country, or says now that it does not
    if wanted.heal_texts is not None and wanted.heal is None:
        raise ValueError("texts to heal with go with a number of steps: --heal")
    if wanted.heal is not None and wanted.heal.int8 and not wanted.int8:
        raise ValueError("healing that is aware of 8 bits goes with --int8")
    if wanted.heal is not None and (wanted.heal_texts or wanted.calibrate) is None:
        raise ValueError("healing needs texts: name a file with --heal-texts or --calibrate")


def checkpoints(out: Path, about: object) -> Path:
    """Where those of a healing are, while it lasts: beside the model to be, with what tells it from others."""
    return out.with_name(f"{out.name}.healing-{hashlib.sha256(repr(about).encode()).hexdigest()[:8]}")


def healed(
    small: PreTrainedModel, dense: PreTrainedModel, taken: Distillation, tokenizer: PreTrainedTokenizerBase,
    healing: Healing, folder: Path, progress: Progress,
) -> None:  # fmt: skip
    """Heal a model, in place, going on from the checkpoints of a run that was stopped.

    Raises:
        Stopped: a signal ended it.
    """
    history = heal(small, dense, taken, tokenizer, healing, folder=folder, resume=True, progress=progress)
    if history.stopped is not None:
        raise Stopped(history.stopped)


def _made(wanted: Wanted) -> str:
    steps = [
        f"{wanted.keep_layers} layers kept" * (wanted.keep_layers is not None),
        f"solver `{wanted.solver}`, budget `{wanted.budget}`" * (wanted.budget is not None),
        f"healed for {wanted.heal.steps if wanted.heal else 0} steps" * (wanted.heal is not None),
        "weights of 8 bits" * wanted.int8,
    ]
    return f"Made from `{Path(wanted.model).name}`: {'; '.join(filter(None, steps))}."


def _calibration(
    seen: Texts, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, wanted: Wanted
) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(wanted.seed)
    lines = seen.lines
    chosen = torch.randperm(len(lines), generator=generator)[: wanted.limit].sort().values.tolist()
    return batches([lines[place] for place in chosen], tokenizer, task_of(model), wanted.length)
