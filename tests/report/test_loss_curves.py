"""Loss curves show the mean over seeds and the range, of the task and variant they name."""

import numpy as np
import pytest

from greenformers.measure.record import Record
from greenformers.report.curves import save
from greenformers.report.loss_curves import loss_curves, losses

TASKS = {"causal_lm": "Causal", "masked_lm": "Masked"}


def record(variant: str, task: str, step: int, seed: int, value: float, metric: str = "loss") -> Record:
    return Record("language_models", variant, {"task": task, "step": step, "seed": seed}, metric, value, "nats")


RECORDS = [
    record("full", "causal_lm", 20, 0, 2.0),
    record("full", "causal_lm", 10, 0, 3.0),
    record("full", "causal_lm", 10, 1, 3.5),
    record("full", "causal_lm", 20, 1, 2.25),
    record("full", "causal_lm", 20, 0, 7.0, "train_time"),
    record("linformer", "masked_lm", 10, 0, 4.0),
    record("full", "masked_lm", 10, 0, 5.0),
]


def test_losses_are_grouped_by_variant_and_step() -> None:
    assert losses(RECORDS, "causal_lm") == {"full": {10: [3.0, 3.5], 20: [2.0, 2.25]}}
    assert losses(RECORDS, "masked_lm") == {"linformer": {10: [4.0]}, "full": {10: [5.0]}}
    assert losses(RECORDS, "other") == {}


def test_a_run_that_was_repeated_counts_once() -> None:
    again = record("full", "causal_lm", 10, 1, 3.25)
    assert losses([*RECORDS, again], "causal_lm")["full"][10] == [3.0, 3.25]


def test_lines_are_means_and_shades_are_ranges() -> None:
    figure = loss_curves("title", RECORDS, TASKS)
    causal, masked = figure.axes
    (line,) = causal.lines
    assert line.get_xydata().tolist() == [[10, 3.25], [20, 2.125]]
    corners = causal.collections[0].get_paths()[0].vertices
    for x, low, high in ((10, 3.0, 3.5), (20, 2.0, 2.25)):
        ys = corners[np.isclose(corners[:, 0], x), 1]
        assert (ys.min(), ys.max()) == pytest.approx((low, high))
    assert {line.get_label(): line.get_ydata().tolist() for line in masked.lines} == {"linformer": [4.0], "full": [5.0]}
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Causal", "Masked"]


def test_a_variant_looks_alike_in_every_panel_and_is_named_once() -> None:
    figure = loss_curves("title", RECORDS, TASKS)
    colours = [{line.get_label(): line.get_color() for line in axes.lines} for axes in figure.axes]
    assert colours[0]["full"] == colours[1]["full"] != colours[1]["linformer"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["full", "linformer"]


@pytest.mark.usefixtures("drafts")
def test_the_same_records_give_the_same_bytes(tmp_path) -> None:
    for name in ("one.png", "two.png"):
        save(loss_curves("title", RECORDS, TASKS), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_without_records_the_panels_are_empty() -> None:
    figure = loss_curves("title", [], TASKS)
    assert [len(axes.lines) for axes in figure.axes] == [0, 0]
    assert not figure.legends
