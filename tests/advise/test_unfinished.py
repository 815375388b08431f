"""The folder of a comparison that was stopped."""

from pathlib import Path

import pytest

from greenformers.advise.unfinished import JOB, Unfinished
from greenformers.train import checkpoint


def test_a_command_that_was_killed_as_it_began_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Unfinished(tmp_path / "unfinished")

    def killed(_: Path) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync", killed)
        with pytest.raises(OSError, match="killed"):
            parts.begin(["compare"])
    assert list(parts.folder.iterdir()), "what was being written"
    parts.begin(["compare"])
    assert (parts.folder / JOB).is_file()
    with pytest.raises(ValueError, match="holds what another command has not finished"):
        parts.begin(["another"])
