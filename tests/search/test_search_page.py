"""What a search found: the front as a table, the outcome in words, the page, and commands that make each recipe."""

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from test_searching import searched

from greenformers import cli
from greenformers.changes import Change
from greenformers.changes._report import CompressionReport
from greenformers.compress import run as running
from greenformers.compress.job import Job
from greenformers.measure.record import Record
from greenformers.report import front as page_of
from greenformers.search.bound import Bound
from greenformers.search.run import Outcome
from greenformers.search.trials import Trial, front

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
    assert [columns[4][place] for place, mark in enumerate(columns[0]) if mark] == [
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
