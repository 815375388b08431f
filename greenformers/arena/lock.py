"""Locks by which several processes share out a grid, on as many machines as see its folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
NOT_AT_ALL, AS_LONG_AS_IT_TAKES = 0.0, -1.0
"""Seconds to wait for a lock."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """A `with` block that one process at a time is in, of those that work on the same grid.

    Where the grid is refused, nothing is left in a folder that was empty, and of one that was not there.
    """
    is_new = not out.exists()
    is_empty = is_new or not any(out.iterdir())
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / LOCK):
        try:
            yield
        except (ValueError, OSError):
            # A folder in it is work that another process has begun.
            if is_empty and not any(path.is_dir() for path in out.iterdir()):
                for path in out.iterdir():
                    path.unlink()
                if is_new:
                    out.rmdir()
            raise


@contextmanager
def claimed(lock: Path, seconds: float) -> Iterator[bool]:
    """A `with` block that says whether this process has a lock, which it holds within the block.

    Args:
        lock: File of the lock.
        seconds: Seconds to wait for another process that holds it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock, timeout=seconds)
    try:
        held.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()
