"""`greenformers compress MODEL --lose 1%` and `--faster 3x`: a search, and its best recipe made in full."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from greenformers.advise.in_runtime import TORCH, check_runtime
from greenformers.changes import Change, kinds
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.files import line
from greenformers.checkpoint.pretrained import check_tokenizer, features_of, pretrained
from greenformers.checkpoint.save import REPORT, check_place
from greenformers.checkpoint.structure import changes_of
from greenformers.compress.job import Job
from greenformers.compress.quality import check_examples
from greenformers.compress.reading import apart, check_parts, fitted, needed_of, read_parts
from greenformers.compress.run import Unfinished, check_lengths, files_of, given_by, run
from greenformers.compress.side_by_side import check_length
from greenformers.data._examples import Examples, halves
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._tasks import KINDS, task_of
from greenformers.data._texts import Texts
from greenformers.export.deploy import deploy
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record, append, context, read
from greenformers.model.positions import reach
from greenformers.search.bound import Bound
from greenformers.search.healing import HURDLES
from greenformers.search.lab import Lab
from greenformers.search.search import SPENT, Plan, Search
from greenformers.search.space import Genes, Space
from greenformers.search.trials import Trial, Trials
from greenformers.train import checkpoint
from greenformers.train.others import Others, each_alone
from greenformers.train.processes import first_process

MOST_FAILED = 3
"""Recipes that cannot be made in full, after which a search ends with the reason of the last."""

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


class _Made(NamedTuple):
    """A recipe that was made, where it is, and what there is to say of it."""

    recipe: tuple[Change, ...]
    place: Path
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
    folder = Unfinished.of(out, ["search", model, asdict(job), runtime], files_of(model, job)).folder
    with each_alone() as others:
        search, parts, gone = _prepared(model, job, bound, runtime, 60 * minutes, folder, told, others)
        search.run()
    results: dict[tuple[Genes, int], _Made] = {}

    failures: list[Exception] = []

    def make(genes: Genes, steps: int) -> bool:
        """Make a recipe; one that cannot be is given up."""
        recipe, place = search.recipe(genes, steps), _made(folder, genes, steps)
        clock, judged = place.with_name(f"{place.name}.seconds"), _judged(place)
        before, began = _seconds(clock), monotonic()
        if not search.begin(genes, steps):
            return False
        try:
            if judged is None:
                left_out = gone if "training" in needed_of(recipe, parts) else 0
                *before_it, _ = accumulate(search.parts(genes, steps)) if steps else (0,)
                judged = run(
                    model, recipe, place, fitted(job, recipe), about, progress, parts=parts, gone=left_out,
                    begun=_made(folder, genes, before_it[-1]) if before_it else None, keeps=steps > HURDLES[-1],
                )  # fmt: skip
                if first_process():
                    _keep(place, judged)
        except OSError:  # a full disk, say, is no fault of the recipe
            raise
        except Exception as error:
            failures.append(error)
            if len(failures) == MOST_FAILED:  # which is no fault of the recipes
                raise
            search.trials.give_up(genes, steps, line(error), before + monotonic() - began)
            return False
        finally:  # also where a signal stops it: the same command counts what was spent
            search.trials.end()
            if first_process():
                with suppress(OSError):  # a full disk, of which what ended the work says more
                    folder.mkdir(parents=True, exist_ok=True)
                    checkpoint.replace(clock, repr(before + monotonic() - began))
        results[genes, steps] = _Made(recipe, place, *judged)
        search.add(genes, steps, lambda: pretrained(str(place))[0], before)
        return True

    number = 0
    while number < len(SPENT) and len(failures) < MOST_FAILED - 1:  # what fails leaves the time to another
        genes, steps = search.in_full(number)
        if steps <= HURDLES[-1] or (genes, steps) in results:
            break
        number += make(genes, steps)
    best = search.best()
    while (best.genes, best.steps) not in results and not make(best.genes, best.steps):
        best = search.best()
    recipe, place, report, records, notes = results[best.genes, best.steps]
    if not first_process():
        return Outcome(best, recipe, search, report, records, notes)
    lab, fault = search.lab, None
    if runtime != TORCH:
        small, tokenizer = pretrained(str(place))
        try:
            deployed, _ = deploy(
                small, tokenizer, place / DEPLOYED, [runtime], examples=parts["judging"],
                length=lab.length or lab.reader.length, lengths=[lab.length or lab.reader.length], batch=lab.batch,
                about=about, progress=progress,
            )  # fmt: skip
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


_Judged = tuple[CompressionReport, list[Record], list[str]]


def _made(folder: Path, genes: Genes, steps: int) -> Path:
    """The folder of a recipe that is made."""
    return folder / f"made-{'-'.join(map(str, genes))}-{steps}"


def _beside(place: Path) -> tuple[Path, Path]:
    """Files with what there is to say of a recipe that was made: its records, and its notes, written last."""
    return place.with_name(f"{place.name}.jsonl"), place.with_name(f"{place.name}.json")


def _keep(place: Path, judged: _Judged) -> None:
    """Keep what there is to say of a recipe that was made, so that a search that is stopped need not make it again."""
    records, notes = _beside(place)
    notes.unlink(missing_ok=True)  # first: where they are, all that is there is whole
    records.unlink(missing_ok=True)
    append(records, judged[1])
    checkpoint.replace(notes, json.dumps(judged[2]))


def _seconds(clock: Path) -> float:
    """Seconds that earlier calls spent on making a recipe; 0 where that was not kept."""
    return float(clock.read_text()) if clock.is_file() else 0.0


def _judged(place: Path) -> _Judged | None:
    """What a call before kept of a recipe that was made; None where it was not made."""
    records, notes = _beside(place)
    if not notes.is_file() or not (place / REPORT).is_file():
        return None
    return CompressionReport.of(json.loads((place / REPORT).read_text())), read(records), json.loads(notes.read_text())


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
    about = context(f"greenformers.find_recipe({str(model)!r}, {str(out)!r}, lose={lose}, faster={faster})", job.seed)
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
    length, lengths = job.at(reach(original) if texts else None, pooling_of(original).length)
    timed = (lengths or (length,))[0] if texts else None
    if job.lengths != ():
        grid_intensity(job.country)  # raises now if it does not know the country
    if texts:
        check_lengths(original, (), (*lengths, length))
    check_length(original, timed)
    if texts or tokenizer is not None:
        check_tokenizer(tokenizer, original, model)
    reader = Reader.of(original, tokenizer, length, features=features)
    parts = read_parts(reading, replace(job, length=length), reader)
    gone = 0
    if job.heal_texts is not None or job.evaluate is not None:
        parts, gone = apart(parts)
    check_examples(original, parts["judging"], reader)
    count = len(parts["judging"])
    if count < LEAST:
        name = parts["judging"].name
        raise ValueError(f"{name} leaves {count} examples to judge by; a search needs at least {LEAST}")
    seen, unseen = halves(parts["judging"], count)
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
    size = len(examples.segments[0]) if isinstance(examples, Texts) and not examples.translated else 1
    most = max(1, CALIBRATION // size)
    step = max(1, len(examples) / most)
    return examples.at([int(step * place) for place in range(min(most, len(examples)))])
