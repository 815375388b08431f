"""Scores against a quantity."""

import pytest

from greenformers.measure.record import Record
from greenformers.report.draws import draws


def test_points_stand_around_their_ticks_and_what_has_one_is_level() -> None:
    points = [("a", 0, 60.0), ("a", 100, 70.0), ("b", 0, 61.0), ("b", 100, 71.0), ("level", 0, 55.0)]
    records = [
        Record.of("auc", value, benchmark="x", variant=name, setting={"steps": steps}, context={})
        for name, steps, value in points
    ]
    (axes,) = draws("Title", "steps", records, "steps", metrics=["auc"]).axes
    lines = {line.get_label(): line.get_xdata() for line in axes.get_lines() if len(line.get_xdata()) == 2}
    drawn = [list(box.lines[0].get_xdata()) for box in axes.containers]
    assert drawn == [pytest.approx([-0.04, 0.96]), pytest.approx([0.04, 1.04])]
    assert "level" in lines
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "100"]
