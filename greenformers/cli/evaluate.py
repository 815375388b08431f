"""`greenformers evaluate`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Batch, Folder, Results

ORDER = 60
GROUP = "Train a model of your own"
EXAMPLES = ("greenformers evaluate runs/first --split test",)


def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    split: Annotated[str, typer.Option(help="Split of the data set: train, valid or test.")] = "test",
    folder: Folder = None,
    beams: Annotated[int, typer.Option(help="seq2seq: width of the beam search; 1 is greedy.")] = 4,
    batch: Batch = 64,
    samples: Annotated[int, typer.Option(help="seq2seq: number of translations that are shown.")] = 3,
    results: Results = None,
) -> None:
    """Score a trained run on a split of its data set."""
    from greenformers.measure.record import append, context
    from greenformers.train.evaluate import evaluate as scored
    from greenformers.train.evaluate import records

    terminal.quiet()
    console = terminal.console()
    scores, shown = scored(run_folder, split, folder=folder, beams=beams, batch_size=batch)
    for text in shown[:samples]:
        console.print(text, markup=False, soft_wrap=True)
    for name, value in scores.items():
        console.print(f"{split} {name}: {value:.4g}")
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records(run_folder, split, scores)])
