"""Commands for speech. Heavy imports are inside the commands, so that --help answers at once."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from greenformers import _terminal as terminal
from greenformers._training import training
from greenformers.speech.settings import SpeechSettings

app = typer.Typer(
    name="speech", help="Speech recognition with the Low-Rank Transformer (thesis, chapter 4).", no_args_is_help=True
)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of its model.")]
Width = Annotated[int, typer.Option(help="Hypotheses kept at every step; 1 is greedy.")]
Gamma = Annotated[float, typer.Option(help="Weight of the square root of the number of words.")]
Longest = Annotated[int | None, typer.Option(help="Characters of a transcript at most; by default one in 40 ms.")]
Batch = Annotated[int, typer.Option(help="Recordings, or pieces of one, at a time.")]

app.command("train")(
    training(
        SpeechSettings,
        """Train a recogniser on a corpus of recordings and their texts.

    The run folder OUT holds run.json (all settings), metrics.jsonl,
    curves.png, scores.json and model/; checkpoints/ while it lasts.
    A run that was stopped goes on with --resume.
    """,
    )
)


@app.command()
def transcribe(
    run: Run,
    files: Annotated[list[Path], typer.Argument(help="Sound files: WAV, FLAC, Ogg, MP3; any rate.")],
    width: Width = 8,
    gamma: Gamma = 0.1,
    longest: Longest = None,
    piece: Annotated[
        float | None, typer.Option(help="Seconds of sound at once at most; by default what the network learnt with.")
    ] = None,
    batch: Batch = 8,
) -> None:
    """Write down what is said in sound files. A file that cannot be used is named, and the next one follows."""
    from greenformers.speech.recognise import Recogniser
    from greenformers.speech.recognise import transcribe as run_on
    from greenformers.speech.search import Search

    terminal.quiet()
    recogniser = Recogniser.load(run, Search(width=width, gamma=gamma, longest=longest))
    faults, before = 0, 0.0
    seconds = {path: _length(path) for path in files}
    total = sum(seconds.values())
    with terminal.Steps(terminal.console(stderr=True)) as steps:

        def told(_: Path, done: float) -> None:
            steps("sound", min(1.0, (before + done) / total) if total else 0.0)

        for found in run_on(recogniser, files, longest=piece, batch=batch, progress=told):
            before += seconds[found.path]
            if found.fault is not None:
                faults += 1
                print(f"greenformers: {found.fault}", file=sys.stderr)
            if found.seconds:
                pace = found.time / found.seconds
                about = f"{found.seconds:.1f} s of sound in {found.time:.2f} s, real-time factor {pace:.3f}"
                print(f"{found.path}: {about}\n{found.text}", flush=True)
    if faults:
        sys.exit(2)


def _length(path: Path) -> float:
    """Seconds of a file by its header; 0 where it has a fault, which is told when its turn comes."""
    from greenformers.speech.audio import AudioError, seconds

    try:
        return seconds(path)
    except AudioError:
        return 0.0


@app.command()
def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs; the first is the baseline.")
    ],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    corpus: Annotated[str | None, typer.Option(help="Folder of the corpus, if not where it was.")] = None,
    width: Width = 8,
    gamma: Gamma = 0.1,
    longest: Longest = None,
    limit: Annotated[int | None, typer.Option(help="At most so many recordings.")] = None,
    batch: Batch = 16,
    samples: Annotated[int, typer.Option(help="How many transcripts of the first run to show.")] = 3,
    results: Annotated[Path | None, typer.Option(help="File the records are added to.")] = None,
) -> None:
    """Score runs on a split of the first one's corpus: errors, size, speed of generation (tables 4.2 and 4.3)."""
    from greenformers.measure.record import append, context
    from greenformers.speech.evaluate import evaluate as scored
    from greenformers.speech.evaluate import table
    from greenformers.speech.search import Search

    terminal.quiet()
    if results is not None:
        terminal.check_writable(results)
    search = Search(width=width, gamma=gamma, longest=longest)
    with terminal.Steps(terminal.console(stderr=True)) as steps:
        records, pairs = scored(runs, split, search=search, corpus=corpus, limit=limit, batch=batch, progress=steps)
    console = terminal.console()
    for reference, hypothesis in pairs[:samples]:
        console.print(f"spoken:  {reference}\nwritten: {hypothesis}\n", markup=False, soft_wrap=True)
    console.print(table(records))
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records])
