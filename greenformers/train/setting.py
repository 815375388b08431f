"""One setting: its default with its help text, and its value from a text."""

import json
from dataclasses import field
from typing import Any


def setting(default: Any, about: str) -> Any:
    """A setting with its default and its help text."""
    return field(default=default, metadata={"help": about})


def value_of(text: str) -> Any:
    """The value of an option: a number, true or false, a JSON list, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
