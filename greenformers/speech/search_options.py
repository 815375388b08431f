"""Options of the search for transcripts."""

import math
from dataclasses import dataclass

from greenformers.train.setting import setting

LARGEST = 1000
"""Largest weight of a part of the score, which is in float32; and largest width."""


@dataclass(frozen=True)
class Search:
    """Options of the beam search. A help text, where there is one, documents its field.

    Attributes:
        alpha: Weight of log P, in nats.
        shortest: Fewest characters of a transcript, as far as the utterance has room for them.
        cached: Whether keys and values are kept; if not, every step computes all characters again, with the same
            result.
    """

    width: int = setting(8, "Width of the beam search: hypotheses kept at every step; 1 is greedy.")
    alpha: float = 1.0
    gamma: float = setting(0.1, "Weight of the square root of the number of words.")
    length_power: float = setting(
        1.0,
        "Length normalisation: log P is divided by the number of characters, with the end, to this power; 0 for none.",
    )
    end_threshold: float | None = setting(
        None,
        "A transcript may end only where the log-probability of the end is above this many times that of the likeliest "
        "character; none if not given.",
    )
    ctc_weight: float | None = setting(
        None,
        "Share of CTC in the score, 0 to 1: 0 for the decoder alone, 1 for CTC alone, without the decoder; by default "
        "that of the training.",
    )
    longest: int | None = setting(None, "Most characters of a transcript; by default one for every 40 ms.")
    shortest: int = 0
    cached: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.width <= LARGEST:
            raise ValueError(f"width must be in 1..{LARGEST}, got {self.width}")
        if not 0 < self.alpha <= LARGEST:
            raise ValueError(f"alpha must be above 0 and at most {LARGEST}, got {self.alpha}")
        if not 0 <= self.gamma <= LARGEST:
            raise ValueError(f"gamma must be in 0..{LARGEST}, got {self.gamma}")
        if not 0 <= self.length_power <= 1:
            raise ValueError(f"length_power must be in 0..1, got {self.length_power}")
        if self.end_threshold is not None and not 0 < self.end_threshold < math.inf:
            raise ValueError(f"end_threshold must be above 0 and finite, got {self.end_threshold}")
        if self.ctc_weight is not None and not 0 <= self.ctc_weight <= 1:
            raise ValueError(f"ctc_weight must be in 0..1, got {self.ctc_weight}")
        if self.shortest < 0:
            raise ValueError(f"shortest must be at least 0, got {self.shortest}")
        if self.longest is not None and self.longest < max(1, self.shortest):
            raise ValueError(f"longest must be at least {max(1, self.shortest)}, got {self.longest}")
