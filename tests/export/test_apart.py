"""Files timed in a process of their own: their seconds come back, and what goes wrong there is told here."""

from pathlib import Path

import pytest
from zoo import network

from greenformers.export import apart
from greenformers.export.apart import File, Timer
from greenformers.export.network import Network
from greenformers.export.write import write

HOW = {"repeats": 3, "warmup": 1, "min_time": 0.0, "pause": 0.001}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> File:
    """A network in ONNX Runtime."""
    model, folder = network("bert", "BertModel", num_hidden_layers=1), tmp_path_factory.mktemp("bert")
    write(model, folder, ["onnx"], length=16, few=True)
    own = Network(model, None)
    return File("onnx", folder, tuple(own.inputs), tuple(own.batch(2, 8)))


def test_each_file_has_its_seconds(file: File, tmp_path: Path) -> None:
    first, second = apart._samples(apart._job([file, file], tmp_path, HOW))
    assert len(first) == len(second) == 3
    assert all(seconds > 0 for seconds in (*first, *second))


@pytest.mark.slow
def test_in_a_process_of_its_own(file: File, tmp_path: Path) -> None:
    timer = Timer()
    (samples,) = timer.times([file], **HOW)
    assert len(samples) == 3
    process = timer._process
    with pytest.raises(ValueError, match=r"model\.onnx is missing"):
        timer.times([File("onnx", tmp_path, file.inputs, file.example)], **HOW)
    assert len(timer.times([file, file], **HOW)) == 2
    assert timer._process is process


SCRIPT = """
import json, sys
for asked in sys.stdin:
    job = json.loads(asked)
    if job["how"]["repeats"] == 7:
        sys.exit(3)
    print(json.dumps({"samples": [[job["how"]["repeats"]] for _ in job["files"]]}), flush=True)
"""


def test_a_process_that_ended_is_told_of_and_the_next_files_have_another(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timer, "program", ("-c", SCRIPT))
    timer = Timer()
    assert timer.times([file, file], **HOW) == [(3,), (3,)]
    process = timer._process
    with pytest.raises(ValueError, match="a process that was to time files ended with 3"):
        timer.times([file], **HOW | {"repeats": 7})
    assert timer.times([file], **HOW) == [(3,)]
    assert timer._process is not process


def test_what_is_stopped_in_between_leaves_no_answer_behind(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timer, "program", ("-c", SCRIPT))
    timer = Timer()
    timer.times([file], **HOW)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(apart.json, "dumps", stop)
        with pytest.raises(KeyboardInterrupt):
            timer.times([file], **HOW)
    assert timer.times([file], **HOW | {"repeats": 5}) == [(5,)]
