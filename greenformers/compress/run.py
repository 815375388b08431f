"""`greenformers compress`: a folder of a model in, one of the changed model out, every step judged and measured."""

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
from transformers import PreTrainedModel

from greenformers.changes import Change, Given
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.pretrained import check_tokenizer, features_of, model_name, pretrained
from greenformers.checkpoint.save import REPORT, building, check_place, save
from greenformers.compress.apply import apply, check, given_to
from greenformers.compress.comparison import SHARE, card, compared
from greenformers.compress.job import FILES, Job
from greenformers.compress.quality import check_examples
from greenformers.compress.reading import apart, check_parts, cut_off, needed_of, read_parts
from greenformers.compress.side_by_side import BATCH, check_length, example
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
UNFINISHED = ".unfinished-"
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
    given = given_by(small, original, reader, parts, changes, job, progress)
    if reader is not None and "judging" in parts:
        check_examples(original, parts["judging"], reader)
    check(small, changes, given)
    work = {name: value for name, value in asdict(job).items() if name not in ("measure", "country")}
    unfinished = Unfinished.of(out, [model, [as_dict(change) for change in changes], work], files_of(model, job))
    given = replace(given, folder=unfinished.folder)
    if not first_process():
        _take_part(small, changes, given, unfinished)
        return CompressionReport([], 0, 0), [], []
    if begun is not None:
        unfinished.begin(begun, changes)
    small, done = unfinished.last(small)
    report = apply(small, changes, given, done=done, before=told, after=unfinished.keep)
    told()
    models = {ORIGINAL: original} | unfinished.models(_names(changes), small)
    longer = None
    for shorter in list(models.values())[:-1]:  # what was made before the network became longer is judged as well
        longer = _lengthen(shorter, small) or longer
    notes: list[str] = []
    worked = None if job.measure else sum(step.seconds for step in report.steps)
    if worked is not None and within is not None:
        worked = min(worked, within / SHARE)
    records = compared(
        models, parts.get("judging"), reader, benchmark="compress", lengths=measured,
        batch=1 if KINDS.get(original.main_input_name) == "sound" else BATCH, unmeasured=_untimed(changes),
        country=job.country, about=about, worked=worked, judged=None if within is None else (ORIGINAL, [*models][-1]),
        told=notes.append, progress=progress,
    )  # fmt: skip
    if tokenizer is not None and longer is not None:
        tokenizer.model_max_length = longer
        attach(small, replace(pooling_of(small), length=longer))
    cut = cut_off(parts.get("judging"), reader)
    made_from = f"Made from `{model_name(model)}`."
    words = " ".join([made_from, _told(parts, job, gone), *(f"{note}." for note in notes), *cut])
    save(
        small, out, report, card=card(list(models), records, words), tokenizer=tokenizer, processor=features,
    )  # fmt: skip
    if keeps:
        unfinished.leave(out)
    else:
        unfinished.remove()
    return report, records, [*(f"{note} (--measure)" for note in notes), *cut]


def _take_part(model: PreTrainedModel, changes: Sequence[Change], given: Given, unfinished: "Unfinished") -> None:
    """Train or calibrate along with the first process, which tells the number of each change that does.

    What other changes have made is read from disk: of measured times, say, two processes may make two networks.
    """
    while (number := told()) is not None:
        small, _ = unfinished.last(model)
        changes[number].apply(small, given_to(number, changes, given))


@dataclass(frozen=True)
class Unfinished:
    """Finished steps of a recipe on disk, until all of them are finished.

    Attributes:
        folder: Folder beside that of the result, with a digest of the job in its name.
    """

    folder: Path

    @classmethod
    def of(cls, out: Path, job: object, files: Iterable[Path]) -> "Unfinished":
        """The finished steps of a job on these files."""
        digest = hashlib.sha256(json.dumps(job, default=str, sort_keys=True).encode())
        for path in files:
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        return cls(out.with_name(f"{out.name}{UNFINISHED}{digest.hexdigest()[:8]}"))

    def keep(self, number: int, model: nn.Module, report: CompressionReport) -> None:
        """Write the network as it is after a step."""
        save(model, self._step(number), report)

    def last(self, model: PreTrainedModel) -> tuple[PreTrainedModel, CompressionReport | None]:
        """The network after the last finished step, and the report so far; without one, the network given and None."""
        numbers = [int(path.name.rpartition("-")[2]) for path in self.folder.glob("step-*")]
        if not numbers:
            return model, None
        step = self._step(max(numbers))
        return pretrained(str(step))[0], CompressionReport.of(json.loads((step / REPORT).read_text()))

    def leave(self, out: Path) -> None:
        """Leave the finished steps beside the result, for another recipe that begins with the same changes."""
        for training in self.folder.glob("training-*"):  # checkpoints, of which no other recipe has use
            shutil.rmtree(training)
        shutil.rmtree(steps_of(out), ignore_errors=True)
        self.folder.rename(steps_of(out))

    def begin(self, out: Path, changes: Sequence[Change]) -> None:
        """Take over those steps of another result with which this recipe begins, as far as it has not made them itself.

        Args:
            out: Folder of the other result, beside which its steps were left.
            changes: This recipe.
        """
        other = Unfinished(steps_of(out))
        for number, change in enumerate(changes):
            step = other._step(number)
            own = json.loads(json.dumps(as_dict(change)))
            if not step.is_dir() or json.loads((step / REPORT).read_text())["steps"][-1]["report"]["change"] != own:
                return
            if not self._step(number).is_dir():
                with building(self._step(number)) as folder:
                    shutil.copytree(step, folder, dirs_exist_ok=True)

    def models(self, names: Sequence[str], last: PreTrainedModel) -> dict[str, PreTrainedModel]:
        """The network after each step, by name; all but the last one as read from disk."""
        before = {name: pretrained(str(self._step(number)))[0] for number, name in enumerate(names[:-1])}
        return before | {names[-1]: last}

    def remove(self) -> None:
        """Remove the finished steps from disk."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _step(self, number: int) -> Path:
        return self.folder / f"step-{number}"


def steps_of(out: Path) -> Path:
    """The folder of the finished steps that a result has beside it, where it keeps them; it is there once all is."""
    return out.with_name(f"{out.name}.steps")


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
