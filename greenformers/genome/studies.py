"""Studies of fine-tuning: the effect of the surroundings of a gene, and of pre-training. Cahyawijaya 2021, 5.4.

Each point is a folder of runs, as `genome finetune` makes it; a study that was stopped can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from greenformers.genome import judge
from greenformers.genome.baselines import at_positions
from greenformers.genome.files import Region
from greenformers.genome.finetune import finetune
from greenformers.genome.people import People, part_of
from greenformers.genome.settings import Finetuning, Pretraining, sequences_of
from greenformers.measure.record import Record
from greenformers.train import run
from greenformers.train.task import MODEL

MARGINS = (0, 1000, 3000, 5000, 10_000, 15_000)
"""Additional positions on each side, as in figure 5.5."""


def surroundings(
    settings: Finetuning,
    margins: Sequence[int],
    splits: int,
    out: Path,
    console: Console,
    positions: Sequence[int] = (),
) -> list[Record]:
    """Fine-tune on a gene, and on ever larger surroundings of it. Figure 5.5.

    Args:
        settings: Settings of all runs; their region is the gene.
        margins: Additional positions on each side, for each point.
        splits: Number of draws of people, of each point.
        out: Folder of the points.
        console: Console that shows the progress.
        positions: Positions of known variants, for a baseline of their own.

    Returns:
        Records of `judge.records`, with the margin as a setting.

    Raises:
        ValueError: There is no region or no margin, or the file of people does not hold a margin.
        GenomeError: The file of people does not hold the region.
    """
    if settings.region is None:
        raise ValueError("region must be the gene, such as 19:45409039-45412650, got none")
    path = sequences_of(settings)
    whole, gene = part_of(path, settings.region)
    room = min(gene.start - whole.start, whole.end - gene.end)
    if not margins or min(margins) < 0 or max(margins) > room:
        given = ", ".join(map(str, margins)) or "none"
        raise ValueError(f"margins must be in 0..{room}, what {path} has on both sides of {gene}; got {given}")
    collected = []
    points = [
        (margin, replace(settings, region=str(Region(whole.contig, gene.start - margin, gene.end + margin))))
        for margin in sorted(set(margins))
    ]
    # Checks that the longest sequence fits the network, before the shorter ones are trained on.
    points[-1][1].task()
    if positions:  # and that the known variants are in it, which may be around the gene
        at_positions(People.load(path, points[-1][1].region, disease=settings.disease), positions)
    for margin, point in points:
        people = People.load(path, point.region, disease=point.disease)
        inside = positions if {place for place, _ in people.counts()[1]} & set(positions) else ()
        features = judge.features(people, inside)
        chances = finetune(point, out / f"plus{margin}", splits, console)
        collected += _with(judge.records(point, chances, features, people), "margin", margin)
    return collected


def pretraining(
    settings: Finetuning, splits: int, out: Path, console: Console, positions: Sequence[int] = ()
) -> list[Record]:
    """Fine-tune without pre-training, from each snapshot of a pre-training run, and its end. Table 5.2, figure 5.4.

    Args:
        settings: Settings of all runs; their init is the pre-training run.
        splits: Number of draws of people, of each point.
        out: Folder of the points.
        console: Console that shows the progress.
        positions: Positions of known variants, for a baseline of their own.

    Returns:
        Records of `judge.records`, with the steps of pre-training as a setting.

    Raises:
        ValueError: `init` is not given, or is a run of another command.
        OSError: There is no finished run in `init`.
    """
    if settings.init is None:
        raise ValueError("init must be a run of `genome pretrain`, got none")
    folder = Path(settings.init)
    starts = {0: replace(settings, init=None, tokens=settings.tokens or str(folder / MODEL))}
    for step in sorted(int(path.name) for path in (folder / run.SNAPSHOTS).glob("*") if path.name.isdecimal()):
        starts[step] = replace(settings, init=str(folder / run.SNAPSHOTS / str(step)))
    last = max(int(entry["step"]) for entry in run.metrics_of(folder))
    run.check_kind(folder, Pretraining)
    starts[last] = settings
    people = People.load(sequences_of(settings), settings.region, disease=settings.disease)
    features = judge.features(people, positions)
    # Checks that the settings are those of the pre-trained network, before any training.
    for point in starts.values():
        point.task().network()
    collected = []
    for steps, point in starts.items():
        chances = finetune(point, out / f"after{steps}", splits, console)
        records = judge.records(point, chances, features, people)
        # The baselines are not pre-trained, and have records at 0 steps only.
        own = [record for record in records if record.variant == settings.variant]
        collected += _with(records if not steps else own, "pretraining_steps", steps)
    return collected


def _with(records: Sequence[Record], name: str, value: int) -> list[Record]:
    return [replace(record, benchmark="genome_study", setting=record.setting | {name: value}) for record in records]
