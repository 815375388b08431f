"""Curves show the numbers that were logged, all of them and no others."""

import pytest

from greenformers.report.curves import Panel, line_panels, run_curves, save

LOG = [
    {"step": 5, "loss": 2.5, "grad_norm": 1.0, "learning_rate": 0.1, "epoch": 0.5},
    {"step": 10, "loss": 1.5, "epoch": 1.0},
    {"step": 10, "eval_loss": 1.75, "eval_perplexity": 5.75, "epoch": 1.0},
    {"step": 20, "eval_loss": 1.25, "eval_perplexity": 3.5, "epoch": 2.0},
]


def drawn(figure) -> list[dict[str, list[tuple[float, float]]]]:
    """Of each panel, its lines by name."""
    return [
        {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in axes.lines} for axes in figure.axes
    ]


def test_a_run_shows_what_it_logged() -> None:
    figure = run_curves("mine", LOG)
    assert drawn(figure) == [
        {"training": [(5, 2.5), (10, 1.5)], "validation": [(10, 1.75), (20, 1.25)]},
        {"eval_perplexity": [(10, 5.75), (20, 3.5)]},
    ]
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes] == [
        ("Step", "Loss"),
        ("Step", "Validation perplexity"),
    ]
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [["training", "validation"], []]
    training, validation = figure.axes[0].lines
    assert training.get_color() != validation.get_color()
    assert training.get_linestyle() != validation.get_linestyle()
    assert "mine" in figure.get_suptitle()


def test_a_run_without_loss_or_without_anything() -> None:
    assert drawn(run_curves("x", [{"step": 1, "eval_accuracy": 10.0}])) == [{"eval_accuracy": [(1, 10.0)]}]
    assert run_curves("x", []) is None
    assert run_curves("x", [{"step": 3, "epoch": 1.0}]) is None


@pytest.mark.usefixtures("drafts")
def test_the_same_log_gives_the_same_bytes(tmp_path) -> None:
    for name in ("one.png", "two.png"):
        save(run_curves("mine", LOG), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_doubling_has_ticks_at_the_points() -> None:
    lines = {"full": [(128, 1.0), (256, 2.0), (1024, 9.0)], "linformer": [(128, 1.0), (512, 2.5)], "none": []}
    figure = line_panels("growth", [Panel("Length", "ms", lines, doubling=True), Panel("Length", "ms", lines)])
    doubling, plain = figure.axes
    assert doubling.get_xscale() == "log"
    assert doubling.get_xticks().tolist() == [128, 256, 512, 1024]
    assert [label.get_text() for label in doubling.get_xticklabels()] == ["128", "256", "512", "1024"]
    assert plain.get_xscale() == "linear"
    assert drawn(figure)[0] == drawn(figure)[1] == lines


def test_few_points_have_markers_and_many_have_none() -> None:
    lines = {"few": [(n, n) for n in range(12)], "many": [(n, n) for n in range(13)]}
    few, many = line_panels("x", [Panel("a", "b", lines)]).axes[0].lines
    assert few.get_marker() == "o"
    assert many.get_marker() == "None"
