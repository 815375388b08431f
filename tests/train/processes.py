"""Small real runs in processes of their own, for tests that kill them or start several.

A run is forked, see `forked.py`; or, where it is the command itself that is tested, it is a fresh Python.
"""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from forked import ENVIRONMENT, SERVER, into, ready

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 40

# Everything that could make a resumed run differ: dropout, masks, accumulation, clipping, schedule, early stopping.
FLAGS = {
    "data": "tinyshakespeare", "tokenizer": "characters", "length": 32, "objective": "masked_lm", "variant": "lrt",
    "rank": 3, "hidden": 16, "heads": 2, "feed_forward": 24, "layers": 2, "steps": 40, "batch": 8, "accumulate": 2,
    "learning_rate": 0.01, "evaluate_every": 10, "log_every": 4, "save_every": 3, "dropout": 0.1,
}  # fmt: skip


class Forked:
    """One run of as many forked processes, to be used as a `subprocess.Popen`."""

    def __init__(self, words: list[str], printed: Path, processes: int) -> None:
        port = free_port()
        ready()
        self._printed, self.returncode, self.members = printed, None, []
        for rank in range(processes):
            environment = {  # as torchrun would
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": processes,
                "LOCAL_WORLD_SIZE": processes, "RANK": rank, "LOCAL_RANK": rank,
            } if processes > 1 else {}  # fmt: skip
            member = SERVER.Process(target=_command, args=(words, str(printed), environment), daemon=True)
            member.start()
            self.members.append(member)
        self.pid = self.members[0].pid

    def poll(self) -> int | None:
        codes = [member.exitcode for member in self.members]
        if None not in codes:
            self.returncode = next((code for code in codes if code), 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        for member in self.members:
            os.kill(member.pid, number)

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def communicate(self, timeout: float) -> tuple[str, None]:
        end = time.monotonic() + timeout
        for member in self.members:
            member.join(max(0.0, end - time.monotonic()))
        if self.poll() is None:
            self.kill()
            raise subprocess.TimeoutExpired("greenformers", timeout, self._printed.read_text())
        return self._printed.read_text(), None


def _command(words: list[str], printed: str, environment: dict[str, object]) -> None:
    """`python -m greenformers` with these words, in a process that is there already."""
    from matplotlib.figure import Figure

    from greenformers import cli
    from greenformers.report import plot

    plot.DPI = 20  # nobody looks at the curves of these runs
    Figure.draw_without_rendering = lambda _: None  # type: ignore[method-assign]
    os.environ |= {name: str(value) for name, value in environment.items()}
    into(printed)
    sys.argv = ["greenformers", *words]
    cli.main()


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


def free_port() -> int:
    """A port that nobody listens on, of those of this worker: another may ask at the same time."""
    first = 20_000 + 4_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    for port in range(first + os.getpid() % 3_000, first + 4_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def launch(launcher: list[str], words: list[str]) -> subprocess.Popen:
    """Start `greenformers` in a fresh Python by a launcher: a module with its options, or none."""
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "greenformers", *words], env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def start(out: Path, *more: str, processes: int = 1, fresh: bool = False, **changed) -> subprocess.Popen | Forked:
    """Start `greenformers train` on one core a process; in a fresh Python, by torchrun where it takes several."""
    words = ["train", "--out", str(out), *flags(**changed), *more]
    if not fresh:
        return Forked(words, out.with_name(f"{out.name}-{time.monotonic_ns()}.txt"), processes)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    return launch(launcher, words)


def kill(process: subprocess.Popen | Forked) -> str:
    """End a run and all its processes at once; what it printed."""
    with suppress(psutil.NoSuchProcess):  # of a fork that has ended nothing is left
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    process.kill()
    return process.communicate(timeout=60)[0]


def finish(process: subprocess.Popen | Forked) -> str:
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
