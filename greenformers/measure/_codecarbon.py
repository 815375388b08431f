"""The wall to codecarbon: what this package uses of it and codecarbon does not promise to keep stands only here.

Each function says what it does, which name of codecarbon it uses, and what would take the place of that name if it
were removed; `tests/packaging/test_walls.py` asks for every name.
"""

from typing import Any


def start_sampling(tracker: Any) -> None:
    """Have a tracker read its meters once a second from now on, until `stop_sampling`, within a task too.

    It uses `EmissionsTracker._scheduler`. `EmissionsTracker.start` reads them too, but counts its own start as work.
    """
    tracker._scheduler.start()


def stop_sampling(tracker: Any) -> None:
    """End the readings that `start_sampling` began.

    It uses `EmissionsTracker._scheduler`.
    """
    tracker._scheduler.stop()


def cpu_readings(tracker: Any) -> list[str]:
    """The way in which a tracker reads each processor, in codecarbon's words: "intel_rapl", "cpu_load", "constant", ...

    It uses `EmissionsTracker._hardware` and, of its members that are called `CPU`, on `_mode`. The text that
    `get_detected_hardware` gives would take its place.
    """
    return [part._mode for part in tracker._hardware if type(part).__name__ == "CPU"]
