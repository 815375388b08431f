"""`greenformers genome finetune`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._training import training
from greenformers.genome.settings import Finetuning, inherited, sequences_of

ORDER = 50
SEVERAL = True
EXAMPLES = (
    "greenformers genome finetune --sequences apoe.tsv --init runs/before --known 45411941,45412079 --out runs/risk",
)


def _finetune(
    given: dict[str, Any], out: Path, resume: bool, splits: int, known_positions: str, results: Path | None
) -> None:
    from greenformers.genome import judge
    from greenformers.genome.finetune import check, finetune
    from greenformers.genome.people import People
    from greenformers.measure.record import append, context
    from greenformers.report.fit import fitted
    from greenformers.train.processes import first_process

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is there already; --resume goes on with it")
    settings = Finetuning(**inherited(given))
    positions = terminal.numbers("known", known_positions)
    # What is wrong must be refused before the training, and what can be told at once, before the people are read.
    check(settings, splits)
    if results is not None and first_process():
        terminal.check_results(results)
    people = People.load(sequences_of(settings), settings.region, disease=settings.disease)
    settings.task().network()
    features = judge.features(people, positions)
    console = terminal.console()
    with terminal.resumable():
        probabilities = finetune(settings, out, splits, console)
    if not first_process():
        return
    records = judge.records(settings, probabilities, features, people)
    terminal.show(console, fitted(judge.table(records), console.width))
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records])


finetune = training(
    Finetuning,
    """Fine-tune a network to predict a disease from diplotypes, beside logistic regression, on several random splits.

    OUT holds one run folder for each split: split0 and so on. With
    --init they start from a pre-trained run, and have its tokenizer and
    its sizes, which need not be given. Work that was stopped goes on
    with --resume.
    """,
    _finetune,
    splits=(Annotated[int, typer.Option(help="Number of random splits into train, valid and test people.")], 5),
    known_positions=(
        Annotated[
            str, typer.Option("--known", help="Positions of known variants, with commas, for a baseline of their own.")
        ],
        "",
    ),
    results=(Results, None),
)
