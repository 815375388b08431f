"""What variants are known to lose against dense attention, by our study of every mechanism as a small language model.

`known.json` is written by `python benchmarks/known_losses.py` from the records of `benchmarks/language_models.py`:
networks of two layers of 64 on bytes, the same steps and batches for all. It tells how fast a mechanism learns at that
size, and no more; where nothing else is known, that is more than its speed. A part that was not studied, such as low
rank while there is no record of it, is named, so that what the other part loses is not taken for the loss of both.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import log
from typing import Any

from greenformers.model.variant import NARROW

TOLERANCE = 0.02
"""Nats a byte that are told apart from none: more than two seeds of dense attention differ by."""

RANKED = ("lrt", *NARROW)
"""Names of variants whose linear layers have a rank, or that are as small as with one."""


@dataclass(frozen=True)
class Known:
    """What a variant loses.

    Attributes:
        difference: Validation loss less that of dense attention, in nats a byte, mean of the seeds.
        low: The least of the seeds.
        high: The greatest of the seeds.
        seeds: Number of seeds; 0 where nothing was studied, and the figures say nothing.
        blind: Whether its scores compare no two tokens: they depend on the query alone, or on neither query nor key.
        added: Whether it was not studied as it is, but is the sum of its two parts.
        unstudied: Parts of it that were not studied, and may lose more, in words; empty where there is none.
    """

    difference: float
    low: float
    high: float
    seeds: int
    blind: bool = False
    added: bool = False
    unstudied: str = ""

    @property
    def worse(self) -> bool:
        """Whether the mean of the seeds lost more than can be told apart from none."""
        return self.difference > TOLERANCE

    @property
    def certain(self) -> bool:
        """Whether every seed says the same: that it lost, or that it did not."""
        return (self.low > TOLERANCE) == (self.high > TOLERANCE)

    def __str__(self) -> str:
        said = [f"{self.difference:+.2f} ({self.low:+.2f} to {self.high:+.2f}) nats"] if self.seeds else []
        said += ["added up"] * self.added
        said += [] if self.certain else ["not certain"]
        said += [f"{self.unstudied} not studied"] if self.unstudied else []
        return ", ".join(said)


def known(variant: str, *, causal: bool, share: float | None = None) -> Known | None:
    """What a variant is known to lose, and which part of it was not studied; None for an attention that was not.

    Args:
        variant: Name of the variant, see `greenformers.model.variant`.
        causal: Whether the network is causal.
        share: Rank over the width, for `RANKED` variants.
    """
    low, _, mechanism = variant.rpartition("+")
    if variant in RANKED:
        low, mechanism = variant, ""
    own = _mechanism(mechanism, causal) if mechanism else None
    if not low:
        return own
    parts = {"width" if low in NARROW else "rank": _ranked(low, causal, share)}
    if mechanism:
        parts["attention"] = own
    studied = [part for part in parts.values() if part is not None]
    unstudied = " and ".join(name for name, part in parts.items() if part is None)
    if not studied:
        return Known(0.0, 0.0, 0.0, 0, unstudied=unstudied)
    return Known(
        sum(part.difference for part in studied), sum(part.low for part in studied),
        sum(part.high for part in studied), min(part.seeds for part in studied),
        any(part.blind for part in studied), added=len(studied) > 1, unstudied=unstudied,
    )  # fmt: skip


def _mechanism(name: str, causal: bool) -> Known | None:
    row = _file()["causal" if causal else "masked"].get(name)
    return None if row is None else replace(Known(*row), blind=name in _file()["blind"])


def _ranked(kind: str, causal: bool, share: float | None) -> Known | None:
    """What one of `RANKED` loses at the studied share that is nearest to this one."""
    rows = _file()["causal" if causal else "masked"]
    shares = {float(name.split()[1]): row for name, row in rows.items() if name.split()[0] == kind}
    if share is None or not shares:
        return None
    nearest = min(shares, key=lambda studied: abs(log(studied / share)))
    return Known(*shares[nearest])


@cache
def _file() -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(files("greenformers.advise").joinpath("known.json").read_text())
    return rows
