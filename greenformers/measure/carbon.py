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
        year: Year that the mean is of.
    """

    country: str
    intensity: float
    year: int


@cache
def grids() -> dict[str, Grid]:
    """Every country there is a figure for, by its 3-letter ISO code. `tables/carbon_intensity.tsv` names the source."""
    return {code: Grid(country, float(grams), int(year)) for code, country, grams, year in rows("carbon_intensity")}


def grid_intensity(country: str) -> float:
    """Mean g of CO2 equivalent per kWh of a country's electricity.

    Args:
        country: A 3-letter ISO code.

    Raises:
        ValueError: There is no figure for the country; the message names a code that may be meant.
    """
    known = grids()
    if country not in known:
        codes = {grid.country.casefold(): code for code, grid in known.items()}
        named = codes.get(country.casefold())
        close = [named] if named else get_close_matches(country.upper(), known, cutoff=0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"country must be a 3-letter ISO code that there is a figure for, got {country!r}{hint}")
    return known[country].intensity
