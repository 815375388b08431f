"""Types of the fields of a record: others than these, in a file from elsewhere, would end a report halfway."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

KINDS: dict[str, type] = {
    "benchmark": str, "variant": str, "setting": dict, "metric": str, "unit": str, "source": str, "context": dict,
}  # fmt: skip
MAY_LACK: dict[str, type] = {"spread": Real, "ratio": Real, "to": str, "by": str, "interval": list}
"""Types of fields that may be None."""

_CALLED: dict[type, str] = {
    str: "a text",
    dict: "an object",
    Real: "a number",
    list: "a low and a high number",
}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Check that the fields of a record are of their types, all but its value, which is checked with its metric.

    Args:
        fields: Values of the fields, by name.

    Raises:
        ValueError: A field is of another type.
    """
    for name, kind in (KINDS | MAY_LACK).items():
        value = fields[name]
        if value is None and name in MAY_LACK:
            continue
        fits = isinstance(value, kind)
        if fits and name == "interval":
            fits = len(value) == 2 and all(isinstance(end, Real) for end in value)
        if not fits:
            raise ValueError(f"{name} must be {_CALLED[kind]}, got {value!r}")
