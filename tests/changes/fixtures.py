"""Fixtures of all tests of trained networks: small ones, always the same, on one thread."""

import signal
from collections.abc import Iterator

import pytest
import torch
import transformers


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tensors as small as these lose by a second thread, much so where others use the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the shell that started the tests has it switched off, as `nohup` and `&` do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def quiet() -> None:
    transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def verbosity() -> Iterator[None]:
    """Commands silence transformers; other tests read what it logs."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
