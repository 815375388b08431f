"""What takes the place of a folder is made beside it, each process's own, and nothing is left where that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from greenformers.checkpoint.save import beside, building


def test_two_processes_are_in_each_others_way_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with beside(tmp_path / "out") as first:
        (first / "weights").touch()
        with monkeypatch.context() as another:
            another.setattr(os, "getpid", os.getppid)
            with beside(tmp_path / "out") as second:
                assert list(second.iterdir()) == []
                assert (first / "weights").exists()
        assert list(tmp_path.iterdir()) == [first]
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    for owner in (gone.pid, os.getpid()):  # a later process may have the number of an earlier one
        (tmp_path / f".out.building-{owner}").mkdir()
        (tmp_path / f".out.building-{owner}" / "weights").touch()
    with beside(tmp_path / "out") as place:
        assert list(place.iterdir()) == []
        assert list(tmp_path.iterdir()) == [place]


def test_folders_around_it_are_left_where_there_is_something_in_them(tmp_path: Path) -> None:
    out = tmp_path / "new" / "deep" / "out"
    with pytest.raises(RuntimeError, match="the disk is full"), building(out):
        raise RuntimeError("the disk is full")
    assert list(tmp_path.iterdir()) == []
    with building(out) as place:
        (place / "weights").touch()
    assert [path.name for path in out.iterdir()] == ["weights"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
