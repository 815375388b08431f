"""Options of the diplotype of reads."""

from dataclasses import dataclass

from greenformers.train.setting import setting


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the reads that make a diplotype. The help text of each field documents it; qualities are Phred.

    Raises:
        ValueError: A threshold is out of range.
    """

    depth: int = setting(3, "Reads: fewest fragments at a position; with fewer it is N.")
    count: int = setting(2, "Reads: fewest fragments with the second symbol.")
    share: float = setting(0.2, "Reads: least share of fragments with the second symbol.")
    base_quality: int = setting(13, "Reads: least quality of a base.")
    mapping_quality: int = setting(0, "Reads: least quality of an alignment.")

    def __post_init__(self) -> None:
        if self.depth < 1 or self.count < 1:
            raise ValueError(f"depth and count must be at least 1, got {self.depth} and {self.count}")
        if not 0 <= self.share <= 0.5:
            raise ValueError(f"share must be in 0..0.5, got {self.share}")
        for name in ("base_quality", "mapping_quality"):
            if not 0 <= getattr(self, name) <= 93:
                raise ValueError(f"{name} must be in 0..93, got {getattr(self, name)}")
