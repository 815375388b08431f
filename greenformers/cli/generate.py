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
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue or translate; may be repeated.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="File with a prompt a line.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="At most so many tokens are added.")] = None,
    beams: Annotated[int, typer.Option(help="Width of the beam; 1 is greedy.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="Of the draw: below 1 is more cautious.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this total probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
) -> None:
    """Continue texts with a trained language model, or translate them with an encoder-decoder."""
    from greenformers.train.evaluate import written

    terminal.quiet()
    texts = [*(prompt or []), *(prompts.read_text().splitlines() if prompts else [])]
    options: dict[str, Any] = {"num_beams": beams, "do_sample": sample, "max_new_tokens": max_new_tokens}
    draw: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for text in written(run_folder, texts, seed=seed, **options, **(draw if sample else {})):
        print(text)
