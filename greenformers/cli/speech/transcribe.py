"""`greenformers speech transcribe`. Heavy imports are inside the command, so that --help answers at once."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.cli.speech._flags import Batch, Gate, MinConfidence
from greenformers.speech.formats import Format
from greenformers.speech.search_options import Search

if TYPE_CHECKING:
    from greenformers.speech.transcript import Transcript

ORDER = 20
EXAMPLES = (
    "greenformers speech transcribe runs/lrt/model call.wav lecture.flac",
    "greenformers speech transcribe runs/lrt/model lecture.flac --format srt > lecture.srt",
)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of its model.")]


@from_fields
def transcribe(
    *,
    run: Run,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Sound files (WAV, FLAC, Ogg, MP3; not M4A) of any sampling rate; stereo becomes its mean."
        ),
    ],
    search: Search,
    piece: Annotated[
        float | None,
        typer.Option(help="Longest piece of sound that is read at once, in seconds; by default as in training."),
    ] = None,
    batch: Batch = 8,
    min_confidence: MinConfidence = None,
    gate: Gate = True,
    form: Annotated[
        Format,
        typer.Option(
            "--format", help="Format of stdout: text, a line a file; tsv, a row a piece; json; srt or vtt, of one file."
        ),
    ] = Format.TEXT,
) -> None:
    """Transcribe speech in sound files. A file that cannot be read is reported, and the others are transcribed.

    Stdout has the transcripts alone; progress, times and faults are on stderr.
    """
    from greenformers.speech.recognise import Recogniser
    from greenformers.speech.recognise import transcribe as run_on

    form.check(len(files))
    terminal.quiet()
    recogniser = Recogniser.load(run, search).sifting(gate=gate, least=min_confidence)
    faults, before = 0, 0.0
    seconds = {path: _length(path) for path in files}
    total = sum(seconds.values())
    with terminal.Steps(terminal.console(stderr=True)) as steps:

        def told(_: Path, done: float) -> None:
            steps("sound", min(1.0, (before + done) / total) if total else 0.0)

        def reported(transcripts: "Iterable[Transcript]") -> "Iterator[Transcript]":
            nonlocal before, faults
            for transcript in transcripts:
                before += seconds[transcript.path]
                faults += transcript.fault is not None
                _report(transcript)
                yield transcript

        transcripts = run_on(recogniser, files, longest=piece, batch=batch, words=True, progress=told)
        for line in form.lines(reported(transcripts)):
            print(line, flush=True)
    if faults:
        sys.exit(2)


def _report(transcript: "Transcript") -> None:
    """Tell on stderr why a file could not be read to its end, and how long it took."""
    if transcript.fault is not None:
        print(f"greenformers: {transcript.fault}", file=sys.stderr)
    if transcript.seconds:
        pace = transcript.time / transcript.seconds
        about = f"{transcript.seconds:.1f} s of sound in {transcript.time:.2f} s, real-time factor {pace:.3f}"
        print(f"{transcript.path}: {about}", file=sys.stderr)


def _length(path: Path) -> float:
    """Seconds of a file by its header; 0 where the file is damaged, which is reported when it is transcribed."""
    from greenformers.data._audio import AudioError, seconds

    try:
        return seconds(path)
    except AudioError:
        return 0.0
