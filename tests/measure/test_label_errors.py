"""Scores of suspicious labels against loops and automatic differentiation, in float64."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from greenformers.measure.label_errors import (
    SCORES,
    Observed,
    area_under_margin,
    confidence,
    estimated_errors,
    forgetting,
    influence,
    precision_at,
    recall_at_precision,
    self_influence,
    suspicion,
    variability,
)

MOMENTS, COUNT, CLASSES, WIDTH = 5, 11, 3, 7


def observed(seed: int = 0, count: int = COUNT, classes: int = CLASSES) -> Observed:
    """A layer of weights that differ at each moment, and the examples it sees."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(MOMENTS, count, WIDTH, generator=draw, dtype=torch.float64)
    weights = torch.randn(MOMENTS, classes, WIDTH + 1, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    logits = F.pad(features, (0, 1), value=1.0) @ weights.mT
    labels = torch.randint(classes, (count,), generator=draw)
    return Observed(logits, features, labels, torch.tensor([0.3, 0.5, 0.4, 0.2, 0.1], dtype=torch.float64))


def test_statistics_of_the_logits_are_those_of_loops() -> None:
    seen = observed()
    margins, means, deviations, events = [], [], [], []
    for example, label in enumerate(seen.labels.tolist()):
        rows = seen.logits[:, example].tolist()
        margins.append(sum(z[label] - max(z[:label] + z[label + 1 :]) for z in rows) / MOMENTS)
        shares = [math.exp(z[label]) / sum(map(math.exp, z)) for z in rows]
        means.append(sum(shares) / MOMENTS)
        deviations.append(math.sqrt(sum((share - means[-1]) ** 2 for share in shares) / MOMENTS))
        right = [z.index(max(z)) == label for z in rows]
        lost = sum(before and not after for before, after in pairwise(right))
        events.append(lost if any(right) else MOMENTS)
    given = seen.logits, seen.labels
    for function, expected in (
        (area_under_margin, margins), (confidence, means), (variability, deviations), (forgetting, events),
    ):  # fmt: skip
        assert_close(function(*given), torch.tensor(expected, dtype=torch.float64))
    assert 0 < max(events) <= MOMENTS


def gradients(seen: Observed) -> torch.Tensor:
    """Gradient of each example's loss by weight and bias of the last layer, (T, n, C, d + 1), by autograd."""
    rows = torch.zeros(*seen.logits.shape, WIDTH + 1, dtype=torch.float64)
    weights = torch.randn(
        MOMENTS, CLASSES, WIDTH + 1, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    ).requires_grad_()
    for moment in range(MOMENTS):
        for example, label in enumerate(seen.labels):
            inputs = torch.cat([seen.features[moment, example], torch.ones(1, dtype=torch.float64)])
            loss = F.cross_entropy(weights[moment] @ inputs, label)
            rows[moment, example] = torch.autograd.grad(loss, weights)[0][moment]
    return rows


def test_influences_are_products_of_gradients() -> None:
    seen, trusted = observed(), observed(1, 5)
    own, others = gradients(seen), gradients(trusted).mean(1)
    expected = [
        sum(float(rate) * float(own[t, i].square().sum()) for t, rate in enumerate(seen.rates)) for i in range(COUNT)
    ]
    assert_close(self_influence(seen), torch.tensor(expected, dtype=torch.float64))
    expected = [
        sum(float(rate) * float((own[t, i] * others[t]).sum()) for t, rate in enumerate(seen.rates))
        for i in range(COUNT)
    ]
    assert_close(influence(seen, trusted), torch.tensor(expected, dtype=torch.float64))
    assert_close(suspicion("influence", seen, trusted), -influence(seen, trusted))


def test_the_influences_of_an_example_on_itself_are_one() -> None:
    seen = observed(count=1)
    assert_close(influence(seen, seen), self_influence(seen))


def by_loops(probabilities: torch.Tensor, labels: torch.Tensor) -> int:
    """The confident joint, counted example by example."""
    classes, rows, names = probabilities.shape[1], probabilities.tolist(), labels.tolist()
    mean = {c: [row[c] for row, name in zip(rows, names, strict=True) if name == c] for c in range(classes)}
    joint = [[0] * classes for _ in range(classes)]
    for row, name in zip(rows, names, strict=True):
        above = [c for c in range(classes) if mean[c] and row[c] >= sum(mean[c]) / len(mean[c])]
        if above:
            joint[name][max(above, key=lambda c: row[c])] += 1
    wrong = 0.0
    for name in range(classes):
        if total := sum(joint[name]):
            wrong += names.count(name) * (total - joint[name][name]) / total
    return round(wrong)


@pytest.mark.parametrize("seed", range(5))
def test_confident_learning_counts_as_loops_do(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    probabilities = (3 * torch.randn(97, 5, generator=draw, dtype=torch.float64)).softmax(-1)
    labels = torch.randint(4, (97,), generator=draw)  # no example has the last class
    assert estimated_errors(probabilities, labels) == by_loops(probabilities, labels)


def test_confident_learning_counts_flips() -> None:
    """1,000 examples that are told apart well, of which 70 have the other label."""
    draw = torch.Generator().manual_seed(0)
    truth = torch.arange(1000) % 2
    right = 0.8 + 0.2 * torch.rand(1000, generator=draw)
    probabilities = torch.stack([torch.where(truth == c, right, 1 - right) for c in range(2)], -1)
    labels = truth.clone()
    labels[:70] = 1 - truth[:70]
    assert estimated_errors(probabilities, labels) == pytest.approx(70, abs=15)
    assert estimated_errors(probabilities, truth) == 0


def test_scores_rank_flipped_labels_first() -> None:
    """A linear classifier of two heaps, which learns the labels that most examples of a heap have."""
    draw = torch.Generator().manual_seed(0)
    truth = torch.arange(60) % 2
    inputs = torch.randn(60, WIDTH, generator=draw) + 3.0 * (2 * truth[:, None] - 1)
    labels = truth.clone()
    labels[:4] = 1 - truth[:4]
    layer, logits = torch.nn.Linear(WIDTH, 2), []
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(9):
        optimizer.zero_grad()
        F.cross_entropy(layer(inputs), labels).backward()
        optimizer.step()
        logits.append(layer(inputs).detach())
    rates = torch.full((9,), 0.1)
    seen = Observed(torch.stack(logits), inputs.expand(9, -1, -1), labels, rates)
    trusted = Observed(seen.logits[:, 30:], seen.features[:, 30:], truth[30:], rates)
    wrong = labels != truth
    for name in ("margin", "confidence", "influence"):
        assert precision_at(suspicion(name, seen, trusted), wrong, 4) == 100, name
    assert precision_at(suspicion("self_influence", seen, trusted), wrong, 4) >= 75
    assert all(suspicion(name, seen, trusted).shape == (60,) for name in SCORES)


def test_precision_and_recall_are_counted() -> None:
    scores = torch.tensor([0.9, 0.1, 0.8, 0.5, 0.7, 0.2])
    wrong = torch.tensor([True, True, False, True, True, False])
    # In order: wrong, right, wrong, wrong, right, wrong.
    assert [precision_at(scores, wrong, count) for count in (1, 2, 4)] == [100, 50, 75]
    assert [recall_at_precision(scores, wrong, at) for at in (100, 75, 66, 0)] == [25, 75, 100, 100]
    assert recall_at_precision(-scores, wrong, 100) == 25
    assert recall_at_precision(scores, ~wrong, 100) == 0


def test_refusals() -> None:
    seen = observed()
    with pytest.raises(ValueError, match=r"^score must be one of margin, .*, influence, got 'aum'$"):
        suspicion("aum", seen)
    with pytest.raises(ValueError, match=r"^influence needs trusted examples, got none$"):
        suspicion("influence", seen)
    fewer = Observed(seen.logits[:2], seen.features[:2], seen.labels, seen.rates[:2])
    with pytest.raises(ValueError, match=r"observed at the 5 moments of the others, got 2 moments$"):
        influence(seen, fewer)
    with pytest.raises(ValueError, match=r"^labels must be in 0\.\.2, got 0\.\.3$"):
        Observed(seen.logits, seen.features, torch.arange(COUNT) % 4, seen.rates)
    with pytest.raises(ValueError, match=r"^features must begin with \(5, 11\), as the logits do; got \(5, 10, 7\)$"):
        Observed(seen.logits, seen.features[:, 1:], seen.labels, seen.rates)
    with pytest.raises(ValueError, match=r"^logits must be of at least 1 example and 2 classes, got 11 and 1$"):
        Observed(seen.logits[..., :1], seen.features, seen.labels, seen.rates)
    scores, wrong = torch.arange(3.0), torch.tensor([True, False, False])
    with pytest.raises(ValueError, match=r"^count must be in 1\.\.3, got 4$"):
        precision_at(scores, wrong, 4)
    with pytest.raises(ValueError, match=r"^precision must be in 0\.\.100, got 101$"):
        recall_at_precision(scores, wrong, 101)
    with pytest.raises(ValueError, match=r"^at least one label must be wrong, got none$"):
        recall_at_precision(scores, wrong & False, 60)
