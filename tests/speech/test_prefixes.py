"""Prefix probabilities of CTC: against all alignments there are, and against algorithm 2 with its loops."""

import math
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from greenformers.speech.prefixes import Prefixes

BLANK, END = 0, 1
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def scores(*lengths, vocabulary, spread=1.0, seed=0):
    source = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(len(lengths), max(lengths), vocabulary, dtype=torch.float64, generator=source)
    return logits, torch.tensor(lengths)


def collapsed(alignment):
    """The text of an alignment: repeats are one, and blanks nothing."""
    before = (BLANK, *alignment[:-1])
    return tuple(token for token, last in zip(alignment, before, strict=True) if token not in (BLANK, last))


def texts(logits):
    """The probability of every text, summed over its alignments (T, V)."""
    p = logits.softmax(1).tolist()
    sums = {}
    for alignment in product(range(len(p[0])), repeat=len(p)):
        text = collapsed(alignment)
        sums[text] = sums.get(text, 0) + math.prod(row[token] for row, token in zip(p, alignment, strict=True))
    return sums


def algorithm_2(logits, text):
    """Watanabe 2017: log-probability of all texts that begin with this one, and of this one alone."""
    y = logits.softmax(1).tolist()
    positions = range(1, len(y) + 1)
    n, b = [0.0] * (len(y) + 1), [1.0] + [0.0] * len(y)
    for t in positions:
        b[t] = b[t - 1] * y[t - 1][BLANK]
    reached = 1.0
    for place, c in enumerate(text):
        new_n, new_b, reached = [0.0] * (len(y) + 1), [0.0] * (len(y) + 1), 0.0
        for t in positions:
            phi = b[t - 1] + (0.0 if place and text[place - 1] == c else n[t - 1])
            new_n[t] = (new_n[t - 1] + phi) * y[t - 1][c]
            new_b[t] = (new_b[t - 1] + new_n[t - 1]) * y[t - 1][BLANK]
            reached += phi * y[t - 1][c]
        n, b = new_n, new_b
    return log(reached), log(n[-1] + b[-1])


def log(p):
    return math.log(p) if p > 0 else -math.inf


def walked(logits, lengths, written):
    """Log-probabilities of all prefixes after the texts (B, W, N), and of what follows them (B, W, V)."""
    batch, width, count = written.shape
    prefixes = Prefixes(logits, lengths, width, blank=BLANK, end=END)
    before = torch.zeros(batch, width, dtype=torch.float64)
    own = torch.arange(width).expand(batch, -1)
    for place in range(count):
        before = before + prefixes.next().gather(2, written[..., place, None])[..., 0]
        prefixes.follow(own, written[..., place])
    return before, before[..., None] + prefixes.next()


@pytest.mark.parametrize("positions", [1, 2, 3, 4, 5])
def test_against_all_alignments(positions):
    """Of a blank and two characters, 3 and 4; tokens 1 and 2 are marks that are scored, and never written."""
    logits, lengths = scores(positions, vocabulary=4, seed=positions)
    # The end has a column here, and no probability of its own.
    logits[..., END] = -800
    sums = texts(logits[0])
    assert sum(sums.values()) == pytest.approx(1)
    for count in range(positions):
        for text in product((2, 3), repeat=count):
            before, after = walked(logits, lengths, torch.tensor([[list(text)]], dtype=torch.long))
            begins = {c: sum(p for whole, p in sums.items() if whole[: count + 1] == (*text, c)) for c in (2, 3)}
            assert after[0, 0, END].item() == pytest.approx(log(sums.get(text, 0.0)), abs=1e-10)
            for c, p in begins.items():
                assert after[0, 0, c].item() == pytest.approx(log(p), abs=1e-10)
            # What begins with a text is the text itself, or goes on.
            whole = sum(p for other, p in sums.items() if other[:count] == text)
            assert before[0, 0].item() == pytest.approx(log(whole), abs=1e-10)
            assert after[0, 0, BLANK] == -math.inf


