from collections.abc import Iterator

import pytest
import transformers


@pytest.fixture
def verbosity() -> Iterator[None]:
    """Commands silence transformers; other tests read what it logs."""
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
    transformers.logging.enable_progress_bar()
