"""`greenformers changes`: every change with every option, read from its class."""

from dataclasses import fields

import pytest
from command_line import run

from greenformers.changes import kinds


def test_every_option_is_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(monkeypatch, "changes") == 0
    shown = capsys.readouterr().out
    for kind in kinds():
        about = " ".join((kind.__doc__ or "").split()[:2])
        assert f"{kind.name()}: {about}" in shown
        part = shown.partition(f"{kind.name()}: ")[2]
        for entry in fields(kind):
            (line,) = [line for line in part.splitlines() if line.startswith(f"│ {entry.name} ")][:1]
            assert " ".join(entry.metadata["help"].split()[:3]) in line
            assert (entry.metadata["flag"] or "") in line
