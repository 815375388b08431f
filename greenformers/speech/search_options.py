"""How transcripts are searched for."""

from dataclasses import dataclass

from greenformers.train.settings import setting


@dataclass(frozen=True)
class Search:
    """How hypotheses are searched for. Where there is a help text, it documents the field.

    Attributes:
        alpha: weight of log P, in nats.
        shortest: characters at least, where the utterance has room for them.
        cached: keep keys and values; without, every step computes all characters anew, with the same result.
    """

    width: int = setting(8, "Hypotheses kept at every step; 1 is greedy.")
    alpha: float = 1.0
    gamma: float = setting(0.1, "Weight of the square root of the number of words.")
    longest: int | None = setting(None, "Characters of a transcript at most; by default one in 40 ms.")
    shortest: int = 0
    cached: bool = True

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be above 0, got {self.alpha}")
        if not self.gamma >= 0:
            raise ValueError(f"gamma must be at least 0, got {self.gamma}")
        if self.shortest < 0:
            raise ValueError(f"shortest must be at least 0, got {self.shortest}")
        if self.longest is not None and self.longest < max(1, self.shortest):
            raise ValueError(f"longest must be at least {max(1, self.shortest)}, got {self.longest}")
