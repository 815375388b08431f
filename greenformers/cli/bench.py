"""`greenformers bench`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Country
from greenformers.cli._options import from_fields
from greenformers.measure.bench_options import How, Network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from greenformers.measure.grid import Cell

ORDER = 80
GROUP = "Measure and choose"
EXAMPLES = (
    "greenformers bench",
    "greenformers bench --variants linformer,lrt --lengths 512,1024,2048 --ranks 64,128",
)


@from_fields
def bench(
    typed: typer.Context,
    *,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Variants, with commas: lrt, an attention mechanism, or both, as lrt+linformer; narrow or "
            "narrow_flops, a dense network of smaller width with as many parameters or FLOPs as lrt; by default all."
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Sequence lengths in tokens, with commas.")] = "16,64,256,1024,4096",
    ranks: Annotated[
        str,
        typer.Option(
            help="Ranks of at most d, which are also the projected lengths and the like, of at most N, with commas."
        ),
    ] = "16,64,256",
    network: Network,
    how: How,
    memory: Annotated[
        float | None, typer.Option(help="GiB of memory, for which the largest batch is measured too.")
    ] = None,
    energy: Annotated[bool, typer.Option(help="Measure energy, or estimate it where there is no meter.")] = True,
    country: Country = "USA",
    results: Annotated[
        Path, typer.Option(help="JSONL file that the records are appended to; cells in it are not measured again.")
    ] = Path("bench/bench.jsonl"),
    out: Annotated[Path, typer.Option(help="Folder of the figures and their page.")] = Path("bench"),
    published: Annotated[
        Path | None, typer.Option(help="Folder with the published figures, which are drawn beside the measured ones.")
    ] = None,
) -> None:
    """Measure variants over lengths and ranks beside dense attention, and draw the figures of Cahyawijaya 2021."""
    from greenformers.measure.bench import bench as run
    from greenformers.measure.bench import setting
    from greenformers.measure.grid import cells, refusal
    from greenformers.measure.grid import variants as every
    from greenformers.measure.record import append, check_machine, context, read
    from greenformers.report.published import STUDY, absent
    from greenformers.report.study import write

    if not energy and terminal.is_typed(typed, "country"):
        raise ValueError(f"country is of the energy, which is not measured; got {country}")
    for name, numbers in (("lengths", lengths), ("ranks", ranks)):
        if not terminal.numbers(name, numbers):
            raise ValueError(f"{name} must be at least one whole number, got {numbers!r}")
    terminal.quiet()
    console = terminal.console()
    how = replace(how, memory=None if memory is None else memory * 2**30, country=country if energy else None)
    chosen = every(network.causal) if variants is None else [name.strip() for name in variants.split(",")]
    given = terminal.numbers("ranks", ranks)
    asked = cells(chosen, terminal.numbers("lengths", lengths), given, network)
    terminal.check_results(results)
    terminal.check_page(out, "out")
    terminal.check_folder(published, "published")
    reasons = {cell: reason for cell in asked if (reason := refusal(cell, network)) is not None}
    if min(given) > network.hidden:
        raise ValueError(f"ranks must be at most the width d of {network.hidden}, got {ranks}")
    if larger := [str(rank) for rank in given if rank > network.hidden]:
        console.print(f"left out: rank {', '.join(larger)}, larger than the width d of {network.hidden}")
    for line in _left_out(reasons):
        console.print(line, markup=False, soft_wrap=True)
    grid = [cell for cell in asked if cell not in reasons]
    records = read(results) if results.exists() else []
    check_machine([record for record in records if record.benchmark == "bench"], results)
    with terminal.Steps(console) as steps:
        for measured in run(grid, network, how, context(terminal.command(), how.seed), records, steps):
            append(results, measured)
            records += measured
    # The page is of this grid alone: the file may hold others.
    metrics = {record.metric for record in records}
    names = {(cell.variant, str(setting(cell, network, how, name)), name) for cell in grid for name in metrics}
    own = [record for record in records if (record.variant, str(record.setting), record.metric) in names]
    page = write(own, out, published)
    console.print(f"records: {results}\nfigures: {page}", markup=False, soft_wrap=True)
    if line := absent(published, STUDY):
        console.print(line, markup=False, soft_wrap=True)


def _left_out(reasons: "Mapping[Cell, str]") -> "Iterator[str]":
    """A line for each variant and rank that cannot be, with its lengths and its reason."""
    lengths: dict[str, list[str]] = {}
    for cell, reason in reasons.items():
        lengths.setdefault(f"{cell.name}: {reason}", []).append(str(cell.length))
    return (f"left out at N {', '.join(own)}: {line}" for line, own in lengths.items())
