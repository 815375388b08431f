"""`greenformers compress MODEL --lose` and `--faster`, from the command line to a result that is read again."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command_line import listing, refused_unchanged, run

import greenformers
from greenformers.changes import Change, Heal, Int8, Layers, LowRank
from greenformers.changes._options import as_dict
from greenformers.changes._recipe import read_recipe
from greenformers.checkpoint.structure import structure
from greenformers.compress import comparison
from greenformers.compress.job import Job
from greenformers.compress.run import files_of
from greenformers.compress.run import run as compress
from greenformers.compress.unfinished import Unfinished
from greenformers.search import in_full
from greenformers.search import run as running
from greenformers.search.bound import Bound
from greenformers.search.lab import Lab
from greenformers.search.search import Search
from greenformers.train.others import Others
from greenformers.train.run import Stopped

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
EVALUATED = ("--texts", "texts.txt", "--evaluate", "pairs.tsv", "--length", "16", "--lengths", "")


@pytest.fixture
def by_size(monkeypatch: Patch) -> None:
    """Speed by the number of bytes, which is the same in every run."""
    monkeypatch.setattr(Lab, "_speed", lambda lab, _, tried: ((), lab.own.size / tried.size))


@pytest.mark.usefixtures("by_size")
def test_the_fastest_within_a_loss(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    before, out = listing(home), tmp_path / "small"
    monkeypatch.chdir(home)
    # What is best may heal or not: where it does not, it needs no such texts.
    words = ["compress", "BertModel", *EVALUATED, "--heal-texts", "texts.txt", "--lose", "20%", "--minutes", "0.01"]
    words += ["--out", str(out)]
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    trials = [line for line in shown.splitlines() if re.match(r" *\d+  ", line)]
    assert len(trials) >= 1
    assert "as fast, keeps" in trials[0]
    for text in ("The front of", "On those that it has not seen: Spearman's correlation", f"model:  {out}"):
        assert text in shown, text
    assert listing(home) == before
    assert [path.name for path in tmp_path.iterdir()] == ["small"], "what was tried is gone"
    small = greenformers.load(out)
    recipe = read_recipe(out / "recipe.toml")
    assert structure(small).order == [name for change in recipe for name in [change.name()] if not change.trains]
    said = next(line for line in reversed(shown.splitlines()) if "as fast in torch" in line)
    assert all(change.label in said for change in recipe)
    page = (out / "report" / "index.html").read_text()
    assert "greenformers compress BertModel" in page
    assert 'alt="Speed against quality kept. The front: ' in page
    assert str(home) not in page


@pytest.mark.usefixtures("by_size")
def test_stopped_in_the_middle_a_call_goes_on(home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    out = tmp_path / "small"
    monkeypatch.chdir(home)
    words = ["compress", "BertModel", *EVALUATED, "--faster", "1.5x", "--minutes", "0.5", "--out", str(out)]
    trial = Lab.trial

    def stop(*given):
        if len(list(tmp_path.rglob("trials.jsonl"))):
            raise Stopped(15)
        return trial(*given)

    monkeypatch.setattr(Lab, "trial", stop)
    assert run(monkeypatch, *words) == 128 + 15
    assert "stopped; the same command goes on" in capsys.readouterr().out
    (log,) = tmp_path.rglob("trials.jsonl")
    first = json.loads(log.read_text())
    assert not out.exists()
    monkeypatch.setattr(Lab, "trial", trial)
    told = []
    done = greenformers.find_recipe(
        "BertModel", out, faster=1.5, minutes=0.1, told=lambda _, trial: told.append(trial),
        texts="texts.txt", evaluate="pairs.tsv", length=16, lengths=(),
    )  # fmt: skip
    assert (told[0].lost, told[0].seconds) == (first["lost"], first["seconds"])
    assert done.best in told
    assert greenformers.load(out).config.model_type == "bert"
    with pytest.raises(ValueError, match="a bound is a loss or a speed-up, not both"):
        greenformers.find_recipe("BertModel", out, texts="texts.txt")
    with pytest.raises(TypeError, match="unexpected keyword argument 'text'"):
        greenformers.find_recipe("BertModel", out, lose=0.1, text="texts.txt")


@pytest.mark.usefixtures("by_size")
def test_what_cannot_be_made_is_given_up_and_not_tried_again(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    out, tried, plain = tmp_path / "small", [], in_full.run
    monkeypatch.chdir(home)

    def making(model: str, recipe: tuple[Change, ...], *given: Any, **options: Any) -> Any:
        tried.append(recipe)
        if len(tried) == 1:
            raise RuntimeError("of no use")
        if len(tried) == 2:
            raise Stopped(15)
        return plain(model, recipe, *given, **options)

    def find() -> running.Outcome:
        return greenformers.find_recipe(
            "BertModel", out, faster=1.5, minutes=0.01, texts="texts.txt", evaluate="pairs.tsv", length=16, lengths=()
        )

    monkeypatch.setattr(in_full, "run", making)
    monkeypatch.setattr(Search, "run", lambda search: search._try([*search.space.singles()][:2], 0, lambda: False))
    with pytest.raises(Stopped):
        find()
    done = find()
    first, second, third = tried
    assert first != second == third
    assert done.recipe == third
    assert [trial.refused for trial in done.search.trials.seen if trial.refused] == ["of no use"]
    assert read_recipe(out / "recipe.toml") == list(third)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*EVALUATED, "--lose", "1"], "lose must be a share such as 1% or 0.01, got '1': write 1% for per cent"),
        ([*EVALUATED, "--lose", "much"], "lose must be a share such as 1% or 0.01, got 'much'"),
        ([*EVALUATED, "--lose", "120%"], "lose must be at least 0 % and below 100 %, got 1.2"),
        ([*EVALUATED, "--faster", "0.5x"], "faster must be above 1x and finite, got 0.5x"),
        ([*EVALUATED, "--faster", "quickly"], "faster must be a factor such as 3x, got 'quickly'"),
        (
            [*EVALUATED, "--faster", "2x", "--lose", "1%"],
            "--lose and --faster exclude each other: use only one of them",
        ),
        ([*EVALUATED, "--faster", "2x", "--int8"], "--lose and --faster search for a recipe: name none beside them"),
        ([*EVALUATED, "--lose", "1%", "--minutes", "0"], "minutes must be above 0, got 0"),
        ([*EVALUATED, "--lose", "1%", "--runtime", "java"], "runtime must be one of torch, onnx, openvino; got 'java'"),
        (["--runtime", "openvino", "--int8"], "--runtime is of a search: add --lose or --faster"),
        (["--minutes", "5", "--int8"], "--minutes is of a search: add --lose or --faster"),
        (["--lose", "1%"], "a search needs texts to calibrate with, to learn from and to judge by: --texts"),
        (["--lose", "1%", "--texts", "pairs.tsv"], "leaves 6 examples to judge by; a search needs at least 16"),
    ],
)
def test_refused_before_any_work(
    words: list[str], said: str, home: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    out = ["--out", str(tmp_path / "small")]
    assert said in refused_unchanged(monkeypatch, capsys, home, tmp_path, "compress", "BertModel", *words, *out)


def test_a_half_is_not_seen_by_the_search(home: Path, tmp_path: Path) -> None:
    job = Job(texts=home / "texts.txt", evaluate=home / "pairs.tsv", length=16, lengths=(16,))
    search, parts, _ = running._prepared(
        str(home / "BertModel"), job, Bound(lose=0.1), "torch", 10.0, tmp_path, lambda *_: None, Others()
    )
    seen, unseen = search.lab.examples, parts["judging"]
    assert len(seen) == len(unseen) == 15
    assert not set(seen.segments) & set(unseen.segments)


def test_what_stands_twice_is_in_one_half_alone_which_is_checked_first(home: Path, tmp_path: Path) -> None:
    def halves_of(rows: list[str]) -> tuple[set[frozenset[str]], set[frozenset[str]]]:
        (tmp_path / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
        job = Job(texts=home / "texts.txt", evaluate=tmp_path / "pairs.tsv", length=16, lengths=())
        search, parts, _ = running._prepared(
            str(home / "BertModel"), job, Bound(lose=0.1), "torch", 10.0, tmp_path, lambda *_: None, Others()
        )
        seen, unseen = ({frozenset(row) for row in half.segments} for half in (search.lab.examples, parts["judging"]))
        return seen, unseen

    whole = (home / "pairs.tsv").read_text().splitlines()[1:]
    seen, unseen = halves_of([row for row in whole for row in (row, row)])
    assert len(seen) > 10 < len(unseen)
    assert not seen & unseen
    couples = [row.split("\t")[:2] for row in whole]
    with pytest.raises(ValueError, match="where their scores differ"):
        halves_of([f"{a}\t{b}\t{1 if at % 2 else at}" for at, (a, b) in enumerate(couples)])


@pytest.mark.parametrize("at", ["machine", "torch"])
def test_times_of_another_machine_are_those_of_another_search(
    at: str, home: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    folders: list[Path] = []

    def stop(*given: Any) -> None:
        folders.append(given[5])
        raise Stopped(15)

    monkeypatch.setattr(running, "_prepared", stop)
    for value in ("one", "other", "other"):
        with pytest.raises(Stopped):
            running.find(
                str(home / "BertModel"), tmp_path / "small", Job(texts=home / "texts.txt"), Bound(faster=2.0),
                minutes=1, about={at: value},
            )  # fmt: skip
    assert folders[0] != folders[1] == folders[2]


def test_in_a_search_the_result_alone_is_judged(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    judged: list[str] = []
    monkeypatch.setattr(comparison, "judge", lambda models, *_: judged.extend(models) or {})
    job, recipe = Job(texts=home / "texts.txt", length=16, lengths=()), [Layers(1), LowRank(keep=0.5), Int8()]
    compress(str(home / "BertModel"), recipe, tmp_path / "small", job, {}, lambda *_: None, within=0.0)
    assert len(judged) == 2
    assert judged[0] == "original"


def test_a_recipe_goes_on_from_the_steps_of_another(home: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    job = Job(texts=home / "texts.txt", length=16, lengths=())
    first = [Layers(1), Heal(4, batch_size=8)]
    recipe = [*first, Heal(3, batch_size=8), Int8()]

    def weights_of(name: str, changes: list[Change], **options: Any) -> dict[str, Any]:
        compress(str(home / "BertModel"), changes, tmp_path / name, job, {}, lambda *_: None, **options)
        return dict(greenformers.load(tmp_path / name).state_dict())

    whole = weights_of("whole", recipe)
    weights_of("first", [*first, Int8()], keeps=True)
    steps, healing = [], Heal.apply
    # A call that was stopped as it took over the steps goes on.
    model = str(home / "BertModel")
    work = {name: value for name, value in asdict(job).items() if name not in ("measure", "country")}
    about = [model, [as_dict(change) for change in recipe], work]
    own = Unfinished.of(tmp_path / "again", about, files_of(model, job))
    own.begin(tmp_path / "first", first[:1])
    monkeypatch.setattr(Heal, "apply", lambda own, *given: (steps.append(own.steps), healing(own, *given))[1])
    again = weights_of("again", recipe, begun=tmp_path / "first")
    assert steps == [3]
    assert all(x.equal(whole[key]) for key, x in again.items())
    assert (tmp_path / "again/recipe.toml").read_text() == (tmp_path / "whole/recipe.toml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "first", "first.steps", "whole"]
