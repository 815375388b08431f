"""Watts of a processor and of memory where no meter can be read, by the model of codecarbon 3.3.2 (mode "cpu_load").

processor: P = W (0.1 + 0.9 l^3), W its rated power and l the share of its time that it works
memory:    constant, by the number of modules that so much of it usually takes
"""

import math
import platform
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from greenformers.measure.tables import rows

PER_THREAD = 4.0
"""Watts of a hardware thread, of a processor that is not in the table."""
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
    """Rated power of all processors of a machine, in watts; of a model that is not in the table, by its threads.

    Args:
        model: Name of the processor, as the system gives it.
        threads: Hardware threads of the machine.
        sockets: Processors of the machine.
    """
    watts = _in_table(model)
    return sockets * (PER_THREAD * threads if watts is None else watts)


def _in_table(model: str) -> float | None:
    """Rated power of a model: of its full name, or of the one name whose words are among the model's or hold them."""
    table = {name.lower(): float(watts) for name, watts in reversed(rows("cpu_watts"))}
    plain = re.sub(r" CPU @ .*| CPU| @\s*\d+\.\d+GHz", "", model.replace("(R)", ""))
    for name in (model.lower(), plain.lower()):
        if name in table:
            return table[name]
    words = _words(plain)
    alike = {name for name in table if words and (_words(name) <= words or words <= _words(name))}
    return table[alike.pop()] if len(alike) == 1 else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"\w+", name.lower().replace("_", " ")))


def memory_watts(gib: float, *, arm: bool) -> float:
    """Power of the memory of a machine, in watts: the more modules, the less each.

    Args:
        gib: Its size, in GiB.
        arm: Whether the processor is an ARM one, whose modules take less.
    """
    each = 1.5 if arm else 5.0
    modules = _modules(gib)
    # Of the first 4 modules all of it, of the next ones 90 %, 80 % and 70 %.
    steps = ((4, 1.0), (8, 0.9), (16, 0.8), (math.inf, 0.7))
    total, counted = 0.0, 0.0
    for end, share in steps:
        total += share * max(0.0, min(modules, end) - counted)
        counted = end
    return each * max(2.0, total)


def _modules(gib: float) -> int:
    """How many modules so much memory usually is."""
    for limit, count in ((2, 1), (16, 2), (64, 4), (128, 8)):
        if gib <= limit:
            return count
    largest = next(size for size in (128, 64, 32, 16) if size <= gib / 8)
    return min(32, math.ceil(gib / largest))


@cache
def processor() -> str:
    """The name of this machine's processor, or of its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@cache
def sockets() -> int:
    """How many processors this machine has; 1 where the system does not say."""
    return _sockets(_said_by("lscpu"))


def _sockets(lines: Iterable[str]) -> int:
    counts = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Socket(s):")]
    return int(counts[0]) if counts and counts[0].isdigit() else 1


def _said_by(command: str) -> list[str]:
    try:
        return subprocess.run([command], capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
