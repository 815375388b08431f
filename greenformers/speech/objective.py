"""Training of a recogniser: characters are predicted from the sound and those before them. Cahyawijaya 2021, 4.2.4."""

import math
import warnings
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.model.loss import IGNORED
from greenformers.speech.config import SpeechConfig
from greenformers.speech.features import Spectrogram, batched, normalised, spec_augment
from greenformers.speech.front_end import POOLED, heard, positions
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.recordings import Recordings
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.text import mean_loss


class Speech(Objective):
    """Recognition of recordings: from normalised log power spectrograms to the characters of their texts.

    Args:
        recordings: Recordings to train and validate on.
        tokenizer: Tokenizer that `vocabulary` has made.
        spectrogram: Spectrogram that turns sound into features.
        sizes: Further arguments of the configuration, such as `channels`.
        augment: Whether stretches of frequencies and frames are masked in training (SpecAugment).
        longest: Number of positions of the network, of sound and of text.
    """

    metric = "loss"
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
    ) -> None:
        self.recordings, self.tokenizer, self.spectrogram = recordings, tokenizer, spectrogram
        self.augment, self.longest, self.sizes = augment, longest, sizes
        lengths = torch.tensor([recordings.length(index) for index in range(recordings.size("train"))])
        self.lengths, self.learnt_seconds = lengths, float(lengths.max()) if len(lengths) else None

    def size(self, split: str) -> int:  # noqa: D102
        return self.recordings.size(split)

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        waveform, text = self.recordings.sound(split, index, source)
        features = normalised(self.spectrogram(heard(waveform, self.spectrogram)))
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
        return len(ids) + sum(one == next_one for one, next_one in pairwise(ids)) <= room

    def _ids(self, text: str) -> list[int]:
        """Tokens of a text, without marks."""
        ids = self.tokenizer(text, truncation=True, max_length=self.longest - 1, verbose=False)["input_ids"]
        return list(ids)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Mean cross-entropy in nats of a character, and its perplexity, with teacher forcing."""
        loss = mean_loss(model, self, split, batch_size)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))}
