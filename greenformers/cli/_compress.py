"""Commands that make a trained model smaller or faster. Heavy imports are inside, so that --help answers at once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.cli import _terminal as terminal

if TYPE_CHECKING:
    from rich.console import Console

    from greenformers.changes.heal import Healing
    from greenformers.measure.record import Record
    from greenformers.solve.budget import Budget

Steps = Annotated[
    int | None, typer.Option("--heal", help="Steps of distillation afterwards: the model learns from the original.")
]
HealBatch = Annotated[int, typer.Option(help="Texts a step of healing.")]
HealRate = Annotated[float, typer.Option(help="Highest learning rate of healing.")]
Patience = Annotated[
    int | None, typer.Option(help="End healing after so many of its ten evaluations without a better one.")
]
Teacher = Annotated[
    str | None,
    typer.Option(help="The original to learn from and be compared with, if MODEL itself was changed before."),
]
Evaluate = Annotated[
    Path | None,
    typer.Option(help="Texts to judge by: .txt, or .tsv with sentence, label or sentence1, sentence2, score."),
]
Lengths = Annotated[str, typer.Option(help="Lengths to measure costs at, with commas; '' for none.")]
Seed = Annotated[int, typer.Option(help="Of what is drawn, and of the order of texts.")]
Country = Annotated[str, typer.Option(help="Whose electricity: a 3-letter ISO code.")]
Results = Annotated[Path | None, typer.Option(help="File the records are added to.")]
Report = Annotated[Path | None, typer.Option(help="Folder of a report page; by default OUT/report.")]


def compress(
    model: Annotated[str, typer.Argument(help="Folder of a model of transformers, or its name on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder for the compressed model.")],
    keep: Annotated[float | None, typer.Option(help="Share of the maps to keep, in (0, 1]; 0.5 if not given.")] = None,
    of: Annotated[str, typer.Option(help="What is shared out: parameters, flops, or latency, which is measured.")] = (
        "parameters"
    ),
    uniform: Annotated[
        bool, typer.Option("--uniform", help="The same share of every map, not where it loses least.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="In place of --keep: one rank for all maps.")] = None,
    energy: Annotated[float | None, typer.Option(help="In place of --keep: share of squared singular values.")] = None,
    stable_rank: Annotated[float | None, typer.Option(help="In place of --keep: this many stable ranks.")] = None,
    solver: Annotated[
        str, typer.Option(help="svd, randomized, nmf, semi_nmf, random; with texts: activation, sequential, loss.")
    ] = "svd",
    calibrate: Annotated[
        Path | None, typer.Option(help="Texts the model is to be good at: a line each, or a .tsv.")
    ] = (None),
    limit: Annotated[int, typer.Option(help="At most so many texts for calibration.")] = 1000,
    length: Annotated[int, typer.Option(help="Longest text in tokens, and length of a language model's blocks.")] = 128,
    select: Annotated[
        list[str] | None, typer.Option(help="Pattern of paths such as '*.query', or linear, conv, embedding; repeat.")
    ] = None,
    only_if_faster: Annotated[bool, typer.Option("--only-if-faster", help="Leave dense what is no faster.")] = False,
    multiple: Annotated[
        int | None, typer.Option(help="Ranks are multiples of this; by default 8, on a GPU 64; a named rank is exact.")
    ] = None,
    evaluate: Evaluate = None,
    from_disk: Annotated[
        bool,
        typer.Option("--from-disk", help="A map at a time, for models too large for memory: no texts, no measuring."),
    ] = False,
    heal: Steps = None,
    heal_texts: Annotated[
        Path | None, typer.Option(help="Texts to heal with, labels unread; by default those of --calibrate.")
    ] = None,
    heal_batch: HealBatch = 64,
    heal_rate: HealRate = 5e-4,
    heal_patience: Patience = None,
    keep_layers: Annotated[int | None, typer.Option(help="Keep so many layers, evenly spread.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 bits, of maps and tables.")] = False,
    int8_aware: Annotated[
        bool, typer.Option("--int8-aware", help="Heal with weights and inputs rounded as --int8 will round them.")
    ] = False,
    teacher: Teacher = None,
    lengths: Lengths = "128",
    seed: Seed = 0,
    country: Country = "USA",
    results: Results = None,
    report: Report = None,
) -> None:
    """Factorise a trained model's maps, drop layers, use 8 bits; measure what it gained and what it lost.

    Without --keep, --rank, --energy and --stable-rank half of the maps'
    weights are kept; with --keep-layers, --int8 or --teacher, all of them.
    """
    from greenformers.compress.command import Wanted, run
    from greenformers.compress.shards import compress_shards
    from greenformers.measure.record import context

    terminal.quiet()
    console = terminal.console()
    budget = _budget(keep, of, uniform, rank, energy, stable_rank, alone=not (keep_layers or int8 or teacher))
    wanted = Wanted(
        model=model, out=out, budget=budget, solver=solver, select=select, calibrate=calibrate, limit=limit,
        length=length, evaluate=evaluate, lengths=terminal.numbers("lengths", lengths), only_if_faster=only_if_faster,
        multiple=multiple, seed=seed, country=country, keep_layers=keep_layers, heal_texts=heal_texts, teacher=teacher,
        int8=int8, heal=_healing(heal, heal_batch, heal_rate, heal_patience, seed, int8_aware),
    )  # fmt: skip
    if results is not None:
        terminal.check_writable(results)
    if from_disk:
        if budget is None or calibrate or evaluate or only_if_faster or heal or int8 or keep_layers:
            raise ValueError(
                "--from-disk goes without --calibrate, --evaluate, --heal, --int8, --keep-layers and --only-if-faster"
            )
        with terminal.Steps(console) as steps:
            shards = compress_shards(
                model, out, budget, solver=solver, select=select, multiple=multiple, seed=seed, progress=steps
            )
        console.print(f"{str(shards).splitlines()[0]}\nmodel:  {out}", soft_wrap=True)
        return
    with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:
        done, found = run(wanted, context(terminal.command(), seed), steps)
    if done is not None:
        console.print(str(done).splitlines()[0])
    _present(console, found, results, out, report, f"{Path(model).name}, compressed")


def swap(
    model: Annotated[str, typer.Argument(help="Folder of a model of transformers, or its name on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder for the changed model.")],
    attention: Annotated[str, typer.Option(help="Mechanism: sliding_window, linformer, linear_transformer, ...")],
    layers: Annotated[str, typer.Option(help="Which layers, from 0: 0,2,4 or 0-2; all if not given.")] = "",
    select: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of paths such as 'encoder.*'; repeat. All self-attention if not given."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the mechanism as name=value; may be repeated.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Longest input in tokens; positions are continued where they end before.")
    ] = None,
    evaluate: Evaluate = None,
    heal: Steps = None,
    heal_texts: Annotated[Path | None, typer.Option(help="Texts to heal with, labels unread.")] = None,
    heal_batch: HealBatch = 64,
    heal_rate: HealRate = 5e-4,
    heal_patience: Patience = None,
    teacher: Teacher = None,
    lengths: Lengths = "128",
    seed: Seed = 0,
    country: Country = "USA",
    results: Results = None,
    report: Report = None,
) -> None:
    """Put another attention in the place of a trained model's own; measure what it gained and what it lost."""
    from greenformers.compress.swap_command import Wanted, run
    from greenformers.measure.record import context

    terminal.quiet()
    console = terminal.console()
    wanted = Wanted(
        model=model, out=out, attention=attention, options=terminal.pairs("option", option or []),
        layers=_layers(layers), select=select, length=length, evaluate=evaluate,
        lengths=terminal.numbers("lengths", lengths), teacher=teacher, country=country,
        heal=_healing(heal, heal_batch, heal_rate, heal_patience, seed), heal_texts=heal_texts,
    )  # fmt: skip
    if results is not None:
        terminal.check_writable(results)
    try:
        with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:
            done, found = run(wanted, context(terminal.command(), seed), steps)
    except TypeError as error:
        raise ValueError(f"{attention}: {str(error).rpartition('() ')[2]}") from error
    console.print("\n  ".join(done), markup=False)
    _present(console, found, results, out, report, f"{Path(model).name}, {attention}")


