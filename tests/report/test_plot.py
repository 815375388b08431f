import itertools
import math
from dataclasses import replace
from functools import cache

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text
from test_table import DEMO, INTERVALS, LONG, figure, sample

from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.report import plot
from greenformers.report.digits import label
from greenformers.report.sections import sections, variants

LONG_NAME = "a_$b^2$ name that goes on for a good while"


def crowd() -> list[Record]:
    """Nine variants, close together, one with a long name that would be mathematics."""
    records = [record for record in sample() if record.setting["at"] == "demo"]
    for copy in range(5):
        records += [
            replace(record, variant=f"variant-{copy}" if copy else LONG_NAME, value=record.value * (1 - copy / 150))
            for record in records
            if record.variant == "linformer"
        ]
    return with_ratios(records, "transformer")


@pytest.fixture(scope="module")
def pictures():
    return plot.pictures(sample())


@pytest.fixture(scope="module", params=["sample", "crowd"])
def drawn(request, pictures):
    return plot.pictures(crowd()) if request.param == "crowd" else pictures


@cache
def seen(figure):
    """The texts that are drawn, each with its box in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    hidden = set()
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            hidden |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in hidden]
    return [(text, Text.get_window_extent(text, renderer)) for text in texts]


def test_every_setting_has_its_pictures(pictures):
    assert [picture.name for picture in pictures] == [
        "accuracy-demo",
        "ratios-demo",
        "curves-demo",
        "ratios-layer-length-128-batch-32",
        "ratios-layer-length-4096-batch-1",
    ]


def test_no_text_leaves_the_figure(drawn):
    for picture in drawn:
        for text, box in seen(picture.figure):
            frame = picture.figure.bbox
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            assert inside, (picture.name, text.get_text())


def test_no_text_hides_another(drawn):
    for picture in drawn:
        for (text, box), (other, another) in itertools.combinations(seen(picture.figure), 2):
            assert not box.padded(-1).overlaps(another), (picture.name, text.get_text(), other.get_text())


def test_notes_stay_inside_their_axes(drawn):
    notes = [
        (picture.name, text, box)
        for picture in drawn
        for text, box in seen(picture.figure)
        if isinstance(text, Annotation)
    ]
    assert notes
    for name, text, box in notes:
        frame = text.axes.bbox
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1 + 1, (name, text.get_text())


def test_every_axis_says_its_unit(drawn):
    for picture in drawn:
        for axes in picture.figure.axes:
            assert axes.get_xlabel().removesuffix(", estimated").endswith(")"), (picture.name, axes.get_title("left"))
            if picture.name.startswith("curves"):
                assert axes.get_ylabel().endswith(")")
        if picture.name.startswith("accuracy"):
            assert picture.figure.axes[0].get_ylabel() == "Test accuracy (%)"


def test_a_panel_a_metric_and_a_bar_a_variant(pictures):
    picture = next(picture for picture in pictures if picture.name.endswith("4096-batch-1"))
    titles = [axes.get_title("left") for axes in picture.figure.axes]
    assert titles[:3] == [METRICS[metric].label for metric in ("parameters", "train_step", "latency")]
    panel = picture.figure.axes[2]
    names = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    assert names == ["lrt", "linformer", "lrt+linformer", "transformer (eager)"]
    assert [round(bar.get_x() + bar.get_width(), 2) for bar in panel.patches] == [1.12, 5.37, 8.12, 0.74]
    assert {"baseline 2,160 ms", "8.1x", "0.74x"} <= {text.get_text() for text in panel.texts}
    assert "not measured" in {text.get_text() for axes in picture.figure.axes for text in axes.texts}
    assert f"{METRICS['latency'].label}: lrt 1.1x, linformer 5.4x, lrt+linformer 8.1x" in picture.alt


def test_a_figure_of_nothing_has_no_ratio_and_is_not_called_unmeasured():
    values = {"test_accuracy": (91.0, 92.0, 90.0), "cer": (2.0, 0.0, 1.0)}  # 0: without errors
    records = [
        Record.of(metric, own[place], benchmark="demo", variant=name)
        for place, name in enumerate(("transformer", "lrt", "linformer"))
        for metric, own in values.items()
    ]
    picture = next(own for own in plot.pictures(with_ratios(records, "transformer")) if own.name.startswith("ratios"))
    texts = [text.get_text() for axes in picture.figure.axes for text in axes.texts]
    assert "no ratio" in texts
    assert "not measured" not in texts


def test_an_estimate_is_called_one(pictures):
    accuracy, ratios, _ = pictures[:3]
    assert accuracy.figure.axes[1].get_xlabel() == f"{label('energy', 'mWh')}, estimated"
    notes = {text.get_text() for axes in ratios.figure.axes for text in axes.texts}
    assert {"baseline 41.2 mg, estimated", "baseline 7.91 ms"} <= notes


def test_an_interval_is_a_line_through_its_bar(pictures):
    panel = pictures[1].figure.axes[2]
    assert panel.get_title("left") == METRICS["test_accuracy"].label
    lines = [list(line.get_xdata()) for line in panel.lines[1:]]
    assert lines == list(INTERVALS.values())


def test_looks_differ_in_colour_and_in_shape():
    looks = plot.looks([str(number) for number in range(60)])
    assert len(set(looks.values())) == 60
    few = list(looks.values())[:7]
    assert len({look.colour for look in few}) == len({look.marker for look in few}) == 7
    assert looks["0"].colour == "#000000"


def test_colours_are_far_apart():
    """In the plane of lightness and blue against yellow, which the colour-blind also see; brief by design."""

    def seen_by_all(colour):
        red, green, blue = matplotlib.colors.to_rgb(colour)
        lightness = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        return lightness, blue - lightness

    for first, second in itertools.combinations(plot.COLOURS, 2):
        assert math.dist(seen_by_all(first), seen_by_all(second)) > 0.1, (first, second)


def test_a_variant_looks_alike_in_all_pictures():
    parts = sections(sample())
    dress = plot.looks(variants(parts))
    lines = {line.get_label(): line.get_color() for line in plot.curves(parts[0], dress).axes[0].lines}
    assert lines == {name: dress[name].colour for name in lines}
    assert len(lines) == 4


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(pictures, tmp_path):
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "savefig.dpi": 20}):
        for picture in plot.pictures(sample())[:3]:
            plot.save(picture.figure, tmp_path / f"{picture.name}.png")
    for picture in pictures[:3]:  # one of each kind
        data = (tmp_path / f"{picture.name}.png").read_bytes()
        assert data == plot.png(picture.figure)
        assert b"Software" not in data
        assert b"tEXt" not in data


def test_names_of_files_are_plain_and_differ():
    first, second = ({"at": "../../x/Ü", "rank": rank} for rank in (4, "4"))
    records = [
        figure(variant, setting, "latency", value)
        for setting in (first, second)
        for variant, value in (("full", 2.0), ("lrt", 1.0))
    ]
    names = [picture.name for picture in plot.pictures(with_ratios(records, "full"))]
    assert names == ["ratios-x-rank-4", "ratios-x-rank-4-2"]


def test_what_cannot_be_drawn_is_not():
    assert plot.pictures([figure("lrt", LONG, "latency", 1.0)]) == []
    lost = [figure(name, LONG, "latency", value) for name, value in (("full", 1.0), ("lrt", math.nan))]
    assert plot.pictures(with_ratios(lost, "full")) == []
    diverged = [
        figure("lrt", {**DEMO, "step": step}, "train_loss", value) for step, value in enumerate([2.0, math.nan])
    ]
    (picture,) = plot.pictures(diverged)
    assert picture.alt == "Line chart of training. At the end: Training loss: lrt n/a."
    assert plot.png(picture.figure)
