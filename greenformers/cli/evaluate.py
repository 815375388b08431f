"""`greenformers evaluate`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Batch, Folder, LengthPenalty, MinNewTokens, NoRepeat, Results

ORDER = 60
GROUP = "Train a model of your own"
EXAMPLES = ("greenformers evaluate runs/first --split test",)


def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    split: Annotated[str, typer.Option(help="Split of the data set: train, valid or test.")] = "test",
    folder: Folder = None,
    beams: Annotated[
        int | None, typer.Option(help="seq2seq: width of the beam search; 1 is greedy. 4 if not given.")
    ] = None,
    length_penalty: LengthPenalty = None,
    no_repeat: NoRepeat = None,
    min_new_tokens: MinNewTokens = None,
    batch: Batch = 64,
    samples: Annotated[
        int | None, typer.Option(help="seq2seq: number of translations or summaries that are shown. 3 if not given.")
    ] = None,
    results: Results = None,
) -> None:
    """Score a trained run on a split of its data set."""
    from greenformers.measure.record import append, context
    from greenformers.train.evaluate import BEAMS, records
    from greenformers.train.evaluate import evaluate as scored

    if samples is not None and samples < 0:
        raise ValueError(f"samples must be at least 0, got {samples}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    terminal.quiet()
    if results is not None:
        terminal.check_results(results)
    console = terminal.console()
    typed = {"beams": beams, "length_penalty": length_penalty, "no_repeat": no_repeat, "min_new_tokens": min_new_tokens}
    typed = {name: value for name, value in typed.items() if value is not None}
    # Of runs that write no text, what is said of texts is refused.
    writing = replace(BEAMS, **typed) if typed or samples is not None else None  # type: ignore[arg-type]
    evaluation = scored(run_folder, split, folder=folder, writing=writing, batch_size=batch)
    for text in evaluation.texts[: 3 if samples is None else samples]:
        console.print(text, markup=False, soft_wrap=True)
    for name, value in evaluation.scores.items():
        console.print(_line(f"{split} {name}", value, evaluation.intervals.get(name)), markup=False)
    for baseline, scores in evaluation.baselines.items():
        for name, value in scores.items():
            low, high = evaluation.differences[baseline][name]
            console.print(
                f"{split} {name} of {baseline}: {value:.4g}; ours less this {low:+.3g} to {high:+.3g}", markup=False
            )
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records(run_folder, split, evaluation)])


def _line(name: str, value: float, interval: list[float] | None) -> str:
    ends = "" if interval is None else " ({:.4g} to {:.4g})".format(*interval)
    return f"{name}: {value:.4g}{ends}"
