from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from greenformers.measure.quality import accuracy, correct, paired_difference, predict


def test_accuracy_of_classes_and_of_logits():
    labels = torch.tensor([0, 1, 2, 1])
    logits = torch.eye(3)[torch.tensor([0, 1, 1, 1])]
    assert accuracy(logits, labels) == 75.0
    assert accuracy(logits.argmax(-1), labels) == 75.0
    assert correct(logits, labels).tolist() == [True, True, False, True]


def test_positions_labelled_ignored_are_left_out():
    labels = torch.tensor([[0, -100, 2], [-100, -100, 1]])
    predictions = torch.tensor([[0, 0, 1], [0, 0, 1]])
    assert accuracy(predictions, labels) == pytest.approx(200 / 3)
    assert correct(predictions, labels).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        (torch.zeros(5, 3), torch.zeros(7, dtype=torch.long), r"logits \(7,\) \+ \(C,\).*got \(5, 3\)"),
        (torch.zeros(5), torch.zeros(5, dtype=torch.long), "or classes.*of torch.float32"),
        (torch.full((5, 3), torch.nan), torch.zeros(5, dtype=torch.long), "got nan"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "at least one label"),
        (torch.zeros(5, 3), torch.full((5,), -100), "at least one label"),
    ],
)
def test_what_has_no_accuracy_is_an_error(outputs, labels, message):
    with pytest.raises(ValueError, match=message):
        accuracy(outputs, labels)


class Examples(Dataset):
    """Example i is a one-hot row of class i % 3, which its label names; every fifth label is wrong."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return {"input_values": torch.eye(3)[i % 3], "labels": (i + (i % 5 == 0)) % 3}


class Model(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.dropout, self.frozen = nn.Dropout(0.9), nn.Dropout(0.9).eval()
        self.batches = []

    def forward(self, input_values, labels=None):
        assert labels is None
        assert not torch.is_grad_enabled()
        self.batches.append(len(input_values))
        return SimpleNamespace(logits=self.frozen(self.dropout(input_values)) * self.scale)


def test_predictions_keep_the_order_and_the_model_its_mode():
    model = Model()
    predictions, labels = predict(model, Examples(23), batch_size=5)
    assert model.batches == [5, 5, 5, 5, 3]
    assert predictions.tolist() == [i % 3 for i in range(23)]
    assert accuracy(predictions, labels) == pytest.approx(100 * 18 / 23)
    assert (model.training, model.dropout.training, model.frozen.training) == (True, True, False)


def test_the_collator_and_the_labels_key_are_the_callers():
    def collate(examples):
        return {
            "input_values": torch.stack([example["input_values"] for example in examples]),
            "truth": torch.tensor([example["labels"] for example in examples]),
        }

    predictions, labels = predict(Model(), Examples(7), labels="truth", collate=collate)
    assert correct(predictions, labels).sum() == 5


@pytest.mark.parametrize(
    ("model", "size", "options", "message"),
    [
        (Model(), 0, {}, "at least one example"),
        (Model(), 7, {"labels": "label"}, r"must have 'label', got \['input_values', 'labels'\]"),
        (Model(), 7, {"batch_size": 0}, "batch_size=0"),
        (Model(torch.nan), 7, {}, "got nan"),
    ],
)
def test_what_cannot_be_predicted_is_an_error(model, size, options, message):
    with pytest.raises(ValueError, match=message):
        predict(model, Examples(size), **options)
    assert model.training


def test_difference_of_pairs_is_signed_and_in_points():
    a, b = [True] * 90 + [False] * 10, [True] * 60 + [False] * 40
    difference, low, high = paired_difference(a, b)
    assert difference == pytest.approx(30)
    assert 0 < low < 30 < high < 100
    assert paired_difference(b, a) == pytest.approx((-difference, -high, -low))


def test_a_few_changed_examples_are_within_noise():
    a = torch.ones(200, dtype=torch.bool)
    b = a.clone()
    b[:3] = False
    difference, low, high = paired_difference(a, b)
    assert difference == pytest.approx(1.5)
    assert low < 0 < high


def test_agreement_on_every_example_still_has_a_width():
    difference, low, high = paired_difference([True] * 50, [True] * 50)
    assert difference == 0
    assert low == -high < -1


def test_the_interval_narrows_with_examples_and_widens_with_confidence():
    def width(n, **options):
        _, low, high = paired_difference([True, True, False] * n, [True, False, True] * n, **options)
        return high - low

    assert width(100) < width(30) < width(30, confidence=0.99)


@pytest.mark.parametrize(("only_a", "only_b"), [(0.3, 0.2), (0.05, 0.05), (0.1, 0.02)])
def test_the_interval_covers_the_true_difference_as_often_as_it_says(only_a, only_b):
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        kind = draw.random(100)
        a, b = kind < only_a, kind > 1 - only_b
        _, low, high = paired_difference(torch.from_numpy(a), torch.from_numpy(b))
        covered += low <= 100 * (only_a - only_b) <= high
    assert 0.94 <= covered / 2000 <= 0.985


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ([True], [True, False], {}, r"one length, got \(1,\) and \(2,\)"),
        ([], [], {}, r"got \(0,\)"),
        ([True], [True], {"confidence": 1.0}, "between 0 and 1, got 1.0"),
    ],
)
def test_what_cannot_be_paired_is_an_error(a, b, options, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(a, b, **options)
