"""Saves models of the zoo, and has a process that knows nothing but their folders read them."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from forked import printed
from safetensors.torch import save_file
from transformers import PreTrainedModel
from zoo import ZOO, inputs, outputs

FRESH = Path(__file__).with_name("reloading.py")


def chosen(request: pytest.FixtureRequest, function: str) -> list[dict[str, Any]]:
    """The cases of a test that this run has chosen: only for these is anything made."""
    items: list[Any] = [item for item in request.session.items if getattr(item, "originalname", "") == function]
    return [item.callspec.params for item in items]


def read_again(
    root: Path, models: Iterable[tuple[str, str, PreTrainedModel]], *, python: bool = False
) -> dict[str, dict[str, Any]]:
    """Of models (folder's name, name in the zoo, model): folder, model and what `reloading.py` says of it, `after`.

    Args:
        root: Folder for them.
        models: The models.
        python: Whether a Python of its own reads them, from the first import on, or a fork of one that has imported.
    """
    cases: dict[str, dict[str, Any]] = {}
    for label, name, model in models:
        folder, batch = root / label, inputs(name)
        model.save_pretrained(folder)
        expected = {f"out.{place}": part.contiguous().clone() for place, part in enumerate(outputs(model, batch))}
        save_file(expected | {f"in.{key}": value for key, value in batch.items()}, folder / "expected.safetensors")
        (folder / "auto.txt").write_text(ZOO[name][1])
        cases[label] = {"folder": folder, "model": model}
    if python:
        shown = subprocess.run([sys.executable, str(FRESH), str(root)], capture_output=True, text=True, timeout=280)
        assert shown.returncode == 0, shown.stderr
        said = shown.stderr + shown.stdout
    else:
        said = printed(FRESH.read_text(), root)
    assert "newly initialized" not in said
    after = json.loads(said.splitlines()[-1])
    return {label: each | {"after": after[label]} for label, each in cases.items()}
