"""`greenformers cost`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal

ORDER = 120


def cost(
    base: Annotated[str | None, typer.Option(help="Published run, such as BERT-base or GPT-3.")] = None,
    speedup: Annotated[
        str | None, typer.Option(help="Times faster than the base, by length: 128:2.7,512:1.9; or one factor.")
    ] = None,
    shares: Annotated[str | None, typer.Option(help="Of the base's time, by length: 128:0.9,512:0.1.")] = None,
    records: Annotated[Path | None, typer.Option(help="In place of --speedup: records of bench or compare.")] = None,
    variant: Annotated[
        str | None, typer.Option(help="Whose speed-ups of the records, with commas; or a name for --speedup.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only records of this rank.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Only records of this setting, such as hidden=768; may be repeated.")
    ] = None,
    parameters: Annotated[float | None, typer.Option(help="In place of --base: parameters of the model.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens it is trained on; FLOPs are 6 per parameter.")] = None,
    flops: Annotated[float | None, typer.Option(help="In place of both: FLOPs of the run.")] = None,
    peak: Annotated[float | None, typer.Option(help="TFLOP/s of one GPU; 312 if not given, an A100's.")] = None,
    utilisation: Annotated[float | None, typer.Option(help="Share of the peak reached; 0.4 if not given.")] = None,
    gpus: Annotated[int | None, typer.Option(help="How many; 1 if not given.")] = None,
    watts: Annotated[float | None, typer.Option(help="Of one GPU with its part of the host; 400 if not given.")] = None,
    price: Annotated[str | None, typer.Option(help="USD an hour of one GPU: one number, or LOW,HIGH.")] = None,
    country: Annotated[
        str | None, typer.Option(help="Whose electricity: a 3-letter ISO code; as published, or else USA.")
    ] = None,
    pue: Annotated[float | None, typer.Option(help="Data centre's energy over its computers'; else 1.58.")] = None,
    results: Annotated[Path | None, typer.Option(help="File the records are added to.")] = None,
) -> None:
    """Estimate what a training run costs, and a faster variant of it: compute, money, energy and CO2.

    Without options: the thesis's tables of costs, worked out again.
    """
    from greenformers.advise.cost import records as as_records
    from greenformers.advise.cost_options import Options, answer
    from greenformers.measure.record import append, context
    from greenformers.report.cost import cost_table, thesis_tables

    options = Options(
        base=base, speedup=speedup, shares=shares, records=records, variant=variant, rank=rank, where=where,
        parameters=parameters, tokens=tokens, flops=flops, peak=peak, utilisation=utilisation, gpus=gpus, watts=watts,
        price=price, country=country, pue=pue,
    )  # fmt: skip
    console = terminal.console()
    if not options.given():
        if results is not None:
            raise ValueError("--results goes with a run: name one with --base, --flops, or --parameters and --tokens")
        terminal.show(console, thesis_tables())
        return
    if results is not None:
        terminal.check_writable(results)
    answers = answer(options)
    console.print(cost_table(answers))
    if results is not None:
        append(results, as_records({name: each.cost for name, each in answers.items()}, context(terminal.command(), 0)))
