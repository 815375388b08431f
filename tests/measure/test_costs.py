"""Costs side by side: each figure belongs to its subject."""

import pytest
import torch
from torch import nn

from greenformers.measure.costs import INFERENCE, TRAINING, Subject, costs


def subject(width: int) -> Subject:
    layer = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5))
    x = torch.randn(64, width)
    return Subject(layer, lambda: layer(x).sum())


def test_every_metric_of_every_subject() -> None:
    subjects = {"small": subject(128), "large": subject(512)}
    records = costs(subjects, benchmark="b", setting={"width": 1}, repeats=3, about={"seed": 0})
    figure = {(record.variant, record.metric): record for record in records}
    assert set(figure) == {(name, metric) for name in subjects for metric in INFERENCE + TRAINING}
    assert figure["small", "parameters"].value == 128 * 129
    assert figure["small", "flops"].value == 2 * 64 * 128 * 128 / 1e9
    # Backward: the weight's gradient alone, for the input asks for none.
    assert figure["small", "flops_training"].value == 2 * figure["small", "flops"].value
    assert figure["small", "flops"].source == "counted"
    assert figure["large", "latency"].source == "measured"
    # The product and the sum of it; dropout passes it through.
    assert figure["large", "peak_memory_inference"].value == pytest.approx(64 * 512 * 4 / 2**20, rel=0.01)
    assert figure["large", "peak_memory_training"].value > 512 * 512 * 4 / 2**20
    assert figure["large", "latency"].spread is not None
    assert all(record.context == {"seed": 0} for record in records)
    assert all(parameter.grad is None for item in subjects.values() for parameter in item.module.parameters())


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metrics must be of .*; got speed"):
        costs({"a": subject(8)}, ["speed"], benchmark="b", setting={}, repeats=1, about={})


@pytest.mark.parametrize("memory", [True, False])
def test_a_call_whose_memory_was_measured_is_warm(memory: bool) -> None:
    layer, calls = nn.Linear(8, 8), []
    item = Subject(layer, lambda: calls.append(layer.training) or layer(torch.randn(4, 8)).sum())
    metrics = ["latency", "train_step", *["peak_memory_inference", "peak_memory_training"] * memory]
    costs({"a": item}, metrics, benchmark="b", setting={}, repeats=3, about={})
    assert calls == [False] * 4 + [True] * 4
