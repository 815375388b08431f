import pytest
import torch

from greenformers.lowrank import feed_forward


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors as small as these lose by a second thread, much so where others use the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def short_slices(monkeypatch):
    """Slices of 256 tokens at the width 31 of these tests."""
    monkeypatch.setattr(feed_forward, "WIDE", 256 * 31)
