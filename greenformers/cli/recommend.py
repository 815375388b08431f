"""`greenformers recommend`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Causal

ORDER = 10
GROUP = "Make a trained model smaller and faster"
EXAMPLES = (
    "greenformers recommend --model MODEL --texts texts.tsv",
    "greenformers recommend --length 1024 --hidden 256 --heads 4 --layers 4",
)


def recommend(
    given: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="A trained model: changes of it are made and measured; needs --texts.")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="With --model: texts like its own, .txt, or .tsv with sentence, label or pairs and score."),
    ] = None,
    loss: Annotated[float, typer.Option(help="With --model: per cent of the quality that may go.")] = 3.0,
    limit: Annotated[int, typer.Option(help="With --model: at most so many texts judge.")] = 200,
    country: Annotated[str, typer.Option(help="With --model: whose electricity, a 3-letter ISO code.")] = "USA",
    results: Annotated[Path | None, typer.Option(help="With --model: file the records are added to.")] = None,
    length: Annotated[
        int | None, typer.Option(help="Sequence length N; with --model, that of 95 % of the texts if not given.")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Width d of the network.")] = 768,
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 12,
    heads: Annotated[int, typer.Option(help="Number of heads, a divisor of the width.")] = 12,
    feed_forward: Annotated[
        int | None, typer.Option(help="Width f of the feed-forward blocks; 4 d if not given.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 8,
    causal: Causal = False,
    task: Annotated[str, typer.Option(help="inference or training.")] = "inference",
    ranks: Annotated[str, typer.Option(help="Ranks to consider, with commas.")] = "64,128",
    memory: Annotated[float | None, typer.Option(help="At most so many GiB of weights and tensors.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    top: Annotated[int, typer.Option(help="How many candidates are shown.")] = 12,
    records: Annotated[
        Path | None, typer.Option(help="Records of bench made on this machine, as further evidence.")
    ] = None,
) -> None:
    """Say which variant to use on this machine, and why: of a network to be, or for a trained model.

    For a length and a size of network all variants are ranked by
    predicted time. With --model and --texts changes of that model are
    made, judged on the texts and timed.
    """
    from greenformers.advise.calibration import calibrate
    from greenformers.advise.recommend import Need, finding
    from greenformers.advise.recommend import recommend as run
    from greenformers.measure.bench_options import MODES, Network
    from greenformers.measure.record import read
    from greenformers.report.advice import table
    from greenformers.report.fit import fitted

    terminal.quiet()
    console = terminal.console()
    _check_options(given, model is not None)
    if model is not None:
        _for_model(model, texts, loss, length, batch, limit, country, results)
        return
    if length is None:
        raise ValueError("name a length with --length, or a trained model with --model and --texts")
    if task not in MODES:
        raise ValueError(f"task must be one of {', '.join(MODES)}; got {task!r}")
    network = Network(hidden, heads, feed_forward or 4 * hidden, layers, causal)
    need = Need(network, length, batch, task, None if memory is None else memory * 2**30, device)
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    known = [] if records is None else read(records)
    wanted = terminal.numbers("ranks", ranks)
    if not wanted:
        raise ValueError("ranks must be at least one number")
    with terminal.Steps(console) as steps:
        prices = calibrate(device=device, progress=steps)
        rows = run(need, prices, wanted, records=known, progress=steps)
        words = finding(need, prices, wanted[0])
    terminal.show(console, fitted(table(rows, need, prices[task], top), console.width, repeated=2))
    console.print(words)


OF_A_MODEL = ("texts", "loss", "limit", "country", "results")
OF_BOTH = ("model", "length", "batch")


def _check_options(given: typer.Context, of_a_model: bool) -> None:
    """Options that would be ignored are refused."""
    for name in given.params:
        source = given.get_parameter_source(name)
        typed = source is not None and source.name == "COMMANDLINE"
        if typed and name not in OF_BOTH and (name in OF_A_MODEL) != of_a_model:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} goes {'without' if of_a_model else 'with'} --model")


def _for_model(
    model: str, texts: Path | None, loss: float, length: int | None, batch: int, limit: int, country: str,
    results: Path | None,
) -> None:  # fmt: skip
    from greenformers.advise.checkpoint import advise
    from greenformers.checkpoint.pretrained import check_tokenizer, features_of, model_name, pretrained
    from greenformers.data._examples import read_examples
    from greenformers.data._tasks import kind_of_input
    from greenformers.measure.record import append, context
    from greenformers.report.advice import measured_table, words
    from greenformers.report.fit import fitted

    console = terminal.console()
    if texts is None:
        raise ValueError("--model needs --texts, a file of texts like those the model is for")
    if not 0 <= loss < 100:
        raise ValueError(f"loss must be in 0..100, got {loss:g}")
    if results is not None:
        terminal.check_writable(results)
    network, tokenizer = pretrained(model)
    kind = kind_of_input(network)
    if kind == "text" or tokenizer is not None:
        check_tokenizer(tokenizer, network, model)
    learnt, judged = read_examples(texts, kind)
    with terminal.Steps(console) as steps:
        advice = advise(
            network, tokenizer, judged or learnt, features=features_of(model, network), length=length, batch=batch,
            limit=limit, country=country, about=context(terminal.command(), 0), progress=steps,
        )  # fmt: skip
    terminal.show(console, fitted(measured_table(advice, model_name(model)), console.width, repeated=2))
    console.print(words(advice, loss / 100, model, str(texts)), markup=False, soft_wrap=True)
    if results is not None:
        append(results, advice.records)
