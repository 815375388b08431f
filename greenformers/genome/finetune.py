"""Fine-tuning on several draws of people, and probabilities of the people of each. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from greenformers.genome.files import digest
from greenformers.genome.risk import Chances, DiseaseRisk
from greenformers.genome.settings import Finetuning, Pretraining, kind_of, run_of, sequences_of
from greenformers.measure.device import accelerator
from greenformers.train import run
from greenformers.train.processes import first_process, wait
from greenformers.train.settings_file import read

SPLIT = "split"
"""Beginning of the name of the run folder of a draw, before its number."""


def finetune(settings: Finetuning, out: Path, splits: int, console: Console) -> list[Chances]:
    """Train and score on several draws of train, valid and test people; stopped runs are resumed.

    Args:
        settings: Settings of all runs; `split` and `seed` are those of the first draw.
        out: Folder of the run folders.
        splits: Number of draws.
        console: Console that shows the progress.

    Returns:
        Probabilities and labels of the people of each draw; of several processes the first one alone has them.

    Raises:
        ValueError: Settings are wrong, or the network to start from has learnt from people who are tested.
    """
    check(settings, splits)
    results = []
    settings = replace(settings, digest=digest(sequences_of(settings)))
    _check_unseen(settings, splits)
    for number in range(splits):
        drawn = replace(settings, split=settings.split + number, seed=settings.seed + number)
        folder = out / f"{SPLIT}{number}"
        if (folder / run.SETTINGS).exists():
            sequences_of(run.settings_of(folder, Finetuning))
        run.ensure(folder, drawn, console)
        if first_process():  # it alone has saved the network
            results.append(chances(folder))
        wait()
    return results


def check(settings: Finetuning, splits: int) -> None:
    """Raise ValueError where settings are wrong without a look at the people, or OSError where a file is missing."""
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}")
    if settings.steps is None and settings.epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {settings.epochs}")
    _ = settings.schedule, settings.lottery, settings.snapshot_steps, settings.start()
    settings.tokenizer()


def _check_unseen(settings: Finetuning, splits: int) -> None:
    """Raise ValueError where the network to start from was fine-tuned on another draw of the same people."""
    folder = None if settings.init is None else run_of(Path(settings.init))
    if folder is None or kind_of(folder / run.SETTINGS) is Pretraining:
        return
    stored = read(folder / run.SETTINGS, Finetuning)
    draws = {(settings.split + number, settings.valid_share, settings.test_share) for number in range(splits)}
    learnt = tuple(stored.get(name, getattr(Finetuning, name)) for name in ("split", "valid_share", "test_share"))
    if stored.get("digest") == settings.digest and draws != {learnt}:
        raise ValueError(
            f"init must not have learnt from people who are tested: {folder} was fine-tuned on split {learnt[0]} of "
            f"{settings.sequences}, and can be the beginning of that split alone, with its shares"
        )


def splits_of(out: Path) -> list[str]:
    """The run folders of the draws in a folder of `finetune`, in their order."""
    folders = [path for path in out.glob(f"{SPLIT}*") if (path / run.SETTINGS).is_file()]
    return [str(path) for path in sorted(folders, key=lambda path: (len(path.name), path.name))]


def chances(folder: Path) -> Chances:
    """Probabilities and labels of the validation and test people of a finished run."""
    settings = run.settings_of(folder, Finetuning)
    objective = replace(settings, init=str(folder), tokens=None).task().objective
    assert isinstance(objective, DiseaseRisk)
    model = run.trained(folder, Finetuning).to(accelerator())  # type: ignore[arg-type]
    valid, test = (objective.probabilities(model, split, 4 * settings.batch) for split in ("valid", "test"))
    return Chances(*(values.numpy() for values in (*valid, *test)))
