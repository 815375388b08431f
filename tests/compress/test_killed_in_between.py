"""Work on disk whose removal was cut short, or that another version left."""

import json
import shutil
from pathlib import Path

import pytest
from torch import nn

from greenformers.checkpoint.save import discard
from greenformers.compress.block_work import Work
from greenformers.compress.unfinished import Unfinished, steps_of


def killed(folder: Path, **_: object) -> None:
    """End the process once there is something to remove."""
    if folder.exists():
        raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["remove", "leave"])
def test_what_a_killed_process_did_not_remove_is_no_work_to_go_on_with(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    work = Unfinished(tmp_path / "out.unfinished-1")
    removed = work.folder if how == "remove" else steps_of(out)
    for folder in {work.folder, removed}:
        (folder / "step-0").mkdir(parents=True)
        (folder / "step-0" / "model").write_text("weights")
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        work.remove() if how == "remove" else work.leave(out)
    monkeypatch.undo()
    assert not removed.exists()
    model = nn.Identity()
    assert how == "leave" or work.last(model) == (model, None)  # type: ignore[arg-type]
    discard(removed)
    assert not list(tmp_path.glob(".*"))


def test_a_part_that_another_version_wrote_is_none(tmp_path: Path) -> None:
    (tmp_path / "block-0.json").write_text(json.dumps({"description": {}, "order": [], "more": 1}))
    assert Work(tmp_path).part(0) is None
