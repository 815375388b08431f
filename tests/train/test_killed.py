"""`greenformers train` in a process of its own, killed, terminated and damaged: the end is the same to the bit."""

import random
import signal
import time
from pathlib import Path

import pytest
from processes import corpus, curve, finish, kill, start, wait_for, weights

CURVES = ("loss", "eval_loss")
STEPS = 40
MANY_STEPS = 900


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(corpus(tmp_path_factory.mktemp("text")))


def undisturbed(out: Path, data: str, steps: int) -> Path:
    """In a Python of its own: what resumes is a fork, of another seed for the order of sets."""
    finish(start(out, fresh=True, folder=data, steps=steps))
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: str) -> Path:
    """A run that nothing disturbed."""
    return undisturbed(tmp_path_factory.mktemp("whole") / "run", data, STEPS)


def newest(run: Path) -> int:
    steps = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
    return max(steps, default=0)


def kill_once(out: Path, data: str, steps: int, source: random.Random) -> str:
    """Start or go on, and kill -9 at a random moment after the first new checkpoint; what was printed."""
    before = newest(out)
    process = start(out, "--resume", folder=data, steps=steps)
    end = time.monotonic() + 120
    while newest(out) <= before and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(source.uniform(0, 0.2))
    return kill(process)


def kill_often(times: int, out: Path, data: str, steps: int) -> list[int]:
    """Kill a run so often; after each kill its newest checkpoint must be whole. How far each life got."""
    source = random.Random(times)
    reached = []
    while len(reached) < times and not (out / "scores.json").exists():
        assert "damaged" not in kill_once(out, data, steps, source)
        reached.append(newest(out))
    return reached


@pytest.mark.slow
def test_killed_at_random_moments(whole: Path, data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    reached = kill_often(2, out, data, STEPS)
    assert reached == sorted(set(reached))  # every life got further
    finish(start(out, "--resume", folder=data, steps=STEPS))
    assert weights(out) == weights(whole)
    assert curve(out, *CURVES) == curve(whole, *CURVES)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_twenty_times(data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    reached = kill_often(20, out, data, MANY_STEPS)
    print("checkpoints reached by each life:", reached)
    assert len(reached) == 20
    finish(start(out, "--resume", folder=data, steps=MANY_STEPS))
    whole = undisturbed(tmp_path / "whole", data, MANY_STEPS)
    assert weights(out) == weights(whole)
    assert curve(out, *CURVES) == curve(whole, *CURVES)


@pytest.mark.slow
def test_terminated_it_saves_and_goes_on(whole: Path, data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, folder=data, steps=STEPS)
    wait_for(out / "checkpoints" / "step-3")
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"stopped after step {newest(out)} of {STEPS}; go on with --resume" in printed
    finish(start(out, "--resume", folder=data, steps=STEPS))
    assert weights(out) == weights(whole)


def test_a_truncated_checkpoint_is_named_and_skipped(whole: Path, data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, folder=data, steps=STEPS)
    wait_for(out / "checkpoints" / "step-6")
    kill(process)
    damaged = out / "checkpoints" / f"step-{newest(out)}"
    file = damaged / "optimizer.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    printed = " ".join(finish(start(out, "--resume", folder=data, steps=STEPS)).split())
    assert (
        f"checkpoint {damaged.name} is damaged and skipped: optimizer.safetensors has {len(content) // 2} bytes"
        in printed
    )
    assert weights(out) == weights(whole)
