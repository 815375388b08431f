"""Every file of results/ can be reported: what a benchmark wrote is what the table of metrics knows."""

from pathlib import Path

import pytest

from greenformers.measure.newest import newest
from greenformers.measure.record import METRICS, read
from greenformers.report.page import write
from greenformers.report.table import markdown, tables

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))
# Of figures, of curves alone, and of a metric that only one benchmark has: pages that take no time to draw.
DRAWN = ("decoding_speed", "language_models", "wikitext_characters")


def test_there_are_results() -> None:
    assert {*DRAWN} < {path.stem for path in RESULTS}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_file_is_reported(path: Path, tmp_path: Path) -> None:
    records = read(path)
    latest = newest(records)
    for some in [records] if latest == records else [records, latest]:
        table = markdown(some)
        assert tables(some, 120)
        assert all(METRICS[record.metric].label in table for record in some if not record.setting.keys() & {"step"})
    page = write(latest, tmp_path, drawn=None if path.stem in DRAWN else [], tabulated=latest)
    assert "<table>" in page.read_text()
