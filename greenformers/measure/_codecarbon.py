"""The wall to codecarbon: whatever it does not promise to keep and this package uses stands here, and only here.

Each function says what it gives, which name of codecarbon it stands on, and what would take its place if that name
went; `tests/packaging/test_walls.py` asks for every name.
"""

from typing import Any


def start_sampling(tracker: Any) -> None:
    """Have a tracker read its meters once a second from now on, until `stop_sampling`, within a task too.

    It stands on `EmissionsTracker._scheduler`. `EmissionsTracker.start` reads them too, and counts its own start.
    """
    tracker._scheduler.start()


def stop_sampling(tracker: Any) -> None:
    """End what `start_sampling` began.

    It stands on `EmissionsTracker._scheduler`.
    """
    tracker._scheduler.stop()


def cpu_readings(tracker: Any) -> list[str]:
    """How a tracker reads each processor, in codecarbon's words: "intel_rapl", "cpu_load", "constant", ...

    It stands on `EmissionsTracker._hardware` and, of its members that are called `CPU`, on `_mode`. The text that
    `get_detected_hardware` gives would take its place.
    """
    return [part._mode for part in tracker._hardware if type(part).__name__ == "CPU"]
