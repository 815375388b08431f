"""The README stays true: its code runs, its commands exist, its figures are those of the records it names."""

import re
from pathlib import Path
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from greenformers import names, position
from greenformers.cli import application
from greenformers.measure.record import read
from greenformers.report.table import markdown

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ORDER = ("learned", "sinusoidal", "rotary", "alibi", "t5", "shaw", "huang")
"""Positions as the page on networks has them."""


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = "hidden_size=256, num_attention_heads=4, intermediate_size=1024"  # the width plays no part
    blocks = re.findall(r"```python\n(.*?)```", README.replace("BertConfig(", f"BertConfig({sizes}, "), re.DOTALL)
    assert blocks
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)
    assert space["logits"].shape == (1, 1024, 30522)
    assert space["out"].shape == (1, 12, 4096, 64)
    units = space["report"].units  # type: ignore[attr-defined]
    assert 0.2 < sum(unit.after for unit in units) / sum(unit.before for unit in units) <= 0.25


def test_every_position_is_in_the_table() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    table = page.partition("## Positions")[2].partition("##")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [name for name in ORDER if name in position.names()]
    assert sorted(ORDER) == position.names()


def test_every_command_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"make (\w+)", README)) <= targets
    commands = cast(TyperGroup, get_command(application())).commands
    assert set(re.findall(r"^greenformers (\w+)", README, re.MULTILINE)) <= set(commands)
    assert set(re.findall(r"`greenformers (\w+)", README)) <= set(commands)


def test_every_mechanism_is_in_the_table() -> None:
    page = (ROOT / "docs" / "mechanisms.md").read_text()
    for name in names():
        assert f"| `{name}` | `greenformers/attention/{name}.py` |" in page


def test_the_figures_of_the_demo_are_those_of_the_records() -> None:
    page = (ROOT / "docs" / "demo.md").read_text()
    shown = re.search(r"<!-- results/compare\.jsonl, run of (\S+) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert shown
    run = [record for record in read(ROOT / "results" / "compare.jsonl") if record.context["time"] == shown[1]]
    assert markdown(run).strip() == shown[2].strip()


ROWS = {
    "as it is": (False, "dense", "dense"), "int8": (False, "int8", "int8"),
    "half of the linear weights (low rank)": (False, "low rank", "low rank"),
    "low rank, healed": (False, "low rank", "healed"),
    "low rank, healed, int8": (False, "healed, int8", "healed, int8"),
    "three of the six layers, healed, int8": (True, "fewer layers, int8", "healed, int8"),
}  # fmt: skip
"""Rows of the table: whether layers were dropped, the variant that was timed, and the one that was judged."""


def test_the_figures_of_minilm_are_those_of_the_newest_records() -> None:
    records = read(ROOT / "results" / "combine_minilm.jsonl")
    for label, (fewer, timed, judged) in ROWS.items():
        of = [record for record in records if ("--keep-layers" in record.context["command"]) == fewer]
        newest = [record for record in of if record.context["time"] == of[-1].context["time"]]
        cost = {record.metric: record for record in newest if record.variant == timed}
        score = next(r for r in newest if (r.variant, r.metric) == (judged, "spearman"))
        speed = cost["latency"].ratio or 0.0
        time = "1.0x" if timed == "dense" else f"{speed:.1f}x as fast"
        assert f"| {label} | {cost['size'].value:.1f} MiB | {time} | {score.value:.1f} % |" in README


@pytest.mark.parametrize("path", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_picture_and_page_is_there(path: str) -> None:
    assert (ROOT / path).is_file()
