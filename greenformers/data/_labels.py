"""Labels as sources write them, read as classes or scores. Errors never show the value: it may be a row's text."""

from __future__ import annotations

from collections.abc import Callable

Reader = Callable[[object], int | float]


def class_reader(classes: tuple[str, ...]) -> Reader:
    """A reader of classes: from the name or the number of a class to its number."""
    numbers = {str(number): number for number in range(len(classes))}
    numbers |= {name: number for number, name in enumerate(classes)}

    def read(value: object) -> int:
        if str(value) not in numbers:
            raise ValueError(f"the label must be one of {', '.join(numbers)}")
        return numbers[str(value)]

    return read


def score_reader(low: float, high: float) -> Reader:
    """A reader of scores from `low` to `high`."""

    def read(value: object) -> float:
        try:
            score = float(str(value))
        except ValueError:
            score = float("nan")
        # Written so that NaN is out of range too.
        if not low <= score <= high:
            raise ValueError(f"the score must be a number in {low:g}..{high:g}")
        return score

    return read
