"""Memory that a step has freed is there for the next one, and goes back to the system after the training."""

import platform
import resource

import pytest
import torch

from greenformers import _heap

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def pages() -> int:
    """Pages that the system gives for steps with a tensor of 4 MiB below one of 64 that stays as long."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        [torch.ones(2**22, dtype=torch.float32) for _ in range(8)]
        torch.ones(2**20, dtype=torch.float32)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_pages_are_used_again_within_the_block_and_go_back_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    outside = pages()
    with _heap.kept():
        pages()
        inside = pages()
    assert inside < 0.1 * outside
    assert pages() > 0.5 * outside


def test_what_the_environment_says_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setattr(_heap.ctypes, "CDLL", lambda _: pytest.fail("the library was asked for"))
    with _heap.kept():
        pass
