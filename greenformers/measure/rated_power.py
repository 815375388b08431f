"""Watts of a processor and of memory where no meter can be read, by the model of codecarbon 3.3.2 (mode "cpu_load").

processor: P = W (0.1 + 0.9 l^3), W its rated power and l the share of its time that it works
memory:    constant, by the number of modules that so much of it usually takes
"""

import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from greenformers.measure.tables import rows

PER_THREAD = 4.0
"""Watts of each hardware thread of a processor that the list of rated powers lacks."""
IDLE = 0.1
"""Share of the rated power that an idle processor draws."""


def processor_watts(rated: float, load: float) -> float:
    """Power of a processor, in watts.

    Args:
        rated: Rated power, in watts.
        load: Share of the time in which its hardware threads work, 0 to 1.
    """
    return rated * (IDLE + (1 - IDLE) * load**3)


@cache
def rated_watts(model: str, threads: int, sockets: int = 1) -> float:
    """Rated power of all processors of a machine, in watts; by their threads where the list lacks the model.

    Args:
        model: Name of the processor, as the system gives it.
        threads: Hardware threads of the machine.
        sockets: Processors of the machine.
    """
    watts = _listed_watts(model)
    return PER_THREAD * threads if watts is None else sockets * watts


def _listed_watts(model: str) -> float | None:
    """Rated power by the model's full name, or by the only name whose words are among the model's, or include them."""
    by_name = {name.lower(): float(watts) for name, watts in reversed(rows("cpu_watts"))}
    plain = re.sub(r" CPU @ .*| CPU| @\s*\d+\.\d+GHz", "", model.replace("(R)", ""))
    for name in (model.lower(), plain.lower()):
        if name in by_name:
            return by_name[name]
    words = _words(plain)
    alike = {name for name in by_name if words and (_words(name) <= words or words <= _words(name))}
    return by_name[alike.pop()] if len(alike) == 1 else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"\w+", name.lower().replace("_", " ")))


def memory_watts(gib: float, *, arm: bool) -> float:
    """Power of the memory of a machine, in watts; a module takes less, the more there are.

    Args:
        gib: Size of the memory, in GiB.
        arm: Whether the processor is an ARM one, whose memory modules take less.
    """
    each = 1.5 if arm else 5.0
    modules = _modules(gib)
    # The first 4 modules count in full, the next ones 90 %, 80 % and 70 %.
    steps = ((4, 1.0), (8, 0.9), (16, 0.8), (math.inf, 0.7))
    total, counted = 0.0, 0.0
    for end, share in steps:
        total += share * max(0.0, min(modules, end) - counted)
        counted = end
    return each * max(2.0, total)


def _modules(gib: float) -> int:
    """Usual number of modules of a memory of so many GiB."""
    for limit, count in ((2, 1), (16, 2), (64, 4), (128, 8)):
        if gib <= limit:
            return count
    largest = next(size for size in (128, 64, 32, 16) if size <= gib / 8)
    return min(32, math.ceil(gib / largest))


@cache
def processor() -> str:
    """Name of this machine's processor, or of its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@cache
def sockets() -> int:
    """Number of processors of this machine; 1 where the system does not tell it."""
    return _sockets(_output_of("lscpu"))


def _sockets(lines: Iterable[str]) -> int:
    counts = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Socket(s):")]
    return int(counts[0]) if counts and counts[0].isdigit() else 1


def _output_of(command: str) -> list[str]:
    try:
        plain = {**os.environ, "LC_ALL": "C"}  # in other languages its words are others
        ended = subprocess.run([command], capture_output=True, text=True, check=True, timeout=10, env=plain)
        return ended.stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
