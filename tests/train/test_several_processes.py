"""Two processes learn what one learns: data-parallel, sharded, and in a pipeline; and so do students."""

import json
from pathlib import Path
from typing import Any

import pytest
from models import folder, sentences
from processes import Forked, corpus, curve, finish, flags, free_port, kill, launch, start, wait_for
from safetensors.torch import load_file

CURVES = ("loss", "eval_loss", "learning_rate")
WAYS = {
    "data-parallel": (2, []),
    "sharded": (2, ["--shard"]),
    "pipelines": (4, ["--micro-batches", "2", "--stages", "2"]),  # two of two stages
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


@pytest.mark.parametrize(
    ("processes", "words"),
    [*WAYS.values(), pytest.param(2, ["--micro-batches", "4"], marks=pytest.mark.slow)],
    ids=[*WAYS, "one pipeline"],
)
def test_the_curve_is_that_of_one_process(
    single: Path, data: str, tmp_path: Path, processes: int, words: list[str]
) -> None:
    settings = SETTINGS | {"accumulate": 1 if "--micro-batches" in words else 2}
    # They are told of each other in the words of torchrun; the slow test below is started by torchrun itself.
    finish(start(tmp_path / "run", *words, processes=processes, folder=data, **settings))
    is_that_of(tmp_path / "run", single)
    expected = curve(single, *CURVES)
    assert len(expected) == 26
    assert expected[0][2] - expected[-1][2] > 0.1  # it does learn


def is_that_of(run: Path, single: Path) -> None:
    """Check that the curve of a run is that of another one."""
    expected, actual = curve(single, *CURVES), curve(run, *CURVES)
    assert [entry[:2] for entry in actual] == [entry[:2] for entry in expected]
    for (_, _, a), (_, _, b) in zip(actual, expected, strict=True):
        assert abs(a - b) < 1e-5


@pytest.mark.slow
def test_two_hosts_learn_what_one_process_learns(single: Path, data: str, tmp_path: Path) -> None:
    """Two launchers that meet at a port, as on two machines, with a process each."""
    run = tmp_path / "run"
    words = ["train", "--out", str(run), *flags(folder=data, **(SETTINGS | {"accumulate": 2}))]
    launcher = [
        "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id",
        "hosts", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1",
    ]  # fmt: skip
    hosts = [launch([*launcher, "--rdzv-conf", f"is_host={first}"], words) for first in ("true", "false")]
    try:
        printed = [finish(host) for host in hosts]
    finally:
        for host in hosts:
            if host.poll() is None:
                kill(host)
    assert sum("model: " in text for text in printed) == 1, "the first process alone has something to say"
    is_that_of(run, single)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["MULTI_GPU", "FSDP"])
def test_accelerate_starts_them_by_its_file(single: Path, data: str, tmp_path: Path, way: str) -> None:
    """Of a file of `accelerate config`; without GPUs both processes are of the CPU."""
    lines = [f"distributed_type: {way}", "num_processes: 2", "main_process_port: 0", "mixed_precision: 'no'"]
    (tmp_path / "accelerate.yaml").write_text("\n".join(lines) + "\n")
    run = tmp_path / "run"
    words = ["train", "--out", str(run), *flags(folder=data, **(SETTINGS | {"accumulate": 2}))]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "accelerate.yaml")]
    printed = finish(launch(launcher, words))
    assert printed.count("model: ") == 1
    is_that_of(run, single)


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


def healed(home: Path, teacher: Path, processes: int, *more: str) -> tuple[list[float], dict[str, Any]]:
    """The distances of a student from its teacher as it learns, and its weights."""
    home.mkdir()
    words = [
        "compress", teacher / "BertModel", "--texts", teacher / "texts.txt", "--narrow", 16, "--narrow-layers", 1,
        "--heal", 20, "--heal-batch", 16, "--heal-rate", "3e-3", "--heal-weight", "embeddings=1", "--teacher-cache",
        home / "cache", "--lengths", "", "--out", home / "small", *more,
    ]  # fmt: skip
    printed = finish(Forked([str(word) for word in words], home / "printed.txt", processes))
    assert printed.count("model: ") == 1  # the first process alone has something to say
    assert sorted(path.name for path in home.iterdir()) == ["cache", "printed.txt", "small"]
    report = json.loads((home / "small" / "compression.json").read_text())
    log = report["steps"][-1]["report"]["log"]
    return [entry["eval_distance"] for entry in log if "eval_distance" in entry], load_file(
        home / "small" / "model.safetensors"
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model without dropout, of which processes would draw apart, and texts."""
    home = tmp_path_factory.mktemp("teacher")
    model = folder(home, "bert", "BertModel")
    config = json.loads((model / "config.json").read_text())
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (model / "config.json").write_text(json.dumps(config | still))
    (home / "texts.txt").write_text("\n".join(sentences(300)) + "\n")
    return home


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> tuple[list[float], dict[str, Any]]:
    return healed(tmp_path_factory.mktemp("alone") / "one", teacher, 1)


@pytest.mark.parametrize("way", [[], pytest.param(["--heal-shard"], marks=pytest.mark.slow)], ids=["data", "sharded"])
def test_a_student_learns_the_same(
    alone: tuple[list[float], dict[str, Any]], teacher: Path, tmp_path: Path, way: list[str]
) -> None:
    """Its pooler, of which the loss compares nothing, has no gradient; the teacher is asked by one of them."""
    losses, ours = alone
    several, theirs = healed(tmp_path / "several", teacher, 2, *way)
    assert losses[-1] < 0.9 * losses[0]  # it does learn
    assert several == pytest.approx(losses, rel=1e-3)
    assert {name: x.shape for name, x in theirs.items()} == {name: x.shape for name, x in ours.items()}
    gaps = [(x - theirs[name]).abs().max().item() for name, x in ours.items() if x.is_floating_point()]
    assert 0 < max(gaps) < 1e-2  # the order of sums


@pytest.mark.slow
def test_what_is_drawn_anew_in_a_stage_is_saved(data: str, tmp_path: Path) -> None:
    """Random features are no parameters, and drawn anew in training: those of one process and of a pipeline."""
    settings = SETTINGS | {"variant": "performer", "k": 4, "accumulate": 1}
    words = ["--option", "redraw=5"]
    finish(start(tmp_path / "one", *words, folder=data, **settings))
    finish(start(tmp_path / "two", *words, "--micro-batches", "1", processes=2, folder=data, **settings))
    expected, actual = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("one", "two"))
    steps = [expected[name].item() for name in expected if name.endswith("steps")]
    assert steps == [12, 12]
    for name in (name for name in expected if name.endswith(("rows", "steps"))):
        assert expected[name].equal(actual[name]), name
