"""Studies of fine-tuning: how much of the surroundings of a gene helps, and how much pre-training. Thesis 5.4.

Each point is a folder of runs, as `genome finetune` makes it; a study that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from greenformers.genome import judge
from greenformers.genome.files import Region
from greenformers.genome.finetune import finetune
from greenformers.genome.people import People, part_of
from greenformers.genome.settings import Finetuning, sequences_of
from greenformers.measure.record import Record
from greenformers.train import run
from greenformers.train.task import MODEL

MARGINS = (0, 1000, 3000, 5000, 10_000, 15_000)
"""Positions more on each side: figure 5.5."""


def surroundings(
    settings: Finetuning, margins: Sequence[int], splits: int, out: Path, console: Console, known: Sequence[int] = ()
) -> list[Record]:
    """Fine-tune on a gene, and on more and more on both sides of it. Figure 5.5.

    Args:
        settings: of all runs; the region is the gene's.
        margins: positions more on each side, for each point.
        splits: draws of people, of each point.
        out: folder of the points.
        console: where progress is shown.
        known: positions of known variants, for a baseline of their own.

    Returns:
        Those of `judge.records`, with the margin as a setting.

    Raises:
        ValueError: no region, no margins, or a margin for which the file of people has no room.
        GenomeError: the region is not one of the file.
    """
    if settings.region is None:
        raise ValueError("region must be the gene, such as 19:45409039-45412650, got none")
    path = sequences_of(settings)
    whole, gene = part_of(path, settings.region)
    room = min(gene.start - whole.start, whole.end - gene.end)
    if not margins or min(margins) < 0 or max(margins) > room:
        given = ", ".join(map(str, margins)) or "none"
        raise ValueError(f"margins must be in 0..{room}, what {path} has on both sides of {gene}; got {given}")
    made = []
    points = [
        (margin, replace(settings, region=str(Region(whole.contig, gene.start - margin, gene.end + margin))))
        for margin in sorted(set(margins))
    ]
    # A sequence too long for the network is found now, not after all the shorter ones.
    points[-1][1].task()
    for margin, one in points:
        people = People.load(path, one.region)
        features = judge.features(people, known)
        found = finetune(one, out / f"plus{margin}", splits, console)
        made += _with(judge.records(one, found, features, people), "margin", margin)
    return made


def pretraining(
    settings: Finetuning, splits: int, out: Path, console: Console, known: Sequence[int] = ()
) -> list[Record]:
    """Fine-tune from nothing, from each snapshot of a pre-training run, and from its end. Table 5.2, figure 5.4.

    Args:
        settings: of all runs; init is the pre-training run.
        splits: as `surroundings`.
        out: as `surroundings`.
        console: as `surroundings`.
        known: as `surroundings`.

    Returns:
        Those of `judge.records`, with the steps of pre-training as a setting.

    Raises:
        ValueError: init is not named.
        OSError: it is not a finished run.
    """
    if settings.init is None:
        raise ValueError("init must be a run of `genome pretrain`, got none")
    folder = Path(settings.init)
    starts = {0: replace(settings, init=None, tokens=settings.tokens or str(folder / MODEL))}
    for step in sorted(int(one.name) for one in (folder / run.SNAPSHOTS).glob("*") if one.name.isdecimal()):
        starts[step] = replace(settings, init=str(folder / run.SNAPSHOTS / str(step)))
    last = max(int(entry["step"]) for entry in run.metrics_of(folder))
    starts[last] = settings
    people = People.load(sequences_of(settings), settings.region)
    features = judge.features(people, known)
    # A network that is not that of the run is found before any of them is trained.
    for one in starts.values():
        one.task().network()
    made = []
    for steps, one in starts.items():
        found = finetune(one, out / f"after{steps}", splits, console)
        records = judge.records(one, found, features, people)
        # The others have not been pre-trained: they stand at 0 alone.
        own = [record for record in records if record.variant == settings.variant]
        made += _with(records if not steps else own, "pretraining_steps", steps)
    return made


def _with(records: Sequence[Record], name: str, value: int) -> list[Record]:
    return [replace(record, benchmark="genome_study", setting=record.setting | {name: value}) for record in records]
