"""What makes a diplotype of reads."""

from dataclasses import dataclass

from greenformers.train.settings import setting


@dataclass(frozen=True)
class Thresholds:
    """What makes a diplotype of reads. The help text of each is its documentation; qualities are Phred.

    Raises:
        ValueError: one is out of range.
    """

    depth: int = setting(3, "Reads: fragments at a position at least; N below.")
    count: int = setting(2, "Reads: fragments with the second symbol at least.")
    share: float = setting(0.2, "Reads: share of fragments with the second symbol at least.")
    base_quality: int = setting(13, "Reads: quality of a base at least.")
    mapping_quality: int = setting(0, "Reads: quality of an alignment at least.")

    def __post_init__(self) -> None:
        if self.depth < 1 or self.count < 1:
            raise ValueError(f"depth and count must be at least 1, got {self.depth} and {self.count}")
        if not 0 <= self.share <= 0.5:
            raise ValueError(f"share must be in 0..0.5, got {self.share}")
        for name in ("base_quality", "mapping_quality"):
            if not 0 <= getattr(self, name) <= 93:
                raise ValueError(f"{name} must be in 0..93, got {getattr(self, name)}")
