"""Running the command line in this process."""

import sys
from pathlib import Path

import pytest

from greenformers import cli

SMALL = ["--epochs", "1", "--limit", "20", "--batch", "10", "--hidden", "8", "--heads", "2", "--feed-forward", "16"]
SMALL += ["--rank", "2"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["greenformers", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line by which a command line is refused."""
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    lines = error.strip().splitlines()
    assert len(lines) == 1, error
    assert lines[0].startswith("greenformers: ")
    return lines[0]


def refused_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path, out: Path, *words: str
) -> str:
    """The line by which a command line is refused that changes nothing at home and leaves nothing in `out`."""
    before = listing(home)
    monkeypatch.chdir(home)
    said = refused(monkeypatch, capsys, *words)
    assert list(out.iterdir()) == []
    assert listing(home) == before
    return said


def listing(root: Path) -> dict[str, int]:
    """The files below a folder, and when they were written."""
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*")}
