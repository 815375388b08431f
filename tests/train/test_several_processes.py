"""Two processes learn what one learns: data-parallel, sharded, and in a pipeline."""

from pathlib import Path

import pytest
from processes import corpus, curve, finish, kill, start, wait_for

CURVES = ("loss", "eval_loss")
WAYS = {
    "data-parallel": [],
    "sharded": ["--shard"],
    "pipeline": ["--micro-batches", "4"],
}
# Dropout draws differ between processes, so there is none; steps are accumulated where the way allows it.
SETTINGS = {"dropout": 0.0, "log_every": 1, "steps": 12, "evaluate_every": 6, "save_every": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(corpus(tmp_path_factory.mktemp("text")))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, data: str) -> Path:
    out = tmp_path_factory.mktemp("single") / "run"
    finish(start(out, folder=data, **SETTINGS))
    return out


@pytest.mark.parametrize("way", WAYS)
def test_the_curve_is_that_of_one_process(single: Path, data: str, tmp_path: Path, way: str) -> None:
    accumulate = 1 if way == "pipeline" else 2
    settings = SETTINGS | {"accumulate": accumulate}
    # They are told of each other in the words of torchrun; the slow test below is started by torchrun itself.
    finish(start(tmp_path / "run", *WAYS[way], processes=2, folder=data, **settings))
    expected, found = curve(single, *CURVES), curve(tmp_path / "run", *CURVES)
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert len(expected) == 14
    assert expected[0][2] - expected[-1][2] > 0.1  # it does learn
    for (_, _, a), (_, _, b) in zip(found, expected, strict=True):
        assert abs(a - b) < 1e-5


@pytest.mark.slow
def test_a_checkpoint_does_not_depend_on_the_number_of_processes(data: str, tmp_path: Path) -> None:
    """Begun in two sharded processes and killed, ended in one."""
    longer = SETTINGS | {"steps": 60, "save_every": 2, "evaluate_every": 20}
    out = tmp_path / "run"
    process = start(out, "--shard", processes=2, fresh=True, folder=data, **longer)
    wait_for(out / "checkpoints" / "step-4")
    kill(process)
    assert (out / "checkpoints").exists(), "it ended before it could be killed"
    finish(start(out, "--resume", folder=data, **longer))
    finish(start(tmp_path / "single", folder=data, **longer))
    for (_, _, a), (_, _, b) in zip(curve(out, *CURVES), curve(tmp_path / "single", *CURVES), strict=True):
        assert abs(a - b) < 1e-4  # rounding adds up over the steps
