import functools
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures import one_thread, operators_once, quiet, seed, verbosity

__all__ = ["one_thread", "operators_once", "quiet", "seed", "verbosity"]


@pytest.fixture(autouse=True, scope="session")
def cores_stay() -> Iterator[None]:
    """Cores that tests make stay, for what `openvino_file.core` says of those that go in the wrong order."""
    import openvino

    plain, cores = openvino.Core.__init__, []

    @functools.wraps(plain)
    def initialiser(core: Any, *given: Any, **options: Any) -> None:
        plain(core, *given, **options)
        cores.append(core)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino.Core, "__init__", initialiser)
        yield
