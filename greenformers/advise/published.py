"""Costs of published training runs, as printed and computed again from their published hours, watts and prices.

Printed figures are those of tables 1.1 and 3.2 of the Greenformers thesis, Cahyawijaya 2021. Their sources:

- Transformers, BERT-base, GPT-2: Strubell 2019, arXiv:1906.02243, table 3, with the cloud's prices of that year;
  0.954 lb of CO2 per kWh. BERT-base's energy is that of 64 V100 and its price that of 16 TPU v2 chips.
- BERT-large: 4 times BERT-base.
- GPT-3: 175e9 parameters, 300e9 tokens (Brown 2020, arXiv:2005.14165); 10,000 V100 of 330 W for 14.8 days, PUE 1.1,
  429 g of CO2 per kWh (Patterson 2021, arXiv:2104.10350). The price is printed without hours.
"""

from dataclasses import dataclass, replace

from greenformers.advise.cost import PETAFLOPS_DAY, Cost, Range, co2_kg, did_you_mean, energy_kwh, training_flops
from greenformers.advise.efficiency import efficiency

US_GRID_2018 = 1000 * 0.954 * 0.45359237
"""Carbon intensity in g of CO2 per kWh, from 0.954 lb. Strubell 2019."""


@dataclass(frozen=True)
class Run:
    """A published run.

    Attributes:
        year: Year of its release, as printed.
        printed: Costs in table 1.1; the energy is computed from the CO2.
        again: Costs that are computed again, as far as the sources tell.
    """

    year: int
    printed: Cost
    again: Cost


def _printed(compute: Range, usd: Range, co2: float | None, intensity: float = US_GRID_2018) -> Cost:
    return Cost(compute, usd, co2, None if co2 is None else co2 * 1000 / intensity)


def _again(hours: float, watts: float, intensity: float = US_GRID_2018, **options: float) -> Cost:
    kwh = energy_kwh(hours, watts, **options)
    return Cost(co2_kg=co2_kg(kwh, intensity), kwh=kwh)


def _rent(device_hours: float, low: float, high: float) -> Range:
    return Range(low, high) * device_hours


def _flat(figure: float) -> Range:
    return Range(figure, figure)


_BERT_BASE = replace(_again(79.2, 12041.51), usd=_rent(16 * 96, 1.35, 4.50))
_GPT_3 = _again(14.8 * 24, 10_000 * 330, 429, pue=1.1)

RUNS = {
    "Transformer-base": Run(
        2017,
        _printed(_flat(0.008), Range(41, 140), 11.8),
        replace(_again(12, 1415.78), usd=_rent(8 * 12, 0.43, 1.46)),
    ),
    "Transformer-big": Run(
        2017,
        _printed(_flat(0.181), Range(289, 981), 87.1),
        replace(_again(84, 1515.43), usd=_rent(8 * 84, 0.43, 1.46)),
    ),
    "BERT-base": Run(2018, _printed(_flat(2.24), Range(2074, 6912), 652.3), _BERT_BASE),
    "BERT-large": Run(2018, _printed(_flat(8.96), Range(8296, 27648), 2609.2), _BERT_BASE.faster(1 / 4)),
    "GPT-2 1.5B": Run(2018, _printed(Range(10, 100), Range(12902, 43008), None), Cost(usd=_rent(32 * 168, 2.40, 8.00))),
    "GPT-3": Run(
        2020,
        _printed(_flat(3640), _flat(4.6e6), 552e3, 429),
        replace(_GPT_3, petaflops_days=_flat(training_flops(175e9, 300e9) / PETAFLOPS_DAY)),
    ),
}
"""Runs of table 1.1, by name."""

SHARES = {128: 0.9, 512: 0.1}
"""Shares of BERT-base's pre-training time, by length, as Cahyawijaya 2021 takes them."""

SPEED_UPS = {
    32: {128: 2.73, 512: 2.00},
    64: {128: 2.59, 512: 1.93},
    128: {128: 2.04, 512: 1.67},
    256: {128: 1.43, 512: 1.35},
}
"""Speed-ups of the Low-Rank Transformer in training, by rank and length: figure 3.7."""

LOW_RANK = {
    32: (2.63, Cost(_flat(0.85), Range(789, 2629), 248.1)),
    64: (2.50, Cost(_flat(0.90), Range(831, 2768), 261.2)),
    128: (1.98, Cost(_flat(1.13), Range(1045, 3484), 328.8)),
    256: (1.48, Cost(_flat(1.52), Range(1406, 4686), 442.2)),
}
"""Printed efficiency factor and costs of LRT-BERT-base, by rank: table 3.2."""


def name_of(typed: str) -> str:
    """The name of a published run from its beginning, in any letters, if no other run begins so.

    Args:
        typed: Name or its beginning, as typed.

    Raises:
        ValueError: Raised where no run, or more than one, begins so; the message names close ones.
    """
    word = typed.casefold()
    begins = [name for name in RUNS if word and name.casefold().startswith(word)]
    if len(begins) != 1:
        raise ValueError(f"base must be one of {', '.join(RUNS)}; got {typed!r}{did_you_mean(typed, RUNS)}")
    return begins[0]


def low_rank(rank: int) -> Cost:
    """The costs of LRT-BERT-base: BERT-base's, divided by the efficiency of figure 3.7's speed-ups.

    Args:
        rank: Rank, a key of `SPEED_UPS`.
    """
    return RUNS["BERT-base"].printed.faster(efficiency(SPEED_UPS[rank], SHARES))
