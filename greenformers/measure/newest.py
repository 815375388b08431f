"""Which records of a file, to which runs add theirs, are of the last run."""

import json
from collections.abc import Sequence
from typing import Any

from greenformers.measure.record import Record


def newest(records: Sequence[Record]) -> list[Record]:
    """The records of each benchmark's last run, a run that was stopped and went on with the same command among them.

    They share the time of the last record, or all else of its context. What was measured again counts as it was last.
    """

    def key(record: Record) -> tuple[str, ...]:
        return record.benchmark, record.variant, record.metric, json.dumps(record.setting, sort_keys=True)

    def time(record: Record) -> str | None:
        return record.context.get("time")

    def run(record: Record) -> dict[str, Any]:
        return {name: value for name, value in record.context.items() if name != "time"}

    last = {record.benchmark: record for record in records}
    of_it = [
        record for record in records
        if time(record) == time(last[record.benchmark]) or run(record) == run(last[record.benchmark])
    ]  # fmt: skip
    times = {key(record): time(record) for record in of_it}
    return [record for record in of_it if time(record) == times[key(record)]]
