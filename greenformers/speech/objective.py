"""Training of a recogniser: characters are predicted from the sound and those before them. Cahyawijaya 2021, 4.2.4."""

import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.measure import recognition
from greenformers.measure.quality import evaluating
from greenformers.model.loss import IGNORED
from greenformers.speech.augment import Augmentation
from greenformers.speech.calibrate import calibrated
from greenformers.speech.config import SpeechConfig
from greenformers.speech.features import Spectrogram, batched, normalised, spec_augment
from greenformers.speech.front_end import POOLED, heard, positions
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.recognise import Recogniser
from greenformers.speech.recordings import Recordings
from greenformers.speech.search import Search, beam_search
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.stream import generator
from greenformers.train.text import mean_loss

METRICS = ("loss", "cer", "wer")
"""Scores that a model may be chosen by; the lowest is best."""


class Speech(Objective):
    """Recognition of recordings: from normalised log power spectrograms to the characters of their texts.

    Args:
        recordings: Recordings to train and validate on.
        tokenizer: Tokenizer that `vocabulary` has made.
        spectrogram: Spectrogram that turns sound into features.
        sizes: Further arguments of the configuration, such as `channels`.
        augment: Whether stretches of frequencies and frames are masked in training (SpecAugment).
        longest: Number of positions of the network, of sound and of text.
        augmentation: Changes of the training recordings before they become features.
        transcripts: Most recordings, the first ones of a split, that `evaluate` transcribes for the error rates.
        metric: Score that decides which model is best: "loss", "cer" or "wer".

    Raises:
        ValueError: The number of transcripts or the metric is out of range.
        MissingExtraError: There are transcripts to score, and jiwer is not installed.
    """

    greater_is_better = False

    def __init__(
        self,
        recordings: Recordings,
        tokenizer: PreTrainedTokenizerFast,
        spectrogram: Spectrogram,
        *,
        augment: bool,
        longest: int,
        sizes: dict[str, Any],
        augmentation: Augmentation | None = None,
        transcripts: int = 0,
        metric: str = "loss",
    ) -> None:
        if transcripts < 0:
            raise ValueError(f"valid_transcripts must be at least 0, got {transcripts}")
        if metric not in METRICS:
            raise ValueError(f"patience_by must be one of {', '.join(METRICS)}, got {metric!r}")
        if metric != "loss" and not transcripts:
            raise ValueError(f"patience_by must be loss where no validation recording is transcribed, got {metric!r}")
        if transcripts:
            recognition.needed()  # here, not after the first steps
        self.augmentation = augmentation or Augmentation()
        self.transcripts, self.metric = transcripts, metric
        self.recordings, self.tokenizer, self.spectrogram = recordings, tokenizer, spectrogram
        self.augment, self.longest, self.sizes = augment, longest, sizes
        lengths = torch.tensor([recordings.length(index) for index in range(recordings.size("train"))])
        self.lengths, self.learnt_seconds = lengths, float(lengths.max()) if len(lengths) else None

    def size(self, split: str) -> int:  # noqa: D102
        return self.recordings.size(split)

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        waveform, text = self.recordings.sound(split, index, source)
        if split == "train":
            most = self.longest * POOLED * self.spectrogram.hop - self.spectrogram.hop
            waveform, text = self.augmentation(waveform, text, source, most=most)
        features = self._features(waveform)
        if self.augment and split == "train":
            features = spec_augment(features, source)
        return {"input_features": features, "labels": torch.tensor([*self._ids(text), self.tokenizer.eos_token_id])}

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        features, mask = batched([example["input_features"] for example in examples])
        labels = padded([example["labels"] for example in examples], IGNORED)
        return {"input_features": features, "attention_mask": mask, "labels": labels}

    def config(self, **sizes: Any) -> SpeechConfig:  # noqa: D102
        tokens = self.tokenizer
        spectrogram = self.spectrogram
        return SpeechConfig(
            vocab_size=len(tokens),
            pad_token_id=tokens.pad_token_id,
            bos_token_id=tokens.bos_token_id,
            decoder_start_token_id=tokens.bos_token_id,
            eos_token_id=tokens.eos_token_id,
            max_position_embeddings=self.longest,
            rate=spectrogram.rate,
            n_fft=spectrogram.n_fft,
            window=spectrogram.window,
            hop=spectrogram.hop,
            sparse_prediction=True,
            learnt_seconds=self.learnt_seconds,
            input_rank=sizes["rank"] if isinstance(sizes.get("rank"), int) else None,
            **self.sizes | sizes,
        )

    def build(self, config: SpeechConfig) -> PreTrainedModel:
        """A new network; with CTC, a warning tells how many training texts it can learn nothing from.

        Raises:
            ValueError: CTC could learn from no text at all.
        """
        if config.ctc_weight and (count := self.unaligned()):
            size = self.size("train")
            about = (
                f"{count} of {size} training texts have more characters than their recordings have positions of "
                f"{1000 * POOLED * config.hop / config.rate:g} ms, and a repeated one counts twice"
            )
            if count == size:
                raise ValueError(f"ctc_weight must be 0, got {config.ctc_weight}: {about}")
            warnings.warn(f"{about}; CTC learns nothing from these", stacklevel=2)
        return GreenformerForSpeechSeq2Seq(config)

    def cut(self) -> int:
        """Number of training texts with more characters than the decoder has positions, which are cut."""
        texts = (self.recordings.text(index) for index in range(self.size("train")))
        return sum(text is not None and len(text) > self.longest - 1 for text in texts)

    def unaligned(self) -> int:
        """Number of training texts that have no alignment by CTC: a position each, and a blank between two alike."""
        return sum(not self._aligned(index) for index in range(self.size("train")))

    def _aligned(self, index: int) -> bool:
        text = self.recordings.text(index)
        if text is None:
            return True
        room = positions(round(self.recordings.length(index) * self.spectrogram.rate), self.spectrogram)
        # Most texts are far shorter, and are not taken apart.
        if 2 * len(text) <= room:
            return True
        ids = self._ids(text)
        return len(ids) + sum(token == next_token for token, next_token in pairwise(ids)) <= room

    def _ids(self, text: str) -> list[int]:
        """Tokens of a text, without marks."""
        ids = self.tokenizer(text, truncation=True, max_length=self.longest - 1, verbose=False)["input_ids"]
        return list(ids)

    def _features(self, waveform: Tensor) -> Tensor:
        return normalised(self.spectrogram(heard(waveform, self.spectrogram)))

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Mean cross-entropy in nats of a character and its perplexity, with teacher forcing, and the error rates.

        The character and word error rates, "cer" and "wer", in percent, are those of greedy transcripts of the first
        recordings; they are left out where there are no transcripts.
        """
        loss = mean_loss(model, self, split, batch_size)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))} | self._error_rates(model, split, batch_size)

    def add_to(self, folder: Path, model: PreTrainedModel) -> None:
        """Write the calibration of the confidence of words, if CTC tells where they are."""
        count = min(self.transcripts, self.size("valid"))
        if count and model.config.ctc_weight:
            recogniser = Recogniser(cast(GreenformerForSpeechSeq2Seq, model), self.tokenizer)
            if (calibration := calibrated(recogniser, self.recordings, count)) is not None:
                calibration.write(folder)

    def _error_rates(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        # Scores of prefixes are in float64, which there is none of on mps: there the decoder writes alone.
        search = Search(width=1, ctc_weight=0.0 if model.device.type == "mps" else None)
        count = min(self.transcripts, self.size(split))
        space = self.tokenizer.get_vocab().get(" ")
        hypotheses: list[str] = []
        references: list[str] = []
        for start in range(0, count, batch_size):
            indices = range(start, min(start + batch_size, count))
            pairs = [self.recordings.sound(split, index, generator(0, 2, index)) for index in indices]
            features, mask = (x.to(model.device) for x in batched([self._features(sound) for sound, _ in pairs]))
            with evaluating(model):
                network = cast(GreenformerForSpeechSeq2Seq, model)
                best = beam_search(network, features, mask, space=space, search=search)
            hypotheses += [str(self.tokenizer.decode(list(beam[0].tokens))) for beam in best]
            references += [text for _, text in pairs]
        if not references:
            return {}
        rates = recognition.scores(hypotheses, references)
        return {name: rates[name] for name in ("cer", "wer")}
