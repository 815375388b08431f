"""Running out of memory is an answer."""

import resource
from pathlib import Path

import pytest
import torch

from greenformers.measure import limit
from greenformers.measure.limit import OutOfMemory, attempt, free

CPU = torch.device("cpu")
MIB = 2**20


def allocate(mib: int) -> int:
    return torch.empty(mib * MIB, dtype=torch.uint8).numel()


def test_what_fits_is_returned() -> None:
    assert attempt(lambda: allocate(1), CPU, 256 * MIB) == MIB
    assert attempt(lambda: "found", CPU) == "found"


@pytest.mark.parametrize("take", [allocate, lambda mib: len(bytearray(mib * MIB))], ids=["torch", "python"])
def test_what_does_not_fit_says_so_and_the_limit_is_lifted(take) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(OutOfMemory, match=r"more than 0\.1 GiB of memory are needed") as caught:
        attempt(lambda: take(256), CPU, 64 * MIB)
    assert caught.value.limit == 64 * MIB
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert take(256) == 256 * MIB


def test_within_a_limit_there_is_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    inside = attempt(lambda: resource.getrlimit(resource.RLIMIT_AS), CPU, 256 * MIB)
    assert inside[0] != before[0]
    assert inside[1] == before[1]
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_the_limit_is_what_is_free_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free(CPU) > 0
    monkeypatch.setattr(limit, "free", lambda _: 64.0 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        attempt(lambda: allocate(512), CPU)
    assert caught.value.limit == 64 * MIB


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("wrong"), KeyboardInterrupt()])
def test_other_errors_pass_and_the_limit_is_lifted(error: BaseException) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)

    def call() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        attempt(call, CPU, 256 * MIB)
    assert caught.value is error
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_an_accelerators_own_error_counts() -> None:
    def call() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(OutOfMemory):
        attempt(call, CPU, 256 * MIB)


@pytest.mark.parametrize("limit_", ["100", "max"])
def test_a_container_has_what_its_group_leaves(limit_: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [tmp_path / "most", tmp_path / "taken"]
    monkeypatch.setattr(limit, "GROUPS", (("nowhere",) * 3, (*map(str, files), str(tmp_path / "parts"))))
    whole = free(CPU)
    for file, text in zip(files, (limit_, "40"), strict=True):
        file.write_text(f"{text}\n")
    assert free(CPU) == (0.9 * 60 if limit_ == "100" else pytest.approx(whole, rel=0.2))


@pytest.mark.parametrize(
    ("parts", "given_up"),
    [("anon 9\ninactive_file 7\n", 7), ("inactive_file 3\ntotal_inactive_file 7\n", 7), ("damaged", 0)],
)
def test_files_that_a_container_was_done_with_are_free(
    parts: str, given_up: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("most", "taken", "parts")]
    monkeypatch.setattr(limit, "GROUPS", (tuple(map(str, files)),))
    for file, text in zip(files, ("100", "40", parts), strict=True):
        file.write_text(text)
    assert free(CPU) == pytest.approx(0.9 * (60 + given_up))


def test_what_torch_holds_in_reserve_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"mem_get_info": (39, 139), "memory_reserved": 100, "memory_allocated": 1}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    assert free(torch.device("cuda")) == 138
