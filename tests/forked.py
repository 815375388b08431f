"""Processes that know nothing of this one, forked from a server that has done nothing but import what costs seconds."""

import json
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "greenformers.cli", "greenformers.train.run", "greenformers.report.curves", "transformers.trainer",
        "accelerate", "matplotlib.backends.backend_agg",
    ]
)  # fmt: skip


def ready() -> None:
    """Start the server, whose environment is that of its first start."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        forkserver.ensure_running()


def printed(code: str, *words: object, timeout: float = 280) -> str:
    """What a program prints that is run with these words in a process of its own; it must end well."""
    ready()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "printed.txt"
        child = SERVER.Process(target=_run, args=(code, [str(word) for word in words], str(path)), daemon=True)
        child.start()
        child.join(timeout)
        child.kill()
        child.join()
        text = path.read_text()
    assert child.exitcode == 0, text
    return text


def told(code: str, *words: object) -> Any:
    """What the last line says that a program prints, as JSON."""
    return json.loads(printed(code, *words).splitlines()[-1])


def into(path: str) -> None:
    """Have all that this process prints written to a file."""
    with open(path, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _run(code: str, words: list[str], path: str) -> None:
    into(path)
    sys.argv = ["program", *words]
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
