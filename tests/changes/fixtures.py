"""Fixtures of all tests of trained networks: small ones, always the same, on one thread."""

import copy
import signal
import warnings
from collections.abc import Iterator
from typing import Any

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


@pytest.fixture(autouse=True, scope="session")
def operators_once() -> Iterator[None]:
    """Torch reads the source of 500 operators anew for every ONNX file, which takes a second: here it does so once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.onnx._internal.exporter._registration import ONNXRegistry

    plain, registries = ONNXRegistry.from_torchlib, {}

    def cached_registry(**version: int) -> Any:
        key = tuple(version.items())
        if key not in registries:
            registries[key] = plain(**version)
        registry = copy.copy(registries[key])
        # What a file adds is for this one alone.
        registry.functions = {name: [*translations] for name, translations in registry.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cached_registry))
        yield
