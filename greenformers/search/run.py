"""`greenformers compress MODEL --lose 1%` and `--faster 3x`: a search, and its best recipe made in full."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from greenformers.advise.in_runtime import TORCH, check_runtime
from greenformers.changes import Change, kinds
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.files import line
from greenformers.checkpoint.pretrained import check_tokenizer, features_of, pretrained
from greenformers.checkpoint.save import check_place
from greenformers.checkpoint.structure import changes_of
from greenformers.compress.job import Job
from greenformers.compress.parts import split
from greenformers.compress.quality import check_examples
from greenformers.compress.reading import apart, check_parts, read_parts
from greenformers.compress.run import check_lengths, files_of, given_by, usual_length
from greenformers.compress.side_by_side import check_length
from greenformers.compress.unfinished import Unfinished
from greenformers.data._examples import Examples, halves
from greenformers.data._reader import Reader
from greenformers.data._tasks import KINDS, task_of
from greenformers.data._texts import Texts
from greenformers.export.deploy import deploy
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record, context
from greenformers.model.positions import reach
from greenformers.search.bound import Bound
from greenformers.search.in_full import InFull
from greenformers.search.lab import Lab
from greenformers.search.once import once
from greenformers.search.search import Plan, Search
from greenformers.search.space import Space
from greenformers.search.trials import Trial, Trials
from greenformers.train.others import Others, each_alone
from greenformers.train.processes import first_process

DEPLOYED = "deployed"
"""Folder, in that of the result, of its form for the runtime."""

CALIBRATION = 256
"""Most examples to calibrate trials with."""

LEAST = 16
"""Examples to judge by, half of which the search sees."""


@dataclass(frozen=True)
class Outcome:
    """The end of a search.

    Attributes:
        best: The trial whose recipe was made, as the search judged it.
        recipe: Its changes.
        search: The search, with all trials.
        report: The report of the recipe, as made.
        records: Records of the model as it is and of each step, judged by examples that the search has not seen.
        notes: What was not measured.
    """

    best: Trial
    recipe: tuple[Change, ...]
    search: Search
    report: CompressionReport
    records: list[Record]
    notes: list[str]


def find(
    model: str, out: Path, job: Job, bound: Bound, *, runtime: str = TORCH, minutes: float, about: dict[str, Any],
    told: Callable[[Search, Trial], None] = lambda *_: None, progress: Callable[[str, float], None] = lambda *_: None,
) -> Outcome:  # fmt: skip
    """Search for the best recipe within a bound, and make it.

    Half of the examples to judge by judge the search, the other half what came of it. What was tried is kept beside
    `out` until the end: the same call goes on, also with another bound or for longer. Several processes try a recipe
    each at a time, timed in turns, and make the best together; the first alone has a report.

    Args:
        model: Folder or name of the model.
        out: Folder for the result.
        job: Examples and further options.
        bound: What the result must keep to.
        runtime: Runtime that recipes are timed and judged in.
        minutes: Minutes that the search may take, with making its result.
        about: Context of the records.
        told: Function that is called, in the first process, with the search and each trial that ended.
        progress: Function that is called as the result is made.

    Raises:
        ValueError: The examples cannot judge the model, the runtime is unknown, or no recipe can be made.
        OSError: A file cannot be read or written.
        Stopped: A signal ended the search early; the same call continues it.
    """
    check_place(out)
    check_runtime(runtime)
    if not minutes > 0:
        raise ValueError(f"minutes must be above 0, got {minutes:g}")
    # Times of another machine, and recipes by their numbers of another version, are not those of this one.
    where = [about.get(name) for name in ("machine", "greenformers", "torch", "transformers")]
    folder = Unfinished.of(out, ["search", model, asdict(job), runtime, where], files_of(model, job)).folder
    with each_alone() as others:
        search, parts, gone = _prepared(model, job, bound, runtime, 60 * minutes, folder, told, others)
        search.run()
    in_full = InFull(search, model, job, parts, gone, folder, about, progress)
    in_full.heal()
    best, recipe, place, report, records, notes = in_full.best()
    if not first_process():
        return Outcome(best, recipe, search, report, records, notes)
    lab, fault = search.lab, None
    if runtime != TORCH:
        small, tokenizer = pretrained(str(place))
        try:
            deployed = deploy(
                small, tokenizer, place / DEPLOYED, [runtime], examples=parts["judging"],
                length=lab.length or lab.reader.length, lengths=[lab.length or lab.reader.length], batch=lab.batch,
                about=about, progress=progress,
            ).records  # fmt: skip
            records = [*records, *deployed]
        except (ValueError, RuntimeError) as error:  # what the search came to is not lost for it
            shutil.rmtree(place / DEPLOYED, ignore_errors=True)
            fault = ValueError(f"{out} has the model for torch, but there is none for {runtime}: {line(error)}")
    not_tried = (f"Not tried: {change.label}: {why}" for change, why in search.space.refused)
    notes = [*notes, *search.notes, *not_tried]
    check_place(out)
    if out.exists():
        shutil.rmtree(out)
    place.replace(out)
    shutil.rmtree(folder)
    if fault is not None:
        raise fault
    return Outcome(best, recipe, search, report, records, notes)


def find_recipe(
    model: str | Path, out: str | Path, *, lose: float | None = None, faster: float | None = None,
    runtime: str = TORCH, minutes: float = 30.0, told: Callable[[Search, Trial], None] = lambda *_: None,
    progress: Callable[[str, float], None] = lambda *_: None, **options: Any,
) -> Outcome:  # fmt: skip
    """Search for the best recipe of a trained model within a bound, and make it, as `greenformers compress` does.

    >>> find_recipe("MODEL", "small", texts="texts.tsv", lose=0.01)
    >>> find_recipe("MODEL", "small", texts="texts.tsv", faster=3, runtime="openvino", minutes=60)

    A call that was stopped goes on where it was.

    Args:
        model: Folder of a model, or its name on the hub.
        out: Folder for the result, which `greenformers.load` reads.
        lose: Greatest share of the quality that may be lost: the fastest recipe is looked for.
        faster: Least speed-up, in place of `lose`: the recipe that loses least is looked for.
        runtime: Runtime that recipes are timed and judged in: "torch", "openvino" or "onnx".
        minutes: Minutes that it may take, with making the result.
        told: Function that is called, in the first process, with the search and each trial that ended.
        progress: Function that is called as the result is made.
        **options: Further options, the fields of `Job`: texts, evaluate, length, seed and others.

    Returns:
        The recipe, its report and records, and the search with all that was tried.

    Raises:
        TypeError: An option is none of `Job`.
        ValueError: An option is out of range, the examples cannot judge the model, or no recipe can be made.
        OSError: A file cannot be read or written.
    """
    names = ("texts", "calibrate", "heal_texts", "evaluate", "teacher_cache")
    paths = {name: Path(options[name]) for name in names if options.get(name) is not None}
    job = Job(**options | paths)
    # Records are published, and name no folders of this machine.
    named, place = (Path(path).name if Path(path).is_absolute() else str(path) for path in (model, out))
    about = context(f"greenformers.find_recipe({named!r}, {place!r}, lose={lose}, faster={faster})", job.seed)
    return find(
        str(model), Path(out), job, Bound(lose=lose, faster=faster), runtime=runtime, minutes=minutes, about=about,
        told=told, progress=progress,
    )  # fmt: skip


def _prepared(
    model: str,
    job: Job,
    bound: Bound,
    runtime: str,
    seconds: float,
    folder: Path,
    told: Callable[[Search, Trial], None],
    others: Others,
) -> tuple[Search, dict[str, Examples], int]:
    """The search, before its first trial, the parts of the examples, and how many to learn from were left out.

    The examples to judge by are those that the search does not see.
    """
    if job.teacher is not None:
        raise ValueError("--teacher is of a recipe: a search learns from MODEL, and compares with it")
    reading = [
        next(kind() for kind in kinds() if kind.trains),
        next(kind() for kind in kinds() if kind.share is not None),
    ]
    if not check_parts(reading, job):
        raise ValueError("a search needs texts to calibrate with, to learn from and to judge by: --texts")
    original, tokenizer = pretrained(model)
    if frozen := [kind.name() for kind in changes_of(original) if kind.freezes]:
        raise ValueError(f"{frozen[0]} was applied to the model already: give the model from before")
    features = features_of(model, original)
    texts = KINDS.get(original.main_input_name) == "text"
    length, lengths = job.at(reach(original) if texts else None, usual_length(original))
    timed = (lengths or (length,))[0] if texts else None
    if job.lengths != ():
        grid_intensity(job.country)  # raises now if it does not know the country
    if texts:
        check_lengths(original, (), (*lengths, length))
    check_length(original, timed)
    if texts or tokenizer is not None:
        check_tokenizer(tokenizer, original, model)
    reader = Reader.of(original, tokenizer, length, features=features)
    parts, gone = apart(read_parts(reading, replace(job, length=length), reader), reader)
    parts |= {"judging": once(parts["judging"], reader.task)}
    check_examples(original, parts["judging"], reader)
    count = len(parts["judging"])
    if count < LEAST:
        name = parts["judging"].name
        raise ValueError(f"{name} leaves {count} examples to judge by; a search needs at least {LEAST}")
    seen, unseen = halves(parts["judging"], count)
    check_examples(original, unseen, reader)
    if runtime != TORCH:  # a part of which calibrates the file for it, and the rest judges that
        check_examples(original, split(unseen, ["judging", "calibration"], 0)["judging"], reader)
    # What is made in the end is calibrated with as many as the job says.
    few = parts | {"calibration": _some(parts["calibration"])}
    given = given_by(original, original, reader, few, reading, replace(job, length=length), lambda *_: None)
    space = Space.of(
        original, replace(given, teacher_cache=None), length=length, causal=task_of(original) == "causal_lm",
        runtime=runtime,
    )  # fmt: skip
    if others.count > 1:  # each would write it
        given = replace(given, teacher_cache=None)
    lab = Lab(original, reader, seen, given, folder / f"process-{others.rank}", runtime, timed)
    lab.own_quality  # noqa: B018 - that it can be judged is known before the first trial
    plan = Plan(bound, seconds, heals=True, seed=job.seed)
    trials = Trials(folder / "trials.jsonl", others.rank)
    search = Search(space, lab, plan, trials, lambda trial: told(search, trial), others=others)
    return search, parts | {"judging": unseen}, gone


def _some(examples: Examples) -> Examples:
    """At most `CALIBRATION` of some examples, from all over; a pair of texts counts as two."""
    size = 2 if isinstance(examples, Texts) and examples.paired else 1
    most = max(1, CALIBRATION // size)
    step = max(1, len(examples) / most)
    return examples.at([int(step * place) for place in range(min(most, len(examples)))])
