"""Memory that a step has freed is there for the next one, and goes back to the system after the training."""

import platform

import pytest
from forked import told

from greenformers import _heap

PROCESS = """
import json, os, resource, torch
from greenformers import _heap

torch.set_num_threads(1)
for name in [*os.environ]:
    if name.startswith(("MALLOC_", "GLIBC_TUNABLES")):
        del os.environ[name]

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        [torch.ones(2**22) for _ in range(8)]
        torch.ones(2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

# What tensors are described by lies in these gaps, and not at the end of the heap, where it would keep all before it.
gaps = [torch.ones(1) for _ in range(4000)]
del gaps[::2]
pages()
outside = pages()
with _heap.page_reuse():
    pages()
    inside = pages()
print(json.dumps([outside, inside, pages()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_pages_are_used_again_within_the_block_and_go_back_behind_it() -> None:
    """Of steps with eight tensors of 16 MiB, in a process whose heap is its own."""
    outside, inside, behind = told(PROCESS)
    assert inside < 0.1 * outside
    assert behind > 0.5 * outside


def test_what_the_environment_says_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setattr(_heap.ctypes, "CDLL", lambda _: pytest.fail("the library was asked for"))
    with _heap.page_reuse():
        pass
