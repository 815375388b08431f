"""The command that trains, with a flag for each setting of a kind. Heavy imports are inside it."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import flags, given
from greenformers.train.settings import Training, read

_FIXED: dict[str, tuple[object, object]] = {
    "config": (Annotated[Path | None, typer.Argument(help="TOML or JSON file of settings.")], None),
    "out": (Annotated[Path, typer.Option(help="Run folder; a new one, or with --resume the one to go on with.")], ...),
    "resume": (Annotated[bool, typer.Option("--resume", help="Go on with the run in OUT, or start it.")], False),
}


def training(
    kind: type[Training], about: str, use: Callable[..., None] | None = None, **options: tuple[object, object]
) -> Callable[..., None]:
    """The command for settings of one kind.

    Args:
        kind: the settings.
        about: the command's help.
        use: what is done with the settings that were given, the folder and whether to resume, and with the options by
            name; by default one run.
        **options: of the command, beside the settings: annotation and default.
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
    train.__signature__ = inspect.Signature(fixed + _as_flags(kind))  # type: ignore[attr-defined]
    return train


def _train(kind: type[Training], given: dict[str, Any], out: Path, resume: bool) -> None:
    from greenformers.measure.parameters import parameters
    from greenformers.report.curves import run_curves, save
    from greenformers.train import run

    console = terminal.console()
    if resume and (out / run.SETTINGS).exists():
        stored = run.settings_of(out, kind)
        for name, value in given.items():
            if getattr(stored, name) != value:
                raise ValueError(f"{name} of this run is {getattr(stored, name)}, and stays so; got {value}")
        outcome = run.resume(out, console, kind)
    else:
        outcome = run.start(out, kind(**given), console)
    if not run.first_process():
        return
    if figure := run_curves(out.name, outcome.history.log):
        save(figure, out / "curves.png")
    if outcome.history.stopped is not None:
        console.print(f"stopped after step {outcome.history.steps} of {outcome.steps}; go on with --resume")
        sys.exit(128 + outcome.history.stopped)
    scores = ", ".join(f"{name} {value:.4g}" for name, value in outcome.scores.items())
    console.print(
        f"{parameters(run.trained(out, kind)):,} parameters, validation {scores}, "
        f"{outcome.history.seconds:.1f} s of training\nmodel: {out / run.MODEL}",
        soft_wrap=True,
    )


def _given(kind: type[Training], config: Path | None, values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a file, and over them those given as flags."""
    return (read(config, kind) if config else {}) | given(kind, values)


def _as_flags(kind: type[Training]) -> list[inspect.Parameter]:
    """A flag for each of the settings, first what the kind has beside all others; what is not given is None."""
    return sorted(flags(kind, unset=True), key=lambda flag: flag.name in Training.__annotations__)
