from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers


@pytest.fixture
def verbosity() -> Iterator[None]:
    """Commands silence transformers; other tests read what it logs."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
    transformers.logging.enable_progress_bar()


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory, cohort: Path) -> Path:
    """A genome and forty people, encoded, and tokens: files that no test changes."""
    from genome.training import forty  # asks for pysam

    return forty(tmp_path_factory.mktemp("people") / "there", cohort)
