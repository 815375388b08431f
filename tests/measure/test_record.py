"""Records: written whole or not at all, read back equal, and rated against the right baseline."""

import ast
import errno
import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from greenformers.measure.newest import newest
from greenformers.measure.record import (
    METRICS,
    Record,
    append,
    check_machine,
    context,
    machine,
    read,
    with_ratios,
)


def record(variant: str, metric: str, value: float, **setting: object) -> Record:
    return Record("compare", variant, dict(setting), metric, value, METRICS[metric].unit)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "records.jsonl"
    first = [record("lrt", "latency", 1.5, length=128), record("é", "test_accuracy", 97.0)]
    append(file, first)
    append(file, first[:1])
    assert read(file) == [*first, first[0]]
    assert list(read(file)[0].setting) == ["length"]


def test_a_ratio_says_how_many_times_better() -> None:
    records = with_ratios(
        [
            record("transformer", "latency", 4.0, length=1),
            record("lrt", "latency", 2.0, length=1),
            record("transformer", "latency", 9.0, length=2),
            record("lrt", "latency", 18.0, length=2),
            record("transformer", "test_accuracy", 50.0),
            record("lrt", "test_accuracy", 75.0),
            record("lrt", "flops", 1.0),
        ],
        to="transformer",
    )
    assert [item.ratio for item in records] == [1.0, 2.0, 1.0, 0.5, 1.0, 1.5, None]
    assert records[-1].to is None


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    append(file, [record("lrt", "latency", 1.0)])
    with file.open("a") as handle:
        handle.write('{"benchmark": "compare"}\n')
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2: not a record \(missing"):
        read(file)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2: it is cut off: remove it, and what it held"):
        read(file)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("variant", 3, "variant must be a text, got 3"),
        ("setting", [], r"setting must be an object, got \[\]"),
        ("context", 5, "context must be an object, got 5"),
        ("ratio", "2x", "ratio must be a number, got '2x'"),
        ("spread", [1.0], r"spread must be a number, got \[1.0\]"),
        ("interval", [1.0], r"interval must be a low and a high number, got \[1.0\]"),
    ],
)
def test_a_field_of_another_type_is_named(field: str, value: object, said: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    row = {name: own for name, own in asdict(record("lrt", "latency", 1.0)).items() if own is not None}
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {field: value}) + "\n")
    with pytest.raises(ValueError, match=rf"records\.jsonl, line 2: {said}"):
        read(file)


def test_a_line_that_python_cannot_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 1: not a record"):
        read(file)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "records.jsonl"
    append(file, [record("lrt", "latency", 1.0)])
    before = file.read_bytes()
    opened = Path.open

    class Full:
        """A file on a disk that fills after 10 bytes."""

        def __init__(self, handle: object) -> None:
            self.handle, self.room = handle, 10

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            self.handle.close()

        def read(self) -> object:
            return self.handle.read()

        def tell(self) -> int:
            return self.handle.seek(0, os.SEEK_END)

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = self.handle.write(data[: self.room])
            self.room -= written
            return written

    monkeypatch.setattr(Path, "open", lambda path, *given, **more: Full(opened(path, *given, **more)))
    with pytest.raises(OSError, match="No space left") as failure:
        append(file, [record("lrt", "latency", 2.0)])
    monkeypatch.undo()
    assert failure.value.filename == str(file)
    assert file.read_bytes() == before


def test_newest_takes_each_benchmarks_last_run() -> None:
    runs = [
        Record(name, "lrt", {}, "latency", value, "ms", context={"time": time})
        for name, time, value in (("a", "1", 1.0), ("b", "1", 2.0), ("a", "2", 3.0), ("a", "2", 4.0))
    ]
    assert [item.value for item in newest(runs)] == [2.0, 3.0, 4.0]


def test_a_run_that_was_stopped_is_one_with_how_it_went_on() -> None:
    rows = (("old", "1", 16, 9.0), ("bench", "2", 32, 1.0), ("bench", "2", 64, 2.0), ("bench", "3", 64, 3.0))
    runs = [
        Record("a", "lrt", {"length": length}, "latency", value, "ms", context={"time": time, "command": command})
        for command, time, length, value in rows
    ]
    assert [item.value for item in newest(runs)] == [1.0, 3.0]


def test_the_context_tells_what_a_figure_depends_on() -> None:
    about = context("greenformers compare", seed=3)
    assert about["command"] == "greenformers compare"
    assert about["seed"] == 3
    assert about["machine"]["cores"] >= 1
    assert about["machine"]["cpu"]
    assert {"torch", "transformers", "python", "time"} <= set(about)


def about(metric: str, value: float, **fields: object) -> Record:
    return Record.of(metric, value, benchmark="compare", variant="lrt", **fields)


def test_the_unit_of_a_record_is_the_tables() -> None:
    latency = about("latency", 2, setting={"length": 128}, spread=0.5, to="transformer", interval=(1.0, 3.0))
    assert latency == Record(
        "compare", "lrt", {"length": 128}, "latency", 2.0, "ms", 0.5, to="transformer", interval=[1.0, 3.0]
    )
    assert isinstance(about("parameters", 3).value, float)


