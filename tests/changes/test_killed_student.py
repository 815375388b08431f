"""A student that is killed at any moment and made by the same command again has the same weights, to the bit."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import folder, sentences
from safetensors.torch import load_file

KILLS, SECONDS = 6, (5.0, 14.0)


def command(model: Path, texts: Path, home: Path) -> list[str]:
    return [
        sys.executable, "-m", "greenformers", "compress", str(model), "--texts", str(texts), "--narrow", "16",
        "--narrow-layers", "1", "--heal", "400", "--heal-batch", "16", "--heal-rate", "1e-3", "--teacher-cache",
        str(home / "cache"), "--lengths", "", "--out", str(home / "student"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_and_gone_on_with(seed: int, tmp_path: Path) -> None:
    """Of the teacher's outputs, of the steps of the recipe, and of training, whichever is under way."""
    model = folder(tmp_path, "bert", "BertModel")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences(3000)) + "\n")
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    done = subprocess.run(command(model, texts, whole), env=quiet, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    draw, killed, code = random.Random(seed), 0, -1
    while code != 0:
        running = subprocess.Popen(
            command(model, texts, parts), env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            _, error = running.communicate(timeout=draw.uniform(*SECONDS) if killed < KILLS else 600)
        except subprocess.TimeoutExpired:
            os.kill(running.pid, signal.SIGKILL)
            running.communicate()
            killed += 1
            continue
        code = running.returncode
        assert code == 0, error
    assert killed >= 2
    ours, theirs = (load_file(home / "student" / "model.safetensors") for home in (parts, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    asked = [{file.name: file.read_bytes() for file in (home / "cache").glob("*.npy")} for home in (parts, whole)]
    assert "vector.npy" in asked[0]
    assert asked[0] == asked[1]
