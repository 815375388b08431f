"""The examples that a recipe and its judgement need, and their files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenformers.changes import Change
from greenformers.compress.job import FILES, Job
from greenformers.compress.parts import MOST, split
from greenformers.data._examples import Examples, read_examples
from greenformers.data._reader import Reader
from greenformers.data._tasks import OF_PAIRS
from greenformers.data._texts import Texts


def check_parts(changes: Sequence[Change], job: Job) -> bool:
    """Check, before anything is read, that every file of examples is used; whether there is one.

    Raises:
        ValueError: A file of examples is not used.
    """
    own, used = _own(job), _used(changes)
    for part in own:
        if part not in used:
            raise ValueError(
                f"--{FILES[part].replace('_', '-')} is of no use: no change of the recipe needs such texts"
            )
    if job.texts is not None and all(part in own for part in FILES if part in used):
        raise ValueError("--texts is of no use: every part that is needed has a file of its own")
    return bool(own) or job.texts is not None


def fitted(job: Job, changes: Sequence[Change]) -> Job:
    """The job without the files that none of these changes needs."""
    used = _used(changes)
    unused: dict[str, Any] = {FILES[part]: None for part in _own(job) if part not in used}
    if not any("teacher" in change.needs for change in changes):
        unused["teacher_cache"] = None
    job = replace(job, **unused)
    return replace(job, texts=None) if used <= _own(job).keys() else job


def needed_of(changes: Sequence[Change], parts: Mapping[str, Examples]) -> dict[str, Examples]:
    """The parts that these changes and the judgement need."""
    used = _used(changes)
    return {name: part for name, part in parts.items() if name in used}


def read_parts(changes: Sequence[Change], job: Job, reader: Reader) -> dict[str, Examples]:
    """The examples of each part that the recipe and the judgement need.

    Where a corpus has splits of its own, the examples to judge by come from its test split, and no others do.

    Raises:
        ValueError: There are too few examples, files are damaged, or the model does not read such examples.
        OSError: A file cannot be read.
    """
    parts: dict[str, Examples] = {}
    for part, path in _own(job).items():
        # What calibrates is drawn, and of a large file no more is held.
        enough = job.limit if part == "calibration" else None
        learnt, judged = read_examples(path, reader.kind, enough, labelled=part == "judging", classes=reader.classes)
        parts[part] = judged if part == "judging" and judged is not None else learnt
        if part == "calibration":
            parts |= split(parts[part], [part], job.seed, job.limit)
    if job.texts is not None:
        used = _used(changes)
        purposes = [part for part in FILES if part in used and part not in parts]
        learnt, judged = read_examples(job.texts, reader.kind, classes=reader.classes)
        if judged is not None and "judging" in purposes:
            purposes.remove("judging")
            parts |= split(judged, ["judging"], job.seed, MOST["judging"])
        if purposes:
            parts |= split(learnt, purposes, job.seed, job.limit)
    for examples in parts.values():
        reader.check(examples)
    return parts


def apart(parts: Mapping[str, Examples], reader: Reader) -> tuple[dict[str, Examples], int]:
    """The parts without those texts to learn from that stand among texts to judge by; and how many these are.

    A student that has learned what its teacher says to a text is judged better by that text than by others. Files may
    have a line twice, or a sentence in several pairs, and splits of a data set may overlap. Of a model that reads both
    texts of a pair at once the pair is one text: others with one of its two say little about it, and of a premise,
    question or context there are many.

    Args:
        parts: The parts.
        reader: Reader of the model.

    Raises:
        ValueError: No text to learn from is left.
    """
    training, judging = parts.get("training"), parts.get("judging")
    if not isinstance(training, Texts) or not isinstance(judging, Texts):
        return dict(parts), 0
    if reader.task in OF_PAIRS:
        pairs = set(judging.segments)
        places = [place for place, texts in enumerate(training.segments) if texts not in pairs]
    else:
        judged = set(judging.lines)
        places = [place for place, texts in enumerate(training.segments) if not judged.intersection(texts)]
    if not places:
        raise ValueError(f"every text of {training.name} to learn from is one to judge by: give others to learn from")
    return {**parts, "training": training.at(places)}, len(training) - len(places)


def cut_off(judging: Examples | None, reader: Reader | None) -> list[str]:
    """A sentence on how many texts that judge are not read to their end; none where all are."""
    if reader is None or not isinstance(judging, Texts) or not (longer := reader.cut_off(judging)):
        return []
    whole = f"{longer:,} of the {len(judging):,} texts that judge have more than {reader.length} tokens (--length)"
    return [f"{whole}: what is beyond is not read."]


def _own(job: Job) -> dict[str, Path]:
    """The files of those parts that have a file of their own."""
    return {part: path for part, name in FILES.items() if (path := getattr(job, name)) is not None}


def _used(changes: Sequence[Change]) -> set[str]:
    return {need for change in changes for need in change.uses} | {"judging"}
