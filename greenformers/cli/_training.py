"""Commands that train, with one flag for each setting. Heavy imports are inside, so that --help answers at once."""

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import flags, given
from greenformers.train.settings import Training
from greenformers.train.settings_file import read

if TYPE_CHECKING:
    from rich.table import Table

_FIXED: dict[str, tuple[object, object]] = {
    "config": (Annotated[Path | None, typer.Argument(help="TOML or JSON file of settings.")], None),
    "out": (
        Annotated[Path, typer.Option(help="Folder of the run: a new one, or with --resume the one to go on with.")],
        ...,
    ),
    "resume": (Annotated[bool, typer.Option("--resume", help="Go on with the run in OUT, or start it.")], False),
}


def training(
    kind: type[Training],
    about: str,
    use: Callable[..., None] | None = None,
    *,
    without: Sequence[str] = (),
    **options: tuple[object, object],
) -> Callable[..., None]:
    """The command that trains with settings of one kind.

    Args:
        kind: Class of the settings.
        about: Help text of the command.
        use: Function that is called with the settings that were given, the folder of the run, whether to resume, and
            the options by name; by default it trains one run.
        without: Settings that are no flags of the command, as those are not that the kind has no use for.
        **options: Annotation and default of further options of the command, by name.
    """

    def train(config: Path | None, out: Path, resume: bool, **values: Any) -> None:
        own = {name: values.pop(name) for name in options}
        terminal.quiet()
        (use or partial(_train, kind))(_given(kind, config, values), out, resume, **own)

    train.__doc__ = about
    fixed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in (_FIXED | options).items()
    ]
    train.__signature__ = inspect.Signature(fixed + _as_flags(kind, {*without, *kind.unused}))  # type: ignore[attr-defined]
    return train


def _train(kind: type[Training], given: dict[str, Any], out: Path, resume: bool) -> None:
    from greenformers.measure.parameters import parameters
    from greenformers.report.curves import run_curves, save
    from greenformers.train import run
    from greenformers.train.processes import first_process

    console = terminal.console()
    if resume and (out / run.SETTINGS).exists():
        stored = run.settings_of(out, kind)
        for name, value in given.items():
            if getattr(stored, name) != value:
                raise ValueError(f"{name} of this run is {getattr(stored, name)} and cannot be changed; got {value}")
        outcome = run.resume(out, console, kind)
    else:
        outcome = run.start(out, kind(**given), console)
    if not first_process():
        return
    if figure := run_curves(out.name, outcome.history.log):
        save(figure, out / "curves.png")
    if outcome.history.stopped is not None:
        done = f", with {len(outcome.rounds)} rounds finished" if outcome.rounds else ""
        console.print(f"stopped after step {outcome.history.steps} of {outcome.steps}{done}; go on with --resume")
        sys.exit(128 + outcome.history.stopped)
    if outcome.rounds:
        console.print(_table(outcome.rounds))
    scores = ", ".join(f"{name} {value:.4g}" for name, value in outcome.scores.items())
    console.print(
        f"{parameters(run.trained(out, kind)):,} parameters, validation {scores}, "
        f"{outcome.history.seconds:.1f} s of training\nmodel: {out / run.MODEL}",
        markup=False,
        soft_wrap=True,
    )


def _table(rounds: dict[int, dict[str, float]]) -> "Table":
    """Scores of the rounds of a lottery ticket, on the validation split."""
    from rich.table import Table

    table = Table("round", "weights left, %", *list(rounds[0])[1:], title="Lottery ticket")
    for number, (share, *scores) in ((number, row.values()) for number, row in rounds.items()):
        table.add_row(str(number), f"{100 * share:.2f}", *(f"{score:.4g}" for score in scores))
    return table


def _given(kind: type[Training], config: Path | None, values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, which those given as flags override.

    Raises:
        ValueError: A setting has no effect beside the others.
    """
    stored, flagged = read(config, kind) if config else {}, given(kind, values)
    named = stored | flagged
    _check_used(kind, stored, flagged)
    if named.get("steps") is not None and "epochs" in named:
        raise ValueError(f"epochs and steps exclude each other, got {named['epochs']} and {named['steps']}")
    if "epochs" in named:
        named["steps"] = None  # of kinds that have a number of steps by default
    return named


def _check_used(kind: type[Training], stored: dict[str, Any], flagged: dict[str, Any]) -> None:
    """Raise ValueError for a size that the variant does not have, and for a tokenizer beside that of a run.

    One file may serve several variants, of which it names none: its rank then says nothing of a dense one.
    """
    from greenformers.model.variant import slots

    defaults: dict[str, Any] = {entry.name: entry.default for entry in fields(kind)}
    named = defaults | stored | flagged
    names_variant = "variant" in stored and "variant" not in flagged
    typed = [
        name for name in ("rank", "feed_forward")
        if name in flagged or (names_variant and named[name] != defaults[name])
    ]  # fmt: skip
    chosen = slots(named["variant"], rank=1, narrow=True) if typed else {}
    if "rank" in typed and chosen["rank"] is None:
        raise ValueError(f"rank is for lrt, the variant is {named['variant']!r}; got {named['rank']}")
    if "feed_forward" in typed and _without_feed_forward(chosen.get("block"), named):
        raise ValueError(
            f"feed_forward is for feed-forward blocks, {chosen['block']} has none; got {named['feed_forward']}"
        )
    if "tokenizer" in flagged and named["init"] is not None:
        raise ValueError(f"tokenizer is that of the run in init, {named['init']}; got {named['tokenizer']}")


def _without_feed_forward(block: str | None, named: dict[str, Any]) -> bool:
    """Whether no layer of a network has a feed-forward block; the layers of a decoder are standard ones."""
    from greenformers.blocks import block_class
    from greenformers.data import Pairs, Summaries, _kind, names

    if block is None or block_class(block).has_feed_forward or named["decoder_layers"] is not None:
        return False
    data = named.get("data")
    return data not in names() or _kind(data) not in (Pairs, Summaries)


def _as_flags(kind: type[Training], without: Collection[str]) -> list[inspect.Parameter]:
    """A flag for each other setting, those of the kind before those of all training; what is not given is None."""
    shared = {entry.name for entry in fields(Training)}
    own = [flag for flag in flags(kind, unset=True) if flag.name not in without]
    return sorted(own, key=lambda flag: flag.name in shared)
