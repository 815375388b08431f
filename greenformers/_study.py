"""Commands that measure and advise. Heavy imports are inside the commands, so that --help answers at once."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from greenformers import _terminal as terminal
from greenformers._terminal import FeedForward, Heads, Hidden, Layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

Causal = Annotated[bool, typer.Option("--causal", help="A position sees only those before it.")]


def spectrum(
    model: Annotated[str, typer.Argument(help="Folder of a model of transformers, or its name on the hub.")],
    texts: Annotated[Path, typer.Option(help="Texts, a line each; also .gz and .xz.")],
    length: Annotated[int, typer.Option(help="Tokens in a block of running text.")] = 512,
    index: Annotated[int, typer.Option(help="How many singular values the table and the heat map add up.")] = 128,
    limit: Annotated[int, typer.Option(help="At most so many blocks.")] = 100,
    share: Annotated[float, typer.Option(help="What the suggested k keeps of the singular values' sum.")] = 0.9,
    out: Annotated[Path, typer.Option(help="Folder of the figure and its page.")] = Path("spectrum"),
    results: Annotated[Path | None, typer.Option(help="File the records are added to.")] = None,
) -> None:
    """Measure the singular values of a trained model's attention over real text, and suggest a k for each layer."""
    from itertools import islice

    from greenformers.checkpoint.pretrained import pretrained
    from greenformers.data._texts import read_texts
    from greenformers.measure import spectrum as measure
    from greenformers.measure.record import append, context
    from greenformers.report.spectrum import table, write

    terminal.quiet()
    console = terminal.console()
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if not 1 <= index <= length:
        raise ValueError(f"index must be in 1..{length}, the length of a block; got {index}")
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    seen = read_texts(texts)
    network, tokenizer = pretrained(model, needs_tokenizer=True)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder")
    if results is not None:
        terminal.check_writable(results)
    blocks = islice(measure.blocks(seen.lines, cast(Any, tokenizer), length), limit)
    with terminal.Steps(console) as steps:
        found = measure.attention_spectrum(network, _counted(blocks, limit, steps))
    # Shown first: should the disk be full, the figures are at least on the screen.
    console.print(table(found, index, share))
    about = context(terminal.command(), 0)
    made = measure.records(found, Path(model).resolve().name, seen.name, index=index, share=share, about=about)
    if results is not None:
        append(results, made)
    page = write(found, made, index, share, out)
    console.print(
        f"{found.blocks} blocks of {length} tokens\nfigure: {out / 'spectrum.png'}\nreport: {page}", soft_wrap=True
    )


def _counted(blocks: "Iterable[Tensor]", limit: int, steps: terminal.Steps) -> "Iterator[Tensor]":
    for done, block in enumerate(blocks):
        steps("blocks", done / limit)
        yield block
    steps("blocks", 1.0)


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
    from greenformers._terminal import numbers
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
    wanted = cells(chosen, numbers("lengths", lengths), numbers("ranks", ranks), network)
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
    hidden: Hidden = 768,
    layers: Layers = 12,
    heads: Heads = 12,
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
    from greenformers.measure.grid import MODES, Network
    from greenformers.measure.record import read
    from greenformers.report.advice import table

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
        rows = run(need, prices, wanted, known=known, progress=steps)
        words = finding(need, prices, wanted[0])
    console.print(table(rows, need, prices[task], top))
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
    from greenformers.checkpoint.pretrained import pretrained
    from greenformers.data._texts import read_texts
    from greenformers.measure.record import append, context
    from greenformers.report.advice import measured_table, words

    console = terminal.console()
    if texts is None:
        raise ValueError("--model needs --texts, a file of texts like those the model is for")
    if not 0 <= loss < 100:
        raise ValueError(f"loss must be in 0..100, got {loss:g}")
    if results is not None:
        terminal.check_writable(results)
    read = read_texts(texts)
    network, tokenizer = pretrained(model, needs_tokenizer=True)
    with terminal.Steps(console) as steps:
        advice = advise(
            network, cast(Any, tokenizer), read, length=length, batch=batch, limit=limit, country=country,
            about=context(terminal.command(), 0), progress=steps,
        )  # fmt: skip
    console.print(measured_table(advice, Path(model).name or model))
    console.print(words(advice, loss / 100, model, str(texts)), markup=False, soft_wrap=True)
    if results is not None:
        append(results, advice.records)


def pattern(
    name: Annotated[str, typer.Argument(help="A mechanism that is a pattern, such as longformer.")],
    length: Annotated[int, typer.Option(help="Sequence length N.")],
    out: Annotated[Path, typer.Option(help="File of the picture, .png.")],
    option: Annotated[list[str] | None, typer.Option(help="Option of it as name=value; may be repeated.")] = None,
    heads: Annotated[int, typer.Option(help="Number of heads.")] = 4,
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 1,
    causal: Causal = False,
) -> None:
    """Draw who sees whom in a pattern, per head and layer, with its density and cost."""
    from greenformers.measure.connectivity import connectivity
    from greenformers.report.curves import save
    from greenformers.report.pattern import figure, table

    console = terminal.console()
    if out.suffix != ".png":
        raise ValueError(f"out must end in .png, got {out.name!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent} is not a folder")
    options = terminal.pairs("option", option or [])
    with terminal.Steps(console) as steps:
        found = connectivity(
            name, length, options, heads=heads, layers=layers, causal=causal, progress=steps,
        )  # fmt: skip
    console.print(table(found))
    save(figure(found), out)
    console.print(f"picture: {out}", soft_wrap=True)


COMMANDS: tuple[Callable[..., None], ...] = (bench, recommend, spectrum, cost, pattern)
