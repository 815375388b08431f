"""The connectivity matrices of the survey, written out cell by cell, and what attention really meets."""

import pytest
import torch
from pairs import met, met_if, seen

from greenformers.attention import Shape, build

# Survey (14), s = 3: abs(i - j) < s, or i - j a multiple of s.
STRIDED = """
    1 1 1 1 0 0 1 0 0 1 0 0
    1 1 1 1 1 0 0 1 0 0 1 0
    1 1 1 1 1 1 0 0 1 0 0 1
    1 1 1 1 1 1 1 0 0 1 0 0
    0 1 1 1 1 1 1 1 0 0 1 0
    0 0 1 1 1 1 1 1 1 0 0 1
    1 0 0 1 1 1 1 1 1 1 0 0
    0 1 0 0 1 1 1 1 1 1 1 0
    0 0 1 0 0 1 1 1 1 1 1 1
    1 0 0 1 0 0 1 1 1 1 1 1
    0 1 0 0 1 0 0 1 1 1 1 1
    0 0 1 0 0 1 0 0 1 1 1 1
"""

# Survey (15), s = 3 and c = 1: the own block of 3, and the last position of every block.
FIXED = """
    1 1 1 0 0 1 0 0 1 0 0 1
    1 1 1 0 0 1 0 0 1 0 0 1
    1 1 1 0 0 1 0 0 1 0 0 1
    0 0 1 1 1 1 0 0 1 0 0 1
    0 0 1 1 1 1 0 0 1 0 0 1
    0 0 1 1 1 1 0 0 1 0 0 1
    0 0 1 0 0 1 1 1 1 0 0 1
    0 0 1 0 0 1 1 1 1 0 0 1
    0 0 1 0 0 1 1 1 1 0 0 1
    0 0 1 0 0 1 0 0 1 1 1 1
    0 0 1 0 0 1 0 0 1 1 1 1
    0 0 1 0 0 1 0 0 1 1 1 1
"""

# Survey IV-A, b = 1 and m = 2, layers 1 to 4: windows of 1, 3, 7 and 15 positions.
CASCADE = (
    """
    1 0 0 0 0 0 0 0 0 0
    0 1 0 0 0 0 0 0 0 0
    0 0 1 0 0 0 0 0 0 0
    0 0 0 1 0 0 0 0 0 0
    0 0 0 0 1 0 0 0 0 0
    0 0 0 0 0 1 0 0 0 0
    0 0 0 0 0 0 1 0 0 0
    0 0 0 0 0 0 0 1 0 0
    0 0 0 0 0 0 0 0 1 0
    0 0 0 0 0 0 0 0 0 1
    """,
    """
    1 1 0 0 0 0 0 0 0 0
    1 1 1 0 0 0 0 0 0 0
    0 1 1 1 0 0 0 0 0 0
    0 0 1 1 1 0 0 0 0 0
    0 0 0 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 0 0 0
    0 0 0 0 0 1 1 1 0 0
    0 0 0 0 0 0 1 1 1 0
    0 0 0 0 0 0 0 1 1 1
    0 0 0 0 0 0 0 0 1 1
    """,
    """
    1 1 1 1 0 0 0 0 0 0
    1 1 1 1 1 0 0 0 0 0
    1 1 1 1 1 1 0 0 0 0
    1 1 1 1 1 1 1 0 0 0
    0 1 1 1 1 1 1 1 0 0
    0 0 1 1 1 1 1 1 1 0
    0 0 0 1 1 1 1 1 1 1
    0 0 0 0 1 1 1 1 1 1
    0 0 0 0 0 1 1 1 1 1
    0 0 0 0 0 0 1 1 1 1
    """,
    """
    1 1 1 1 1 1 1 1 0 0
    1 1 1 1 1 1 1 1 1 0
    1 1 1 1 1 1 1 1 1 1
    1 1 1 1 1 1 1 1 1 1
    1 1 1 1 1 1 1 1 1 1
    1 1 1 1 1 1 1 1 1 1
    1 1 1 1 1 1 1 1 1 1
    1 1 1 1 1 1 1 1 1 1
    0 1 1 1 1 1 1 1 1 1
    0 0 1 1 1 1 1 1 1 1
    """,
)

# Survey (16), n = 12 and n_b = 3: block b sees block pi(b), for pi = {1, 2, 3}, {2, 3, 1} and {3, 1, 2}.
BLOCKWISE = (
    """
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    """,
    """
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    """,
    """
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    0 0 0 0 0 0 0 0 1 1 1 1
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    1 1 1 1 0 0 0 0 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    0 0 0 0 1 1 1 1 0 0 0 0
    """,
)


def matrix(text):
    return torch.tensor([[cell == "1" for cell in line.split()] for line in text.split("\n") if line.strip()])


def check(name, texts, *, layer=0, causal=False, **options):
    """That the pattern, and attention itself, is the matrix of each head."""
    expected = torch.stack([matrix(text) for text in texts])[None]
    heads, length = expected.shape[1:3]
    shape = Shape(heads=heads, head_dim=length, max_len=length, causal=causal, layer=layer, layers=layer + 1)
    module = build(name, shape, **options)
    if causal:
        expected = expected.tril()
    assert torch.equal(seen(module, length, length), expected)
    torch.testing.assert_close(met(module, length, length), met_if(expected), rtol=1e-12, atol=1e-12)


each_direction = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])


@each_direction
def test_strided(causal):
    check("sparse_strided", [STRIDED, STRIDED], causal=causal, stride=3)


@each_direction
def test_fixed(causal):
    """Of the first head: the next has the columns before."""
    check("sparse_fixed", [FIXED], causal=causal, stride=3, summary=1)


@each_direction
@pytest.mark.parametrize("layer", range(4))
def test_cascade(layer, causal):
    check("cascade", [CASCADE[layer]], layer=layer, causal=causal, base=1, cardinal=2)


@pytest.mark.parametrize("layer", range(4))
def test_a_window_of_cascade_is_2_b_m_to_the_l_less_1(layer):
    counts = seen(build("cascade", Shape(1, 1, 99, layer=layer, layers=4), base=3, cardinal=2), 99, 99).sum(-1)
    assert counts.max() == 2 * 3 * 2**layer - 1


def test_blockwise():
    check("blockwise", BLOCKWISE, blocks=3)


def test_blockwise_begins_anew_with_the_first_permutation():
    check("blockwise", [*BLOCKWISE, *BLOCKWISE[:1]], blocks=3)
