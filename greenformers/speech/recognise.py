"""From sound to text with a trained network: batches of waveforms, and files of any length."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.data import _audio as audio
from greenformers.data._audio import AudioError
from greenformers.measure.quality import evaluating
from greenformers.speech.alignment import Span, aligned, loudness, spread, words_of
from greenformers.speech.config import SpeechConfig
from greenformers.speech.features import batched, normalised
from greenformers.speech.front_end import POOLED, heard, shortened
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search import Search, ctc_share, written
from greenformers.speech.transcript import Segment, Transcript, Word
from greenformers.train.run import MODEL

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recogniser:
    """A network, its vocabulary and its search.

    Attributes:
        model: The network.
        tokenizer: Tokenizer of its characters.
        search: Options of the beam search.
    """

    model: GreenformerForSpeechSeq2Seq
    tokenizer: PreTrainedTokenizerFast
    search: Search = field(default_factory=Search)

    @classmethod
    def load(cls, folder: Path, search: Search | None = None) -> "Recogniser":
        """Load a recogniser from a finished run, or from a folder that holds a model and its tokenizer.

        Raises:
            ValueError: There is no speech recogniser in the folder, or the search asks for a share of CTC and it was
                trained without.
        """
        source = folder / MODEL if (folder / MODEL).is_dir() else folder
        # A folder that is not there would be taken for a name on the hub.
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            if not (source / name).is_file():
                raise ValueError(f"{folder} must be a finished run or a model of speech, it has no {name}")
        if json.loads((source / "config.json").read_text()).get("model_type") != SpeechConfig.model_type:
            raise ValueError(f"{folder} must be a finished run or a model of speech, it is one of something else")
        try:
            model = GreenformerForSpeechSeq2Seq.from_pretrained(source, local_files_only=True, use_safetensors=True)
        except SafetensorError as error:
            raise ValueError(f"{source / 'model.safetensors'} is damaged: {error}") from error
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source, local_files_only=True)
        search = search or Search()
        try:
            ctc_share(model, search)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
        return cls(model, tokenizer, search)

    @property
    def longest(self) -> float:
        """Longest sound that the network can read at once, in seconds."""
        config = self.model.config
        return config.max_position_embeddings * POOLED * config.hop / config.rate

    @property
    def piece(self) -> float:
        """Seconds of a long sound to read at once, at most the longest of training."""
        learnt = self.model.config.learnt_seconds
        return self.longest if learnt is None else min(self.longest, max(audio.PIECES[0], learnt))

    def parts(self, waveform: Tensor) -> Iterator[Tensor]:
        """A waveform in parts that the network can read: whole, or cut where it is quiet."""
        return audio.parts(waveform, self.longest, rate=self.model.config.rate)

    @property
    def space(self) -> int | None:
        """The token between words; None in a script without spaces."""
        return self.tokenizer.get_vocab().get(" ")

    def features(self, waveforms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The network's input for some waveforms: features (B, T, F) and a mask (B, T)."""
        spectrogram = self.model.config.spectrogram()
        if (seconds := max(map(len, waveforms)) / spectrogram.rate) > self.longest:
            raise ValueError(f"a sound must be at most {self.longest:g} s for this network, got {seconds:g}")
        return batched([normalised(spectrogram(heard(waveform, spectrogram))) for waveform in waveforms])

    def joined(self, texts: Iterable[str]) -> str:
        """Transcripts of consecutive parts, joined to one."""
        return ("" if self.space is None else " ").join(filter(None, texts))

    def texts(self, waveforms: Sequence[Tensor]) -> list[str]:
        """Transcripts of waveforms (n,), in one batch."""
        return [segment.text for segment in self.segments([(0.0, waveform) for waveform in waveforms])]

    def segments(self, pieces: Sequence[tuple[float, Tensor]], *, words: bool = False) -> list[Segment]:
        """Transcripts of pieces of sound, in one batch.

        Args:
            pieces: Start of each piece in seconds, and its waveform (n,).
            words: Whether the segments get words with their times, which need a network that was trained with CTC.
        """
        heard_by_ctc: list[Tensor] | None = None
        features, mask = (x.to(self.model.device) for x in self.features([waveform for _, waveform in pieces]))
        with evaluating(self.model), torch.inference_mode():
            memory = self.model.encoder(features, mask, return_dict=True).last_hidden_state
            read = shortened(mask)
            hypotheses = written(self.model, memory, read, space=self.space, search=self.search)
            if words and self.model.config.ctc_weight:
                log_p = self.model.ctc(memory).log_softmax(2)
                heard_by_ctc = [own[: int(count)] for own, count in zip(log_p, read.sum(1), strict=True)]
        segments = []
        for place, ((start, waveform), best) in enumerate(zip(pieces, hypotheses, strict=True)):
            tokens = best[0].tokens
            spoken = () if heard_by_ctc is None else self._words(start, waveform, tokens, heard_by_ctc[place])
            end = start + len(waveform) / self.model.config.rate
            segments.append(Segment(start, end, self._text(tokens), best[0].log_probability, spoken))
        return segments

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def _words(self, start: float, waveform: Tensor, tokens: Sequence[int], log_p: Tensor) -> tuple[Word, ...]:
        """The words of a piece, each from where the sound of its characters begins to where it ends."""
        config = self.model.config
        places = aligned(log_p, tokens, blank=cast(int, config.pad_token_id))
        if places is None:
            return ()
        levels = loudness(waveform, config.hop)
        words = words_of(tokens, self.space)
        # A piece may be shorter than its positions, for which it is padded.
        ends = [min(POOLED * places[word.last - 1].last, len(levels)) for word in words]
        starts = [min(POOLED * places[word.first].first, end) for word, end in zip(words, ends, strict=True)]
        frame, last = config.hop / config.rate, len(waveform) / config.rate
        spans = spread([Span(*span) for span in zip(starts, ends, strict=True)], levels)
        return tuple(
            Word(self._text(tokens[slice(*word)]), start + frame * span.first, start + min(frame * span.last, last))
            for word, span in zip(words, spans, strict=True)
        )


