"""What a search makes in full: recipes healed for long, which it judges as it does others, and in the end the best."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from greenformers.changes import Change
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.files import line
from greenformers.checkpoint.pretrained import pretrained
from greenformers.compress.job import Job
from greenformers.compress.reading import fitted, needed_of
from greenformers.compress.run import run
from greenformers.compress.unfinished import steps_of
from greenformers.data._examples import Examples
from greenformers.measure.record import Record
from greenformers.search.healing import HURDLES
from greenformers.search.recipes import name_of
from greenformers.search.search import Search
from greenformers.search.space import Genes
from greenformers.search.steps import SPENT
from greenformers.search.trials import Trial
from greenformers.train import checkpoint
from greenformers.train.processes import alone, first_process

T = TypeVar("T")

MEASURING = 0.05
"""Least share of the time of the search that measuring the best in the end may take, also where none is left."""

MOST_FAILED = 3
"""Recipes that cannot be made in full, after which a search ends with the reason of the last."""


class Made(NamedTuple):
    """The best of a search, as it was made."""

    best: Trial
    recipe: tuple[Change, ...]
    place: Path
    report: CompressionReport
    records: list[Record]
    notes: list[str]


@dataclass
class InFull:
    """The recipes of a search that are made as a user would make them.

    What was begun stays in the folder of the search: a call that was stopped goes on.

    Args:
        search: The search, which has run.
        model: Folder or name of the model.
        job: Options.
        parts: The parts of the examples; those to judge by are examples that the search does not see.
        gone: Examples to learn from that were left out, as they judge.
        folder: Folder of the search.
        about: Context of the records.
        progress: Function that is called as work goes on.
    """

    search: Search
    model: str
    job: Job
    parts: Mapping[str, Examples]
    gone: int
    folder: Path
    about: dict[str, Any]
    progress: Callable[[str, float], None]
    _failed: int = 0

    def heal(self) -> None:
        """Heal what is worth most, one recipe or part of its healing after the other, as long as there is time."""
        number = 0
        while number < len(SPENT) and self._failed < MOST_FAILED - 1:  # what fails leaves the time to another
            genes, steps = self.search.in_full(number)
            if steps <= HURDLES[-1] or self.search.trials.of(genes, steps) is not None:
                return
            if not self._healed(genes, steps):
                continue
            number += 1
            while self._failed < MOST_FAILED - 1 and (other := self.search.rounded_else(genes, steps)) is not None:
                self._healed(other, steps)

    def best(self) -> Made:
        """The best recipe of the search, made, judged by what the search has not seen, and measured.

        Raises:
            ValueError: No recipe can be made.
        """
        while True:
            best = self.search.best()
            recipe = self.search.recipe(best.genes, best.steps)
            place, begun = self.folder / "result", self._place(best.genes, best.steps)
            within = max(self.search.left, MEASURING * self.search.plan.seconds)
            outcome = self._attempt(best.genes, best.steps, lambda: self._run(recipe, place, begun, within))  # noqa: B023
            if outcome is not None:
                return Made(best, recipe, place, *outcome)

    def _healed(self, genes: Genes, steps: int) -> bool:
        """Heal a recipe, and judge it by what the search sees; False where it cannot be made."""
        place = self._place(genes, steps)
        clock = place.with_name(f"{place.name}.seconds")
        before = float(clock.read_text()) if clock.is_file() else 0.0
        if not steps_of(place).is_dir():
            recipe, began = self.search.recipe(genes, steps), monotonic()
            begun = self._begun(genes, steps)
            try:
                outcome = self._attempt(genes, steps, lambda: self._run(recipe, place, begun), before)
            finally:  # also where a signal stops it: the same command counts what was spent
                if first_process():
                    with suppress(OSError):  # a full disk, of which what ended the work says more
                        self.folder.mkdir(parents=True, exist_ok=True)
                        checkpoint.replace(clock, repr(before + monotonic() - began))
            if outcome is None:
                return False
        self.search.add(genes, steps, lambda: pretrained(str(place))[0], before)
        return True

    def _run(
        self, recipe: tuple[Change, ...], place: Path, begun: Path | None, within: float | None = None
    ) -> tuple[CompressionReport, list[Record], list[str]]:
        """Make a recipe, from the steps that another place has of it.

        It is judged by what the search has not seen and measured within so many seconds; without these neither, and its
        steps are kept for another call.
        """
        job, parts = self.job, self.parts
        if within is None:
            job, parts = replace(job, lengths=()), {name: parts[name] for name in parts if name != "judging"}
        gone = self.gone if "training" in needed_of(recipe, parts) else 0
        return run(
            self.model, recipe, place, fitted(job, recipe), self.about, self.progress, parts=parts, gone=gone,
            begun=begun, keeps=within is None, within=within,
        )  # fmt: skip

    def _attempt(self, genes: Genes, steps: int, make: Callable[[], T], spent: float = 0.0) -> T | None:
        """What makes a recipe; None where it cannot be made, and is given up."""
        if not self.search.begin(genes, steps):  # as a call before found, which counted it too
            self._failed += 1
            return None
        try:
            return make()
        except OSError:  # a full disk, say, is no fault of the recipe
            raise
        except Exception as error:
            self._failed += 1
            ends = ValueError(
                f"{name_of(self.search.recipe(genes, steps))} cannot be made in full: {line(error)}; what was tried is "
                "kept, and the same command goes on"
            )
            if self._failed >= MOST_FAILED:  # which is no fault of the recipes
                raise ends from error
            self.search.give_up(genes, steps, line(error), spent)
            if not alone():  # the others may have made it, and would wait for this process
                raise ends from error
            return None
        finally:
            self.search.trials.end()

    def _begun(self, genes: Genes, steps: int) -> Path | None:
        """Where a recipe that is healed alike was made for as many steps, or for the first of them."""
        ends = [*accumulate(self.search.parts(genes, steps))]
        rows = [t for t in self.search.healed_alike(genes) if t.steps in ends and (t.genes, t.steps) != (genes, steps)]
        places = [self._place(t.genes, t.steps) for t in sorted(rows, key=lambda t: -t.steps)]
        return next((place for place in places if steps_of(place).is_dir()), None)

    def _place(self, genes: Genes, steps: int) -> Path:
        return self.folder / f"made-{'-'.join(map(str, genes))}-{steps}"