@pytest.mark.parametrize("spread", [0.3, 3.0, 9.0])
def test_against_algorithm_2_in_a_batch(spread):
    """All texts of 7 tokens at once, alone and behind padding of any value."""
    lengths = (23, 11, 5, 2, 0)
    logits, lengths = scores(*lengths, vocabulary=5, spread=spread)
    written = torch.randint(2, 5, (5, 3, 7), generator=torch.Generator().manual_seed(1))
    written[0, 0] = 3  # repeats alone
    for count in (0, 1, 4, 7):
        before, after = walked(logits, lengths, written[..., :count])
        for row, length in enumerate(lengths.tolist()):
            for beam in range(3):
                text = written[row, beam, :count].tolist()
                reached, _ = algorithm_2(logits[row, :length], text)
                assert before[row, beam].item() == pytest.approx(reached, abs=1e-9, rel=1e-9)
                if reached == -math.inf:
                    assert (after[row, beam] == -math.inf).all()
                    continue
                for c in (2, 3, 4):
                    expected = algorithm_2(logits[row, :length], [*text, c])[0]
                    assert after[row, beam, c].item() == pytest.approx(expected, abs=1e-9, rel=1e-9)
                expected = algorithm_2(logits[row, :length], text)[1]
                assert after[row, beam, END].item() == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_the_end_is_the_loss_of_torch():
    logits, lengths = scores(19, 13, 7, vocabulary=6, spread=2)
    written = torch.tensor([[[2, 3, 3, 5]], [[4, 4, 4, 2]], [[5, 2, 5, 2]]])
    _, after = walked(logits, lengths, written)
    losses = torch.nn.functional.ctc_loss(
        logits.log_softmax(2).transpose(0, 1), written[:, 0], lengths, torch.tensor([4, 4, 4]), reduction="none"
    )
    assert_close(after[:, 0, END], -losses, **CLOSE)


def test_beams_follow_their_parents_and_utterances_leave():
    """After three steps in any order, and without the second utterance, as if each had been walked alone."""
    logits, lengths = scores(9, 5, 8, vocabulary=5)
    prefixes = Prefixes(logits, lengths, 3, blank=BLANK, end=END)
    parents = torch.tensor([[[0, 0, 1], [2, 2, 0], [1, 0, 1]], [[2, 1, 0], [1, 1, 1], [0, 2, 2]]])
    tokens = torch.tensor([[[2, 3, 3], [4, 2, 2], [3, 3, 4]], [[3, 4, 2], [2, 2, 3], [4, 4, 2]]])
    rows = torch.arange(3)
    histories = [[[] for _ in range(3)] for _ in range(3)]
    for parent, token in zip(parents, tokens, strict=True):
        prefixes.next()
        prefixes.follow(parent, token)
        histories = [
            [[*histories[row][parent[row, beam]], token[row, beam].item()] for beam in range(3)] for row in range(3)
        ]
    rows = torch.tensor([0, 2])
    prefixes.keep(rows)
    transcripts = torch.tensor([histories[row] for row in rows])
    before, after = walked(logits[rows], lengths[rows], transcripts)
    assert_close(prefixes.reached, before, **CLOSE)
    assert_close(prefixes.next(), after - before[..., None], **CLOSE)


def test_many_positions_and_strong_opinions():
    """400 positions, most of them certain: float64 is enough for sums of logs below -10,000."""
    logits, lengths = scores(400, vocabulary=4, spread=2)
    logits[0, :, BLANK] += 60 * (torch.arange(400) % 7 != 0)
    written = torch.randint(2, 4, (1, 1, 30), generator=torch.Generator().manual_seed(2))
    _, after = walked(logits, lengths, written)
    losses = torch.nn.functional.ctc_loss(
        logits.log_softmax(2).transpose(0, 1), written[:, 0], lengths, torch.tensor([30]), reduction="none"
    )
    assert after[0, 0, END].item() == pytest.approx(-losses.item(), rel=1e-10)
    assert after.isfinite()[..., 1:].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    """Of 200 positions and 9 characters; sums are in float64, and probabilities in float32."""
    logits, lengths = scores(200, 60, vocabulary=5, spread=3)
    logits = logits.to(dtype)
    written = torch.randint(2, 5, (2, 2, 9), generator=torch.Generator().manual_seed(3))
    assert Prefixes(logits, lengths, 2, blank=BLANK, end=END).next().dtype == torch.float32
    for values, expected in zip(
        walked(logits, lengths, written), walked(logits.double(), lengths, written), strict=True
    ):
        assert_close(values, expected, atol=1e-4, rtol=1e-6)
