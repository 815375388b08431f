"""`greenformers generate`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers.cli import _terminal as terminal

ORDER = 70
GROUP = "Train a model of your own"
EXAMPLES = ("greenformers generate runs/shakespeare --prompt 'ROMEO:' --sample",)


def generate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run: causal_lm or seq2seq.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text that is continued or translated; may be repeated.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="File with one prompt on each line.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Largest number of tokens that are generated.")] = None,
    beams: Annotated[int, typer.Option(help="Width of the beam search; 1 is greedy.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[
        float, typer.Option(help="Temperature of sampling; below 1, likely tokens are drawn more often.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Number of the likeliest tokens that are sampled from; 0 for all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Total probability of the likeliest tokens that are sampled from.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
) -> None:
    """Continue texts with a trained language model, or translate them with an encoder-decoder."""
    from greenformers.train.evaluate import written

    terminal.quiet()
    texts = [*(prompt or []), *(prompts.read_text().splitlines() if prompts else [])]
    options: dict[str, Any] = {"num_beams": beams, "do_sample": sample, "max_new_tokens": max_new_tokens}
    draw: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for text in written(run_folder, texts, seed=seed, **options, **(draw if sample else {})):
        print(text)
