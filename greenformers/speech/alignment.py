"""Forced alignment: which positions of the encoder each character of a text was spoken at. Graves 2006, section 4.1.

Let y_t(c) be CTC's probability of c at position t, and z the text with a blank before, between and after its
characters. The likeliest of all alignments is found by the forward recursion with the maximum in place of the sum,

    v_t(s) = log y_t(z_s) + max(v_{t-1}(s), v_{t-1}(s - 1), v_{t-1}(s - 2) if z_s is neither the blank nor z_{s-2})

and read backwards from the better of the last two states. Time and memory O(T U), for T positions and U characters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

QUIET = 0.3
"""Share of the way from the quietest to the loudest tenth, in decibels, up to which a frame counts as a pause."""


class Span(NamedTuple):
    """A stretch of positions or frames: first <= place < last."""

    first: int
    last: int


def aligned(log_p: Float[Tensor, "T V"], tokens: Sequence[int], *, blank: int) -> list[Span] | None:
    """The positions of each token in the likeliest alignment; None where there are too few positions for any.

    Args:
        log_p: Log-probabilities of CTC at each position (T, V), finite.
        tokens: The text, without marks.
        blank: The blank.
    """
    if not tokens:
        return []
    states = torch.full((2 * len(tokens) + 1,), blank)
    states[1::2] = torch.tensor(tokens)
    emitted = log_p.double().cpu()[:, states]  # (T, 2 U + 1)
    skips = torch.zeros(len(states), dtype=torch.bool)
    skips[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
    best = torch.full((len(states),), -torch.inf, dtype=torch.float64)
    best[:2] = emitted[0, :2]
    steps = []  # how many states back the best predecessor is
    for scores in emitted[1:]:
        two_back = F.pad(best[:-2], (2, 0), value=-torch.inf).masked_fill(~skips, -torch.inf)
        ways = torch.stack([best, F.pad(best[:-1], (1, 0), value=-torch.inf), two_back])
        best, back = ways.max(0)
        best += scores
        steps.append(back)
    state = len(states) - 1 if best[-1] > best[-2] else len(states) - 2
    if best[state] == -torch.inf:
        return None
    path = [state]
    for back in reversed(steps):
        path.append(path[-1] - int(back[path[-1]]))
    path.reverse()
    places = [[place for place, at in enumerate(path) if at == 2 * number + 1] for number in range(len(tokens))]
    return [Span(own[0], own[-1] + 1) for own in places]


def words_of(tokens: Sequence[int], space: int | None) -> list[Span]:
    """The words of a text, as stretches of its tokens; each token is a word where the script has no spaces."""
    if space is None:
        return [Span(place, place + 1) for place in range(len(tokens))]
    words, first = [], 0
    for place, token in enumerate([*tokens, space]):
        if token == space:
            if place > first:
                words.append(Span(first, place))
            first = place + 1
    return words


def loudness(waveform: Float[Tensor, "n"], hop: int) -> Float[Tensor, "T"]:
    """Mean square of every hop samples, in decibels of full scale, at least -100."""
    whole = F.pad(waveform.double(), (0, -len(waveform) % hop)).view(-1, hop)
    return 10 * whole.square().mean(1).clamp(min=1e-10).log10()


def spread(spans: Sequence[Span], levels: Float[Tensor, "T"]) -> list[Span]:
    """Spans of words, in frames, that reach to the pauses around them.

    CTC marks a character at a place within its sound, or a little beside it. Quiet frames at the ends of a word are no
    part of it. Two neighbours without a pause between them meet at the quietest frame between; before and after a pause
    a word ends where the pause begins.

    Args:
        spans: Frames of each word by its characters, in order, without overlap.
        levels: Loudness of each frame, in decibels.
    """
    if not spans:
        return []
    low, high = levels.quantile(torch.tensor([0.1, 0.9], dtype=levels.dtype)).tolist()
    if len(inside := torch.cat([levels[slice(*span)] for span in spans])):
        high = max(high, float(inside.quantile(0.9)))  # words may be less than a tenth of the sound
    quiet = levels < low + QUIET * (high - low)
    sounds = [_without_pauses(span, quiet) for span in spans]
    starts, ends = [span.first for span in sounds], [span.last for span in sounds]
    # A gap is what lies before, between and after the words.
    for place, (first, last) in enumerate(zip([0, *ends], [*starts, len(levels)], strict=True)):
        pauses = quiet[first:last].nonzero().flatten().tolist()
        inner = 0 < place < len(spans)  # else it is at an end of the piece
        if pauses:
            end, start = first + pauses[0], first + pauses[-1] + 1
        elif inner and last > first:
            end = start = first + int(levels[first:last].argmin())
        else:
            end, start = last, first
        if place:
            ends[place - 1] = end
        if place < len(spans):
            starts[place] = start
    return [Span(*span) for span in zip(starts, ends, strict=True)]


def _without_pauses(span: Span, quiet: Tensor) -> Span:
    """A span without the quiet frames at its ends; one that is all quiet stays."""
    loud = (~quiet[slice(*span)]).nonzero().flatten().tolist()
    return Span(span.first + loud[0], span.first + loud[-1] + 1) if loud else span
