"""`greenformers genome finetune`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._training import training
from greenformers.genome.settings import Finetuning, sequences_of

ORDER = 50
EXAMPLES = (
    "greenformers genome finetune --sequences apoe.tsv --init runs/before --known 45411941,45412079 --out runs/risk",
)


def _finetune(given: dict[str, Any], out: Path, resume: bool, splits: int, known: str, results: Path | None) -> None:
    from greenformers.genome import judge
    from greenformers.genome.finetune import finetune
    from greenformers.genome.people import People
    from greenformers.measure.record import append, context
    from greenformers.report.fit import fitted

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is there already; --resume goes on with it")
    settings = Finetuning(**given)
    positions = terminal.numbers("known", known)
    # What is wrong with these is found before the training, not after it.
    people = People.load(sequences_of(settings), settings.region)
    features = judge.features(people, positions)
    settings.task()
    if results is not None:
        terminal.check_writable(results)
    console = terminal.console()
    with terminal.resumable():
        found = finetune(settings, out, splits, console)
    records = judge.records(settings, found, features, people)
    terminal.show(console, fitted(judge.table(records), console.width))
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records])


finetune = training(
    Finetuning,
    """Learn who has a disease from diplotypes, on several draws of people, beside logistic regression.

    OUT holds a run folder a draw, split0 and so on. With --init a
    pre-trained run is where they start. Work that was stopped goes on
    with --resume.
    """,
    _finetune,
    splits=(Annotated[int, typer.Option(help="Draws of train, valid and test people.")], 5),
    known=(Annotated[str, typer.Option(help="Positions of known variants, for a baseline of their own.")], ""),
    results=(Annotated[Path | None, typer.Option(help="File the records are added to.")], None),
)