def _present(
    console: "Console", found: "Sequence[Record]", results: Path | None, out: Path, report: Path | None, title: str
) -> None:
    """Show records, add them to a file, and make a page of them."""
    from greenformers.measure.record import append
    from greenformers.report.page import write
    from greenformers.report.table import tables

    terminal.show(console, tables(found, console.width))
    if results is not None:
        append(results, found)
    page = write(found, report or out / "report", title)
    console.print(f"model:  {out}\nreport: {page}", soft_wrap=True)


def _healing(
    steps: int | None, batch: int, rate: float, patience: int | None, seed: int, int8: bool = False
) -> "Healing | None":
    from greenformers.changes.heal import Healing

    if steps is None:
        return None
    return Healing(steps, batch, rate, patience=patience, seed=seed, int8=int8)


def _layers(text: str) -> list[int] | None:
    """Layers as typed: 0,2,4 or 0-2, or both; None for an empty text.

    Raises:
        ValueError: anything else.
    """
    found: list[int] = []
    for word in text.split(",") if text.strip() else []:
        first, dash, last = (part.strip() for part in word.partition("-"))
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
            raise ValueError(f"layers must be whole numbers from 0 on, such as 0,2,4 or 0-2; got {text!r}")
        found += range(int(first), int(last) + 1)
    return found or None


def _budget(
    keep: float | None, of: str, uniform: bool, rank: int | None, energy: float | None, stable_rank: float | None,
    alone: bool,
) -> "Budget | None":  # fmt: skip
    from greenformers.solve.budget import Budget

    given = {"--keep": keep, "--rank": rank, "--energy": energy, "--stable-rank": stable_rank}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} exclude each other")
    if named and named != ["--keep"] and (uniform or of != "parameters"):
        raise ValueError(f"{'--uniform' if uniform else '--of'} goes with --keep, not with {named[0]}")
    if rank is not None:
        return Budget(rank, "rank")
    if energy is not None:
        return Budget(energy, "energy")
    if stable_rank is not None:
        return Budget(stable_rank, "stable")
    if keep is None and not alone and not uniform and of == "parameters":
        return None
    return Budget(0.5 if keep is None else keep, "uniform" if uniform else "hull", of)


COMMANDS: tuple[Callable[..., None], ...] = (compress, swap)
