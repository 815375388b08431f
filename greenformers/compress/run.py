"""`greenformers compress`: a model folder in, a changed one out, with proof of what every step lost and gained."""

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes import Change, Given
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.pretrained import pretrained
from greenformers.checkpoint.save import REPORT, check_place, save
from greenformers.compress.apply import apply, check
from greenformers.compress.comparison import card, compared
from greenformers.compress.job import FILES, Job
from greenformers.compress.parts import split
from greenformers.compress.quality import check_texts
from greenformers.compress.side_by_side import check_length, tokens
from greenformers.data._pooling import attach, pooling_of
from greenformers.data._texts import Texts, batches, read_texts, task_of
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.record import Record
from greenformers.model.positions import extend, reach

ORIGINAL = "original"
Progress = Callable[[str, float], None]


def run(
    model: str, changes: Sequence[Change], out: Path, job: Job, about: dict[str, Any], progress: Progress
) -> tuple[CompressionReport, list[Record]]:
    """Apply a recipe, judge and measure every step beside the original, save.

    Steps that were made are kept beside `out` until all of them are: the same call goes on behind the last one.

    Raises:
        ValueError: What a user can mend.
        OSError: A file that cannot be read or written.
        Stopped: A signal ended training early; the same call goes on with it.
    """
    check_place(out)
    if job.lengths != ():
        EnergyMeter(job.country)  # which knows the country, or says now that it does not
    parts = _parts(changes, job)
    small, tokenizer = pretrained(model, needs_tokenizer=bool(parts))
    original = copy.deepcopy(small) if job.teacher is None else pretrained(job.teacher)[0]
    if job.teacher is not None:
        attach(original, pooling_of(small))  # what it was changed from is judged as it is
    length, lengths = job.at(reach(original), pooling_of(small).length)
    job = replace(job, length=length, lengths=lengths)
    _check_lengths(original, changes, lengths if not parts else (*lengths, length))
    given = _given(small, original, tokenizer, parts, changes, job, progress)
    if "judging" in parts:
        check_texts(original, parts["judging"])
    check(small, changes, given)
    unfinished = Unfinished.of(out, [model, [as_dict(change) for change in changes], asdict(job)], _files(model, job))
    small, done = unfinished.last(small)
    given = replace(given, folder=unfinished.folder)
    report = apply(small, changes, given, done=done, after=unfinished.keep)
    models = {ORIGINAL: original} | unfinished.models(_names(changes), small)
    longer = _lengthen(original, small)
    records = compared(
        models, parts.get("judging"), tokenizer, benchmark="compress", length=length, lengths=lengths,
        unmeasured=_untimed(changes), country=job.country, about=about, progress=progress,
    )  # fmt: skip
    if tokenizer is not None and longer is not None:
        tokenizer.model_max_length = longer
        attach(small, replace(pooling_of(small), length=longer))
    words = f"Made from `{Path(model).name}`. {_told(parts, job)}".strip()
    save(small, out, report, card=card(list(models), records, words), tokenizer=tokenizer)
    unfinished.remove()
    return report, records


