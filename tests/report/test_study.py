"""The figures of the efficiency study: which are drawn, and that what they show is what the records say."""

from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from greenformers.measure.bench import NAMES
from greenformers.measure.record import METRICS, Record, read
from greenformers.report import curves, heat, published, study
from greenformers.report import rates as rates_module
from greenformers.report.heat import Heat, Scale, heat_maps
from greenformers.report.names import broken

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT.parent / "shared/reference"
LENGTHS, RANKS = (512, 1024), (64, 128)
EVERY = ["inference", "training", "lrt-linformer", "parameters", "time", "saved", "rates"]
SHARE = {"transformer": 1.0, "transformer (eager)": 1.5, "lrt": 0.5, "linformer": 0.25, "lrt+linformer": 0.2}


def value(variant: str, length: int, rank: int | None, metric: str) -> float:
    """A figure unlike all others."""
    dense = length * (1 + list(METRICS).index(metric))
    return dense * SHARE[variant] * (1 + (rank or 0) / 1000)


def records(
    metrics: tuple[str, ...] = ("latency", "peak_memory_inference", "train_step", "peak_memory_training", "parameters"),
    variants: tuple[str, ...] = tuple(SHARE),
    lengths: tuple[int, ...] = LENGTHS,
) -> list[Record]:
    rows = []
    for length in lengths:
        for metric in metrics:
            for variant in variants:
                for rank in [None] if variant.startswith("transformer") else RANKS:
                    own = value(variant, length, rank, metric)
                    setting = {"length": length, "batch": 4096 // length, "rank": rank, "hidden": 768, "device": "cpu"}
                    ratio = value("transformer", length, None, metric) / own
                    rows.append(Record("bench", variant, setting, metric, own, METRICS[metric].unit, ratio=ratio))
    return rows


def names(of: list[Record], references: Path | None = None) -> list[str]:
    return [picture.name for picture in study.pictures(of, references)]


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures whose parts are not moved to where they fit, of which most of the time is: for what does not look."""
    for module in (curves, heat, rates_module):
        monkeypatch.setattr(module, "settle", lambda *_, **__: None)


@pytest.fixture
def heats(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Heat]]:
    """Of each figure, by the end of its title, its heat maps by title."""
    request.getfixturevalue("unsettled")
    seen: dict[str, dict[str, Heat]] = {}

    def keep(title: str, rows: list[list[Heat]], *_: Scale, **__: str) -> Figure:
        seen[title] = {each.title.replace("\n", " "): each for row in rows for each in row}
        return Figure()

    monkeypatch.setattr(study, "heat_maps", keep)
    return seen


def of(heats: dict[str, dict[str, Heat]], word: str) -> dict[str, Heat]:
    """The one figure with a word in its title."""
    (figure_panels,) = [panels for title, panels in heats.items() if word in title]
    return figure_panels


def csv(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.usefixtures("unsettled")
def test_every_picture_is_there_with_all_records() -> None:
    assert names(records()) == EVERY


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize(
    ("some", "expected"),
    [
        (records(("latency",)), ["inference", "lrt-linformer", "time", "saved"]),
        (records(("train_step",)), ["training", "lrt-linformer", "time", "rates"]),
        (records(("train_step",), lengths=(512,)), ["training", "lrt-linformer", "time"]),
        (records(("parameters",)), ["parameters"]),
        (records(("peak_memory_training",)), ["lrt-linformer", "rates"]),
        (records(("latency",), ("transformer", "lrt")), ["inference", "time"]),
        (records(("latency",), ("transformer", "linformer")), ["inference", "time", "saved"]),
        (records(("parameters",), ("transformer",)), []),
        (records(("parameters",), ("lrt",)), []),
    ],
)
def test_a_picture_is_there_only_with_its_records(some: list[Record], expected: list[str]) -> None:
    assert names(some) == expected


@pytest.mark.slow
def test_the_records_of_the_repository_draw_every_picture() -> None:
    assert names(read(ROOT / "results/bench.jsonl"), REFERENCE) == EVERY  # whether the folder is there or not


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    csv(tmp_path / "published", published.THESIS["lrt", "inference"], THESIS)
    some = [*records(), Record("compare", "lrt", {"length": 9}, "latency", 1.0, "ms")]
    for name in ("one", "two"):
        assert study.write(some, tmp_path / name, tmp_path / "published") == tmp_path / name / "index.html"
    first, second = ({file.name: file.read_bytes() for file in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert first == second
    assert set(first) == {"index.html", *(f"{name}.png" for name in EVERY)}
    assert all(data.startswith(b"\x89PNG") for name, data in first.items() if name.endswith("png"))


@pytest.mark.parametrize("some", [[], [Record("compare", "lrt", {"length": 9}, "latency", 1.0, "ms")]])
def test_no_records_of_a_grid(tmp_path: Path, some: list[Record]) -> None:
    with pytest.raises(ValueError, match="there are no records of `greenformers bench` to draw"):
        study.write(some, tmp_path / "out")


def test_speed_and_memory_are_times_better(heats: dict[str, dict[str, Heat]]) -> None:
    study.pictures(records())
    for mode in ("inference", "training"):
        panels = of(heats, f"{mode.capitalize()}, against")
        for metric, word in zip(NAMES[mode][:2], ("speed", "memory"), strict=True):
            for variant in ("lrt", "linformer", "lrt+linformer"):
                panel = panels[f"{variant} {word}"]
                assert panel.values.keys() == {(n, r) for n in LENGTHS for r in RANKS}
                for (n, r), shown in panel.values.items():
                    assert shown == pytest.approx(value("transformer", n, None, metric) / value(variant, n, r, metric))


def test_below_zero_lrt_needs_less(heats: dict[str, dict[str, Heat]]) -> None:
    study.pictures(records())
    panels = of(heats, "ln (LRT")
    assert set(panels) == {f"{mode} {measure}" for mode in NAMES for measure in ("time", "memory")}
    for panel in panels.values():  # LRT needs twice as much
        assert list(panel.values.values()) == pytest.approx([log(2)] * 4)
    heats.clear()
    cheap = [r for r in records() if r.variant != "lrt"]
    cheap += [Record("bench", "lrt", r.setting, r.metric, r.value / 3, "") for r in cheap if r.variant == "linformer"]
    study.pictures(cheap)
    for panel in of(heats, "ln (LRT").values():
        assert list(panel.values.values()) == pytest.approx([-log(3)] * 4)


def test_time_saved_and_larger_batches(heats: dict[str, dict[str, Heat]]) -> None:
    more = [Record("bench", "linformer", r.setting, "largest_batch_inference", 8, "", ratio=4.0)
            for r in records(("latency",), ("linformer",))]  # fmt: skip
    study.pictures([*records(), *more])
    panels = of(heats, "table 3")
    assert list(panels) == ["time saved over eager", "time saved over SDPA", "larger batch than SDPA"]
    assert panels["time saved over eager"].values[512, 64] == pytest.approx(1.5 / (0.25 * 1.064))
    assert panels["time saved over SDPA"].values[512, 64] == pytest.approx(1 / (0.25 * 1.064))
    assert set(panels["larger batch than SDPA"].values.values()) == {4.0}


@pytest.mark.usefixtures("unsettled")
def test_time_of_1000_tokens_and_parameters_by_rank() -> None:
    figures = {picture.name: picture.figure for picture in study.pictures(records())}
    panels = {axes.get_title("left"): axes for axes in figures["time"].axes}
    assert list(panels) == [f"{mode}, rank {rank}" for mode in ("Inference", "Training") for rank in RANKS]
    for rank in RANKS:
        drawn = panels[f"Inference, rank {rank}"].lines
        lines = {line.get_label(): line.get_xydata().tolist() for line in drawn}
        assert list(lines) == list(SHARE)
        assert len({line.get_color() for line in drawn}) == len(lines)
        for name in ("transformer", "lrt"):
            own = rank if name == "lrt" else None
            expected = [(n, value(name, n, own, "latency") / 4096 * 1000) for n in LENGTHS]
            assert lines[name] == [pytest.approx(point) for point in expected]
    assert [axes.get_title("left") for axes in figures["parameters"].axes] == [f"N {n}" for n in LENGTHS]
    for n, axes in zip(LENGTHS, figures["parameters"].axes, strict=True):
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        for variant in ("transformer", "lrt"):
            ranks = [(r, None if variant == "transformer" else r) for r in RANKS]
            expected = [(r, value(variant, n, own, "parameters") / 1e6) for r, own in ranks]
            assert lines[variant] == [pytest.approx(point) for point in expected]
    (single,) = study.pictures(records(("parameters",), lengths=LENGTHS[:1]))
    assert [axes.get_title("left") for axes in single.figure.axes] == ["N 512"]


def test_where_a_cell_was_measured_twice_the_last_counts(heats: dict[str, dict[str, Heat]]) -> None:
    old = records(("latency",), ("transformer", "lrt"))
    new = [Record("bench", "lrt", r.setting, r.metric, 1.0, "ms", ratio=7.0) for r in old if r.variant == "lrt"]
    study.pictures(old + new)
    assert set(of(heats, "Inference")["lrt speed"].values.values()) == {7.0}


def test_heat_maps_write_each_number_in_its_field() -> None:
    rows = [[Heat("a", {(2, 8): 0.5, (4, 16): 12.3}), Heat("b", {(2, 8): 2.0})], [Heat("c", {})]]
    figure = heat_maps("x", rows, Scale("times better"))
    a, b, c, off, bar = figure.axes
    assert [(text.get_position(), text.get_text()) for text in a.texts] == [((0, 0), "0.50"), ((1, 1), "12")]
    assert [label.get_text() for label in a.get_xticklabels()] == ["8", "16"]
    assert [label.get_text() for label in a.get_yticklabels()] == ["2", "4"]
    assert ([text.get_text() for text in b.texts], c.texts[:], off.axison) == (["2.0"], [], False)
    assert bar.get_ylabel() == "times better"


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("ratios", [True, False])
def test_equal_numbers_have_equal_colours_in_every_panel(ratios: bool) -> None:
    rows = [[Heat("a", {(2, 8): 2.3}), Heat("b", {(2, 8): 2.3, (4, 8): 9.2})]]
    images = [axes.images[0] for axes in heat_maps("x", rows, Scale("", ratios)).axes[:2]]
    shades = [image.to_rgba(image.get_array()) for image in images]
    assert shades[0][0, 0].tolist() == shades[1][0, 0].tolist()
    assert shades[1][1, 0, :3].sum() < shades[1][0, 0, :3].sum()  # the greater one is darker
    assert images[0].norm(1.0 if ratios else 0.0) == pytest.approx(0.5)


THESIS = "sequence_length,rank,speedup_vs_transformer,memory_ratio_vs_transformer\n"
THESIS += "512,64,3.5,0.5\n512,4,9,9\n16,64,9,9\n1024,128,2.5,\n"


def test_published_figures_only_at_measured_lengths_and_ranks(
    heats: dict[str, dict[str, Heat]], tmp_path: Path
) -> None:
    csv(tmp_path, published.THESIS["lrt", "inference"], THESIS)
    csv(tmp_path, "linformer_table3_inference.csv",
        "sequence_length,projected_dim,time_saved_x,memory_saved_x\n512,64,1.5,1.7\n2048,64,9,9\n")  # fmt: skip
    csv(tmp_path, "thesis_fig3_5_lrt_vs_linformer.csv",
        "sequence_length,rank,ln_speed_ratio_inference,ln_memory_ratio_inference,ln_speed_ratio_training,"
        "ln_memory_ratio_training\n512,64,-0.5,-0.25,-0.75,-1\n512,9,1,1,1,1\n")  # fmt: skip
    study.pictures(records(), tmp_path)
    panels = of(heats, "Inference, against")
    assert panels["thesis, lrt speed"].values == {(512, 64): 3.5, (1024, 128): 2.5}
    assert panels["thesis, lrt memory"].values == {(512, 64): 2.0}
    assert "thesis, linformer speed" not in panels  # its file is missing
    assert of(heats, "ln (LRT")["thesis, inference time"].values == {(512, 64): -0.5}
    assert of(heats, "ln (LRT")["thesis, training memory"].values == {(512, 64): -1}
    assert of(heats, "table 3")["paper time saved"].values == {(512, 64): 1.5}
    assert of(heats, "table 3")["paper memory saved"].values == {(512, 64): 1.7}


@pytest.mark.parametrize("folder", [None, "missing", "."])
def test_no_published_figures_where_they_are_not_at_hand(
    heats: dict[str, dict[str, Heat]], tmp_path: Path, folder: str | None
) -> None:
    where = None if folder is None else tmp_path / folder
    assert published.rows(where, "thesis_fig3_4_lrt_inference.csv") == []
    assert names(records(), where) == EVERY
    assert not [title for panels in heats.values() for title in panels if "thesis" in title or "paper" in title]


def test_the_files_that_a_folder_lacks_are_named(tmp_path: Path) -> None:
    assert published.absent(None, published.STUDY) == ""
    csv(tmp_path, published.SURVEY, "model\n")
    assert published.absent(tmp_path, (published.SURVEY,)) == ""
    line = published.absent(tmp_path, published.STUDY)
    assert line.startswith(f"{tmp_path} lacks thesis_fig3_4_lrt_inference.csv, thesis_fig3_4_linformer_inference.csv, ")
    assert published.SURVEY not in line


def test_a_file_of_published_figures_that_lacks_a_column_is_named(tmp_path: Path) -> None:
    csv(tmp_path, published.SURVEY, "\ufeffname,steps_per_s_1k\nTransformer,8\n")
    (row,) = published.rows(tmp_path, published.SURVEY)
    assert row["name"] == "Transformer"
    with pytest.raises(ValueError, match=r"survey_table2_long_range_arena\.csv has no column model, it has name,"):
        rates_module.rates({}, tmp_path)


@pytest.mark.usefixtures("unsettled")
def test_rates_are_those_of_the_best_rank_beside_the_survey(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = {}
    monkeypatch.setattr(rates_module, "_drawn", lambda bars, _: seen.update(bars) or Figure())
    csv(tmp_path, "survey_table2_long_range_arena.csv",
        "model,steps_per_s_1k,peak_gb_1k\nTransformer,8,2\nLinformer,10,0.5\n")  # fmt: skip
    study.pictures(records(), tmp_path)
    assert set(seen) == {("train_step", 1024), ("peak_memory_training", 1024)}
    assert "transformer" not in seen["train_step", 1024]
    assert seen["train_step", 1024]["linformer"] == (pytest.approx(4 / 1.064), 64, 1.25)
    assert seen["peak_memory_training", 1024]["linformer"] == (pytest.approx(4 / 1.064), 64, 4.0)
    assert seen["train_step", 1024]["lrt"] == (pytest.approx(2 / 1.064), 64, None)


def test_each_bar_says_its_figure_and_its_rank() -> None:
    (picture,) = (picture for picture in study.pictures(records(("train_step",))) if picture.name == "rates")
    (axes,) = picture.figure.axes
    assert [text.get_text() for text in axes.texts] == ["0.67x", "1.9x, rank 64", "3.8x, rank 64", "4.7x, rank 64"]


@pytest.mark.usefixtures("unsettled")
def test_a_length_at_which_all_lines_rise_is_named() -> None:
    some = records(("latency",), lengths=(64, 128, 256))
    loaded = [replace(r, value=r.value * (5 if r.setting["length"] == 128 else 1)) for r in some]
    outlier = [replace(r, value=r.value * 5) if (r.setting["length"], r.variant) == (128, "lrt") else r for r in some]
    for entries, expected in ((some, False), (loaded, True), (outlier, False)):
        (time,) = (picture for picture in study.pictures(entries) if picture.name == "time")
        titles = [axes.get_title("left") for axes in time.figure.axes]
        assert ["N 128: all lines rise, as under other load" in title for title in titles] == [expected] * 2


def test_the_reference_files_are_read() -> None:
    if not REFERENCE.is_dir():
        pytest.skip("shared/reference is not beside the repository on this machine")
    for file in published.THESIS.values():
        assert published.fields(REFERENCE, file, "speedup_vs_transformer").keys() >= {(512, 64)}
    lrt = published.fields(REFERENCE, published.THESIS["lrt", "training"], "memory_ratio_vs_transformer")
    assert lrt[16, 64] == 0.13
    assert (
        published.fields(REFERENCE, "linformer_table3_inference.csv", "time_saved_x", "projected_dim")[512, 128] == 1.5
    )


@pytest.mark.usefixtures("unsettled")
def test_a_mechanism_without_a_rank_has_its_line_too() -> None:
    without = [replace(r, variant="linear", setting={**r.setting, "rank": None}) for r in records(variants=("lrt",))]
    (time,) = (picture for picture in study.pictures([*records(), *without]) if picture.name == "time")
    titled = {axes.get_title("left"): axes for axes in time.figure.axes}
    assert "linear" in {text.get_text() for text in titled["Inference"].texts}


def test_long_names_are_broken_where_they_are_put_together() -> None:
    assert broken("lrt+linformer") == "lrt+linformer"
    assert broken("lrt+synthesizer_factorized_dense") == "lrt+synthesizer_\nfactorized_dense"


@pytest.mark.usefixtures("unsettled")
def test_a_variant_that_lacks_a_length_moves_no_name() -> None:
    every = records(("train_step",), lengths=(1024, 4096))
    some = [r for r in every if (r.variant, r.setting["length"]) != ("transformer (eager)", 4096)]
    (picture,) = (drawn for drawn in study.pictures(some) if drawn.name == "rates")
    named = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    assert named == ["transformer (eager)", "lrt", "linformer", "lrt+linformer"]
