"""`greenformers compress`: a recipe of changes of a trained model. Its flags are the fields of changes and of `Job`."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.changes import Change, build, kinds
from greenformers.changes._options import types, value_of
from greenformers.changes._recipe import parse, read_recipe
from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._options import filled, flags
from greenformers.compress.job import Job

ORDER = 20
GROUP = "Make a trained model smaller and faster"
SEVERAL = True
EXAMPLES = (
    "greenformers compress MODEL --int8 --out small",
    "greenformers compress MODEL --texts texts.tsv --lose 1% --out small",
    "greenformers compress MODEL --texts texts.tsv --keep 0.5 --heal 300 --int8 --out small",
    "greenformers compress MODEL --texts IMAGES --keep-layers 6 --heal 300 --out small",
)

Model = Annotated[str, typer.Argument(help="Folder of a model of transformers, or its name on the hub.")]
Out = Annotated[Path, typer.Option(help="Folder for the changed model.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(help="A change and its options, such as 'heal steps=300'; may be repeated, in order. See `changes`."),
]
Recipe = Annotated[
    Path | None, typer.Option(help="TOML file of changes, such as recipe.toml in the folder of every result.")
]
FromDisk = Annotated[
    bool,
    typer.Option(
        "--from-disk",
        help="For models larger than the machine's memory: change one weight at a time or, with texts to calibrate "
        "with, one block of layers at a time; nothing is judged or measured.",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--blocks-at-once",
        help="Of --from-disk with texts: blocks that are in memory and changed together; by default 1. Healing learns "
        "what all of them give together, which loses less and takes more memory.",
        min=1,
    ),
]
SEARCH = "Search for the best recipe, in place of naming one"
Lose = Annotated[
    str | None,
    typer.Option(
        help="Search for the fastest recipe that loses at most this share of the quality, such as 1%.",
        rich_help_panel=SEARCH,
    ),
]
Faster = Annotated[
    str | None,
    typer.Option(
        help="Search for the recipe that loses least among those so many times as fast, such as 3x.",
        rich_help_panel=SEARCH,
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(help="Runtime that recipes are timed and judged in: torch, openvino or onnx.", rich_help_panel=SEARCH),
]
Minutes = Annotated[
    float | None, typer.Option(help="Minutes that the search may take; by default 30.", rich_help_panel=SEARCH)
]
Page = Annotated[Path | None, typer.Option(help="Folder of the report page; by default OUT/report.")]


def compress(
    model: str, out: Path, change: list[str] | None, recipe: Path | None, from_disk: bool,
    blocks_at_once: int | None, lose: str | None, faster: str | None, runtime: str | None, minutes: float | None,
    results: Path | None, report: Path | None, **typed: Any,
) -> None:  # fmt: skip
    """Change a trained model: low rank, another attention, fewer layers, int8, healing; judge every step.

    Short forms, such as --int8, are applied in a sensible order; --change
    and --recipe in the order given. Without any of them, low rank keeps
    half of the weights. --lose and --faster search for a recipe.

    A run that was stopped goes on with the same command.
    """
    from greenformers.checkpoint.pretrained import model_name
    from greenformers.measure.record import append, context

    job = filled(Job, typed)
    if blocks_at_once is not None and not (from_disk and (job.texts or job.calibrate)):
        raise ValueError("--blocks-at-once is of --from-disk with texts to calibrate with")
    texts = job.texts, job.calibrate, job.heal_texts, job.evaluate, job.teacher_cache
    terminal.check_apart(out, model, job.teacher, *texts, results)
    if report is not None:
        terminal.check_page(report)
    if lose is not None or faster is not None:
        named = recipe is not None or change or from_disk or any(_short(of, typed) is not None for of in kinds())
        if named:
            raise ValueError("--lose and --faster search for a recipe: name none beside them")
        from greenformers.cli._search import searched

        searched(
            model, out, job, lose=lose, faster=faster, runtime=runtime, minutes=minutes, results=results, report=report
        )
        return
    if runtime is not None or minutes is not None:
        raise ValueError(f"--{'minutes' if runtime is None else 'runtime'} is of a search: add --lose or --faster")
    changes = recipe_of(change, recipe, typed)
    terminal.quiet()
    console = terminal.console()
    if results is not None:
        terminal.check_results(results)
    if from_disk:
        _from_disk(model, out, changes, job, blocks_at_once or 1, results, report)
        return
    from greenformers.compress.run import run
    from greenformers.report.page import headline, write
    from greenformers.report.table import tables
    from greenformers.train.processes import first_process

    with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:
        progress = steps if first_process() else lambda *_: None
        done, records, notes = run(model, changes, out, job, context(terminal.command(), job.seed), progress)
    if not first_process():  # which says what was done
        return
    console.print("\n".join([*done.summary(), *notes]), markup=False, soft_wrap=True)
    terminal.show(console, tables(records, console.width))
    if results is not None:
        append(results, records)
    lead = headline(records)
    if not any({"texts", "examples"} & record.setting.keys() for record in records):
        lead = f"Quality was not judged: no texts were given. {lead}"
    page = write(records, report or out / "report", f"{model_name(model)}, compressed", lead=lead)
    console.print(f"model:  {out}\nreport: {page}", markup=False, soft_wrap=True)


def recipe_of(change: Sequence[str] | None, recipe: Path | None, typed: Mapping[str, Any]) -> list[Change]:
    """The changes that were asked for: of a file, typed one by one, or in short forms.

    Args:
        change: Changes as they were typed, each with its options.
        recipe: File of changes.
        typed: Values of the short forms, by name of the parameter.

    Raises:
        ValueError: More than one of these, or a change that cannot be built.
    """
    short = [entry for of in kinds() if (entry := _short(of, typed)) is not None]
    ways = {"--recipe": recipe is not None, "--change": bool(change), "a short form such as --keep": bool(short)}
    if sum(ways.values()) > 1:
        raise ValueError(
            f"{' and '.join(way for way, used in ways.items() if used)} exclude each other: use only one of them"
        )
    if recipe is not None:
        return read_recipe(recipe)
    if change:
        return [parse(words) for words in change]
    return short or [next(of() for of in kinds() if of.share is not None)]


def _short(of: type[Change], typed: Mapping[str, Any]) -> Change | None:
    """The change with the short forms that were typed; None where none of them was."""
    hints, options = types(of), {}
    for entry in fields(of):
        name = _parameter(entry.metadata.get("flag"))
        value = typed.get(name) if name else None
        if value not in (None, []):
            if isinstance(value, str):
                value = value_of(value, hints[entry.name])
            options[entry.name] = terminal.pairs(str(name), value) if dict in map(_plain, hints[entry.name]) else value
    asked = options or typed.get(_parameter(of.flag) or "")
    return build(of.name(), **options) if asked else None


def _plain(hint: Any) -> Any:
    return getattr(hint, "__origin__", hint)


def _parameter(flag: str | None) -> str | None:
    return None if flag is None else flag.lstrip("-").replace("-", "_")


def _from_disk(
    model: str, out: Path, changes: Sequence[Change], job: Job, at_once: int, results: Path | None, report: Path | None
) -> None:
    from greenformers.compress.block_by_block import calibration_of, compress_block_by_block
    from greenformers.compress.from_disk import compress_from_disk
    from greenformers.train.processes import alone, first_process

    defaults = Job()
    data = job.texts is not None or job.calibrate is not None
    refused = ["heal_texts", "evaluate", "teacher", "teacher_cache", "lengths", "measure", "country"]
    refused += [] if data else ["limit", "length"]
    beside = [name for name in refused if getattr(job, name) != getattr(defaults, name)]
    beside += ["results"] * (results is not None) + ["report"] * (report is not None)
    if beside:
        raise ValueError(
            f"--from-disk cannot be combined with {', '.join('--' + name.replace('_', '-') for name in beside)}"
        )
    console = terminal.console()
    if data:
        batches = calibration_of(model, changes, job)
        with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:
            done = compress_block_by_block(
                model, out, changes, batches, at_once=at_once, seed=job.seed,
                progress=steps if first_process() else lambda *_: None,
                told=lambda said: console.print(said, markup=False, soft_wrap=True) if first_process() else None,
            )  # fmt: skip
    elif alone():
        with terminal.Steps(console) as steps:
            done = compress_from_disk(model, out, changes, seed=job.seed, progress=steps)
    else:
        raise ValueError("--from-disk without texts is the work of one process: start it without torchrun")
    if not first_process():
        return
    console.print("\n".join(done.summary()), markup=False, soft_wrap=True)
    console.print(f"model:  {out}", markup=False, soft_wrap=True)


def _signature() -> inspect.Signature:
    """The command's parameters: its own, the short forms of every change, and the fields of a job."""
    own = [("model", Model, ...), ("out", Out, ...)]
    parameters = [_keyword(name, annotation, default) for name, annotation, default in own]
    for of in kinds():
        if of.flag is not None:
            help_ = (of.__doc__ or "").splitlines()[0]
            about = Annotated[bool, typer.Option(of.flag, help=help_, rich_help_panel=_panel(of))]
            parameters.append(_keyword(str(_parameter(of.flag)), about, False))
        short = {_parameter(entry.metadata.get("flag")) for entry in fields(of)}
        parameters += [parameter for parameter in flags(of, unset=True, panel=_panel(of)) if parameter.name in short]
    more = [
        ("change", Changes, None), ("recipe", Recipe, None), ("from_disk", FromDisk, False),
        ("blocks_at_once", AtOnce, None), ("lose", Lose, None), ("faster", Faster, None), ("runtime", Runtime, None),
        ("minutes", Minutes, None), ("results", Results, None), ("report", Page, None),
    ]  # fmt: skip
    parameters += [_keyword(name, annotation, default) for name, annotation, default in more]
    parameters += flags(Job, panel="Texts, and how the result is judged and measured")
    twice = [
        parameter.name for parameter in parameters if sum(parameter.name == other.name for other in parameters) > 1
    ]
    if twice:
        raise TypeError(f"two changes, or a change and the command, have the flag --{twice[0].replace('_', '-')}")
    return inspect.Signature(parameters)


def _panel(of: type[Change]) -> str:
    """The heading above the options of a change."""
    return of.name().replace("_", " ").capitalize()


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


compress.__signature__ = _signature()  # type: ignore[attr-defined]
