"""What a search found: the front as a table, the outcome in words, the page, and commands that make each recipe."""

import io
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.collections import LineCollection
from rich.console import Console
from test_searching import SPACE, KnownLab, searched
from typer.main import get_command

from greenformers import cli
from greenformers.changes import Change
from greenformers.changes._report import CompressionReport
from greenformers.cli._search import line
from greenformers.compress import run as running
from greenformers.compress.job import Job
from greenformers.measure.record import Record
from greenformers.report import front as page_of
from greenformers.search.bound import Bound
from greenformers.search.run import Outcome
from greenformers.search.search import Plan, Search
from greenformers.search.trials import Trial, Trials, front

pytestmark = pytest.mark.usefixtures("drafts")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    search = searched(tmp_path_factory.mktemp("search"), Bound(lose=0.02), seconds=150)
    search.lab.own_quality, search.lab.ranks = ("spearman", 80.0), True
    search.trials.add(Trial((0, 0, 3, 1), refused="<why>"))
    records = [
        Record.of("spearman", value, benchmark="compress", variant=name, setting={"texts": "t"}, interval=interval)
        for name, value, interval in (("original", 80.0, None), ("small", 79.2, [-1.5, 0.1]))
    ]
    best = search.best()
    return Outcome(best, search.recipe(best.genes, best.steps), search, CompressionReport([], 1, 1), records, [])


def test_the_table_is_the_front_with_the_best_marked(outcome: Outcome) -> None:
    table, top = page_of.front_table(outcome, "openvino"), front(outcome.search.trials.done())
    columns = [list(column.cells) for column in table.columns]
    assert columns[1] == [f"{trial.speed:.2f}" for trial in top]
    assert [columns[5][place] for place, mark in enumerate(columns[0]) if mark] == [
        page_of.recipe_words(outcome.search, outcome.best)
    ]
    out = io.StringIO()
    Console(file=out, width=100).print(table)
    assert "in openvino" in out.getvalue()
    assert "judged by how its order of the pairs that the search sees" in " ".join(out.getvalue().split())


def test_the_outcome_in_words_says_what_was_seen_and_what_was_not(outcome: Outcome) -> None:
    said = page_of.sentence(outcome, Bound(lose=0.02), "torch")
    assert f"{outcome.best.speed:.2f}x as fast in torch" in said
    assert "not seen: Spearman's correlation 80 before, 79.2 now, a difference of -1.5 to +0.1 (95 % interval)" in said
    assert "Nothing that was tried" not in said
    assert page_of.sentence(outcome, Bound(faster=50.0), "torch").startswith("Nothing that was tried keeps to 50.00x")


def test_the_page_has_every_trial_and_why_others_were_not_made(outcome: Outcome, tmp_path: Path) -> None:
    job = Job(texts=Path("my texts.tsv"))
    page = page_of.write(outcome, Bound(lose=0.02), "torch", "MODEL", job, tmp_path, "A title").read_text()
    assert (tmp_path / "front.png").is_file()
    for trial in outcome.search.trials.done():
        assert page_of.recipe_words(outcome.search, trial) in page
    assert "&lt;why&gt;" in page
    assert "<why>" not in page
    assert page.count("greenformers compress MODEL") == len(outcome.search.trials.done())


