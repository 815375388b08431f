"""Small real runs in processes of their own, for tests that kill them or start several."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 40

# Everything that could make a resumed run differ: dropout, masks, accumulation, clipping, schedule, early stopping.
FLAGS = {
    "data": "tinyshakespeare", "tokenizer": "characters", "length": 32, "objective": "masked_lm", "variant": "lrt",
    "rank": 3, "hidden": 16, "heads": 2, "feed_forward": 24, "layers": 2, "steps": 40, "batch": 8, "accumulate": 2,
    "learning_rate": 0.01, "evaluate_every": 10, "log_every": 4, "save_every": 3, "dropout": 0.1,
}  # fmt: skip


def corpus(folder: Path) -> Path:
    """A folder with the text of these runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.txt").write_text(TEXT)
    return folder


def flags(**changed) -> list[str]:
    """A command line of `greenformers train`, without --out."""
    words = []
    for name, value in (FLAGS | changed).items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def start(out: Path, *more: str, processes: int = 1, **changed) -> subprocess.Popen:
    """Start `greenformers train` on one core a process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", "greenformers", "train", "--out", str(out), *flags(**changed), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill(process: subprocess.Popen) -> str:
    """End a run and all its processes at once; what it printed."""
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    return process.communicate(timeout=60)[0]


def finish(process: subprocess.Popen) -> str:
    """Wait for the end of a run that must end well; what it printed."""
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed
    return printed


def curve(run: Path, *names: str) -> list[tuple[int, str, float]]:
    """(step, name, value) of what a run logged under these names."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(entry["step"], name, entry[name]) for entry in entries for name in names if name in entry]


def weights(run: Path) -> bytes:
    """The trained weights, as the file holds them."""
    return (run / "model" / "model.safetensors").read_bytes()


def wait_for(path: Path, seconds: float = 120) -> None:
    """Wait until a file or folder is there."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not come"
        time.sleep(0.005)
