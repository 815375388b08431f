"""The share of a network's parameters that a change covers, and the shares that it leaves as they are."""

import re
from collections.abc import Iterable, Sequence

from greenformers.solve.census import SMALL, Held

SHOWN = 2
"""Number of paths that are named for each kind."""


def coverage(held: Sequence[Held], changed: Iterable[str], unreached: Iterable[str] = ()) -> str:
    """A sentence: the share of all parameters that a change covered, and the shares that it left as they are.

    Args:
        held: The parameters before the change.
        changed: Paths of the weights that the change covered.
        unreached: Paths of linear layers and experts that the data does not reach.
    """
    total = sum(part.count for part in held)
    about, missed = set(changed), set(unreached)
    covered = [part for part in held if part.path in about and part.kind != SMALL]
    left: dict[str, list[Held]] = {}
    for part in (part for part in held if part not in covered):
        kind = f"{part.kind} that the data does not reach" if part.path in missed and part.kind != SMALL else part.kind
        left.setdefault(kind, []).append(part)
    shares = sorted(left.items(), key=lambda item: -sum(part.count for part in item[1]))
    said = ", ".join(f"{kind} {_share(parts, total)}{_places(kind, parts)}" for kind, parts in shares)
    rest = f"; left as they are: {said}" if said else ""
    return f"{_share(covered, total)} of the model's parameters{rest}"


def _share(parts: Iterable[Held], total: int) -> str:
    percent = 100 * sum(part.count for part in parts) / max(total, 1)
    if 0 < percent < 0.1:
        return "under 0.1 %"
    whole = percent == 0 or 10 <= percent <= 99 or percent == 100
    return f"{percent:.0f} %" if whole else f"{percent:.1f} %"


def _places(kind: str, parts: Sequence[Held]) -> str:
    """The paths of parameters, for kinds that are not found at a glance."""
    if kind in (SMALL, "embeddings"):
        return ""
    patterns = list(dict.fromkeys(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", part.path) for part in parts))
    shown = ", ".join(f"`{pattern}`" for pattern in patterns[:SHOWN] if pattern)
    return f" ({shown}{', ...' if len(patterns) > SHOWN else ''})" if shown else ""
