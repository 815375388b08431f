"""What was tried in a search, a line of JSON each: a search that was stopped goes on with what is there."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from errno import ENOSPC
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any

from greenformers.search.space import Genes
from greenformers.train import checkpoint


@dataclass(frozen=True)
class Trial:
    """A recipe that was made, judged and timed.

    Attributes:
        genes: The recipe in the space of the search.
        steps: Steps of healing.
        speed: How many times as fast as the model as it is.
        lost: Share of the quality that was lost; below 0 where there is more than before.
        smaller: How many times smaller on disk.
        seconds: Seconds that it took, with those that choosing it took.
        refused: Why it cannot be made, or was not: figures that are not known are nan.
        beside: Changes that round weights, of the model that the recipe was timed beside; empty for the model as it is.
        rounded: How many times as fast as the model as it is that one is. The speed is the product of this and of how
            many times as fast as that one the recipe is.
        interval: 95 % interval of the lost share, by the examples that judge; None where it is not known.
        training: Seconds of the healing among these alone; None where they are not known.
    """

    genes: Genes
    steps: int = 0
    speed: float = float("nan")
    lost: float = float("nan")
    smaller: float = float("nan")
    seconds: float = 0.0
    refused: str | None = None
    beside: str = ""
    rounded: float = 1.0
    interval: tuple[float, float] | None = None
    training: float | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Trial":
        """A trial as JSON has it; what else stands in the row is left out."""
        values = {name: row[name] for name in {field.name for field in fields(cls)} & row.keys()}
        interval = row.get("interval")
        values |= {"genes": tuple(row["genes"]), "interval": None if interval is None else tuple(interval)}
        return cls(**values)


class Trials:
    """The trials of one search, of which those that an earlier run left on disk are not made again.

    Args:
        path: File of the trials; it is made with the first one.
        rank: The number of this process, of several that search together: the first writes.

    Attributes:
        seen: The trials of this run, in the order in which the search asked for them.
    """

    MOST = 2
    """Times that a recipe may end the process, which then has no chance to say why, before it is given up. Of several
    processes, what the others were trying meanwhile is given up as well."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self.path, self._writes = path, rank == 0
        self.seen: list[Trial] = []
        self._gains: dict[str, list[float]] = {}
        self._relative: dict[Genes, list[float]] = {}
        self._on_disk: dict[tuple[Genes, int], Trial] = {}
        for trial in _trials(path):
            self._on_disk[trial.genes, trial.steps] = trial
        self._given_up = {(trial.genes, trial.steps): trial for trial in _trials(self._given_up_path)}
        self._begun = path.with_suffix(f".begun-{rank}" if rank else ".begun")

    @property
    def _given_up_path(self) -> Path:
        return self.path.with_name(f"{self.path.stem}-given-up{self.path.suffix}")

    def begin(self, genes: Genes, steps: int) -> Trial | None:
        """Note that a trial begins; where it has ended the process before, as often as is allowed, its end.

        `end` is to be called however the trial ends.
        """
        begun = _json(self._begun.read_text()) or [] if self._begun.is_file() else []
        same = [list(genes), steps]
        times = sum(entry == same for entry in begun)
        if times >= self.MOST:
            return Trial(genes, steps, refused=f"it ended the process {times} times: out of memory, or a fault")
        self._begun.parent.mkdir(parents=True, exist_ok=True)
        self._begun.write_text(json.dumps([*(entry for entry in begun if entry == same), same]))
        return None

    def end(self) -> None:
        """Note that the trial that was begun has ended, or was stopped."""
        self._begun.unlink(missing_ok=True)

    def measured_once(self, name: str, measure: Callable[[], float]) -> float:
        """A figure that is measured when a search begins, and read by the runs that go on with it.

        Args:
            name: Name of the figure, and of its file beside the trials.
            measure: Function that measures it.
        """
        path = self.path.with_name(f"{name}.txt")
        if path.is_file():
            return float(path.read_text())
        value = measure()
        if self._writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.replace(path, repr(value))
        return value

    @property
    def healed_before(self) -> bool:
        """Whether an earlier run has healed a recipe."""
        return any(steps for _, steps in self._on_disk)

    @property
    def seconds(self) -> float:
        """Seconds that the trials of this run took, also where they were made by an earlier one."""
        return sum(trial.seconds for trial in self.seen)

    def on_disk(self, genes: Genes, steps: int) -> Trial | None:
        """The trial of a recipe with so many steps of healing that is on disk, if there is one."""
        return self._on_disk.get((genes, steps))

    def add(self, trial: Trial) -> Trial:
        """Count a trial as seen, and keep it on disk as it was made if it is not there; returns it as it is seen.

        What a model with its weights rounded gains is measured again now and then, by each process. All trials beside
        it have the median of what was measured: else of two such recipes the one of a quiet minute would win. So have
        all trials of a recipe, whose speed healing does not change: else what was fast enough might not be once healed.
        """
        if trial.refused is None:
            relative, timed = trial.speed / trial.rounded, self._relative.setdefault(trial.genes, [])
            # What is healed a little is not timed again, and would outvote what is.
            timed += [relative] * (not any(isclose(relative, other, rel_tol=1e-9) for other in timed))
            if trial.beside:
                gains = self._gains.setdefault(trial.beside, [])
                gains += [trial.rounded] * (trial.rounded not in gains)
        self.seen = [self._gauged(other) for other in (*self.seen, trial)]
        if (trial.genes, trial.steps) not in self._on_disk:
            self._on_disk[trial.genes, trial.steps] = trial
            self._write(self.path, trial)
        return self.seen[-1]

    def give_up(self, genes: Genes, steps: int, why: str, seconds: float = 0.0) -> None:
        """Count a recipe with so many steps of healing as one that cannot be made, also where it was tried before.

        It is kept in a file of its own: a search that was stopped goes on with what it had been tried as, up to here.
        """
        before = self.of(genes, steps)
        spent = seconds + (0.0 if before is None else before.seconds)
        trial = Trial(genes, steps, refused=why, seconds=spent)
        self.seen = [*(other for other in self.seen if other is not before), trial]
        if (genes, steps) not in self._given_up:
            self._given_up[genes, steps] = replace(trial, seconds=seconds)
            self._write(self._given_up_path, self._given_up[genes, steps])

    def given_up(self, genes: Genes, steps: int) -> Trial | None:
        """What is known of a recipe with so many steps that this run or an earlier one gave up, or None."""
        return self._given_up.get((genes, steps))

    def judged(self, genes: Genes, steps: int) -> bool:
        """Whether a recipe with so many steps was seen and judged, also where it was given up afterwards."""
        trials = self.of(genes, steps), self.on_disk(genes, steps)
        return trials[0] is not None and any(trial is not None and trial.refused is None for trial in trials)

    def _write(self, path: Path, trial: Trial) -> None:
        """Write a trial behind those of a file, in the process that writes."""
        if not self._writes:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of a line that a full disk cut off no more is lost.
        cut = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("ab", buffering=0) as file:
            text = ("\n" * cut + json.dumps(asdict(trial)) + "\n").encode()
            if file.write(text) < len(text):
                raise OSError(ENOSPC, "No space left on device", str(path))

    def _gauged(self, trial: Trial) -> Trial:
        """A trial with the median of what was measured of its recipe, and of what it was timed beside."""
        if trial.refused is not None:
            return trial
        gain = median(self._gains[trial.beside]) if trial.beside else trial.rounded
        return replace(trial, speed=median(self._relative[trial.genes]) * gain, rounded=gain)

    def of(self, genes: Genes, steps: int) -> Trial | None:
        """The trial of a recipe with so many steps of healing that was seen, if there is one."""
        return next((trial for trial in self.seen if (trial.genes, trial.steps) == (genes, steps)), None)

    def done(self, steps: int | None = None) -> list[Trial]:
        """Trials that were not refused; those with so many steps of healing, where a number is given."""
        return [trial for trial in self.seen if trial.refused is None and steps in (None, trial.steps)]


def _trials(path: Path) -> list[Trial]:
    """The trials of a file, if there is one, without lines that a full disk or a kill cut off."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [Trial.of(row) for line in lines if (row := _json(line)) is not None]


def _json(text: str) -> Any:
    """What a text of JSON holds; None where it is cut off."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def front(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other beats in speed and in loss, the slowest first."""
    best: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (-trial.speed, trial.lost)):
        if not best or trial.lost < best[-1].lost:
            best.append(trial)
    return best[::-1]
