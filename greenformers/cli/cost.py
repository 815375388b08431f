"""`greenformers cost`. Heavy imports are inside the command, so that --help answers at once."""

from greenformers.advise.cost_options import Options
from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._options import from_fields

ORDER = 100
GROUP = "Measure and choose"
EXAMPLES = (
    "greenformers cost",
    "greenformers cost --base BERT-base --speedup 128:2.7,512:1.9 --shares 128:0.9,512:0.1",
    "greenformers cost --parameters 110e6 --tokens 137e9 --gpus 8 --price 1,4 --country FRA",
)


@from_fields
def cost(
    *,
    options: Options,
    results: Results = None,
) -> None:
    """Estimate the cost of a training run, and of a faster variant of it: compute, money, energy and CO2.

    Without options, the tables of costs of the Greenformers thesis
    (Cahyawijaya 2021) are computed again.
    """
    from greenformers.advise.cost import records as as_records
    from greenformers.advise.cost_options import answer
    from greenformers.measure.record import append, context
    from greenformers.report.cost import cost_table, thesis_tables
    from greenformers.report.fit import fitted

    console = terminal.console()
    if not options.given():
        if results is not None:
            raise ValueError("--results goes with a run: name one with --base, --flops, or --parameters and --tokens")
        for table in thesis_tables():
            terminal.show(console, fitted(table, console.width))
        return
    if results is not None:
        terminal.check_results(results)
    answers = answer(options)
    terminal.show(console, fitted(cost_table(answers), console.width))
    if results is not None:
        append(results, as_records({name: each.cost for name, each in answers.items()}, context(terminal.command(), 0)))
