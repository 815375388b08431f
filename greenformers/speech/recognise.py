"""From sound to text with a trained network: batches of waveforms, and files of any length."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from greenformers._tensors import reading
from greenformers.checkpoint.files import read_json
from greenformers.data import _audio as audio
from greenformers.data._audio import AudioError
from greenformers.measure.quality import evaluating
from greenformers.speech.alignment import Span, aligned, loudness, spread, words_of
from greenformers.speech.confidence import SILENT, Calibration, evidence_of
from greenformers.speech.config import SpeechConfig
from greenformers.speech.features import batched, normalised
from greenformers.speech.front_end import POOLED, heard, shortened
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search import Hypothesis, Search, ctc_share, written
from greenformers.speech.transcript import Segment, Transcript, Word
from greenformers.speech.vocabulary import read_vocabulary
from greenformers.train.run import MODEL

T = TypeVar("T")

GATE = 0.5
"""Mean confidence of the words of a piece below which none of them is written."""


@dataclass(frozen=True, eq=False)
class Recogniser:
    """A network, its vocabulary and its search.

    Attributes:
        model: The network.
        tokenizer: Tokenizer of its characters.
        search: Options of the beam search.
        calibration: Calibration of the confidence of words; None where there is none.
        gate: Whether nothing is written of a piece that is silent, or whose words are likelier wrong than right.
        least: Least confidence of a word that is written.
    """

    model: GreenformerForSpeechSeq2Seq
    tokenizer: PreTrainedTokenizerFast
    search: Search = field(default_factory=Search)
    calibration: Calibration | None = None
    gate: bool = True
    least: float = 0.0

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
        if read_json(source / "config.json").get("model_type") != SpeechConfig.model_type:
            raise ValueError(f"{folder} must be a finished run or a model of speech, it is one of something else")
        with reading(source / "model.safetensors"):
            model = GreenformerForSpeechSeq2Seq.from_pretrained(source, local_files_only=True, use_safetensors=True)
        tokenizer = read_vocabulary(source)
        search = search or Search()
        try:
            ctc_share(model, search)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
        # Scores of prefixes are in float64, which other accelerators lack.
        model.to("cuda" if torch.cuda.is_available() else "cpu")  # type: ignore[arg-type]
        return cls(model, tokenizer, search, Calibration.read(source))

    def sifting(self, *, gate: bool, least: float | None) -> "Recogniser":
        """The recogniser with another gate and least confidence; None for no least one.

        Raises:
            ValueError: The least confidence is not in 0..1, or the recogniser has no calibration.
        """
        if least is not None and not 0 <= least <= 1:
            raise ValueError(f"min_confidence must be in 0..1, got {least}")
        if least is not None and self.calibration is None:
            raise ValueError(
                f"min_confidence needs a run that was trained with ctc_weight and valid_transcripts, got {least}"
            )
        return replace(self, gate=gate, least=least or 0.0)

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
        if (seconds := max(map(len, waveforms), default=0) / spectrogram.rate) > self.longest:
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
            words: Whether the segments get words with times and confidences, which need a network that was trained
                with CTC, and confidences a calibration; what `gate` and `least` leave out is then not in the text.
        """
        segments = []
        for (start, waveform), (best, spoken, evidence) in zip(pieces, self._heard(pieces, words), strict=True):
            end = start + len(waveform) / self.model.config.rate
            text = self._text(best.tokens)
            segment = Segment(start, end, text, best.log_probability, tuple(spoken))
            if evidence and self.calibration is not None:
                sure = self.calibration(torch.stack(evidence)).tolist()
                spoken = [replace(word, confidence=own) for word, own in zip(spoken, sure, strict=True)]
                segment = self._sifted(replace(segment, words=tuple(spoken)))
            elif words and self.calibration is not None and (self.gate or self.least):
                # CTC has no room for such a text, or hears nothing to align.
                segment = replace(segment, text="", words=())
            if words and self.gate and bool(loudness(waveform, self.model.config.hop).max() < SILENT):
                segment = replace(segment, text="", words=())
            segments.append(segment if segment.text == text else replace(segment, log_probability=None))
        return segments

    def evidence(self, waveforms: Sequence[Tensor]) -> list[tuple[list[str], list[Tensor]]]:
        """The words of each waveform, and the evidence of each word (5,), see `confidence`."""
        heard = self._heard([(0.0, waveform) for waveform in waveforms], words=True)
        return [([word.text for word in words], evidence) for _, words, evidence in heard]

    def _sifted(self, segment: Segment) -> Segment:
        """A segment without the words that are too unsure; without any, where they are unsure together."""
        sure = [cast(float, word.confidence) for word in segment.words]
        if self.gate and sum(sure) / len(sure) < GATE:
            return replace(segment, text="", words=())
        words = tuple(word for word, own in zip(segment.words, sure, strict=True) if own >= self.least)
        if len(words) == len(segment.words):
            return segment
        return replace(segment, text=("" if self.space is None else " ").join(word.text for word in words), words=words)

    def _heard(
        self, pieces: Sequence[tuple[float, Tensor]], words: bool
    ) -> Iterator[tuple[Hypothesis, list[Word], list[Tensor]]]:
        """The best hypothesis of each piece; with its words and the evidence of each, if they are asked for."""
        features, mask = (x.to(self.model.device) for x in self.features([waveform for _, waveform in pieces]))
        words = words and bool(self.model.config.ctc_weight)
        with evaluating(self.model), torch.inference_mode():
            memory = self.model.encoder(features, mask, return_dict=True).last_hidden_state
            read = shortened(mask)
            hypotheses = [beam[0] for beam in written(self.model, memory, read, space=self.space, search=self.search)]
            if words:
                ctc = [
                    own[: int(count)].double().cpu()
                    for own, count in zip(self.model.ctc(memory).log_softmax(2), read.sum(1), strict=True)
                ]
                decoder = self._decoder_scores(memory, mask, hypotheses)
        for place, (piece, best) in enumerate(zip(pieces, hypotheses, strict=True)):
            yield (best, *(self._words(*piece, best.tokens, ctc[place], decoder[place]) if words else ([], [])))

    def _decoder_scores(self, memory: Tensor, mask: Tensor, hypotheses: Sequence[Hypothesis]) -> list[Tensor]:
        """Log-probabilities of the characters of each hypothesis and of its end, by the decoder."""
        config = self.model.config
        rows = [torch.tensor([config.decoder_start_token_id, *best.tokens, config.eos_token_id]) for best in hypotheses]
        ids = pad_sequence(rows, batch_first=True, padding_value=cast(int, config.pad_token_id)).to(memory.device)
        logits = self.model(encoder_outputs=(memory,), attention_mask=mask, decoder_input_ids=ids[:, :-1]).logits
        scores = logits.log_softmax(2).gather(2, ids[:, 1:, None])[..., 0].double().cpu()
        return [own[: len(best.tokens) + 1] for own, best in zip(scores, hypotheses, strict=True)]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def _words(
        self, start: float, waveform: Tensor, tokens: Sequence[int], ctc: Tensor, decoder: Tensor
    ) -> tuple[list[Word], list[Tensor]]:
        """The words of a piece, each from where its sound begins to where it ends, and their evidence."""
        config = self.model.config
        places = aligned(ctc, tokens, blank=cast(int, config.pad_token_id))
        if not places:
            return [], []
        levels = loudness(waveform, config.hop)
        words = words_of(tokens, self.space)
        # A piece may be shorter than its positions, for which it is padded.
        ends = [min(POOLED * places[word.last - 1].last, len(levels)) for word in words]
        starts = [min(POOLED * places[word.first].first, end) for word, end in zip(words, ends, strict=True)]
        frame, last = config.hop / config.rate, len(waveform) / config.rate
        spans = spread([Span(*span) for span in zip(starts, ends, strict=True)], levels)
        floor = float(levels.quantile(0.1))
        best = torch.stack([ctc[slice(*place), token].max() for place, token in zip(places, tokens, strict=True)])
        said, evidence = [], []
        for word, span in zip(words, spans, strict=True):
            times = (start + min(frame * place, last) for place in span)
            said.append(Word(self._text(tokens[slice(*word)]), *times))
            level = float(levels[slice(*span)].mean()) if span.last > span.first else floor
            follows = word.last + (self.space is not None)
            evidence.append(evidence_of(decoder[word.first : follows], best[slice(*word)], level, floor))
        return said, evidence


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
        ValueError: `longest` is below half a second or more than the network can read at once, or `batch` is below 1;
            raised by the call itself, before the first file is read.
    """
    longest = recogniser.piece if longest is None else longest
    least, most = audio.PIECES[0], min(recogniser.longest, audio.PIECES[1])
    if not least <= longest <= most:
        allowed = f"{least:g}..{most:g} s"
        raise ValueError(f"piece must be in {allowed} for this network, got {longest:g}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return _transcripts(recogniser, paths, longest, batch, words, progress)


def _transcripts(
    recogniser: Recogniser, paths: Iterable[Path], longest: float, batch: int, words: bool,
    progress: Callable[[Path, float], None],
) -> Iterator[Transcript]:  # fmt: skip
    config = recogniser.model.config
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
    recogniser: Recogniser,
    waveforms: Iterable[Tensor],
    *,
    batch: int,
    progress: Callable[[int], None],
    gated: bool = False,
) -> list[str]:
    """Transcripts of many waveforms, in their order. One that is too long for the network is cut where it is quiet.

    Args:
        recogniser: The recogniser.
        waveforms: Waveforms (n,).
        batch: Number of waveforms, or parts of them, at a time.
        progress: Function that is called with the number of waveforms that are done.
        gated: Whether what the gate and the least confidence of the recogniser leave out is left out, see
            `Recogniser.segments`.
    """
    transcripts: list[list[str]] = []
    numbered = ((index, part) for index, whole in enumerate(waveforms) for part in recogniser.parts(whole))
    for group in _groups(numbered, batch):
        segments = recogniser.segments([(0.0, part) for _, part in group], words=gated)
        for (index, _), segment in zip(group, segments, strict=True):
            transcripts += [[] for _ in range(index + 1 - len(transcripts))]
            transcripts[index].append(segment.text)
        progress(len(transcripts))
    return [recogniser.joined(texts) for texts in transcripts]
