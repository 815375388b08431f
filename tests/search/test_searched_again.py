"""What a search leaves on the disk: whole, of one version alone, and without folders of the machine in its records."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from rich.console import Console

from greenformers.search import network_run, one_shot, run
from greenformers.search.bound import Bound
from greenformers.train import checkpoint
from greenformers.train.settings import Settings

Patch = pytest.MonkeyPatch


class Killed(Exception):  # noqa: N818
    """The end of a process, in a test."""


def killed(*_: object, **__: object) -> NoReturn:
    raise Killed


def test_a_ranking_that_was_cut_off_is_none(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(one_shot, "_learned", lambda _: None)
    monkeypatch.setattr(one_shot, "likeliest", lambda *_: [(0,)])
    monkeypatch.setattr(checkpoint, "sync", killed)
    hurdles: Any = SimpleNamespace(space=None)
    with pytest.raises(Killed):
        one_shot.by_one_shot(hurdles, tmp_path)
    assert not (tmp_path / "one-shot.json").exists()


def test_a_search_of_another_version_does_not_go_on(tmp_path: Path, monkeypatch: Patch) -> None:
    begun: list[object] = []

    def searched(_hurdles: object, _out: Path, _job: object, same: object, *_: object, **__: object) -> NoReturn:
        begun.append(same)
        raise Killed

    monkeypatch.setattr(network_run, "_prepared", lambda *_: (None, None))
    monkeypatch.setattr(network_run, "_searched", searched)
    job, console = network_run.NetworkJob(Bound(lose=0.03)), Console(quiet=True)

    def find(version: str, **more: Any) -> None:
        network_run.find_network(
            Settings(), tmp_path / "found", job, about={"greenformers": version}, console=console, **more
        )

    with pytest.raises(Killed):
        find("1")
    (tmp_path / "found/search").mkdir(parents=True)
    (tmp_path / "found" / network_run.ABOUT).write_text(json.dumps(begun[0]))
    with pytest.raises(Killed):
        find("1", resume=True)
    with pytest.raises(ValueError, match="of another machine or version"):
        find("2", resume=True)


def test_records_of_a_search_name_no_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    told: list[dict[str, Any]] = []

    def find(*_: object, about: dict[str, Any], **__: object) -> NoReturn:
        told.append(about)
        raise Killed

    monkeypatch.setattr(run, "find", find)
    with pytest.raises(Killed):
        run.find_recipe(tmp_path / "model", tmp_path / "small", lose=0.01)
    assert told[0]["command"] == "greenformers.find_recipe('model', 'small', lose=0.01, faster=None)"
