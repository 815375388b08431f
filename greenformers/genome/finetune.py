"""Fine-tuning on several draws of people, and what each network says of its own test people. Thesis 5.3.1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from greenformers.genome.files import digest
from greenformers.genome.risk import Chances, DiseaseRisk
from greenformers.genome.settings import Finetuning, sequences_of
from greenformers.train import run


def finetune(settings: Finetuning, out: Path, splits: int, console: Console) -> list[Chances]:
    """Train and score on several draws of train, valid and test people; goes on where it was stopped.

    Args:
        settings: of all of them; `split` and the seed are those of the first draw.
        out: folder of the run folders.
        splits: how many draws.
        console: where progress is shown.

    Returns:
        What the network of each draw says of its people.
    """
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}")
    found = []
    settings = replace(settings, digest=digest(sequences_of(settings)))
    for number in range(splits):
        one = replace(settings, split=settings.split + number, seed=settings.seed + number)
        folder = out / f"split{number}"
        if (folder / run.SETTINGS).exists():
            sequences_of(run.settings_of(folder, Finetuning))
        run.ensure(folder, one, console)
        found.append(chances(folder))
    return found


def chances(folder: Path) -> Chances:
    """What the network of a finished run says of its validation and test people."""
    settings = run.settings_of(folder, Finetuning)
    objective = replace(settings, init=str(folder), tokens=None).task().objective
    assert isinstance(objective, DiseaseRisk)
    model = run.trained(folder, Finetuning)
    valid, test = (objective.probabilities(model, split, 4 * settings.batch) for split in ("valid", "test"))
    return Chances(*(one.numpy() for one in (*valid, *test)))
