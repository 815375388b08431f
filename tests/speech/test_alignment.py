"""Forced alignment: against all paths there are, and the times of words with known sounds."""

from itertools import product

import pytest
import torch

from greenformers.speech.alignment import Span, aligned, loudness, spread, words_of

BLANK = 0


def best_of_all(log_p, tokens):
    """The likeliest path that spells a text, by trying every path of tokens and blanks."""
    rows, best, path = log_p.tolist(), -torch.inf, None
    for places in product(sorted({BLANK, *tokens}), repeat=len(rows)):
        spelt = [token for before, token in zip((None, *places), places, strict=False) if token != before]
        score = sum(row[token] for row, token in zip(rows, places, strict=True))
        if [token for token in spelt if token != BLANK] == list(tokens) and score > best:
            best, path = score, places
    return best, path


@pytest.mark.parametrize("tokens", [[1], [1, 2], [2, 2], [1, 1, 2], [3, 1, 3], [1, 2, 3, 1]])
@pytest.mark.parametrize("positions", [4, 7])
def test_the_path_is_the_likeliest_of_all(tokens, positions):
    torch.manual_seed(len(tokens) + positions)
    log_p = torch.randn(positions, 4, dtype=torch.float64).mul(2).log_softmax(1)
    spans = aligned(log_p, tokens, blank=BLANK)
    best, path = best_of_all(log_p, tokens)
    if path is None:
        assert spans is None
        return
    ours = [BLANK] * positions
    for token, span in zip(tokens, spans, strict=True):
        ours[span.first : span.last] = [token] * (span.last - span.first)
    assert tuple(ours) == path
    assert sum(log_p[place, token].item() for place, token in enumerate(ours)) == pytest.approx(best)


def test_no_text_and_no_room():
    log_p = torch.zeros(3, 4).log_softmax(1)
    assert aligned(log_p, [], blank=BLANK) == []
    assert aligned(log_p, [1, 1], blank=BLANK) is not None
    assert aligned(log_p, [1, 1, 1], blank=BLANK) is None
    assert aligned(log_p[:1], [1, 2], blank=BLANK) is None


def test_words_are_between_spaces_or_characters():
    assert words_of([5, 6, 3, 7], 3) == [Span(0, 2), Span(3, 4)]
    assert words_of([3, 5, 3, 3, 7, 3], 3) == [Span(1, 2), Span(4, 5)]
    assert words_of([5, 6], None) == [Span(0, 1), Span(1, 2)]
    assert words_of([], 3) == words_of([], None) == words_of([3], 3) == []


def test_loudness_is_decibels_of_full_scale():
    levels = loudness(torch.cat([torch.ones(10), torch.full((10,), 0.1), torch.zeros(5)]), 10)
    assert levels.tolist() == pytest.approx([0.0, -20.0, -100.0])


def test_words_reach_to_the_pauses_around_them():
    loud = [-80] * 4 + [-20] * 6 + [-80] * 3 + [-20] * 4 + [-35] + [-20] * 5 + [-80] * 2
    levels = torch.tensor(loud, dtype=torch.float64)
    # A pause is between the first two, the third follows the second at the quietest frame.
    spans = spread([Span(6, 8), Span(14, 16), Span(19, 22)], levels)
    assert spans == [Span(4, 10), Span(13, 17), Span(17, 23)]
    # A span that reaches into a pause is cut there, and one that is all pause reaches to the sound beside it.
    assert spread([Span(2, 12), Span(13, 16)], levels)[0] == Span(4, 10)
    assert spread([Span(10, 12), Span(13, 16)], levels)[0] == Span(4, 12)
    assert spread([], levels) == []
    # Words in less than a tenth of a sound that is silent otherwise.
    levels = torch.tensor([-100] * 300 + [-20] * 15 + [-100] * 30 + [-20] * 15 + [-100] * 240, dtype=torch.float64)
    assert spread([Span(304, 310), Span(349, 352)], levels) == [Span(300, 315), Span(345, 360)]
    # A sound without pauses is all word, and spans that meet stay where they do.
    assert spread([Span(2, 3), Span(3, 5)], torch.zeros(9, dtype=torch.float64)) == [Span(0, 3), Span(3, 9)]
