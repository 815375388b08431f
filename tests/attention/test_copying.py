"""What learned patterns learn: a word of 127 symbols is written again, each symbol 128 places after it was read."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from greenformers.attention import Shape, build

HEADS, DIM, SYMBOLS = 2, 16, 16


class Copier(nn.Module):
    """One layer between tokens and their logits."""

    def __init__(self, attention, length, **options):
        super().__init__()
        width = HEADS * DIM
        self.tokens, self.places = nn.Embedding(SYMBOLS + 2, width), nn.Embedding(length, width)
        self.attention = build(attention, Shape(HEADS, DIM, length), **options)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.logits = nn.Linear(width, SYMBOLS + 2)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        k = self.q if self.attention.shares_qk else self.k
        q, k, v = (each(x).unflatten(2, (HEADS, DIM)).transpose(1, 2) for each in (self.q, k, self.v))
        if self.attention.has_loss:
            out, loss = self.attention.forward_with_loss(q, k, v)
        else:
            out, loss = self.attention(q, k, v), 0.0
        return self.logits(x + self.out(out.transpose(1, 2).flatten(2))), loss


def copied(attention, length, steps, **options):
    """The share of symbols copied after training, of a word between separators, and its copy hidden."""
    torch.manual_seed(0)
    width = length // 2 - 1
    model = Copier(attention, length, **options).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def batch(size):
        words = torch.randint(2, SYMBOLS + 2, (size, width))
        separators = torch.zeros(size, 1, dtype=torch.long)
        return torch.cat([separators, words, separators, torch.ones_like(words)], 1), words

    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 + math.cos(math.pi * step / steps)) / 2
        given, words = batch(32)
        logits, loss = model(given)
        (F.cross_entropy(logits[:, -width:].flatten(0, 1), words.flatten()) + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.attention.update_()
    model.eval()
    with torch.no_grad():
        given, words = batch(64)
        return (model(given)[0][:, -width:].argmax(-1) == words).double().mean().item()


@pytest.mark.slow
def test_reformer_learns_to_copy():
    assert copied("reformer", 64, 350, chunk=8, rounds=4) > 0.95


@pytest.mark.slow
def test_without_its_hashes_it_does_not():
    """What is copied is 32 positions away, and 15 are seen."""
    assert copied("reformer", 64, 350, chunk=8, n_buckets=1) < 0.5


@pytest.mark.slow
@pytest.mark.timeout(900)  # 275 s on a busy core
@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("reformer", {"chunk": 32, "rounds": 4}),
        ("routing", {"clusters": 8, "window": 96, "decay": 0.99}),
        ("sinkhorn", {"block": 32, "sort": "products"}),
    ],
)
def test_it_learns_to_copy_from_far(attention, options):
    assert copied(attention, 256, 1000, **options) > 0.95


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sorting_network_copies_most():
    """0.76 where products of sums copy all: a sum does not say which symbols stand where."""
    assert copied("sinkhorn", 256, 1000, block=32) > 0.6
