"""Running the command line in this process."""

import sys

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