def transcribe(
    recogniser: Recogniser,
    paths: Iterable[Path],
    *,
    longest: float | None = None,
    batch: int = 8,
    words: bool = False,
    progress: Callable[[Path, float], None] = lambda *_: None,
) -> Iterator[Transcript]:
    """Transcribe files one after the other, each in pieces, a batch of pieces at a time, in bytes of memory of a batch.

    A file that cannot be read has a `fault` in its transcript, and the next one follows.

    Args:
        recogniser: The recogniser.
        paths: Paths of the sound files.
        longest: Longest piece, in seconds; by default that of training, see `Recogniser.piece`.
        batch: Number of pieces at a time.
        words: Whether the segments get words, see `Recogniser.segments`.
        progress: Function that is called with a file and the seconds of it that are done.

    Raises:
        ValueError: `longest` is more than the network can read at once, or `batch` is below 1.
    """
    config = recogniser.model.config
    longest = recogniser.piece if longest is None else longest
    if not 0 < longest <= recogniser.longest:
        most = f"{recogniser.longest:g} s"
        raise ValueError(f"longest must be above 0 and at most {most} for this network, got {longest:g}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    for path in paths:
        began, segments, done = time.perf_counter(), list[Segment](), 0.0
        faults: list[str] = []
        for pieces in _groups(_pieces(path, longest, config.rate, faults), batch):
            segments += recogniser.segments(pieces, words=words)
            done += sum(len(waveform) for _, waveform in pieces) / config.rate
            progress(path, done)
        text = recogniser.joined(segment.text for segment in segments)
        fault = faults[0] if faults else None
        yield Transcript(path, text, done, time.perf_counter() - began, fault, tuple(segments))


def _pieces(path: Path, longest: float, rate: int, faults: list[str]) -> Iterator[tuple[float, Tensor]]:
    """The pieces of a file up to its first fault, which is added to `faults`, with their starts in seconds."""
    try:
        yield from audio.pieces(path, longest, rate=rate)
    except AudioError as error:
        faults.append(str(error))


def _groups(items: Iterable[T], batch: int) -> Iterator[list[T]]:
    rest = iter(items)
    while group := list(islice(rest, batch)):
        yield group


def recognised(
    recogniser: Recogniser, waveforms: Iterable[Tensor], *, batch: int, progress: Callable[[int], None]
) -> list[str]:
    """Transcripts of many waveforms, in their order; `progress` is called with the number that is done.

    A waveform that is too long for the network is cut where it is quiet.
    """
    transcripts: list[list[str]] = []
    numbered = ((index, part) for index, whole in enumerate(waveforms) for part in recogniser.parts(whole))
    for group in _groups(numbered, batch):
        for (index, _), text in zip(group, recogniser.texts([part for _, part in group]), strict=True):
            transcripts += [[] for _ in range(index + 1 - len(transcripts))]
            transcripts[index].append(text)
        progress(len(transcripts))
    return [recogniser.joined(texts) for texts in transcripts]
