"""Errors of whatever libraries raise, in one line."""

import pytest

from greenformers.checkpoint.files import line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("a size\n  is wrong"), "a size is wrong"),
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (KeyError("vision"), "KeyError: 'vision'"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("x" * 400), "x" * 300),
    ],
)
def test_the_class_is_told_where_the_words_say_little(error: Exception, told: str) -> None:
    assert line(error) == told
