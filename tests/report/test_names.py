"""Names beside points and lines: apart from each other, and as near to their own as that allows."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from greenformers.report.curves import Panel, line_panels
from greenformers.report.names import spread
from greenformers.report.track import track


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.5, 0.5], [0.55, 0.45]),
        ([0.5, 0.52, 0.1], [0.46, 0.56, 0.1]),
        ([0.99, 1.0], [0.9, 1.0]),
        ([0.0, 0.0, 0.0], [0.2, 0.1, 0.0]),
        ([], []),
    ],
)
def test_places_are_spread_no_more_than_need_be(places: list[float], expected: list[float]) -> None:
    positions = spread(places, 0.1)
    assert sorted(positions) == pytest.approx(sorted(expected))
    assert [positions[index] for index in sorted(range(len(places)), key=places.__getitem__)] == sorted(positions)


def boxes(figure) -> list:
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    return [Text.get_window_extent(text, renderer) for axes in figure.axes for text in axes.texts]


def test_lines_that_end_together_are_named_apart() -> None:
    lines = {f"line {number}": [(1, 1.0), (2, 2.0 + number / 1000)] for number in range(6)}
    figure = line_panels("x", [Panel("a", "b", lines)])
    names = boxes(figure)
    assert len(names) == 6
    assert all(not box.overlaps(other) for place, box in enumerate(names) for other in names[place + 1 :])
    assert all(box.x1 <= figure.bbox.x1 for box in names)


def test_a_track_shows_the_figures_of_its_names_and_writes_them_apart() -> None:
    marks = {100 + place: (f"name {place}", 0.5 - place / 100) for place in range(10)} | {5000: ("outside", 9.0)}
    figure = track("x", 100, [0.01] * 1000, marks)
    names = boxes(figure)
    assert len(names) == 10
    assert all(not box.overlaps(other) for place, box in enumerate(names) for other in names[place + 1 :])
    axes, below = figure.axes
    assert axes.get_ylabel() != below.get_ylabel()
    assert list(axes.containers[0].markerline.get_ydata()) == [0.5 - place / 100 for place in range(10)]
    assert axes.get_ylim()[1] == pytest.approx(1.05 * 0.5)
    assert below.get_ylim()[1] == pytest.approx(1.05 * 0.01)


def test_a_track_writes_as_many_names_as_have_room() -> None:
    figure = track("x", 100, [0.01] * 1000, {100 + 9 * place: (f"4541{place:04}", place / 10) for place in range(100)})
    names = boxes(figure)
    assert len(names) == 37
    assert all(not box.overlaps(other) for place, box in enumerate(names) for other in names[place + 1 :])
    assert {text.get_text() for text in figure.axes[0].texts} == {f"4541{place:04}" for place in range(63, 100)}
    assert len(figure.axes[0].containers[0].markerline.get_ydata()) == 100
