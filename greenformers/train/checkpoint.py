"""Checkpoints: written whole or not at all, checked before they are read, without anything that could execute.

A checkpoint is a folder `step-N` with tensors in safetensors and the rest in JSON; `manifest.json` holds size and
SHA-256 of every file. It is made under another name and renamed when all of it is on the disk.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")
UNFINISHED = ".unfinished-"
"""Beginning of the names of what is being written."""


def write(folder: Path, step: int, fill: Callable[[Path], None], keep: int) -> Path:
    """Make the checkpoint of one step, then remove the oldest ones.

    Args:
        folder: Folder that holds the checkpoints of one run; made if it is not there.
        step: Number of optimisation steps done.
        fill: Function that writes the files of the checkpoint into a folder.
        keep: Number of checkpoints to keep.

    Raises:
        OSError: The disk is full or not writable; earlier checkpoints are unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{UNFINISHED}{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    fill(unfinished)
    files = {file.name: _fingerprint(file) for file in sorted(unfinished.iterdir())}
    (unfinished / MANIFEST).write_text(json.dumps(files, indent=1))
    for file in unfinished.iterdir():
        sync(file)
    sync(unfinished)
    whole = folder / f"step-{step}"
    _discard(whole)  # a damaged one of this step, which resuming skipped
    unfinished.rename(whole)
    sync(folder)
    # A damaged one of a later step, which resuming skipped, is none of those that are kept.
    for old in [path for path in _by_step(folder) if _step_of(path) <= step][keep:]:
        _discard(old)
    return whole


def newest(folder: Path, report: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint, or None; `report` is called with a message for each newer one that is damaged."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # several processes do so
    for checkpoint in _by_step(folder):
        fault = damage(checkpoint)
        if fault is None:
            return checkpoint
        report(f"checkpoint {checkpoint.name} is damaged and skipped: {fault}")
    return None


def damage(checkpoint: Path) -> str | None:
    """The fault of a checkpoint, in words; None if it is whole."""
    manifest = checkpoint / MANIFEST
    if not manifest.is_file():
        return f"{MANIFEST} is missing"
    try:
        files = json.loads(manifest.read_text())
    except ValueError:
        return f"{MANIFEST} is not JSON"
    if not isinstance(files, dict) or not all(isinstance(each, dict) and "bytes" in each for each in files.values()):
        return f"{MANIFEST} does not say what was written"
    for name, expected in files.items():
        file = checkpoint / Path(name).name
        if not file.is_file():
            return f"{name} is missing"
        size = file.stat().st_size
        if size != expected["bytes"]:
            return f"{name} has {size} bytes, {expected['bytes']} were written"
        if _fingerprint(file) != expected:
            return f"{name} is not what was written"
    return None


def newest_finite(folder: Path) -> Path | None:
    """The newest whole checkpoint of finite numbers only, or None; newer ones are removed."""
    for checkpoint in _by_step(folder):
        if damage(checkpoint) is None and all(map(_is_finite, checkpoint.glob("*.safetensors"))):
            return checkpoint
        _discard(checkpoint)
    return None


def _is_finite(file: Path) -> bool:
    return all(bool(x.isfinite().all()) for x in load_file(file).values() if x.is_floating_point())


def write_json(path: Path, content: Any) -> None:
    """Write JSON from which equal numbers are read again."""
    path.write_text(json.dumps(content, indent=1))


def replace(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    unfinished.write_text(text)
    sync(unfinished)
    unfinished.replace(path)


def _by_step(folder: Path) -> list[Path]:
    """The checkpoints, newest first."""
    return sorted((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=_step_of, reverse=True)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _discard(checkpoint: Path) -> None:
    # Renamed first: a run that is killed halfway through the removal must not leave a damaged checkpoint.
    if checkpoint.exists():
        rubbish = checkpoint.with_name(f"{UNFINISHED}old-{checkpoint.name}")
        shutil.rmtree(rubbish, ignore_errors=True)
        checkpoint.rename(rubbish)
        shutil.rmtree(rubbish)


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def share(path: Path) -> None:
    """Give a file of weights the rights that new files have: safetensors (0.8) lets its owner alone read it."""
    new = path.with_name(f"{UNFINISHED}rights")
    new.touch()
    path.chmod(new.stat().st_mode)
    new.unlink()


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
