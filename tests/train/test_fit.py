"""Training: deterministic by its seed, honest about time, and it learns."""

import pytest
import torch
from rich.console import Console
from transformers import set_seed

from greenformers.data import Splits, load
from greenformers.measure.quality import accuracy, predict
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification
from greenformers.train.fit import History, Schedule, fit


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load("digits", limit=200, pool=2)


def trained(data: Splits, schedule: Schedule) -> tuple[GreenformerForSequenceClassification, History]:
    set_seed(schedule.seed)
    config = GreenformerConfig(
        vocab_size=None, input_features=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=data.length + 1, initializer_range=0.2,
        num_labels=data.classes,
    )  # fmt: skip
    model = GreenformerForSequenceClassification(config)
    return model, fit(model, data.train, data.test, schedule, label="tiny", console=Console(quiet=True))


def test_it_learns_and_tells_how(digits: Splits) -> None:
    schedule = Schedule(epochs=20, batch_size=20, learning_rate=5e-3)
    model, history = trained(digits, schedule)
    assert [step for step, _ in history.loss] == [10 * epoch for epoch in range(1, 21)]
    assert [epoch for epoch, _ in history.accuracy] == list(range(1, 21))
    assert history.loss[-1][1] < 0.6 * history.loss[0][1]
    assert history.accuracy[-1][1] > 50  # ten classes: chance is 10
    assert history.accuracy[-1][1] == pytest.approx(accuracy(*predict(model, digits.test)))
    assert history.seconds > 0


def test_the_same_seed_gives_the_same_model(digits: Splits) -> None:
    schedule = Schedule(epochs=1, batch_size=32, seed=5)
    (one, _), (two, _) = trained(digits, schedule), trained(digits, schedule)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    other, _ = trained(digits, Schedule(epochs=1, batch_size=32, seed=6))
    assert not torch.equal(other.classifier.weight, one.classifier.weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, r"learning_rate must be above 0, got 0\.0"),
        ({"warmup": 1.5}, r"warmup must be in 0\.\.1, got 1\.5"),
    ],
)
def test_a_schedule_out_of_range_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**options)
