"""Fine-tuning on several draws of people, and probabilities of the people of each. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from greenformers.genome.files import digest
from greenformers.genome.risk import Chances, DiseaseRisk
from greenformers.genome.settings import Finetuning, sequences_of
from greenformers.train import run


def finetune(settings: Finetuning, out: Path, splits: int, console: Console) -> list[Chances]:
    """Train and score on several draws of train, valid and test people; stopped runs are resumed.

    Args:
        settings: Settings of all runs; `split` and `seed` are those of the first draw.
        out: Folder of the run folders.
        splits: Number of draws.
        console: Console that shows the progress.

    Returns:
        Probabilities and labels of the people of each draw.
    """
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}")
    results = []
    settings = replace(settings, digest=digest(sequences_of(settings)))
    for number in range(splits):
        drawn = replace(settings, split=settings.split + number, seed=settings.seed + number)
        folder = out / f"split{number}"
        if (folder / run.SETTINGS).exists():
            sequences_of(run.settings_of(folder, Finetuning))
        run.ensure(folder, drawn, console)
        results.append(chances(folder))
    return results


def chances(folder: Path) -> Chances:
    """Probabilities and labels of the validation and test people of a finished run."""
    settings = run.settings_of(folder, Finetuning)
    objective = replace(settings, init=str(folder), tokens=None).task().objective
    assert isinstance(objective, DiseaseRisk)
    model = run.trained(folder, Finetuning)
    valid, test = (objective.probabilities(model, split, 4 * settings.batch) for split in ("valid", "test"))
    return Chances(*(values.numpy() for values in (*valid, *test)))
