"""`greenformers genome study steps`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Any

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._training import training
from greenformers.cli.genome.study._study import KnownPositions, References, Splits, study
from greenformers.genome.settings import Finetuning, inherited

ORDER = 20
EXAMPLES = ("greenformers genome study steps --sequences apoe.tsv --init runs/before --out runs/steps",)


def _pretraining(
    given: dict[str, Any], out: Path, resume: bool, splits: int, known_positions: str, results: Path | None,
    references: Path | None,
) -> None:  # fmt: skip
    from greenformers.genome.studies import pretraining
    from greenformers.report import published

    terminal.check_folder(references, "references")
    positions = terminal.numbers("known", known_positions)
    study(
        lambda settings, console: pretraining(settings, splits, out, console, positions),
        Finetuning(**inherited(given)), out, resume, results, "pretraining_steps", "Steps of pre-training",
    )  # fmt: skip
    if line := published.absent(references, (published.ALZHEIMER,)):
        print(line)
    for row in published.rows(references, published.ALZHEIMER):
        print(
            f"Cahyawijaya 2021: {row['model']}: AUC {100 * float(row['auc']):.1f} %, F1 {100 * float(row['f1']):.1f} %"
        )


steps = training(
    Finetuning,
    """Fine-tune from random weights, from every snapshot of a pre-training run (--init), and from its end.

    Snapshots are written by `genome pretrain --snapshots`. OUT holds the
    runs of each and study.png. Work that was stopped goes on with
    --resume.
    """,
    _pretraining,
    splits=Splits,
    known_positions=KnownPositions,
    results=(Results, None),
    references=(References, None),
)
