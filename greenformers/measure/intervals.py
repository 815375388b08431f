"""Confidence intervals of a share of examples, and of a mean over a few seeds."""

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist, mean, stdev


def wilson(right: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of an accuracy, in percent. Wilson 1927, doi:10.1080/01621459.1927.10502953.

    With p = right / count and z the quantile of the normal distribution, its ends are

        (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Args:
        right: Number of examples that a model gets right.
        count: Number n of examples.
        confidence: Share of such intervals that hold the true accuracy, between 0 and 1.

    Raises:
        ValueError: Raised where a number is out of range.
    """
    if not 0 <= right <= count or not count:
        raise ValueError(f"right must be in 0..count, and count at least 1; got {right} and {count}")
    z, p = NormalDist().inv_cdf((1 + _checked(confidence)) / 2), right / count
    middle, scale = p + z**2 / (2 * count), 1 + z**2 / count
    half = z * sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    return 100 * max(0.0, (middle - half) / scale), 100 * min(1.0, (middle + half) / scale)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of a mean, mean -+ t s / sqrt(n), by Student's distribution with n - 1 degrees of freedom.

    Args:
        values: Values of the n seeds, at least two.
        confidence: Share of such intervals that hold the true mean, between 0 and 1.

    Raises:
        ValueError: Raised where there are fewer than two values, or confidence is not between 0 and 1.
    """
    if len(values) < 2:
        raise ValueError(f"values must be at least 2, got {len(values)}")
    half = student(len(values) - 1, confidence) * stdev(values) / sqrt(len(values))
    return mean(values) - half, mean(values) + half


def student(freedom: int, confidence: float = 0.95) -> float:
    """The t that a variable of Student's distribution stays below in size with this probability, by bisection.

    Args:
        freedom: Degrees of freedom, at least 1.
        confidence: The probability, between 0 and 1.

    Raises:
        ValueError: Raised where a number is out of range.
    """
    if freedom < 1:
        raise ValueError(f"freedom must be at least 1, got {freedom}")
    low, high = 0.0, 1.0
    while _within(high, freedom) < _checked(confidence):
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Probability of -t..t. Abramowitz and Stegun 1964, 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle), 0.0) if odd else (1.0, 0.0)
    # cos + 2/3 cos^3 + 2 4 / 3 5 cos^5 + ...; 1 + 1/2 cos^2 + 1 3 / 2 4 cos^4 + ...
    for number in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (number - 1) / number * cos(angle) ** 2
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    return confidence
