"""From settings to recordings, vocabulary and objective."""

import math
import warnings
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from greenformers.speech import audio, corpus, spoken_digits
from greenformers.speech.features import Spectrogram
from greenformers.speech.front_end import POOLED
from greenformers.speech.objective import Speech
from greenformers.speech.recordings import DigitStrings, OnDisk, Recordings
from greenformers.speech.settings import SPOKEN_DIGITS, SpeechSettings
from greenformers.speech.vocabulary import vocabulary
from greenformers.train.task import MODEL, Task


def prepare(settings: SpeechSettings) -> Task:
    """Find the recordings, and make the vocabulary of their texts or take that of the run in `init`.

    Raises:
        ValueError: a setting out of range, or a damaged corpus.
        OSError: a file or folder is missing.
    """
    if settings.micro_batches is not None:
        raise ValueError(f"micro_batches is not for speech: must be left out, got {settings.micro_batches}")
    if not 0 < settings.longest < math.inf:
        raise ValueError(f"longest must be above 0 and finite, got {settings.longest}")
    spectrogram = Spectrogram(rate=settings.rate, n_fft=settings.n_fft, window=settings.window, hop=settings.hop)
    # A position is a place for a character too.
    positions = int(settings.longest * settings.rate / settings.hop) // POOLED + 2
    recordings = _recordings(settings)
    if settings.init is None:
        tokenizer = vocabulary(recordings.texts(), max_length=positions)
    else:
        tokenizer = _tokenizer(Path(settings.init))
    objective = Speech(
        recordings,
        tokenizer,
        spectrogram,
        augment=settings.augment,
        longest=positions,
        sizes={"channels": settings.channels, "ctc_weight": settings.ctc_weight},
    )
    return Task(objective, tokenizer, settings)


def _recordings(settings: SpeechSettings) -> Recordings:
    folder = Path(settings.corpus)
    if settings.layout == SPOKEN_DIGITS:
        if settings.rate != spoken_digits.RATE:
            raise ValueError(f"rate must be {spoken_digits.RATE} for {SPOKEN_DIGITS}, got {settings.rate}")
        for name in ("valid", "test"):
            if (value := getattr(settings, name)) is not None:
                raise ValueError(f"{name} goes with a manifest, the layout is {SPOKEN_DIGITS}; got {value!r}")
        digits = spoken_digits.load(folder, held_out=settings.held_out)
        if settings.longest < digits.longest:
            raise ValueError(
                f"longest must be at least {digits.longest:.2f} s for these digits, got {settings.longest}"
            )
        return DigitStrings(digits)
    audio.check_rate(settings.rate)
    if settings.held_out is not None:
        raise ValueError(f"held_out is for {SPOKEN_DIGITS}, the layout is {settings.layout}; got {settings.held_out!r}")
    if settings.layout is not None and settings.layout not in corpus.LAYOUTS:
        allowed = ", ".join((*corpus.LAYOUTS, SPOKEN_DIGITS))
        raise ValueError(f"layout must be one of {allowed}; got {settings.layout!r}")
    found = OnDisk(
        corpus.load(folder, settings.layout, valid=settings.valid, test=settings.test), settings.rate, settings.longest
    )
    if found.left_out:
        about = (
            f"{found.left_out} utterances to learn from or choose by are too short, or longer than {settings.longest} s"
        )
        warnings.warn(about, stacklevel=2)
    return found


def _tokenizer(run: Path) -> PreTrainedTokenizerFast:
    if not (run / MODEL / "tokenizer.json").is_file():
        raise ValueError(f"init must be the folder of a finished run, got {str(run)!r}")
    return PreTrainedTokenizerFast.from_pretrained(run / MODEL, local_files_only=True)
