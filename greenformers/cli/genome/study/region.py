"""`greenformers genome study region`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._training import training
from greenformers.cli.genome.study._study import KnownPositions, Splits, study
from greenformers.genome.settings import Finetuning, inherited

ORDER = 10
EXAMPLES = (
    "greenformers genome study region --sequences around.tsv --init runs/before "
    "--region 19:45409039-45412650 --out runs/region",
)


def _surroundings(
    given: dict[str, Any],
    out: Path,
    resume: bool,
    margins: str,
    splits: int,
    known_positions: str,
    results: Path | None,
) -> None:
    from greenformers.genome.studies import MARGINS, surroundings

    words = [word.strip() for word in margins.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"margins must be whole numbers from 0 on, with commas between; got {margins!r}")
    chosen = [int(word) for word in words] or list(MARGINS)
    positions = terminal.numbers("known", known_positions)
    study(
        lambda settings, console: surroundings(settings, chosen, splits, out, console, positions),
        Finetuning(**inherited(given)), out, resume, results, "margin", "Positions more on each side",
    )  # fmt: skip


region = training(
    Finetuning,
    """Fine-tune on a gene (--region) and on ever wider surroundings of it, beside logistic regression.

    OUT holds the runs of each margin and study.png. Work that was
    stopped goes on with --resume.
    """,
    _surroundings,
    margins=(
        Annotated[
            str, typer.Option(help="Numbers of positions added on each side, with commas; by default 0 to 15000.")
        ],
        "",
    ),
    splits=Splits,
    known_positions=KnownPositions,
    results=(Results, None),
)
