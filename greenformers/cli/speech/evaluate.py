"""`greenformers speech evaluate`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._options import from_fields
from greenformers.cli.speech._flags import Batch
from greenformers.speech.search_options import Search

ORDER = 30
EXAMPLES = (
    "greenformers speech evaluate runs/dense runs/lrt --split test",
    "greenformers speech evaluate runs/lrt --layout manifest --corpus CORPUS",
)


@from_fields
def evaluate(
    *,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs; the first is the baseline.")
    ],
    split: Annotated[str, typer.Option(help="Split of the corpus: train, valid or test.")] = "test",
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Folder of a corpus, or a manifest to score (.tsv, .csv or .jsonl: path and text); by default the "
            "corpus of the training."
        ),
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Layout of that corpus, as in training; by default that of the training.")
    ] = None,
    search: Search,
    limit: Annotated[int | None, typer.Option(help="Largest number of recordings.")] = None,
    batch: Batch = 16,
    gate: Annotated[
        bool,
        typer.Option(
            help="Count nothing as written of a part of a recording that is silent, or, where the run was trained with "
            "CTC and its confidences are calibrated, whose words are more likely wrong."
        ),
    ] = False,
    samples: Annotated[int, typer.Option(help="Number of transcripts of the first run that are shown.")] = 3,
    results: Results = None,
) -> None:
    """Score runs on a split of the corpus of the first one: error rates, size and speed of generation.

    The table is like tables 4.2 and 4.3 of Cahyawijaya 2021.
    """
    from greenformers.measure.record import append, context
    from greenformers.report.fit import fitted
    from greenformers.speech.evaluate import evaluate as scored
    from greenformers.speech.evaluate import table

    if samples < 0:
        raise ValueError(f"samples must be at least 0, got {samples}")
    terminal.quiet()
    if results is not None:
        terminal.check_results(results)
    with terminal.Steps(terminal.console(stderr=True)) as steps:
        records, pairs = scored(
            runs,
            split,
            search=search,
            corpus=corpus,
            layout=layout,
            limit=limit,
            batch=batch,
            gate=gate,
            progress=steps,
        )
    console = terminal.console()
    for reference, hypothesis in pairs[:samples]:
        console.print(f"spoken:  {reference}\nwritten: {hypothesis}\n", markup=False, soft_wrap=True)
    terminal.show(console, fitted(table(records), console.width))
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records])
