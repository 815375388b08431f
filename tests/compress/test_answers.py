"""What models answer, and the intervals of how they differ."""

import math

import numpy as np
import pytest
import torch
from models import sentences, tokenizer
from zoo import network

from greenformers.compress.answers import Embedded, Predicted, Several
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts

DRAW = np.random.default_rng(0)


def test_the_interval_of_a_perplexity_is_paired_by_text() -> None:
    """Losses of texts differ far more than the two models do."""
    tokens = DRAW.integers(5, 50, 60)
    losses = tokens * DRAW.uniform(1, 6, 60)
    own, worse = Predicted(losses, tokens), Predicted(losses + 0.1 * tokens, tokens)
    before, (after, interval) = own.scores()["perplexity"][0], worse.scores(own)["perplexity"]
    assert before == pytest.approx(np.exp(losses.sum() / tokens.sum()))
    assert after == pytest.approx(before * np.exp(0.1))
    assert interval is not None
    low, high = interval
    assert 0 < low < after - before < high
    assert own.scores(own)["perplexity"][1] == [0.0, 0.0]


def test_texts_without_a_token_that_is_judged_say_nothing() -> None:
    tokens, losses = DRAW.integers(5, 50, 20), DRAW.uniform(5, 90, 20)
    other = losses + DRAW.uniform(0, 2, 20)
    empty = np.zeros(3)
    more = [np.concatenate([values, empty]) for values in (losses, other, tokens)]
    scores = Predicted(other, tokens).scores(Predicted(losses, tokens))
    assert Predicted(more[1], more[2]).scores(Predicted(more[0], more[2])) == scores
    assert Predicted(losses + 1e4 * tokens, tokens).scores() == {"perplexity": (math.inf, None)}
    single = Predicted(losses[:1], tokens[:1])
    assert single.scores(single)["perplexity"][1] is None


def test_narrower_embeddings_are_judged_by_their_pairs_alone() -> None:
    rows = torch.nn.functional.normalize(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    scored = DRAW.normal(size=20)
    narrow = torch.nn.functional.normalize(rows[:, :6], dim=1)
    scores = Several([Embedded(narrow, scored)]).scores(Several([Embedded(rows, scored)]))
    assert scores.keys() == {"spearman"}
    value, interval = scores["spearman"]
    assert interval is not None
    assert interval[0] < value - Embedded(rows, scored).scores()["spearman"][0] < interval[1]


def test_a_mean_cosine_has_an_interval_of_what_it_is_below_one() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(50, 8, generator=draw), dim=1)
    other = torch.nn.functional.normalize(rows + 0.1 * torch.randn(50, 8, generator=draw), dim=1)
    value, interval = Embedded(other).scores(Embedded(rows))["cosine"]
    assert interval is not None
    assert -0.1 < interval[0] < value - 1 < interval[1] < 0
    assert Embedded(rows).scores()["cosine"] == (pytest.approx(1), None)


@pytest.mark.parametrize(("family", "head"), [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM")])
def test_language_models_have_an_interval_beside_the_original(family: str, head: str) -> None:
    model, other = network(family, head), network(family, head)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    texts = Texts("texts", [(text,) for text in sentences(60)])
    scores = judge({"own": model, "other": other}, texts, Reader.of(model, tokenizer(family), 16))
    (before, none), (after, interval) = (scores[name]["perplexity"] for name in ("own", "other"))
    assert none is None
    assert interval is not None
    assert interval[0] < after - before < interval[1]