def test_an_unknown_metric_names_the_closest() -> None:
    with pytest.raises(ValueError, match=r"got 'latncy'; the closest are latency"):
        about("latncy", 1.0)
    with pytest.raises(ValueError, match="got 'qqqq'; it has parameters, train_accuracy"):
        about("qqqq", 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1.0"])
def test_a_value_is_a_finite_number(value: object) -> None:
    with pytest.raises(ValueError, match=f"latency of 'lrt' must be a finite number, got {value}"):
        about("latency", value)


WRONG = {
    "metric": (replace(record("lrt", "latency", 1.0), metric="swiftness"), "metric must be one of .*got 'swiftness'"),
    "unit": (replace(record("lrt", "latency", 1.0), unit="s"), "unit of latency must be 'ms', got 's'"),
    "value": (record("lrt", "latency", math.nan), "latency of 'lrt' must be a finite number, got nan"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_table_lacks_is_neither_written_nor_read(name: str, tmp_path: Path) -> None:
    wrong, message = WRONG[name]
    file = tmp_path / "records.jsonl"
    append(file, [record("lrt", "latency", 1.0)])
    before = file.read_bytes()
    with pytest.raises(ValueError, match=message):
        append(file, [record("lrt", "latency", 1.0), wrong])
    assert file.read_bytes() == before
    with file.open("a") as handle:
        handle.write(json.dumps(asdict(wrong)) + "\n")
    with pytest.raises(ValueError, match=rf"records\.jsonl, line 2: {message}"):
        read(file)


@pytest.mark.parametrize(("metric", "value"), [("latency", 2.0), ("accuracy", 8.0)])
def test_a_ratio_against_the_direction_of_its_metric_is_not_written(metric: str, value: float, tmp_path: Path) -> None:
    base, twice = record("transformer", metric, 4.0), record("lrt", metric, value)
    append(tmp_path / "right.jsonl", with_ratios([base, twice], to="transformer"))
    with pytest.raises(ValueError, match=r"ratio of .* how many times better than 'transformer' it is, 2, got 0\.5"):
        append(tmp_path / "wrong.jsonl", [base, replace(twice, ratio=0.5, to="transformer")])
    assert not (tmp_path / "wrong.jsonl").exists()
    # Medians and the ratios of rounds may differ that little, and another setting is another comparison.
    append(tmp_path / "near.jsonl", [base, replace(base, variant="lrt", ratio=1.3, to="transformer")])
    append(tmp_path / "other.jsonl", [replace(base, setting={"rank": 4}), replace(twice, ratio=0.5, to="transformer")])


def test_records_are_made_by_of_alone() -> None:
    root = Path(__file__).parents[2]
    for path in (*(root / "greenformers").rglob("*.py"), *(root / "benchmarks").glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text if "Record(" in text else "")  # most files have no such call, and take long to parse
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        direct = [call for call in calls if isinstance(call, ast.Name) and call.id == "Record"]
        # The exception is `read`, which checks what it has read.
        assert len(direct) == (path.parts[-2:] == ("measure", "record.py")), path


RUNS = [{"seed": seed, "machine": {"cores": 2}} for seed in (0, 1)]


def in_runs() -> list[Record]:
    """Two records of one run, one of another, one of none."""
    return [replace(record("lrt", "latency", 1.0 + at), context=RUNS[at // 2]) for at in range(3)] + [
        record("lrt", "latency", 9.0)
    ]


def test_a_context_is_written_once_and_read_with_every_record(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    append(file, in_runs())
    append(file, in_runs()[2:])
    append(file, in_runs()[:1])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["context"] for row in rows if "id" in row] == RUNS
    assert all("spread" not in row for row in rows)
    assert len({row["context"] for row in rows if row["context"] and "id" not in row}) == 2
    assert read(file) == [*in_runs(), *in_runs()[2:], in_runs()[0]]


def test_a_file_whose_records_hold_their_contexts_is_read_and_added_to(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in in_runs()))
    assert read(file) == in_runs()
    append(file, in_runs())
    assert read(file) == in_runs() * 2


def test_a_context_that_is_nowhere_is_named(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    append(file, in_runs())
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match=r"records\.jsonl, line 1: its context '[0-9a-f]{12}' is in no line before it"):
        read(file)


def test_a_last_line_without_its_end_stays_a_line(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    append(file, [record("lrt", "latency", 1.0)])
    file.write_text(file.read_text().rstrip("\n"))
    append(file, [record("lrt", "latency", 2.0)])
    assert [row.value for row in read(file)] == [1.0, 2.0]


def test_two_that_make_no_error_are_alike() -> None:
    rated = with_ratios(
        [record("dense", "wer", 0.0), record("int8", "wer", 0.0), record("low", "wer", 2.0)], to="dense"
    )
    assert [row.ratio for row in rated] == [1.0, 1.0, None]


def test_an_interval_keeps_what_it_is_a_difference_to() -> None:
    beside = replace(record("low", "wer", 2.0), interval=[0.0, 4.0], to="dense")
    assert with_ratios([record("dense", "wer", 0.0), beside], to="dense")[1].to == "dense"


def test_of_two_machines_it_is_told_what_differs(tmp_path: Path) -> None:
    other = replace(record("lrt", "latency", 1.0), context={"machine": machine() | {"gpu": "H900"}})
    with pytest.raises(ValueError, match="gpu H900"):
        check_machine([other], tmp_path / "records.jsonl")
    check_machine([replace(other, context={"machine": machine()})], tmp_path / "records.jsonl")
