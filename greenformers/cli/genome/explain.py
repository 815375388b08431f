"""`greenformers genome explain`. Heavy imports are inside the command, so that --help answers at once."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal

ORDER = 70
EXAMPLES = ("greenformers genome explain runs/risk/split0 --names dbsnp.vcf.gz --out explain",)


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of one finished run of `genome finetune`.")],
    out: Annotated[Path, typer.Option(help="Folder of the picture and the table.")] = Path("explain"),
    names: Annotated[Path | None, typer.Option(help="VCF or BCF file with the names (ID) of known variants.")] = None,
    people: Annotated[int, typer.Option(help="Largest number of test people.")] = 200,
    steps: Annotated[int, typer.Option(help="Number of terms of the sum that approximates the integral.")] = 32,
    shown: Annotated[int, typer.Option(help="Number of variants that are named.")] = 10,
) -> None:
    """Show which positions a fine-tuned network uses, by integrated gradients along the region."""
    from rich.table import Table

    from greenformers.genome import explain as module
    from greenformers.report.plot import save

    terminal.quiet()
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, {out} is a file")
    for name, value, least in (("people", people, 2), ("steps", steps, 1), ("shown", shown, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    with terminal.Steps(terminal.console(stderr=True)) as bars:
        explanation = module.explained(run, people=people, steps=steps, names=names, progress=partial(bars, "people"))
    out.mkdir(parents=True, exist_ok=True)
    table = Table("position", "variant", "importance", title=f"{explanation.people} test people, {explanation.region}")
    for position, score in explanation.ranked[:shown]:
        table.add_row(f"{position:,}", explanation.names.get(position, ""), f"{score:.4f}")
    console = terminal.console()
    console.print(table)
    picture = out / "track.png"
    save(module.picture(explanation, shown), picture)
    lines = [
        f"{position}\t{explanation.names.get(position, '')}\t{score:.6g}\n" for position, score in explanation.ranked
    ]
    (out / "variants.tsv").write_text("position\tname\timportance\n" + "".join(lines))
    print(f"picture: {picture}\ntable:   {out / 'variants.tsv'}")
