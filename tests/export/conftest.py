import copy
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures import one_thread, quiet, seed, verbosity

__all__ = ["one_thread", "quiet", "seed", "verbosity"]


@pytest.fixture(autouse=True, scope="session")
def operators_once() -> Iterator[None]:
    """Torch reads the source of 500 operators anew for every ONNX file, which takes a second: here it does so once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.onnx._internal.exporter._registration import ONNXRegistry

    plain, known = ONNXRegistry.from_torchlib, {}

    def kept(**version: int) -> Any:
        key = tuple(version.items())
        if key not in known:
            known[key] = plain(**version)
        made = copy.copy(known[key])
        # What a file adds is for this one alone.
        made.functions = {name: [*translations] for name, translations in made.functions.items()}
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(kept))
        yield


@pytest.fixture(autouse=True, scope="session")
def cores_stay() -> Iterator[None]:
    """Cores that tests make stay, for what `openvino_file.core` says of those that go in the wrong order."""
    import openvino

    plain, made = openvino.Core.__init__, []

    @functools.wraps(plain)
    def kept(core: Any, *given: Any, **options: Any) -> None:
        plain(core, *given, **options)
        made.append(core)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino.Core, "__init__", kept)
        yield
