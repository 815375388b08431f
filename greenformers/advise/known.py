"""What variants are known to lose against dense attention, by our study of every mechanism as a small language model.

`known.json` is written by `python benchmarks/known_losses.py` from the records of `benchmarks/language_models.py`:
networks of two layers of 64 on bytes, the same steps and batches for all. It tells how fast a mechanism learns at that
size, and no more; where nothing else is known, that is more than its speed.
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
        seeds: Number of seeds.
        blind: Whether its scores depend neither on queries nor on keys.
        added: Whether it was not studied as it is, but is the sum of its two parts.
    """

    difference: float
    low: float
    high: float
    seeds: int
    blind: bool = False
    added: bool = False

    @property
    def worse(self) -> bool:
        """Whether every seed lost more than can be told apart from none."""
        return self.low > TOLERANCE

    def __str__(self) -> str:
        spread = f"{self.difference:+.2f} ({self.low:+.2f} to {self.high:+.2f}) nats"
        return spread + ", added up" * self.added


def known(variant: str, *, causal: bool, share: float | None = None) -> Known | None:
    """What a variant is known to lose; None where it, or a part of it that could lose, was not studied.

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
    ranks = _ranked(low, causal, share)
    if not mechanism:
        return ranks
    if own is None or ranks is None:
        # One part that loses is enough to say so.
        part = own or ranks
        return part if part is not None and (part.worse or part.blind) else None
    return Known(
        own.difference + ranks.difference, own.low + ranks.low, own.high + ranks.high, min(own.seeds, ranks.seeds),
        own.blind, added=True,
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
