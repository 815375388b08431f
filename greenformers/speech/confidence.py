"""How sure a recogniser can be of a word: the probability that it is right, from what network and sound say of it.

    P(right) = 1 / (1 + exp(-(w x + b)))          logistic regression on the evidence x; Platt 1999 (its targets)

| evidence | of the characters of a word |
|---|---|
| decoder_mean, decoder_least | mean and least log-probability by the decoder, with that of what follows the word |
| ctc_mean, ctc_least | mean and least over characters of CTC's best log-probability within the character's positions |
| contrast | decibels of the word above the quietest tenth of its piece, at most 30 |

w and b are fitted to the words of transcripts of validation recordings, which are right or wrong, and of silence and
noise, in which every word is wrong.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

EVIDENCE = ("decoder_mean", "decoder_least", "ctc_mean", "ctc_least", "contrast")
FILE = "confidence.json"
"""File of a model's folder that holds its calibration."""
SILENT = -60.0
"""Decibels of full scale below which 10 ms are silent; nothing is heard in a piece that is silent throughout."""

_CONTRAST = 30.0
_PENALTY = 1e-3  # keeps the weights finite where right and wrong words can be told apart without an error


@dataclass(frozen=True)
class Calibration:
    """The logistic regression that turns evidence into a probability.

    Attributes:
        mean: Mean of each of `EVIDENCE`.
        scale: Standard deviation of each.
        weight: Weight of each, after mean and scale.
        bias: The constant b.
        words: Number of words that it was fitted to.
        wrong: Number of these that are wrong.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weight: tuple[float, ...]
    bias: float
    words: int
    wrong: int

    @classmethod
    def fit(cls, evidence: Float[Tensor, "n e"], right: Bool[Tensor, "n"]) -> "Calibration":
        """The calibration of words with known truth.

        Args:
            evidence: Evidence of each word (n, 5), in the order of `EVIDENCE`.
            right: Whether each word is right (n,).

        Raises:
            ValueError: There is no word.
        """
        if not len(evidence):
            raise ValueError("a calibration needs at least 1 word, got 0")
        x = evidence.double()
        mean, scale = x.mean(0), x.std(0, correction=0).clamp(min=1e-6)
        x = (x - mean) / scale
        positive = int(right.sum())
        negative = len(right) - positive
        # Platt's targets, so that words that are all right, or all wrong, do not give a certainty.
        targets = torch.where(right, (positive + 1) / (positive + 2), 1 / (negative + 2)).double()
        parameters = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([parameters], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            logits = x @ parameters[:-1] + parameters[-1]
            value = F.binary_cross_entropy_with_logits(logits, targets) + _PENALTY * parameters[:-1].square().sum()
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(loss)
        *weight, bias = parameters.detach().tolist()
        return cls(tuple(mean.tolist()), tuple(scale.tolist()), tuple(weight), bias, len(x), negative)

    def __call__(self, evidence: Float[Tensor, "n e"]) -> Float[Tensor, "n"]:
        """The probability that each word is right."""
        mean, scale, weight = (torch.tensor(row, dtype=torch.float64) for row in (self.mean, self.scale, self.weight))
        return ((evidence.double() - mean) / scale @ weight + self.bias).sigmoid()

    def write(self, folder: Path) -> None:
        """Write the calibration to the folder of a model."""
        (folder / FILE).write_text(json.dumps({"evidence": EVIDENCE} | asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Calibration | None":
        """The calibration of the folder of a model; None where there is none.

        Raises:
            ValueError: The file is damaged, or of other evidence than this version's.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text())
            if tuple(stored.pop("evidence")) != EVIDENCE:
                raise ValueError("evidence")
            mean, scale, weight = (tuple(map(float, stored.pop(name))) for name in ("mean", "scale", "weight"))
            if not len(mean) == len(scale) == len(weight) == len(EVIDENCE):
                raise ValueError("rows")
            return cls(mean, scale, weight, **stored)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} must be the calibration of a speech recogniser, it is damaged") from error


def evidence_of(decoder: Float[Tensor, "c"], ctc: Float[Tensor, "c"], level: float, floor: float) -> Float[Tensor, "e"]:
    """The evidence of one word.

    Args:
        decoder: Log-probability of its characters, and of what follows, by the decoder.
        ctc: Best log-probability of its characters by CTC.
        level: Loudness of the word, in decibels.
        floor: Loudness of the quietest tenth of its piece, in decibels.
    """
    contrast = decoder.new_tensor(min(max(level - floor, 0.0), _CONTRAST))
    return torch.stack([decoder.mean(), decoder.min(), ctc.mean(), ctc.min(), contrast]).double()


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """Area under the ROC curve, in percent: how often a right word has a higher score than a wrong one, ties by half.

    Raises:
        ValueError: There is no right word, or no wrong one.
    """
    values, truth = torch.tensor(scores, dtype=torch.float64), torch.tensor(right)
    above, below = values[truth], values[~truth]
    if not (len(above) and len(below)):
        raise ValueError(f"there must be right and wrong words, got {len(above)} and {len(below)}")
    difference = above[:, None] - below
    return float(100 * ((difference > 0).double() + 0.5 * (difference == 0)).mean())
