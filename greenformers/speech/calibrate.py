"""Calibration of a recogniser's confidence on validation recordings, and on silence and noise."""

import torch
from torch import Tensor

from greenformers.measure.recognition import right_words
from greenformers.speech.augment import nothing_said
from greenformers.speech.confidence import Calibration
from greenformers.speech.recognise import Recogniser
from greenformers.speech.recordings import Recordings
from greenformers.train.stream import generator

SILENCES = 5
"""Number of validation recordings for each of silence or noise that is as long."""


def calibrated(recogniser: Recogniser, recordings: Recordings, count: int, *, batch: int = 8) -> Calibration | None:
    """The calibration of a recogniser with its search; None where it writes no word.

    Args:
        recogniser: A recogniser whose network was trained with CTC.
        recordings: Recordings, of whose validation split it is fitted.
        count: Number of recordings, the first ones.
        batch: Number of recordings at a time.
    """
    evidence: list[Tensor] = []
    right: list[bool] = []
    for start in range(0, count, batch):
        indices = range(start, min(start + batch, count))
        pairs = [recordings.sound("valid", index, generator(0, 2, index)) for index in indices]
        sounds = [waveform for waveform, _ in pairs]
        texts = [text for _, text in pairs]
        for index in indices:
            if index % SILENCES == 0:
                sounds.append(nothing_said(len(sounds[index - start]), generator(0, 4, index)))
                texts.append("")
        heard = recogniser.evidence(sounds)
        for (words, own), text in zip(heard, texts, strict=True):
            evidence += own
            right += right_words(words, text.split() if recogniser.space is not None else list(text))
    return Calibration.fit(torch.stack(evidence), torch.tensor(right)) if evidence else None