def test_a_command_makes_the_recipe_again_with_the_same_options(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(texts=Path("my texts.tsv"), length=64, lengths=(16, 32), measure=True, seed=3)
    seen = {}

    def noted(model: str, changes: list[Change], _: Path, job: Job, *__: object) -> tuple[list, list, list]:
        seen.update(model=model, changes=changes, job=job)
        return [], [], []

    monkeypatch.setattr(running, "run", noted)
    monkeypatch.setattr("greenformers.train.processes.first_process", lambda: False)
    for trial in outcome.search.trials.done()[::5]:
        words = shlex.split(page_of.command(outcome.search, trial, "MODEL", job))
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        assert tuple(seen["changes"]) == outcome.search.recipe(trial.genes, trial.steps)
        assert seen["job"] == job


def test_a_command_for_another_runtime_writes_the_recipe_for_it(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome.search.lab, "length", 64, raising=False)
    export = get_command(cli.application()).commands["export"]  # type: ignore[attr-defined]
    options = {name for parameter in export.params for name in parameter.opts}
    for job, texts in ((Job(texts=Path("my texts.tsv")), "my texts.tsv"),
                       (Job(texts=Path("a.tsv"), evaluate=Path("dev.tsv")), "dev.tsv")):  # fmt: skip
        compress_line, written = page_of.command(outcome.search, outcome.best, "MODEL", job, "openvino").split(" && ")
        assert compress_line == page_of.command(outcome.search, outcome.best, "MODEL", job)
        words = shlex.split(written)
        given = ["--formats", "openvino", "--texts", texts, "--length", "64", "--lengths", "64"]
        assert words == ["greenformers", "export", "small", *given, "--out", "small-openvino"]
        assert {word for word in words if word.startswith("--")} <= options


def judged(outcome: Outcome, *rows: tuple[str, str, str, float], interval: Sequence[float] | None = None) -> Outcome:
    """The outcome with other records: benchmark, variant, metric and value of each; all with one interval."""
    records = [
        Record.of(metric, value, benchmark=benchmark, variant=name, interval=interval)
        for benchmark, name, metric, value in rows
    ]
    return replace(outcome, records=records)


BEFORE = ("compress", "original", "spearman", 80.0)


@pytest.mark.parametrize(
    ("now", "interval", "beginning"),
    [
        (77.6, None, "the result keeps 97.00%, less than the 98.00% asked for. "),
        (77.6, [-4.0, -2.0], "the result keeps 97.00%, less than the 98.00% asked for. "),
        (77.6, [-4.0, -0.9], "the result keeps 97.00%, less than the 98.00% asked for, within noise. "),
        (78.8, [-4.0, -0.9], ""),
    ],
)
def test_a_bound_that_is_missed_on_unseen_examples_comes_first(
    outcome: Outcome, now: float, interval: list[float] | None, beginning: str
) -> None:
    there = judged(outcome, BEFORE, ("compress", "small", "spearman", now), interval=interval)
    said = page_of.sentence(there, Bound(lose=0.02), "torch")
    recipe = f"{page_of.recipe_words(outcome.search, outcome.best)}: "
    assert said.startswith(f"{beginning and 'On examples that the search has not seen '}{beginning}{recipe}")
    assert f": {now / 80:.2%} is kept." in said
    assert page_of.sentence(there, Bound(faster=1.1), "torch").startswith(recipe)


def test_of_an_error_less_is_better_and_of_none_there_is_no_share(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for metric, before, now, ending in (
        ("perplexity", 20.0, 25.0, "Perplexity 20 before, 25 now, a difference of +1 to +6 (95 % interval): 80.00%"),
        ("accuracy", 0.0, 25.0, "Accuracy 0 before, 25 now, a difference of +1 to +6 (95 % interval)."),
    ):
        monkeypatch.setattr(outcome.search.lab, "own_quality", (metric, 20.0))
        rows = [("compress", "original", metric, before), ("compress", "small", metric, now)]
        said = page_of.sentence(judged(outcome, *rows, interval=[1.0, 6.0]), Bound(lose=0.1), "torch")
        assert ending in said
        assert said.startswith("On examples") == (metric == "perplexity")
        assert ("asked for, within noise. " in said) == (metric == "perplexity"), "20 of 21 are 95 %"


def test_in_another_runtime_its_file_is_what_is_judged(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    now = ("compress", "small", "spearman", 79.2)
    files = [("export", "torch", "spearman", 78.0), ("export", "OpenVINO", "spearman", 76.44)]
    said = page_of.sentence(judged(outcome, BEFORE, now, *files), Bound(lose=0.02), "openvino")
    assert said.startswith("On examples that the search has not seen the result keeps 97.02%, less than the 98.00%")
    assert said.endswith(
        "Spearman's correlation 80 before, 79.2 now in torch; 76.44 in OpenVINO, 78 in torch by the same examples: "
        "97.02% is kept."
    )
    # The cosine of a file is to the result in torch, not to the model as it is.
    monkeypatch.setattr(outcome.search.lab, "own_quality", ("cosine", 1.0))
    rows = [("compress", "original", "cosine", 1.0), ("compress", "small", "cosine", 0.97),
            ("export", "torch", "cosine", 1.0), ("export", "OpenVINO", "cosine", 0.9876)]  # fmt: skip
    said = page_of.sentence(judged(outcome, *rows), Bound(lose=0.1), "openvino")
    assert said.endswith("Cosine to dense 1 before, 0.97 now in torch: 97.00% is kept.")


def test_where_nothing_is_faster_it_is_said(outcome: Outcome) -> None:
    slow = replace(outcome, best=replace(outcome.best, speed=1.03))
    begins = "Nothing within 2.00% of loss is faster than the model as it is. "
    assert page_of.sentence(slow, Bound(lose=0.02), "torch").startswith(begins)
    assert "Nothing within" not in page_of.sentence(outcome, Bound(lose=0.02), "torch")
    assert "Nothing within" not in page_of.sentence(slow, Bound(faster=1.02), "torch")


def test_the_page_says_how_well_recipes_are_foreseen(outcome: Outcome, tmp_path: Path) -> None:
    page = page_of.write(outcome, Bound(lose=0.02), "torch", "MODEL", Job(texts=Path("t.tsv")), tmp_path, "A title")
    said = r"Of \d+ recipes without healing, .* off by \d+\.\d% in the median, .* by [\d.]+ points\."
    assert re.search(said, page.read_text())
    assert page_of.foreseen(Search(SPACE, KnownLab(), Plan(Bound(lose=0.02), 9.0, True), Trials(tmp_path / "no"))) == ""


def test_the_area_of_a_mark_is_the_size_of_the_model() -> None:
    trials = [Trial((at,), 0, 1.0 + at, at / 100, smaller) for at, smaller in enumerate((1.0, 4.0, 100.0))]
    drawn = page_of.front_figure(
        {"as they are": trials}, trials, trials[1], Bound(lose=0.02), "name", title="", along="", sized="size on disk"
    )
    (axes,) = drawn.axes
    assert axes.collections[0].get_sizes().tolist() == [page_of.AREA, page_of.AREA / 4, page_of.LEAST_AREA]
    legend = axes.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[-2:] == ["size on disk: as before", "size on disk: a quarter"]


def test_upright_lines_are_the_intervals_of_the_front() -> None:
    first = Trial((0,), 0, 2.0, 0.01, 1.0, interval=(0.005, 0.02))
    beaten, not_known = Trial((1,), 0, 1.9, 0.05, 1.0, interval=(0.04, 0.06)), Trial((2,), 0, 1.0, 0.0, 1.0)
    trials, early = [first, beaten, not_known], Trial((3,), 3, 3.0, -0.5, 1.0)
    drawn = page_of.front_figure(
        {"early": [early], "late": trials}, trials, first, Bound(lose=0.02), "name", title="", along="", sized=""
    )
    (axes,) = drawn.axes
    (lines,) = [own for own in axes.collections if own.get_label() == "95 % interval"]
    assert isinstance(lines, LineCollection)
    assert [line.tolist() for line in lines.get_segments()] == [[[2.0, 98.0], [2.0, 99.5]]]


def test_what_was_asked_for_is_in_the_picture_though_nothing_keeps_to_it() -> None:
    far = Trial((0,), 0, 2.0, 0.04, 1.0)
    drawn = page_of.front_figure({"all": [far]}, [far], far, Bound(lose=0.005), "name", title="", along="", sized="")
    assert drawn.axes[0].get_ylim()[1] > 99.5


def test_a_trial_in_a_line_says_how_far_the_search_is(tmp_path: Path) -> None:
    search = Search(SPACE, KnownLab(), Plan(Bound(lose=0.02), 600.0, True), Trials(tmp_path / "trials.jsonl"))

    def told(at: int, speed: float, lost: float, refused: str | None = None) -> str:
        trial = Trial((at, 0, 0, 0), 0, speed, lost, 2.0, seconds=60.0, refused=refused)
        return line(search, search.trials.add(trial))

    first, second, third, fourth = told(1, 1.2, 0.05), told(2, 1.1, 0.01), told(3, 1.05, 0.03), told(4, 1, 1, "no")
    assert first.startswith("   1  *  1.20x as fast, keeps  95.00%,  2.0x smaller: 5 layers")
    assert first.endswith(" (nearest so far; 9 min left)")
    assert second.startswith("   2  *  1.10x as fast")
    assert second.endswith(" (best so far; 8 min left)")
    assert third.startswith("   3     1.05x as fast")
    assert third.endswith(" (best so far: 1.10x, 99.00%; 7 min left)")
    assert fourth.startswith("   4  2 layers")
    assert fourth.endswith(": no")
