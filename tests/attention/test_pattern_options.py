"""Options of patterns that are out of range, and inputs that do not fit, say what they must be."""

import pytest
import torch
from pairs import CAUSAL, PATTERNS

from greenformers.attention import Shape, build

SHAPE = Shape(heads=3, head_dim=5, max_len=30)

WRONG = [
    ("sliding_window", {"window": 0}, "window must be at least 1, got 0"),
    ("sliding_window", {"dilation": 0}, "dilation must be at least 1, one number or 3 of them, got 0"),
    ("sliding_window", {"dilation": (1, 2)}, "dilation must be at least 1, one number or 3 of them, got (1, 2)"),
    ("sliding_window", {"dilation": (1, 2, 0)}, "dilation must be at least 1, one number or 3 of them, got (1, 2, 0)"),
    ("sliding_window", {"dilation": ()}, "dilation must be at least 1, one number or 3 of them, got ()"),
    ("cascade", {"base": 0}, "base must be at least 1, got 0"),
    ("cascade", {"cardinal": 0}, "cardinal must be at least 1, got 0"),
    ("local_blocks", {"block": 0}, "block must be at least 1, got 0"),
    ("sparse_strided", {"stride": 0}, "stride must be at least 1, got 0"),
    ("sparse_fixed", {"stride": 0}, "stride must be at least 1, got 0"),
    ("sparse_fixed", {"stride": 4, "summary": 5}, "summary must be in 1..4 (the stride), got 5"),
    ("sparse_fixed", {"stride": 4, "summary": 0}, "summary must be in 1..4 (the stride), got 0"),
    ("blockwise", {"blocks": 0}, "blocks must be at least 1, got 0"),
    ("longformer", {"window": 0}, "window must be at least 1, got 0"),
    ("longformer", {"dilation": -1}, "dilation must be at least 1, one number or 3 of them, got -1"),
    ("longformer", {"globals": -1}, "globals must be at least 0, got -1"),
    ("bigbird", {"block": 0}, "block must be at least 1, got 0"),
    ("bigbird", {"random": -1}, "random must be at least 0, got -1"),
    ("bigbird", {"extra_globals": 0}, "extra_globals must be at least 1, got 0"),
    ("etc", {"globals": -1}, "globals must be at least 0, got -1"),
    ("etc", {"radius": 0}, "radius must be at least 1, got 0"),
    ("etc", {"clip": -1}, "clip must be at least 0, got -1"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_an_option_out_of_range_says_what_it_must_be(name, options, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        build(name, SHAPE, **options)
    assert str(error.value) == message


def test_every_pattern_has_such_options():
    assert {name for name, *_ in WRONG} == set(PATTERNS)


@pytest.mark.parametrize("name", sorted(set(PATTERNS) - set(CAUSAL)))
def test_without_a_causal_form_queries_are_as_many_as_keys(name):
    q, k = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 7, 5)
    with pytest.raises(ValueError, match=f"{name} needs as many queries as keys, got 4 and 7"):
        build(name, SHAPE)(q, k, k)


def test_defaults_follow_the_length():
    shape = Shape(heads=3, head_dim=5, max_len=1000)
    assert build("sparse_strided", shape).stride == build("sparse_fixed", shape).stride == 32
    assert build("sparse_fixed", shape).summary == 8
    assert build("sparse_fixed", SHAPE).summary == 5  # of a stride of 5
    assert build("etc", shape).globals == 16
    assert build("etc", Shape(heads=1, head_dim=2, max_len=3)).globals == 3
