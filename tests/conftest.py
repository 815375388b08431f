"""What holds for all tests."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from thinned import EVERY, LONG, runs

# The small networks that tests of several folders change, and the helpers that read them again.
sys.path.append(str(Path(__file__).parent / "changes"))


# Every run draws the same examples, and a machine that is busy for a moment fails none.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")


def pytest_configure() -> None:
    """Let tests interrupt what they test.

    A shell that switches SIGINT off for its jobs, as that of `nohup make test &` does, hands this down.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()


def sides(item: pytest.Item) -> list[tuple[int, ...]]:
    """Where a case stands on each side of the grid of its test, a side for each `parametrize`: which values it has."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    places = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        places.append(tuple(id(params[name.strip()]) for name in names))
    return places


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run of the whole suite, mark as slow what does not run there."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    root = Path(__file__).parent
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = f"{item.path.relative_to(root).as_posix()}::{getattr(item, 'originalname', '')}"
        tests.setdefault(name, []).append(item)
    for name, cases in tests.items():
        if name in LONG:
            run = [False] * len(cases)
        elif name in EVERY:
            run = [number % EVERY[name] == 0 for number in range(len(cases))]
        else:
            run = runs([sides(item) for item in cases])
        for item, here in zip(cases, run, strict=True):
            if not here:
                item.add_marker(pytest.mark.slow)
    unknown = (EVERY.keys() | LONG.keys()) - tests.keys()
    assert not unknown, f"tests/thinned.py names tests that are not there: {sorted(unknown)}"
    # What tests of export have in common is dear to make. At the beginning of a worker's share nothing is taken from it
    # by the other, who would make it again.
    items.sort(key=lambda item: item.path.parent.name != "export")


def pytest_collection_finish() -> None:
    """Collections of garbage, which measurements of memory ask for, need not look through all imported modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # networks are made of many objects, which one by one are no garbage
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def swept() -> None:
    """Nor need they look through what the tests of earlier files have imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Nothing waits until the disk has what was written: no test loses power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def brief() -> Iterator[None]:
    """Energy is read over moments: no test looks at its figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("greenformers.measure.energy_of.SECONDS", 0.01)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes with one thread: a second rounds otherwise, and waits for a core where others use it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def drafts() -> Iterator[None]:
    """Pictures are coarse, and their parts are not moved to where they fit: for tests that do not look at them."""
    from matplotlib.figure import Figure

    from greenformers.report import plot

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot, "DPI", 20)
        patch.setattr(Figure, "draw_without_rendering", lambda _: None)
        yield


@pytest.fixture(scope="module")
def traced_once() -> Iterator[None]:
    """What a network's call amounts to is found once for all tests of a file: most of the time of advice is tracing."""
    from greenformers.advise import work

    plain, amounts = work.amount, {}

    def cached_amount(*given: object) -> object:
        if str(given) not in amounts:
            amounts[str(given)] = plain(*given)
        return amounts[str(given)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "amount", cached_amount)
        yield


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    """Small files of a made-up cohort of genomes."""
    from genome.cohort_files import everything  # asks for pysam

    return everything(tmp_path_factory.mktemp("genome") / "there")


@pytest.fixture
def here(monkeypatch, cohort, tmp_path):
    """A copy of these files, which is the working folder."""
    shutil.copytree(cohort, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"