@dataclass(frozen=True)
class Unfinished:
    """Steps of a recipe on disk, until all of them are made.

    Attributes:
        folder: Beside the result to be, with what tells it from other recipes in its name.
    """

    folder: Path

    @classmethod
    def of(cls, out: Path, job: object, files: Iterable[Path]) -> "Unfinished":
        """The steps of a job on these files."""
        digest = hashlib.sha256(json.dumps(job, default=str, sort_keys=True).encode())
        for path in files:
            digest.update(f"{path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        return cls(out.with_name(f"{out.name}.unfinished-{digest.hexdigest()[:8]}"))

    def keep(self, number: int, model: nn.Module, report: CompressionReport) -> None:
        """Write the network as it is after a step."""
        save(model, self._step(number), report)

    def last(self, model: PreTrainedModel) -> tuple[PreTrainedModel, CompressionReport | None]:
        """The network after the last step that was made, and the report so far; else the network given."""
        numbers = [int(path.name.rpartition("-")[2]) for path in self.folder.glob("step-*")]
        if not numbers:
            return model, None
        step = self._step(max(numbers))
        return pretrained(str(step))[0], CompressionReport.of(json.loads((step / REPORT).read_text()))

    def models(self, names: Sequence[str], last: PreTrainedModel) -> dict[str, PreTrainedModel]:
        """The network after each step, by name; all but the last one as read from disk."""
        before = {name: pretrained(str(self._step(number)))[0] for number, name in enumerate(names[:-1])}
        return before | {names[-1]: last}

    def remove(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _step(self, number: int) -> Path:
        return self.folder / f"step-{number}"


def _parts(changes: Sequence[Change], job: Job) -> dict[str, Texts]:
    """The texts of each part that the recipe and the judgement make use of.

    Raises:
        ValueError: Texts that nothing makes use of, or too few of them.
        OSError: A file that cannot be read.
    """
    used = {need for change in changes for need in change.uses} | {"judging"}
    own: dict[str, Path] = {part: path for part, name in FILES.items() if (path := getattr(job, name)) is not None}
    for part in own:
        if part not in used:
            raise ValueError(
                f"--{FILES[part].replace('_', '-')} is of no use: no change of the recipe needs such texts"
            )
    parts = {part: read_texts(path) for part, path in own.items()}
    if "calibration" in own:
        parts["calibration"] = split(parts["calibration"], ["calibration"], job.seed, job.limit)["calibration"]
    if job.texts is not None:
        wanted = [part for part in FILES if part in used and part not in own]
        if not wanted:
            raise ValueError("--texts is of no use: every part that is needed has a file of its own")
        parts |= split(read_texts(job.texts), wanted, job.seed, job.limit)
    return parts


def _given(
    small: PreTrainedModel, original: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None,
    parts: Mapping[str, Texts], changes: Sequence[Change], job: Job, progress: Progress,
) -> Given:  # fmt: skip
    length, lengths = job.at(reach(original))
    calibration = example = None
    if "calibration" in parts and tokenizer is not None:
        calibration = batches(parts["calibration"].lines, tokenizer, task_of(small), length)
    if any("example" in change.uses for change in changes):
        example = tokens(small, max(lengths, default=length), small.config.get_text_config().vocab_size)
    # Beyond the original's own reach positions are copies, from which nothing can be learnt.
    length = min(length, reach(original) or length)
    return Given(
        calibration=calibration, training=parts["training"].lines if "training" in parts else None,
        tokenizer=tokenizer, teacher=original, example=example, length=length, seed=job.seed, progress=progress,
    )  # fmt: skip


def _check_lengths(original: PreTrainedModel, changes: Sequence[Change], lengths: Sequence[int]) -> None:
    """See, before the work, that the network takes the lengths that are asked for; or will take them.

    Raises:
        ValueError: It does not.
    """
    longest, own = max(lengths, default=0), reach(original)
    to_come = max((change.reach or 0 for change in changes), default=0)
    if own is not None and longest > max(own, to_come):
        raise ValueError(f"length and lengths must be at most {max(own, to_come)}, the longest input; got {longest}")
    check_length(original, longest if own is None else min(own, longest))


def _lengthen(original: PreTrainedModel, small: PreTrainedModel) -> int | None:
    """Continue the original's positions where a change continued the network's; the longest input then, else None."""
    longest, own = reach(small), reach(original)
    if longest is None or own is None or longest <= own:
        return None
    extend(original, longest)
    return longest


def _names(changes: Sequence[Change]) -> list[str]:
    """What the network is called after each change."""
    return list(accumulate((change.label for change in changes), lambda name, label: f"{name} + {label}"))


def _untimed(changes: Sequence[Change]) -> list[str]:
    """Steps that only train: what the network costs is as measured before them, if anything was."""
    names = _names(changes)
    return [name for place, name in enumerate(names) if changes[place].trains and place > 0]


def _files(model: str, job: Job) -> list[Path]:
    weights = sorted(Path(model).rglob("*.safetensors")) if Path(model).is_dir() else []
    return [*weights, *(path for name in ("texts", *FILES.values()) if (path := getattr(job, name)) is not None)]


def _told(parts: Mapping[str, Texts], job: Job) -> str:
    purposes = {"calibration": "to calibrate with", "training": "to learn from", "judging": "to judge by"}
    sizes = [f"{len(texts.segments):,} {purposes[part]} (`{texts.name}`)" for part, texts in parts.items()]
    drawn = f"; drawn by seed {job.seed}, disjoint" if job.texts is not None else ""
    return f"Texts: {', '.join(sizes)}{drawn}." if sizes else ""
