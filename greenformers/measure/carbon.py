"""CO2 of electricity, by country and without a network."""

from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

from greenformers.measure.tables import rows


class Grid(NamedTuple):
    """Electricity of a country.

    Attributes:
        country: Name of the country.
        intensity: Mean g of CO2 equivalent per kWh.
        year: Year of the mean.
    """

    country: str
    intensity: float
    year: int


@cache
def grids() -> dict[str, Grid]:
    """The grids that there are figures of, by 3-letter ISO code. `tables/carbon_intensity.tsv` names the source."""
    return {code: Grid(country, float(grams), int(year)) for code, country, grams, year in rows("carbon_intensity")}


def grid_intensity(country: str) -> float:
    """Mean g of CO2 equivalent per kWh of a country's electricity.

    Args:
        country: A 3-letter ISO code.

    Raises:
        ValueError: Raised where there is no figure for the country; the message names a code that may be meant.
    """
    by_code = grids()
    if country not in by_code:
        codes = {grid.country.casefold(): code for code, grid in by_code.items()}
        named = codes.get(country.casefold())
        close = [named] if named else get_close_matches(country.upper(), by_code, cutoff=0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"country must be a 3-letter ISO code that there is a figure for, got {country!r}{hint}")
    return by_code[country].intensity
