import sys
from pathlib import Path

import pytest
import torch
import transformers

# The helpers that all folders of tests share stand above.
sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tensors as small as these lose by a second thread, much so where others use the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def quiet():
    transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def verbosity():
    """Commands silence transformers; other tests read what it logs."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
