"""`greenformers compress`: a folder of a model in, one of the changed model out, every step judged and measured."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from greenformers.changes import Change, Given
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.pretrained import check_tokenizer, features_of, model_name, pretrained
from greenformers.checkpoint.save import check_place, save
from greenformers.compress.apply import apply, check, given_to
from greenformers.compress.comparison import SHARE, card, compared
from greenformers.compress.job import FILES, Job
from greenformers.compress.quality import check_examples
from greenformers.compress.reading import apart, check_parts, cut_off, needed_of, read_parts
from greenformers.compress.side_by_side import BATCH, check_length, example
from greenformers.compress.unfinished import UNFINISHED, Unfinished
from greenformers.data._examples import Examples
from greenformers.data._pooling import attach, pooling_of
from greenformers.data._reader import Reader
from greenformers.data._tasks import KINDS
from greenformers.data._text_files import hub_name
from greenformers.data._texts import Texts
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.record import Record
from greenformers.model.positions import extend, reach
from greenformers.train.processes import alone, first_process, told

ORIGINAL = "original"
READ = (".safetensors", ".json", ".txt", ".model")
"""Files of a model that it is read from, with its configuration, pooling and tokenizer."""
Progress = Callable[[str, float], None]


def run(
    model: str,
    changes: Sequence[Change],
    out: Path,
    job: Job,
    about: dict[str, Any],
    progress: Progress,
    *,
    parts: Mapping[str, Examples] | None = None,
    gone: int = 0,
    begun: Path | None = None,
    keeps: bool = False,
    within: float | None = None,
) -> tuple[CompressionReport, list[Record], list[str]]:
    """Apply a recipe, judge and measure every step beside the original, and save the result.

    Finished steps are kept beside `out` until all of them are finished: the same call continues after the last one.
    Of several processes the first does all of this; the others take part in what trains and in what shares its
    calibration, see `_take_part`.

    Args:
        model: Folder or name of the model.
        changes: The recipe.
        out: Folder for the result.
        job: Further options.
        about: Context of the records.
        progress: Function that is called as work goes on.
        parts: The parts of the examples that were read before; without them they are read for the job.
        gone: Texts to learn from that were left out of these parts, as they judge.
        begun: Folder of another result that kept its steps: those with which this recipe begins are not made again.
        keeps: Keep the finished steps beside the result.
        within: Seconds that measuring may take at most, where only the result is judged beside the original; by default
            a share of those of the steps, of which each is judged, see `compared`.

    Returns:
        The report, the records, and a text for each cost that was not measured and for what of texts was not read;
        of other processes, empty ones.

    Raises:
        ValueError: Options, files or the model cannot be used together; the user can correct it.
        OSError: A file cannot be read or written.
        Stopped: A signal ended training early; the same call continues it.
    """
    check_place(out)
    if job.lengths != ():
        EnergyMeter(job.country)  # raises now if it does not know the country
    work = _Work.of(model, changes, job, parts, gone)
    given = given_by(work.small, work.original, work.reader, work.parts, changes, work.job, progress)
    if work.reader is not None and "judging" in work.parts:
        check_examples(work.original, work.parts["judging"], work.reader)
    check(work.small, changes, given)
    options = {name: value for name, value in asdict(work.job).items() if name not in ("measure", "country")}
    unfinished = Unfinished.of(out, [model, [as_dict(change) for change in changes], options], files_of(model, job))
    given = replace(given, folder=unfinished.folder)
    if not first_process():
        _take_part(work.small, changes, given, unfinished)
        return CompressionReport([], 0, 0), [], []
    if begun is not None:
        unfinished.begin(begun, changes)
    small, done = unfinished.last(work.small)
    report = apply(small, changes, given, done=done, before=told, after=unfinished.keep)
    told()
    models = {ORIGINAL: work.original} | unfinished.models(_names(changes), small)
    longer = None
    for shorter in list(models.values())[:-1]:  # what was made before the network became longer is judged as well
        longer = _lengthen(shorter, small) or longer
    seconds = sum(step.seconds for step in report.steps)
    records, notes = work.compared(models, changes, about, seconds, within, progress)
    if work.tokenizer is not None and longer is not None:
        work.tokenizer.model_max_length = longer
        attach(small, replace(pooling_of(small), length=longer))
    cut = cut_off(work.parts.get("judging"), work.reader)
    made_from = f"Made from `{model_name(model)}`."
    words = " ".join([made_from, _told(work.parts, work.job, work.gone), *(f"{note}." for note in notes), *cut])
    written = card(list(models), records, words)
    save(small, out, report, card=written, tokenizer=work.tokenizer, processor=work.features)
    if keeps:
        unfinished.leave(out)
    else:
        unfinished.remove()
    return report, records, [*(f"{note} (--measure)" for note in notes), *cut]


@dataclass(frozen=True)
class _Work:
    """What a recipe works on, as it was read and checked.

    Attributes:
        small: The model, to be changed.
        original: The model, or the teacher that is named, which the result is compared with.
        tokenizer: Its tokenizer, if any.
        features: What makes its inputs of images or sound, if any.
        reader: Reader of the examples; None where none are needed.
        parts: The examples to calibrate with, to learn from and to judge by, as far as they are needed.
        gone: Number of texts to learn from that were left out, as they judge.
        job: The job with its lengths.
        measured: Lengths at which costs are measured; None for inputs of the model's own size.
    """

    small: PreTrainedModel
    original: PreTrainedModel
    tokenizer: Any
    features: Any
    reader: Reader | None
    parts: Mapping[str, Examples]
    gone: int
    job: Job
    measured: Sequence[int | None]

    @classmethod
    def of(
        cls, model: str, changes: Sequence[Change], job: Job, parts: Mapping[str, Examples] | None, gone: int
    ) -> "_Work":
        """Read a model and, where `parts` are not given, the examples of a job.

        Raises:
            ValueError: The model, options or examples cannot be used together.
            OSError: A file cannot be read.
        """
        needed = check_parts(changes, job) or parts is not None
        small, tokenizer = pretrained(model)
        original = copy.deepcopy(small) if job.teacher is None else pretrained(job.teacher)[0]
        if job.teacher is not None:
            attach(original, pooling_of(small))  # the original is judged with the pooling of the changed model
        reads_texts = KINDS.get(original.main_input_name) == "text"
        features = features_of(model, small)
        length, lengths = job.at(reach(original) if reads_texts else None, usual_length(small))
        job = replace(job, length=length, lengths=lengths)
        reader = None
        if needed:
            if reads_texts or tokenizer is not None:
                check_tokenizer(tokenizer, small, model)
            reader = Reader.of(original, tokenizer, length, features=features)
        if parts is not None:
            parts = needed_of(changes, parts)
        elif reader is None:
            parts = {}
        else:
            parts, gone = apart(read_parts(changes, job, reader), reader)
        measured: Sequence[int | None] = lengths if reads_texts or not lengths else (None,)
        if reads_texts:
            check_lengths(original, changes, lengths if not parts else (*lengths, length))
        elif measured:
            check_length(original, None)
        return cls(small, original, tokenizer, features, reader, parts, gone, job, measured)

    def compared(
        self, models: Mapping[str, PreTrainedModel], changes: Sequence[Change], about: dict[str, Any], seconds: float,
        within: float | None, progress: Progress,
    ) -> tuple[list[Record], list[str]]:  # fmt: skip
        """Judge and measure every step, in a share of the seconds that the steps took.

        Returns:
            The records, and a text for each cost that was not measured.
        """
        notes: list[str] = []
        worked = None if self.job.measure else seconds if within is None else min(seconds, within / SHARE)
        records = compared(
            models, self.parts.get("judging"), self.reader, benchmark="compress", lengths=self.measured,
            batch=1 if KINDS.get(self.original.main_input_name) == "sound" else BATCH, unmeasured=_untimed(changes),
            country=self.job.country, about=about, worked=worked,
            judged=None if within is None else (ORIGINAL, [*models][-1]), told=notes.append, progress=progress,
        )  # fmt: skip
        return records, notes


def _take_part(model: PreTrainedModel, changes: Sequence[Change], given: Given, unfinished: "Unfinished") -> None:
    """Train or calibrate along with the first process, which tells the number of each change that does.

    What other changes have made is read from disk: of measured times, say, two processes may make two networks.
    """
    while (number := told()) is not None:
        small, _ = unfinished.last(model)
        changes[number].apply(small, given_to(number, changes, given))


def given_by(
    small: PreTrainedModel, original: PreTrainedModel, reader: Reader | None, parts: Mapping[str, Examples],
    changes: Sequence[Change], job: Job, progress: Progress,
) -> Given:  # fmt: skip
    """What the changes of a recipe are given, see `Given`, of the parts of the examples that were read."""
    calibration = training = None
    if reader is not None and "calibration" in parts:
        calibration = reader.batches(parts["calibration"])
    if reader is not None and "training" in parts:
        # Beyond the original's own reach positions are copies, from which nothing can be learnt.
        learnt = replace(reader, length=min(reader.length, reach(original) or reader.length))
        training = learnt.rows(parts["training"])
    batch = None
    texts = KINDS.get(original.main_input_name) == "text"
    if not texts or any("example" in change.uses for change in changes):
        batch = example(small, max(job.lengths or (), default=job.length) if texts else None)
    return Given(
        calibration=calibration, training=training, teacher=original, example=batch, seed=job.seed, progress=progress,
        teacher_cache=job.teacher_cache, together=not alone(),
        mask_token=getattr(reader and reader.tokenizer, "mask_token_id", None),
    )  # fmt: skip


def usual_length(model: PreTrainedModel) -> int | None:
    """The longest text where none is named: by the pooling of the model, or of what it writes about sound."""
    if KINDS.get(model.main_input_name) == "text":
        return pooling_of(model).length
    return getattr(model.config, "max_target_positions", None)


def check_lengths(original: PreTrainedModel, changes: Sequence[Change], lengths: Sequence[int]) -> None:
    """Check, before the work, that the network takes the lengths asked for, or will take them after the changes.

    Raises:
        ValueError: It does not.
    """
    longest, own = max(lengths, default=0), reach(original)
    if not longest:
        return
    to_come = max((change.reach or 0 for change in changes), default=0)
    if own is not None and longest > max(own, to_come):
        raise ValueError(f"length and lengths must be at most {max(own, to_come)}, the longest input; got {longest}")
    check_length(original, longest if own is None else min(own, longest))


def _lengthen(original: PreTrainedModel, small: PreTrainedModel) -> int | None:
    """Continue the original's positions where a change continued the network's. The longest input then, else None."""
    longest, own = reach(small), reach(original)
    if longest is None or own is None or longest <= own:
        return None
    extend(original, longest)
    return longest


def _names(changes: Sequence[Change]) -> list[str]:
    """The names of the network after each change."""
    return list(accumulate((change.label for change in changes), lambda name, label: f"{name} + {label}"))


def _untimed(changes: Sequence[Change]) -> list[str]:
    """The names after steps that leave costs as they were measured before the step."""
    names = _names(changes)
    return [name for place, name in enumerate(names) if changes[place].same_costs and place > 0]


def files_of(model: str, job: Job) -> list[Path]:
    """The files that a result depends on: those of models in folders, and the examples."""
    models = [Path(name) for name in (model, job.teacher) if name is not None and Path(name).is_dir()]
    weights = [path for folder in models for path in _files_in(folder) if path.suffix in READ]
    examples = [path for name in ("texts", *FILES.values()) if (path := getattr(job, name)) is not None]
    return [*weights, *(file for path in examples if hub_name(path) is None for file in _files_in(path))]


def _files_in(path: Path) -> list[Path]:
    """The file, or the files of a folder without those of work that is under way in it."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return [file for file in files if not any(map(_under_way, file.relative_to(path).parts))]


def _under_way(part: str) -> bool:
    return UNFINISHED in part or part.startswith(".")


def _told(parts: Mapping[str, Examples], job: Job, gone: int) -> str:
    """The sizes of the parts; `gone` texts to learn from were left out, as they judge."""
    purposes = {"calibration": "to calibrate with", "training": "to learn from", "judging": "to judge by"}
    sizes = [f"{len(part):,} {purposes[name]} (`{part.name}`)" for name, part in parts.items()]
    drawn = f"; drawn by seed {job.seed}, disjoint" if job.texts is not None else ""
    noun = "Texts" if all(isinstance(part, Texts) for part in parts.values()) else "Examples"
    same = f"; {gone:,} more to learn from are left out, as they are among those that judge" if gone else ""
    return f"{noun}: {', '.join(sizes)}{drawn}{same}." if sizes else ""
