"""What holds for all tests."""

import gc
import shutil
import signal
import sys
from pathlib import Path

import pytest

# The small networks that tests of several folders change, and the helpers that read them again.
sys.path.append(str(Path(__file__).parent / "changes"))


def pytest_configure() -> None:
    """Let tests interrupt what they test.

    A shell that switches SIGINT off for its jobs, as that of `nohup make test &` does, hands this down.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Collections of garbage, which measurements of memory ask for, need not look through all imported modules."""
    gc.collect()
    gc.freeze()


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
