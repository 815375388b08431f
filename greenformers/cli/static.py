"""`greenformers static`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results

ORDER = 27
GROUP = "Make a trained model smaller and faster"
EXAMPLES = ("greenformers static MODEL --texts texts.txt --evaluate pairs.tsv --out static",)


def static(
    model: Annotated[str, typer.Argument(help="Folder of a sentence encoder, or its name on the hub.")],
    texts: Annotated[
        Path,
        typer.Option(
            help="Texts to learn from, of the kind that will be encoded: a file .txt, .tsv, .jsonl or .parquet, a "
            "folder of them, or hf://datasets/NAME."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the static encoder.")],
    evaluate: Annotated[
        Path | None,
        typer.Option(help="Pairs to judge by: such texts with the columns sentence1, sentence2, score."),
    ] = None,
    dims: Annotated[
        int | None, typer.Option(help="Dimensions of the vectors; 256 if not given, or all of fewer.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Longest text in tokens; by default that of the model's pooling, else 128, within its positions."
        ),
    ] = None,
    teacher_cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps what the model gives to each text, also for other students.")
    ] = None,
    results: Results = None,
) -> None:
    """Learn a sentence encoder without a network: a vector for each token, and the mean of them for a text.

    It is written as a SentenceTransformer, hundreds of times as fast
    as the model it learns from.
    """
    from greenformers.checkpoint.pretrained import model_name, pretrained
    from greenformers.checkpoint.save import check_place
    from greenformers.compress.comparison import card
    from greenformers.data._examples import read_examples
    from greenformers.data._texts import Texts
    from greenformers.measure.record import append, context
    from greenformers.report.table import tables
    from greenformers.static.judge import STATIC, TEACHER, check_pairs, compared
    from greenformers.static.learn import learned_by, longest

    terminal.quiet()
    console = terminal.console()
    if length is not None and length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    terminal.check_apart(out, model, texts, evaluate, teacher_cache, results)
    check_place(out)
    if results is not None:
        terminal.check_results(results)
    learnt, _ = read_examples(texts, "text", labelled=False)
    assert isinstance(learnt, Texts)
    others, judging = (None, None) if evaluate is None else read_examples(evaluate, "text")
    pairs = judging or others
    if pairs is not None:
        assert isinstance(pairs, Texts)
        check_pairs(pairs)
    network, tokenizer = pretrained(model, needs_tokenizer=True)
    every = list(dict.fromkeys(line for line in learnt.lines if line.strip()))
    judged = set() if pairs is None else set(pairs.lines)
    lines = [line for line in every if line not in judged]  # what was learned by heart would be judged too well
    if not lines:
        raise ValueError(f"every text of {texts} is one to judge by: give others to learn from")
    goes_on = "the same command goes on" if teacher_cache else "the same command begins anew, without --teacher-cache"
    with terminal.resumable(goes_on), terminal.Steps(console) as steps:
        encoder, how = learned_by(
            network, lines, tokenizer=tokenizer, dims=dims, length=length, cache=teacher_cache, progress=steps
        )
        records = compared(
            network, tokenizer, encoder, lines, pairs, longest(network, length), context(terminal.command(), 0)
        )
    summary = "" if len(lines) == len(every) else f"{len(every) - len(lines):,} texts are those to judge by: left out. "
    summary += (
        f"{how.texts:,} texts hold {how.seen:.0%} of the tokens; cosine to the teacher on others {how.begun:.3f} with "
        f"tokens alone, {how.cosine:.3f} learned; {encoder.weight.shape[1]} directions hold {how.energy:.1%} of the "
        "teacher's energy"
    )
    origin = f"Made from `{model_name(model)}`: {summary}."
    encoder.save(out, card([TEACHER, STATIC], records, origin))
    console.print(summary, soft_wrap=True)
    terminal.show(console, tables(records, console.width))
    if results is not None:
        append(results, records)
    console.print(f"model:  {out}", markup=False, soft_wrap=True)
