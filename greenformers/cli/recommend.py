"""`greenformers recommend`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Causal

ORDER = 10
GROUP = "Make a trained model smaller and faster"
EXAMPLES = (
    "greenformers recommend --model MODEL --texts texts.tsv --runtime openvino",
    "greenformers recommend --length 1024 --hidden 256 --heads 4 --layers 4",
)


def recommend(
    given: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Trained model, of which recipes are made and measured; needs --texts.")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="With --model: inputs like those that the model is for: a file .txt, .tsv, .jsonl, .parquet or "
            ".conll, as for `compress`, or a folder of texts, images or recordings."
        ),
    ] = None,
    lose: Annotated[
        str | None, typer.Option(help="With --model: share of the quality that may be lost; by default 3%.")
    ] = None,
    faster: Annotated[
        str | None, typer.Option(help="With --model, in place of --lose: speed-up that is asked for, such as 3x.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="With --model: minutes in which recipes are tried; the best are then measured.")
    ] = 3.0,
    limit: Annotated[int, typer.Option(help="With --model: largest number of texts that quality is judged on.")] = 200,
    country: Annotated[
        str, typer.Option(help="With --model: country of the electricity, as a 3-letter ISO code.")
    ] = "USA",
    runtime: Annotated[
        str, typer.Option(help="With --model: runtime that the model will run in: torch, openvino or onnx.")
    ] = "torch",
    results: Annotated[
        Path | None, typer.Option(help="With --model: JSONL file that the records are appended to.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(help="Sequence length N in tokens; with --model by default one that 95 % of the texts fit in."),
    ] = None,
    hidden: Annotated[int, typer.Option(help="Width d of the network.")] = 768,
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 12,
    heads: Annotated[int, typer.Option(help="Number of heads, a divisor of the width.")] = 12,
    feed_forward: Annotated[
        int | None, typer.Option(help="Width f of the feed-forward blocks; by default 4 d.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 8,
    causal: Causal = False,
    task: Annotated[str, typer.Option(help="Work that is to be fast: inference or training.")] = "inference",
    ranks: Annotated[str, typer.Option(help="Ranks that are considered, with commas.")] = "64,128",
    memory: Annotated[
        float | None, typer.Option(help="Largest memory for weights and all other tensors, in GiB.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu or cuda.")] = "cpu",
    top: Annotated[int, typer.Option(help="Number of candidates of each kind that are shown.")] = 8,
    quick: Annotated[
        bool, typer.Option("--quick", help="Give estimates alone, in seconds; else the most promising are timed too.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Seconds after which no more candidates are timed.")] = 60.0,
    records: Annotated[
        Path | None,
        typer.Option(help="JSONL file of records of `greenformers bench` on this machine, as further evidence."),
    ] = None,
) -> None:
    """Advise which variant to use on this machine, and why: for a new network, or for a trained model.

    For a length and a size of network, all variants are ranked by what
    they are known to lose and by time: at once as estimated, then, unless
    --quick, with the most promising timed. With --model and --texts,
    recipes of changes of that model are searched, without training: made,
    judged on the texts and timed.
    """
    terminal.quiet()
    console = terminal.console()
    _check_options(given, model is not None)
    if model is not None:
        _for_model(model, texts, lose, faster, minutes, length, batch, limit, country, runtime, results)
        return
    if length is None:
        raise ValueError("name a length with --length, or a trained model with --model and --texts")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if quick and terminal.is_typed(given, "seconds"):
        raise ValueError("--seconds is of no use with --quick, which times nothing")
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds:g}")
    if not (rank_values := terminal.numbers("ranks", ranks)):
        raise ValueError("ranks must be at least one number")
    from greenformers.advise.prices import prices, rates
    from greenformers.advise.recommend import MEASURED, Need, finding, measured
    from greenformers.advise.recommend import recommend as run
    from greenformers.measure.bench_options import MODES, Network
    from greenformers.measure.record import check_machine, read
    from greenformers.report.advice import table
    from greenformers.report.fit import fitted

    if task not in MODES:
        raise ValueError(f"task must be one of {', '.join(MODES)}; got {task!r}")
    network = Network(hidden, heads, 4 * hidden if feed_forward is None else feed_forward, layers, causal)
    need = Need(network, length, batch, task, None if memory is None else memory * 2**30, device)
    benched = [] if records is None else read(records)
    if records is not None:
        check_machine(benched, records)
    if wide := [str(rank) for rank in rank_values if rank > hidden]:
        console.print(f"left out: rank {', '.join(wide)}, larger than the width d of {hidden}")
    if long := [str(rank) for rank in rank_values if length < rank <= hidden]:
        console.print(
            f"left out: {', '.join(long)} as a length of projected keys or the like, as it is above N {length}"
        )
    with terminal.Steps(console) as steps:
        by_mode = prices(rates(device))
        rows = run(need, by_mode, rank_values, records=benched, progress=steps)
    if records is not None and not any(row.evidence == MEASURED for row in rows):
        console.print(f"{records} has no figure of this network, length, batch and task", markup=False, soft_wrap=True)
    terminal.show(console, fitted(table(rows, need, by_mode[task], top), console.width, repeated=2))
    console.print(finding(need, by_mode, rank_values[0]))
    if quick:
        return
    with terminal.Steps(console) as steps:
        timed = measured(need, rows, seconds, steps)
    if timed == rows:
        console.print("nothing was timed: it is known already, or one layer of the dense network has no room in memory")
        return
    rows = timed
    terminal.show(console, fitted(table(rows, need, by_mode[task], top), console.width, repeated=2))


OF_A_MODEL = ("texts", "lose", "faster", "minutes", "limit", "country", "runtime", "results")
OF_BOTH = ("model", "length", "batch")


def _check_options(given: typer.Context, of_a_model: bool) -> None:
    """Refuse options that would be ignored.

    Raises:
        ValueError: An option was typed that belongs to the other use of the command.
    """
    for name in given.params:
        if terminal.is_typed(given, name) and name not in OF_BOTH and (name in OF_A_MODEL) != of_a_model:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} {'cannot be combined with' if of_a_model else 'needs'} --model")


def _for_model(
    model: str, texts: Path | None, lose: str | None, faster: str | None, minutes: float, length: int | None,
    batch: int, limit: int, country: str, runtime: str, results: Path | None,
) -> None:  # fmt: skip
    from greenformers.advise.in_runtime import check_runtime
    from greenformers.checkpoint.pretrained import check_tokenizer, features_of, model_name, pretrained
    from greenformers.cli._search import bound_of
    from greenformers.data._examples import read_examples
    from greenformers.data._tasks import classes_of, kind_of_input
    from greenformers.measure.record import append, context
    from greenformers.model.positions import reach
    from greenformers.report.advice import measured_table, words
    from greenformers.report.fit import fitted
    from greenformers.search.advice import advise

    console = terminal.console()
    if texts is None:
        raise ValueError("--model needs --texts, a file of texts like those the model is for")
    check_runtime(runtime)
    bound = bound_of("3%" if lose is None and faster is None else lose, faster)
    if results is not None:
        terminal.check_results(results)
    network, tokenizer = pretrained(model)
    longest = reach(network)
    if length is not None and not 1 <= length <= (longest or length):
        most = "" if longest is None else f" and at most {longest}, the longest input"
        raise ValueError(f"length must be at least 1{most}; got {length}")
    kind = kind_of_input(network)
    if kind == "text" or tokenizer is not None:
        check_tokenizer(tokenizer, network, model)
    learnt, judged = read_examples(texts, kind, classes=classes_of(network))
    with terminal.Steps(console) as steps:
        advice = advise(
            network, tokenizer, judged or learnt, bound=bound, seconds=60 * minutes,
            features=features_of(model, network), length=length, batch=batch, limit=limit, country=country,
            runtime=runtime, about=context(terminal.command(), 0), progress=steps,
        )  # fmt: skip
    terminal.show(console, fitted(measured_table(advice, model_name(model)), console.width, repeated=2))
    console.print(words(advice, bound, model, str(texts)), markup=False, soft_wrap=True)
    if results is not None:
        append(results, advice.records)
