"""`greenformers speech stream`. Heavy imports are inside the command, so that --help answers at once."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.cli.speech._flags import Gate, MinConfidence
from greenformers.speech.search_options import Search

if TYPE_CHECKING:
    from greenformers.speech.streaming import Heard

ORDER = 25
EXAMPLES = (
    "greenformers speech stream runs/joint call.wav",
    "greenformers speech stream runs/joint - --rate 48000 --format tsv",
)
COLUMNS = ("start", "end", "text", "confidence", "heard")

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of its model.")]


class Lines(StrEnum):
    """What is written of a word: itself, a row of a table, or a JSON object."""

    TEXT = "text"
    TSV = "tsv"
    JSON = "json"


@from_fields
def stream(
    *,
    run: Run,
    file: Annotated[
        str,
        typer.Argument(help="Sound file, or - for raw samples from stdin: 16 bits, little-endian, mono."),
    ],
    search: Search,
    ahead: Annotated[
        float | None,
        typer.Option(help="Seconds of sound that follow a word before it is written; by default 0.5. More errs less."),
    ] = None,
    chunk: Annotated[float, typer.Option(help="Seconds of sound that are read at a time.")] = 0.25,
    rate: Annotated[
        int | None, typer.Option(help="Samples a second of raw samples; by default that of the network.")
    ] = None,
    min_confidence: MinConfidence = None,
    gate: Gate = True,
    form: Annotated[
        Lines, typer.Option("--format", help="A line of stdout a word: text; tsv, with its times; json, an object.")
    ] = Lines.TEXT,
) -> None:
    """Transcribe speech while it comes: each word as soon as enough sound has followed it.

    Stdout has the words alone; times and faults are on stderr. It needs a run that was trained with --ctc-weight.
    """
    if not 0.05 <= chunk <= 10:
        raise ValueError(f"chunk must be in 0.05..10 s, got {chunk:g}")
    if rate is not None and file != "-":
        raise ValueError(f"rate is of raw samples from stdin, {file} has its own")
    from greenformers.data import _audio as audio
    from greenformers.speech.recognise import Recogniser
    from greenformers.speech.streaming import Stream

    terminal.quiet()
    recogniser = Recogniser.load(run, search).sifting(gate=gate, least=min_confidence)
    if file == "-":
        own = recogniser.model.config.rate if rate is None else rate
        chunks = audio.raw(sys.stdin.buffer, chunk, own)
    else:
        own, chunks = audio.chunks(file, chunk)
    listener = Stream(recogniser, own, ahead=ahead)
    if form is Lines.TSV:
        print("\t".join(COLUMNS), flush=True)
    try:
        for heard in listener.words(chunks):
            print(_line(heard, form), flush=True)
    except (audio.AudioError, KeyboardInterrupt):
        for heard in listener.end():  # what was heard before is not lost
            print(_line(heard, form), flush=True)
        raise
    finally:
        if listener.seconds:
            pace = listener.time / listener.seconds
            about = f"{listener.seconds:.1f} s of sound in {listener.time:.2f} s, real-time factor {pace:.3f}"
            print(f"{file}: {about}", file=sys.stderr)


def _line(heard: "Heard", form: Lines) -> str:
    """A word as a line without its line feed; times to milliseconds."""
    import json

    word = heard.word
    if form is Lines.TEXT:
        return word.text
    sure = None if word.confidence is None else round(word.confidence, 3)
    row = dict(
        zip(COLUMNS, (round(word.start, 3), round(word.end, 3), word.text, sure, round(heard.at, 3)), strict=True)
    )
    if form is Lines.JSON:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    return "\t".join("" if value is None else str(value) for value in row.values())
