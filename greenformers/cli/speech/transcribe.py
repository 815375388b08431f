"""`greenformers speech transcribe`. Heavy imports are inside the command, so that --help answers at once."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.cli.speech._flags import Batch
from greenformers.speech.search_options import Search

ORDER = 20
EXAMPLES = ("greenformers speech transcribe runs/lrt/model call.wav lecture.flac",)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of its model.")]


@from_fields
def transcribe(
    *,
    run: Run,
    files: Annotated[list[Path], typer.Argument(help="Sound files: WAV, FLAC, Ogg, MP3; any rate.")],
    search: Search,
    piece: Annotated[
        float | None, typer.Option(help="Seconds of sound at once at most; by default what the network learnt with.")
    ] = None,
    batch: Batch = 8,
) -> None:
    """Write down what is said in sound files. A file that cannot be used is named, and the next one follows."""
    from greenformers.speech.recognise import Recogniser
    from greenformers.speech.recognise import transcribe as run_on

    terminal.quiet()
    recogniser = Recogniser.load(run, search)
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
    from greenformers.data._audio import AudioError, seconds

    try:
        return seconds(path)
    except AudioError:
        return 0.0
