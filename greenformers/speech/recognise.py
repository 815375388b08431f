"""From sound to text with a trained network: batches of waveforms, and files of any length."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.data import _audio as audio
from greenformers.data._audio import AudioError
from greenformers.measure.quality import evaluating
from greenformers.speech.config import SpeechConfig
from greenformers.speech.features import batched, normalised
from greenformers.speech.front_end import POOLED, heard
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search import Search, beam_search
from greenformers.train.run import MODEL

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recogniser:
    """A network, its vocabulary and its search.

    Attributes:
        model: the network.
        tokenizer: its characters.
        search: how transcripts are searched for.
    """

    model: GreenformerForSpeechSeq2Seq
    tokenizer: PreTrainedTokenizerFast
    search: Search = field(default_factory=Search)

    @classmethod
    def load(cls, folder: Path, search: Search | None = None) -> "Recogniser":
        """Of a finished run, or of a folder that holds a model and its tokenizer.

        Raises:
            ValueError: there is no speech recogniser in the folder.
        """
        found = folder / MODEL if (folder / MODEL).is_dir() else folder
        # What is not there would be taken for a name on the hub, and looked for there.
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            if not (found / name).is_file():
                raise ValueError(f"{folder} must be a finished run or a model of speech, it has no {name}")
        if json.loads((found / "config.json").read_text()).get("model_type") != SpeechConfig.model_type:
            raise ValueError(f"{folder} must be a finished run or a model of speech, it is one of something else")
        try:
            model = GreenformerForSpeechSeq2Seq.from_pretrained(found, local_files_only=True, use_safetensors=True)
        except SafetensorError as error:
            raise ValueError(f"{found / 'model.safetensors'} is damaged: {error}") from error
        tokenizer = PreTrainedTokenizerFast.from_pretrained(found, local_files_only=True)
        return cls(model, tokenizer, search or Search())

    @property
    def longest(self) -> float:
        """Seconds of sound that the network can hear at once."""
        config = self.model.config
        return config.max_position_embeddings * POOLED * config.hop / config.rate

    @property
    def piece(self) -> float:
        """Seconds of a long sound to hear at once: longer pieces than were learnt are written down badly."""
        learnt = self.model.config.learnt_seconds
        return self.longest if learnt is None else min(self.longest, max(audio.PIECES[0], learnt))

    def parts(self, waveform: Tensor) -> Iterator[Tensor]:
        """A waveform as the network can hear it: whole, or cut where it is quiet."""
        return audio.parts(waveform, self.longest, rate=self.model.config.rate)

    @property
    def space(self) -> int | None:
        """The token between words; None where the writing has none."""
        return self.tokenizer.get_vocab().get(" ")

    def features(self, waveforms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What the network reads of some sounds, (B, T, F) and a mask (B, T)."""
        spectrogram = self.model.config.spectrogram()
        if (found := max(map(len, waveforms)) / spectrogram.rate) > self.longest:
            raise ValueError(f"a sound must be at most {self.longest:g} s for this network, got {found:g}")
        return batched([normalised(spectrogram(heard(waveform, spectrogram))) for waveform in waveforms])

    def joined(self, texts: Iterable[str]) -> str:
        """Transcripts of consecutive parts as one."""
        return ("" if self.space is None else " ").join(filter(None, texts))

    def texts(self, waveforms: Sequence[Tensor]) -> list[str]:
        """Transcripts of waveforms (n,), in one batch."""
        features, mask = (x.to(self.model.device) for x in self.features(waveforms))
        with evaluating(self.model):
            found = beam_search(self.model, features, mask, space=self.space, search=self.search)
        return [str(self.tokenizer.decode(list(best[0].tokens))) for best in found]


@dataclass(frozen=True)
class Transcript:
    """What was heard in a file.

    Attributes:
        path: the file.
        text: all of it.
        seconds: of sound.
        time: seconds it took, reading included.
        fault: why the file could not be used to its end; None if it could.
    """

    path: Path
    text: str
    seconds: float
    time: float
    fault: str | None = None


def transcribe(
    recogniser: Recogniser,
    paths: Iterable[Path],
    *,
    longest: float | None = None,
    batch: int = 8,
    progress: Callable[[Path, float], None] = lambda *_: None,
) -> Iterator[Transcript]:
    """Transcribe files one after the other, each in pieces, a batch of pieces at a time: memory is that of a batch.

    A file that cannot be used is told of, and the next one follows.

    Args:
        recogniser: the network.
        paths: sound files.
        longest: seconds of a piece, at most; by default what the network has learnt with.
        batch: pieces at a time.
        progress: told of a file how many seconds of it are done.

    Raises:
        ValueError: longest is more than the network can hear at once, or batch is below 1.
    """
    config = recogniser.model.config
    longest = recogniser.piece if longest is None else longest
    if not 0 < longest <= recogniser.longest:
        most = f"{recogniser.longest:g} s"
        raise ValueError(f"longest must be above 0 and at most {most} for this network, got {longest:g}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    for path in paths:
        start, texts, done = time.perf_counter(), list[str](), 0.0
        faults: list[str] = []
        for waveforms in _some(_pieces(path, longest, config.rate, faults), batch):
            texts += recogniser.texts(waveforms)
            done += sum(map(len, waveforms)) / config.rate
            progress(path, done)
        yield Transcript(
            path, recogniser.joined(texts), done, time.perf_counter() - start, faults[0] if faults else None
        )


def _pieces(path: Path, longest: float, rate: int, faults: list[str]) -> Iterator[Tensor]:
    """The pieces of a file up to its first fault, which is noted."""
    try:
        for _, waveform in audio.pieces(path, longest, rate=rate):
            yield waveform
    except AudioError as error:
        faults.append(str(error))


def _some(items: Iterable[T], batch: int) -> Iterator[list[T]]:
    left = iter(items)
    while some := list(islice(left, batch)):
        yield some


def recognised(
    recogniser: Recogniser, waveforms: Iterable[Tensor], *, batch: int, progress: Callable[[int], None]
) -> list[str]:
    """Transcripts of many waveforms, in their order; `progress` is told how many are done.

    One that is too long for the network is cut where it is quiet.
    """
    found: list[list[str]] = []
    numbered = ((at, part) for at, whole in enumerate(waveforms) for part in recogniser.parts(whole))
    for some in _some(numbered, batch):
        for (at, _), text in zip(some, recogniser.texts([part for _, part in some]), strict=True):
            found += [[] for _ in range(at + 1 - len(found))]
            found[at].append(text)
        progress(len(found))
    return [recogniser.joined(texts) for texts in found]
