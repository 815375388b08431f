"""Speed-up of a whole training run, from those at the lengths it trains at. Cahyawijaya 2021, 3.3.5.

    Eff = 1 / sum_k (P_k / E_k)

P_k is the share of the baseline's time spent at length k, E_k the speed-up at that length. The times add up, so the
mean is harmonic. Eq. 3.10 there prints the arithmetic one, sum_k P_k E_k, which is never smaller.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from greenformers.advise.cost import positive
from greenformers.measure.record import Record


def efficiency(speed_ups: Mapping[int, float], shares: Mapping[int, float]) -> float:
    """The speed-up of the whole run, Eff = 1 / sum_k (P_k / E_k).

    Args:
        speed_ups: Factor E_k by which the run is faster than the baseline, by length k.
        shares: Share P_k of the baseline's time (not of its steps), by length k; shares sum to 1.

    Raises:
        ValueError: Raised where the lengths of both differ, a speed-up is not above 0, or the shares do not sum to 1.
    """
    _check(speed_ups, shares)
    # Division by their sum makes a mean of shares that were rounded, too.
    return sum(shares.values()) / sum(share / speed_ups[length] for length, share in shares.items())


def mean_speed_up(speed_ups: Mapping[int, float], shares: Mapping[int, float]) -> float:
    """The arithmetic mean sum_k P_k E_k of eq. 3.10, only to be shown beside `efficiency`.

    Args:
        speed_ups: Factor E_k by which the run is faster than the baseline, by length k.
        shares: Share P_k of the baseline's time, by length k; shares sum to 1.

    Raises:
        ValueError: Raised as by `efficiency`.
    """
    _check(speed_ups, shares)
    return sum(share * speed_ups[length] for length, share in shares.items()) / sum(shares.values())


def measured_speed_ups(
    records: Sequence[Record],
    variant: str,
    *,
    lengths: Sequence[int] | None = None,
    where: Mapping[str, Any] | None = None,
) -> dict[int, float]:
    """Speed-ups E_k of a variant, by length k, from records of its forward and backward pass; the last one counts.

    Args:
        records: Records with ratios, see `greenformers.measure.record.read`.
        variant: Name of the variant.
        lengths: Lengths to return; by default all that were measured.
        where: Entries that the setting of a record must hold, such as {"rank": 64}.

    Raises:
        ValueError: Raised where no record fits, a length was not measured, or records of several settings fit a length.
    """
    ratios: dict[int, dict[str, Record]] = {}
    for record in _fitting(records, variant, where or {}):
        setting = json.dumps([record.benchmark, record.to, record.setting], sort_keys=True)
        ratios.setdefault(record.setting["length"], {})[setting] = record
    lengths = sorted(ratios) if lengths is None else lengths
    if missing := [str(length) for length in lengths if length not in ratios]:
        measured = ", ".join(map(str, sorted(ratios)))
        raise ValueError(f"{variant} was not measured at length {', '.join(missing)}, only at {measured}")
    return {length: _only(length, list(ratios[length].values())) for length in lengths}


def _fitting(records: Sequence[Record], variant: str, where: Mapping[str, Any]) -> list[Record]:
    timed = [each for each in records if each.metric == "train_step" and each.ratio]
    timed = [each for each in timed if isinstance(each.setting.get("length"), int)]
    own = [record for record in timed if record.variant == variant]
    if not own:
        names = ", ".join(dict.fromkeys(record.variant for record in timed)) or "none"
        raise ValueError(f"variant must be one with training speed-ups in the records: {names}; got {variant!r}")
    fitting = [record for record in own if where.items() <= record.setting.items()]
    if not fitting:
        recorded = "; ".join(f"{key} {', '.join(_values(own, key)) or 'not recorded'}" for key in where)
        asked = ", ".join(f"{key} {value}" for key, value in where.items())
        raise ValueError(f"{variant} was not measured at {asked}; in the records: {recorded}")
    return fitting


def _only(length: int, records: Sequence[Record]) -> float:
    """The speed-up at a length. Several settings are refused, as it is not known which of them is meant."""
    if len(records) > 1:
        keys = dict.fromkeys(key for record in records for key in record.setting)
        values = {key: _values(records, key) for key in keys}
        differs = "; ".join(f"{key} {', '.join(each)}" for key, each in values.items() if len(each) > 1)
        raise ValueError(
            f"length {length} was measured in several settings, name one: {differs or 'benchmarks differ'}"
        )
    return float(records[0].ratio or math.nan)


def _values(records: Sequence[Record], key: str) -> list[str]:
    """Values that a key of the settings has in these records."""
    return list(dict.fromkeys(str(record.setting[key]) for record in records if key in record.setting))


def _check(speed_ups: Mapping[int, float], shares: Mapping[int, float]) -> None:
    if set(speed_ups) != set(shares):
        lengths = [", ".join(map(str, sorted(each))) or "none" for each in (speed_ups, shares)]
        raise ValueError(f"speed-ups and shares must be of the same lengths, got {lengths[0]} and {lengths[1]}")
    for length, factor in speed_ups.items():
        positive(f"the speed-up at length {length}", factor)
    for length, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"the share of length {length} must be in 0..1, got {share}")
    if not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
        raise ValueError(f"shares must sum to 1, got {sum(shares.values()):.6g}")
