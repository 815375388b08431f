"""What holds for all tests."""

import gc


def pytest_collection_finish() -> None:
    """Collections of garbage, which measurements of memory ask for, need not look through all imported modules."""
    gc.collect()
    gc.freeze()
