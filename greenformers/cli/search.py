"""`greenformers search`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._search import share, times
from greenformers.cli._training import training
from greenformers.search import UNSEARCHED
from greenformers.train.settings import Settings

if TYPE_CHECKING:
    from greenformers.search.hurdles import Hurdles
    from greenformers.search.trials import Trial

ORDER = 55
SEVERAL = True
GROUP = "Train a model of your own"
EXAMPLES = (
    "greenformers search settings.toml --faster 2x --minutes 60 --out found",
    "greenformers search --data digits --lose 1% --attentions full,linformer,performer --out found",
)

OPTIONS: dict[str, tuple[object, object]] = {
    "lose": (
        Annotated[
            str | None,
            typer.Option(help="Share of the quality that may be lost, 1% say: the fastest is looked for; 0% if neither "
                         "is given."),
        ],
        None,
    ),
    "faster": (
        Annotated[str | None, typer.Option(help="Speed-up in inference, 2x say: what loses least is looked for.")],
        None,
    ),
    "minutes": (Annotated[float, typer.Option(help="Minutes that the search may take.")], 30.0),
    "strategy": (Annotated[str, typer.Option(help="evolution, random or one-shot (DARTS).")], "evolution"),
    "vary": (
        Annotated[
            str,
            typer.Option(help="Parts of the network that vary, with commas."),
        ],
        "attention,rank,k,hidden,layers,heads,feed_forward,position",
    ),
    "attentions": (
        Annotated[str | None, typer.Option(help="Attentions and blocks to try, with commas; by default all.")],
        None,
    ),
}  # fmt: skip


def searched(
    given: dict[str, Any], out: Path, resume: bool, *, lose: str | None, faster: str | None, minutes: float,
    strategy: str, vary: str, attentions: str | None,
) -> None:  # fmt: skip
    """Search, show the front, and say what was found."""
    from greenformers.measure.record import append, context
    from greenformers.report.networks import front_table, sentence, write
    from greenformers.report.table import tables
    from greenformers.search.bound import Bound
    from greenformers.search.network_run import RESULTS, NetworkJob, find_network
    from greenformers.train.processes import first_process

    if lose is not None and faster is not None:
        raise ValueError("--lose and --faster exclude each other: use only one of them")
    bound = Bound(faster=times("faster", faster)) if faster is not None else Bound(lose=share("lose", lose or "0%"))
    if attentions is not None and "attention" not in names(vary):
        raise ValueError("--attentions are tried where attention varies: name it in --vary")
    job = NetworkJob(
        bound, strategy, minutes, tuple(names(vary)), None if attentions is None else tuple(names(attentions))
    )
    console = terminal.console()
    base = Settings(**given)
    with terminal.resumable("--resume goes on"), terminal.Steps(console) as steps:

        def told(hurdles: "Hurdles", trial: "Trial") -> None:
            console.print(line(hurdles, trial), markup=False, soft_wrap=True)
            steps("searching", min(1.0, hurdles.tries.trials.seconds / hurdles.plan.seconds))

        outcome = find_network(
            base, out, job, about=context(terminal.command(), base.seed), resume=resume, console=console, told=told
        )
    if not first_process():
        return
    terminal.show(console, [front_table(outcome)])
    terminal.show(console, tables(outcome.records, console.width))
    console.print(sentence(outcome, bound), markup=False, soft_wrap=True)
    (out / RESULTS).unlink(missing_ok=True)  # of a run that ended before its report
    append(out / RESULTS, outcome.records)
    page = write(outcome, bound, out / "report", f"{base.data}, searched")
    console.print(f"best:   {out / 'best'}\nreport: {page}", markup=False, soft_wrap=True)


def names(text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]


def line(hurdles: "Hurdles", trial: "Trial") -> str:
    """A trial in a line: its number, its steps, what it gives, and the network."""
    number, words = len(hurdles.tries.trials.seen), hurdles.space.words(trial.genes)
    if trial.refused is not None:
        return f"{number:4d}  {words}: {trial.refused}"
    return (
        f"{number:4d}  {trial.steps:6d} steps: {trial.speed:5.2f}x as fast, keeps {1 - trial.lost:7.2%}, "
        f"{trial.smaller:4.1f}x fewer parameters: {words}"
    )


search = training(
    Settings,
    """Search for a network to be trained: attention, rank and sizes, on your data, for a speed or a loss.

    Around the network of the settings networks are trained for a few
    steps; those above the mean go on for more, and the best in full. OUT
    holds `best` and `base`, runs as `greenformers train` makes them, and
    `report`.

    A search that was stopped goes on with --resume.
    """,
    searched,
    without=UNSEARCHED,
    **OPTIONS,
)
