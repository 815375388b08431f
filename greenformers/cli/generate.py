"""`greenformers generate`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import LengthPenalty, MinNewTokens, NoRepeat

ORDER = 70
GROUP = "Train a model of your own"
EXAMPLES = (
    "greenformers generate runs/shakespeare --prompt 'ROMEO:' --sample",
    "greenformers generate runs/papers --prompts abstracts.txt --beams 5 --length-penalty 0.8 --no-repeat 3",
)


def generate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run: causal_lm or seq2seq.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text that is continued, translated or summarised; may be repeated.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="File with one prompt on each line.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Largest number of tokens that are generated.")] = None,
    beams: Annotated[int, typer.Option(help="Width of the beam search; 1 is greedy.")] = 1,
    length_penalty: LengthPenalty = None,
    no_repeat: NoRepeat = None,
    min_new_tokens: MinNewTokens = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[
        float, typer.Option(help="Temperature of sampling; below 1, likely tokens are drawn more often.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Number of the likeliest tokens that are sampled from; 0 for all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Total probability of the likeliest tokens that are sampled from.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling; 0 if not given.")] = None,
) -> None:
    """Continue texts with a trained language model, or translate or summarise them with an encoder-decoder."""
    from greenformers.data._files import read_lines
    from greenformers.train.evaluate import written
    from greenformers.train.generation import Writing

    if not sample and (temperature, top_k, top_p, seed) != (1.0, 0, 1.0, None):
        raise ValueError("temperature, top_k, top_p and seed are of sampling: give --sample too")
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in 0..{2**32 - 1}, got {seed}")
    terminal.quiet()
    lines = read_lines(prompts) if prompts else []
    if "" in lines:
        raise ValueError(f"{prompts}, line {lines.index('') + 1}: a prompt must have at least one character")
    texts = [*(prompt or []), *lines]
    options: dict[str, Any] = {
        "writing": Writing(beams, length_penalty, no_repeat, min_new_tokens),
        "do_sample": sample,
        "max_new_tokens": max_new_tokens,
    }
    draw: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for text in written(run_folder, texts, seed=seed or 0, **options, **(draw if sample else {})):
        print(text)
