"""A checkpoint is whole or is not there: every moment at which writing one can end."""

import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from greenformers._tensors import save_file
from greenformers.train import checkpoint, state


def fill(folder: Path, text: str = "some weights") -> None:
    (folder / "model.safetensors").write_text(text)
    (folder / "schedule.json").write_text("{}")


def silent(message: str) -> None:
    raise AssertionError(message)


def test_the_newest_is_found_and_the_oldest_go(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10):
        checkpoint.write(tmp_path, step, fill, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9"]
    assert checkpoint.newest(tmp_path, silent) == tmp_path / "step-10"
    assert checkpoint.newest(tmp_path / "nothing", silent) is None


def test_a_damaged_one_of_a_later_step_takes_no_place(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 37, fill, keep=1)
    truncate(tmp_path / "step-37" / "model.safetensors")
    for step in (10, 20):
        checkpoint.write(tmp_path, step, fill, keep=1)
    assert checkpoint.newest(tmp_path, lambda _: None) == tmp_path / "step-20"
    assert not (tmp_path / "step-10").exists()


# What a writing process asks of the system, in the order it does so. It is ended just before its n-th request.
REQUESTS = (
    ("pathlib.Path", "mkdir"), ("pathlib.Path", "write_text"), ("pathlib.Path", "rename"),
    ("greenformers.train.checkpoint", "sync"), ("shutil", "rmtree"), ("os", "unlink"), ("os", "rmdir"),
)  # fmt: skip


def write_and_die(folder: Path, nth: int) -> None:
    """In a process of its own: write step 3 over a damaged one of that step, and end before the n-th request."""
    import importlib
    import pathlib

    count = 0

    def dying(original):
        def call(*given, **options):
            nonlocal count
            count += 1
            if count == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*given, **options)

        return call

    for place, name in REQUESTS:
        owner = pathlib.Path if place == "pathlib.Path" else importlib.import_module(place)
        setattr(owner, name, dying(getattr(owner, name)))
    checkpoint.write(folder, 3, lambda path: fill(path, "newer weights"), keep=1)


def test_killed_at_any_moment_the_one_before_or_the_new_one_is_whole(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process
    seen = set()
    for nth in range(1, 60):
        folder = tmp_path / str(nth)
        for step in (1, 2):
            checkpoint.write(folder, step, fill, keep=2)
        writer = process(target=write_and_die, args=(folder, nth))
        writer.start()
        writer.join(timeout=60)
        newest = checkpoint.newest(folder, silent)  # nothing looks damaged
        assert newest is not None
        assert newest.name in ("step-2", "step-3")
        expected = "newer weights" if newest.name == "step-3" else "some weights"
        assert (newest / "model.safetensors").read_text() == expected
        # What was left over does not stand in the way of the next one.
        checkpoint.write(folder, 4, fill, keep=1)
        assert [path.name for path in folder.iterdir()] == ["step-4"]
        seen.add((newest.name, writer.exitcode))
        if writer.exitcode == 0:
            break
    assert seen == {("step-2", -signal.SIGKILL), ("step-3", -signal.SIGKILL), ("step-3", 0)}


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, fill, keep=1)

    def full(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.write(tmp_path, 2, full, keep=1)
    assert checkpoint.newest(tmp_path, silent) == tmp_path / "step-1"


def test_tensors_for_which_there_is_no_room_are_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("greenformers._tensors.save", full)
    with pytest.raises(OSError, match=r"No space left on device.*x\.safetensors") as error:
        save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    assert error.value.errno == errno.ENOSPC


def test_only_the_process_that_writes_holds_the_state() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert state.weights(model).keys() == {"weight", "bias"}
    assert len(state.optimizer_state(model, optimizer)) == 6
    assert state.weights(model, keep=False) == state.optimizer_state(model, optimizer, keep=False) == {}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "fault"),
    [
        ("model.safetensors", truncate, "model.safetensors has 9 bytes, 12 were written"),
        ("model.safetensors", flip, "model.safetensors is not what was written"),
        ("schedule.json", Path.unlink, "schedule.json is missing"),
        ("manifest.json", Path.unlink, "manifest.json is missing"),
        ("manifest.json", truncate, "manifest.json is not JSON"),
        ("manifest.json", lambda path: path.write_text("[1]"), "manifest.json does not say what was written"),
    ],
)
def test_a_damaged_one_is_named_and_skipped(tmp_path: Path, name: str, harm, fault: str) -> None:
    for step in (1, 2, 3):
        checkpoint.write(tmp_path, step, fill, keep=3)
    harm(tmp_path / "step-3" / name)
    (tmp_path / "step-2" / "model.safetensors").unlink()
    said: list[str] = []
    assert checkpoint.newest(tmp_path, said.append) == tmp_path / "step-1"
    assert said == [
        f"checkpoint step-3 is damaged and skipped: {fault}",
        "checkpoint step-2 is damaged and skipped: model.safetensors is missing",
    ]
    # It is replaced when the run comes to that step again.
    checkpoint.write(tmp_path, 3, fill, keep=3)
    assert checkpoint.newest(tmp_path, silent) == tmp_path / "step-3"


def test_a_name_in_the_manifest_leads_nowhere_else(tmp_path: Path) -> None:
    whole = checkpoint.write(tmp_path / "run", 1, fill, keep=1)
    (tmp_path / "secret").write_text("x")
    files = json.loads((whole / "manifest.json").read_text())
    (whole / "manifest.json").write_text(json.dumps(files | {"../../secret": {"bytes": 1, "sha256": "0"}}))
    assert checkpoint.damage(whole) == "../../secret is missing"


def test_numbers_survive(tmp_path: Path) -> None:
    content = {"rate": 0.1 + 0.2, "step": 2**53, "list": [1e-300]}
    checkpoint.write_json(tmp_path / "x.json", content)
    assert json.loads((tmp_path / "x.json").read_text()) == content
