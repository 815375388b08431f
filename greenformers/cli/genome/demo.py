"""`greenformers genome demo`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results

ORDER = 60
EXAMPLES = ("greenformers genome demo --data data --out genome_demo",)


def demo(
    data: Annotated[Path, typer.Option(help="Folder with the data genomics_apoe_1000g and genomics_chr20_1mb.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs, and of the page.")] = Path("genome_demo"),
    splits: Annotated[
        int, typer.Option(help="Number of random splits into train, valid and test people, at least 1.")
    ] = 5,
    people: Annotated[int, typer.Option(help="Number of synthetic people, at least 200.")] = 2000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an earlier run was stopped.")] = False,
    results: Results = None,
) -> None:
    """Run the whole pipeline at small size, on a made-up disease of real and of synthetic people. Below 20 minutes.

    2,504 people of 1000 Genomes have genotypes at APOE, and a disease
    that two variants make likelier. Synthetic people of chr20 have one
    that depends on two variants together, on none, or on some around a
    gene.
    """
    from greenformers.genome import judge
    from greenformers.genome.demo import Demo, Files
    from greenformers.genome.demo_page import said, write
    from greenformers.measure.record import append, context
    from greenformers.report.fit import fitted

    terminal.quiet()
    if splits < 1 or people < 200:
        raise ValueError(f"splits must be at least 1 and people at least 200, got {splits} and {people}")
    files = Files.under(data)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not resume)):
        raise ValueError(f"{out} is there already; --resume goes on with it")
    if results is not None:
        terminal.check_results(results)
    console = terminal.console()
    demonstration = Demo(files, out, console, splits, people)
    parts = []
    with terminal.resumable():
        for study in (
            demonstration.apoe, partial(demonstration.pair, effect=True), partial(demonstration.pair, effect=False),
            demonstration.surroundings,
        ):  # fmt: skip
            parts.append(study())
            console.print(f"[bold]{parts[-1].title}[/bold]")
            for setting in dict.fromkeys(str(record.setting) for record in parts[-1].records):
                own = [record for record in parts[-1].records if str(record.setting) == setting]
                terminal.show(console, fitted(judge.table(own), console.width))
    about = context(terminal.command(), 0)
    parts = [part._replace(records=[replace(record, context=about) for record in part.records]) for part in parts]
    page = write(parts, out)
    console.print(f"{said(parts)}\npage: {page}", markup=False, soft_wrap=True)
    if results is not None:
        titled = [
            replace(record, benchmark="genome_demo", setting={"study": part.title} | record.setting)
            for part in parts for record in part.records
        ]  # fmt: skip
        append(results, titled)
