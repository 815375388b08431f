"""`greenformers bench`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Causal, FeedForward, Heads, Hidden, Layers

ORDER = 90


def bench(
    variants: Annotated[
        str | None,
        typer.Option(
            help="Names, with commas: lrt, an attention, or lrt+ and an attention. By default all that can be."
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Sequence lengths, with commas.")] = "16,64,256,1024,4096",
    ranks: Annotated[str, typer.Option(help="Ranks, also projected lengths and the like, with commas.")] = "16,64,256",
    modes: Annotated[str, typer.Option(help="inference, training or both, with a comma.")] = "inference,training",
    hidden: Hidden = 768,
    heads: Heads = 12,
    feed_forward: FeedForward = 3072,
    layers: Layers = 2,
    causal: Causal = False,
    slot: Annotated[
        list[str] | None, typer.Option(help="Another slot of the network, as residual=pre; may be repeated.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a batch: its size is this over the length.")] = 4096,
    memory: Annotated[float | None, typer.Option(help="GiB: find the largest batch that fits, too.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each cell.")] = 7,
    energy: Annotated[bool, typer.Option(help="Measure energy, or estimate it where there is no meter.")] = True,
    country: Annotated[str, typer.Option(help="Whose electricity: a 3-letter ISO code.")] = "USA",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    compiled: Annotated[bool, typer.Option("--compile", help="By torch.compile.")] = False,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    results: Annotated[
        Path, typer.Option(help="File the records are added to; cells in it are not measured again.")
    ] = Path("results/bench.jsonl"),
    out: Annotated[Path, typer.Option(help="Folder of the figures and their page.")] = Path("bench"),
    published: Annotated[
        Path | None, typer.Option(help="Folder with the published figures, to be drawn beside these.")
    ] = None,
) -> None:
    """Measure variants over lengths and ranks, beside dense attention, and draw the figures of the thesis."""
    from greenformers.measure.bench import How, setting
    from greenformers.measure.bench import bench as run
    from greenformers.measure.grid import Network, cells
    from greenformers.measure.grid import variants as every
    from greenformers.measure.record import append, context, read
    from greenformers.report.study import write

    terminal.quiet()
    console = terminal.console()
    network = Network(hidden, heads, feed_forward, layers, causal, terminal.pairs("slot", slot or []))
    how = How(
        tuple(mode.strip() for mode in modes.split(",")), tokens, None if memory is None else memory * 2**30, repeats,
        country if energy else None, device, compiled, seed,
    )  # fmt: skip
    chosen = every(causal) if variants is None else [name.strip() for name in variants.split(",")]
    wanted = cells(chosen, terminal.numbers("lengths", lengths), terminal.numbers("ranks", ranks), network)
    terminal.check_writable(results)
    known = read(results) if results.exists() else []
    with terminal.Steps(console) as steps:
        for found in run(wanted, network, how, context(terminal.command(), seed), known, steps):
            append(results, found)
            known += found
    # Of this grid: the file may hold others.
    names = {(cell.variant, str(setting(cell, network, how))) for cell in wanted}
    page = write([record for record in known if (record.variant, str(record.setting)) in names], out, published)
    console.print(f"records: {results}\nfigures: {page}", soft_wrap=True)
