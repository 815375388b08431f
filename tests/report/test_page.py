import base64
import os
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_table import CONTEXT, DEMO, FIGURES, LONG, SHORT, VARIANTS, figure, sample

from greenformers.measure.record import METRICS, with_ratios
from greenformers.report import page, plot

pytestmark = pytest.mark.usefixtures("drafts")

VOID = {"meta", "img"}


class Page(HTMLParser):
    """The elements of a page, with their text; fails on a tag that is not closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str], list[str]]] = []
        self.elements: list[tuple[str, dict[str, str], str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag in VOID:
            self.elements.append((tag, dict(attributes), ""))
        else:
            self.open.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        name, attributes, text = self.open.pop()
        assert name == tag
        self.elements.append((name, attributes, "".join(text)))

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def all(self, tag):
        return [(attributes, text) for name, attributes, text in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    assert page.write(sample(), path, title="Lean & green") == path / "index.html"
    return path


@pytest.fixture(scope="module")
def parsed(folder):
    return Page((folder / "index.html").read_text())


@pytest.fixture
def few():
    """Records enough for a page, few enough to be quick."""
    records = [
        figure(variant, LONG, "latency", value)
        for variant, value in zip(VARIANTS, FIGURES["long"]["latency"], strict=True)
    ]
    return with_ratios(records, "transformer")


def test_the_page_is_a_document(folder, parsed):
    assert (folder / "index.html").read_text().startswith('<!doctype html>\n<html lang="en">')
    assert [text for _, text in parsed.all("title")] == ["Lean & green"]
    assert [text for _, text in parsed.all("h1")] == ["Lean & green"]
    assert [text for _, text in parsed.all("h2")] == ["Table", "Pictures", "How it was measured"]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [
        attributes for attributes, _ in parsed.all("meta")
    ]


def test_the_page_needs_nothing_else(folder, parsed):
    text = (folder / "index.html").read_text()
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert not parsed.all("script")
    assert not parsed.all("link")
    for _, attributes, _ in parsed.elements:
        assert "href" not in attributes
        assert attributes.get("src", "data:").startswith("data:")


def test_pictures_are_inside_and_beside_and_described(folder, parsed):
    images = parsed.all("img")
    files = {path.name: path.read_bytes() for path in folder.glob("*.png")}
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, "index.html"])
    inside = [base64.b64decode(attributes["src"].split(",")[1]) for attributes, _ in images]
    assert sorted(inside) == sorted(files.values())
    assert len(inside) == 5
    assert all(len(attributes["alt"]) > 60 for attributes, _ in images)
    assert len(parsed.all("figcaption")) == 5


def test_the_table_is_a_table(parsed):
    assert [text for _, text in parsed.all("caption")] == ["Each measure of each variant, setting by setting."]
    scopes = [attributes["scope"] for attributes, _ in parsed.all("th")]
    assert scopes.count("col") == 1 + len(VARIANTS) + 1
    assert scopes.count("rowgroup") == len(parsed.all("tbody")) == 3
    assert scopes.count("row") == sum(map(len, FIGURES.values())) + 1  # one is of intervals
    assert len(parsed.all("td")) == scopes.count("row") * (len(VARIANTS) + 1)
    cells = [text for _, text in parsed.all("td")]
    assert "266±8 (8.1x)" in cells
    assert "67.5 est. (1.3x)" in cells


def test_how_it_was_measured_is_said(parsed):
    facts = dict(zip([text for _, text in parsed.all("dt")], [text for _, text in parsed.all("dd")], strict=True))
    assert facts["Estimated"] == f"{METRICS['energy'].label}; {METRICS['co2'].label}"
    assert facts["Counted"] == f"{METRICS['parameters'].label}; {METRICS['flops'].label}"
    assert facts["Command"] == CONTEXT["command"]
    assert facts["Seed"] == "1"
    assert facts["Torch"] == "2.13.0"
    assert facts["Machine"] == "cpu Example CPU <2 GHz>, cores 2, system Linux"
    assert facts["Time"] == CONTEXT["time"]


def test_runs_are_told_apart_by_all_but_time(few, tmp_path):
    few[1] = replace(few[1], context={**CONTEXT, "time": "2026-05-10T12:00:00+00:00"})
    few[2] = replace(few[2], context={**CONTEXT, "seed": 2})
    document = Page(page.write(few, tmp_path).read_text())
    facts = [(name, text) for (_, name), (_, text) in zip(document.all("dt"), document.all("dd"), strict=True)]
    assert [text for name, text in facts if name == "Seed"] == ["1", "2"]
    assert [text for name, text in facts if name == "Time"] == [
        "2026-05-09T12:00:00+00:00 to 2026-05-10T12:00:00+00:00",
        "2026-05-09T12:00:00+00:00",
    ]


def test_the_headline_is_computed(parsed):
    assert [text for attributes, text in parsed.all("p") if attributes == {"class": "lead"}] == [
        "Layer, length 4096, batch 1: lrt+linformer runs 8.1x as fast as transformer and needs 92 % less memory at "
        "inference. In the other 2 settings it runs 1.6x to 2.1x as fast. "
        "Demo: its test accuracy is 96.4 %, 1.1 points below transformer "
        "(95 % interval of the difference -2.2 to -0.1)."
    ]


def test_the_headline_does_not_hide_what_is_worse():
    values = (
        (SHORT, "latency", (100.0, 125.0)),
        (LONG, "latency", (100.0, 50.0)),
        (LONG, "peak_memory_inference", (10.0, 20.0)),
        (DEMO, "test_accuracy", (97.0, 97.2)),
    )
    records = [
        replace(figure(variant, setting, metric, value), spread=value / 100)
        for setting, metric, pair in values
        for variant, value in zip(("full", "lrt"), pair, strict=True)
    ]
    assert page.headline(with_ratios(records, "full")) == (
        "Layer, length 4096, batch 1: lrt runs 2.0x as fast as full but needs 2.0x the memory at inference. "
        "In the other setting it runs 0.80x as fast. "
        "Demo: its test accuracy is 97.2 %, 0.2 points above full, which is within noise."
    )


def test_the_headline_claims_nothing_where_nothing_was_gained(few):
    slower = [figure(name, LONG, "latency", value) for name, value in (("full", 100.0), ("lrt", 99.0))]
    assert page.headline(with_ratios(slower, "full")) == "No variant improves on full in speed or size."
    assert page.headline(slower) == "Measured: 2 variants in 1 setting."
    assert page.headline(few).endswith("runs 8.1x as fast as transformer.")


def test_the_headline_says_a_little_more_in_percent():
    records = [
        figure(name, setting, metric, value)
        for setting, metric, values in (
            (LONG, "flops", (100.0, 52.0)),
            (LONG, "peak_memory_inference", (100.0, 104.0)),
            (SHORT, "flops", (100.0, 110.0)),
        )
        for name, value in zip(("full", "lrt"), values, strict=True)
    ]
    assert page.headline(with_ratios(records, "full")) == (
        "Layer, length 4096, batch 1: lrt needs 48 % fewer FLOPs than full but needs 4 % more memory at inference. "
        "In the other setting it needs 10 % more FLOPs."
    )


@pytest.mark.parametrize(("needed", "words"), [(0.005, "99.5 % less"), (1.98, "98 % more"), (1.995, "99.5 % more")])
def test_nearly_twice_as_much_is_more(needed: float, words: str):
    assert page._share(1 / needed, "less") == words


def test_the_headline_says_how_good_a_compressed_model_is():
    records = [figure(name, LONG, "latency", value) for name, value in (("full", 100.0), ("lrt", 50.0))]
    for metric, values, interval in (("cosine", (1.0, 0.97), None), ("spearman", (83.0, 82.5), [-1.2, 0.2])):
        full, lrt = (
            figure(name, {"texts": "sts"}, metric, value) for name, value in zip(("full", "lrt"), values, strict=True)
        )
        records += [full, replace(lrt, interval=interval)]
    assert page.headline(with_ratios(records, "full")).split(" as fast as full. ")[1] == (
        "Compare: its cosine to the dense model's outputs is 0.970; full: 1.00. "
        "Compare: its Spearman's correlation is 82.5 %, 0.5 points below full "
        "(95 % interval of the difference -1.2 to +0.2), which is within noise."
    )


def test_everything_is_escaped(few, tmp_path):
    odd = [replace(record, variant='<b>"&', context={"command": "<script>alert(1)</script>"}) for record in few[1:2]]
    path = page.write([*few, *odd], tmp_path, title="</title><script>")
    text = path.read_text()
    assert "<script" not in text
    assert "<b>" not in text
    document = Page(text)
    assert '<b>"&' in [text for _, text in document.all("th")]
    assert any('<b>"& 1.1x' in attributes["alt"] for attributes, _ in document.all("img"))


def test_the_same_records_give_the_same_bytes(few, tmp_path):
    first, second = (page.write(iter(few), tmp_path / name) for name in ("one", "other/below"))
    assert first.read_bytes() == second.read_bytes()


def test_records_without_table_or_pictures_still_make_a_page(tmp_path):
    curve = [figure("lrt", {**DEMO, "step": step}, "train_loss", 2.0 - step) for step in range(2)]
    assert not Page(page.write(curve, tmp_path, drawn=[]).read_text()).all("table")
    ((_, text),) = Page(page.write(curve, tmp_path).read_text()).all("table")  # the end of the curve
    assert "Training loss (nats)1.00" in text
    single = [figure("lrt", LONG, "latency", 1.0)]
    assert not Page(page.write(single, tmp_path).read_text()).all("img")


def test_no_records_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="a page needs at least one record"):
        page.write([], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_the_earlier_page(few, tmp_path, monkeypatch):
    page.write(few[:2], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write = Path.write_bytes

    def full(path, data):
        if path.name == "index.html":
            write(path, data[:100])
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        page.write(few, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_an_os_error(few, tmp_path):
    (tmp_path / "file").write_text("here first")
    with pytest.raises(OSError, match="file"):
        page.write(few, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "here first"


def test_a_page_may_be_read_by_others(few, tmp_path):
    mask = os.umask(0o022)
    try:
        assert page.write(few, tmp_path).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)


def test_the_pictures_beside_are_those_of_plot(few, tmp_path):
    page.write(few, tmp_path)
    (picture,) = plot.pictures(few)
    assert (tmp_path / f"{picture.name}.png").read_bytes() == plot.png(picture.figure)
