"""Several processes calibrate one network together, block by block from disk too, and share out the cells of a grid."""

import json
import os
import random
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run
from models import folder, sentences
from processes import Forked, finish, kill
from torch import Tensor

import greenformers
from greenformers.arena.protocol import TASKS, drawn_folder
from greenformers.data import listops
from greenformers.solve.share import Share, anywhere, check_share, first
from greenformers.solve.sums import Sums

pytestmark = pytest.mark.usefixtures("drafts")

RECIPES = {
    "loss": ["--change", "low_rank keep=0.6 solver=loss multiple=1"],
    "sequential": ["--change", "low_rank keep=0.6 solver=sequential multiple=1"],
    "gptq": ["--change", "bits bits=4 group=8"],
    "sparsegpt": ["--change", "sparse keep=0.5"],
}
"""Changes whose statistics are sums over batches: of gradients, of two networks, and layer by layer."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and texts: 400 of them, 25 batches."""
    home = tmp_path_factory.mktemp("home")
    for name, cls in (("bert", "BertModel"), ("llama", "LlamaForCausalLM")):
        folder(home, name, cls)
    (home / "texts.txt").write_text("\n".join(sentences(400)) + "\n")
    return home


def compressed(home: Path, model: str, out: Path, processes: int, *words: str) -> Path:
    command = ["compress", str(home / model), "--calibrate", str(home / "texts.txt"), "--out", str(out), *words]
    command += [] if "--from-disk" in words else ["--lengths", ""]
    printed = out.with_name(f"{out.name}.txt")
    if processes > 1:
        finish(Forked(command, printed, processes))
    else:  # in this one
        with pytest.MonkeyPatch.context() as patch, printed.open("w") as file, redirect_stdout(file):
            assert run(patch, *command) == 0
    assert printed.read_text().count("model: ") == 1  # the first process alone has something to say
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith(out.name)) == [
        out.name, f"{out.name}.txt",
    ]  # fmt: skip
    return out


def outputs(path: Path) -> Tensor:
    ids = torch.arange(3, 43).view(4, 10)
    with torch.no_grad():
        return greenformers.load(path).eval()(input_ids=ids)[0]


def far(expected: Tensor, actual: Tensor) -> float:
    return ((expected - actual).norm() / expected.norm()).item()


@pytest.mark.parametrize("recipe", [*RECIPES])
def test_what_two_calibrate_is_what_one_does(home: Path, tmp_path: Path, recipe: str) -> None:
    single, pair = (compressed(home, "BertModel", tmp_path / name, count, *RECIPES[recipe])
                for name, count in (("one", 1), ("two", 2)))  # fmt: skip
    assert far(outputs(single), outputs(pair)) < 1e-5
    assert 0 < far(outputs(single), dense(home)) < 0.5


def dense(home: Path) -> Tensor:
    import transformers

    ids = torch.arange(3, 43).view(4, 10)
    with torch.no_grad():
        return transformers.BertModel.from_pretrained(home / "BertModel").eval()(input_ids=ids)[0]


@pytest.mark.parametrize("recipe", ["gptq", "sequential"])
def test_block_by_block_too(home: Path, tmp_path: Path, recipe: str) -> None:
    words = ["--from-disk", "--length", "16", *RECIPES[recipe]]
    single, pair = (compressed(home, "LlamaForCausalLM", tmp_path / name, count, *words)
                for name, count in (("one", 1), ("two", 2)))  # fmt: skip
    assert far(outputs(single), outputs(pair)) < 1e-5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from-disk", "--keep", "0.5", "--heal", "5"], "block by block, healed 5 is the work of one process"),
        (["--from-disk", "--change", "neurons"], "is the work of one process, not of 2"),
        (["--limit", "1", "--keep", "0.5"], "2 processes need a batch of examples each, got 1"),
    ],
)
def test_what_cannot_be_shared_is_refused(home: Path, tmp_path: Path, words: list[str], said: str) -> None:
    command = ["compress", str(home / "BertModel"), "--texts", str(home / "texts.txt"), "--out", str(tmp_path / "out")]
    process = Forked([*command, *words], tmp_path / "printed.txt", 2)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 2, printed
    assert said in printed
    assert [path.name for path in tmp_path.iterdir()] == ["printed.txt"]


def test_a_command_of_one_process_refuses_two(tmp_path: Path) -> None:
    process = Forked(["bench", "--variants", "transformer"], tmp_path / "printed.txt", 2)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "bench is the work of one process: start it without torchrun" in printed


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same(home: Path, tmp_path: Path) -> None:
    """Ten times, one of two processes, block by block; torchrun then ends the other, as here."""
    words = ["--from-disk", "--length", "16", *RECIPES["sequential"]]
    expected = outputs(compressed(home, "LlamaForCausalLM", tmp_path / "one", 1, *words))
    draw, before = random.Random(0), 0
    command = ["compress", str(home / "LlamaForCausalLM"), "--calibrate", str(home / "texts.txt")]
    for attempt in range(10):
        out = tmp_path / f"two-{attempt}"
        process = Forked([*command, "--out", str(out), *words], tmp_path / f"{attempt}.txt", 2)
        while not list(tmp_path.glob(f"{out.name}.unfinished-*")) and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.5))
        os.kill(draw.choice(process.members).pid, 9)
        kill(process)
        assert not out.exists() or process.returncode == 0
        before += bool(list(tmp_path.glob(f"{out.name}.unfinished-*/*.json")))
        compressed(home, "LlamaForCausalLM", out, 2, *words)
        assert far(expected, outputs(out)) < 1e-5
    assert before > 2, "it was killed between blocks"


def test_processes_share_out_the_cells_of_a_grid(tmp_path: Path) -> None:
    data = listops.generate(train=40, valid=10, test=20, shortest=5, longest=30, depth=4, arguments=4)
    listops.write(drawn_folder("listops", TASKS["listops"].sizes["tiny"], tmp_path / "grid/data"), data)
    words = [
        "arena", "--tasks", "listops", "--variants", "transformer,linformer", "--seeds", "2", "--steps", "4", "--batch",
        "4", "--no-controls", "--no-pretrain", "--out", str(tmp_path / "grid"),
    ]  # fmt: skip
    printed = finish(Forked(words, tmp_path / "printed.txt", 2))
    lines = [line.split(":")[0].split(" ", 1)[1] for line in printed.splitlines() if " left" in line and "/" in line]
    cells = [f"listops, {name}, seed {seed}" for name in ("transformer", "linformer") for seed in range(2)]
    assert sorted(line for line in lines if "seed" in line) == sorted(cells), "each was trained once"
    assert printed.count("report: ") == 1
    folders = list((tmp_path / "grid/listops").glob("*/seed-*"))
    assert len(folders) == len(cells)
    for cell in folders:
        settings = json.loads((cell / "training/run.json").read_text())
        assert settings["steps"] == 4
        assert (cell / "result.json").is_file()


def test_two_search_for_a_recipe(home: Path, tmp_path: Path) -> None:
    words = ["compress", str(home / "BertModel"), "--texts", str(home / "texts.txt"), "--length", "16", "--lengths", ""]
    words += ["--lose", "20%", "--minutes", "0.1", "--out", str(tmp_path / "small")]
    printed = finish(Forked(words, tmp_path / "printed.txt", 2))
    assert printed.count("report: ") == printed.count("The front of") == 1
    numbers = [int(line.split()[0]) for line in printed.splitlines() if " as fast, keeps " in line]
    assert numbers[:2] == [1, 2]
    assert numbers == sorted(set(numbers)), "each was told once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["printed.txt", "small"]
    assert outputs(tmp_path / "small").isfinite().all()


@pytest.mark.slow
def test_two_search_for_a_network(tmp_path: Path) -> None:
    words = ["search", "--data", "digits", "--limit", "200", "--steps", "9", "--batch", "16", "--layers", "1", "--vary"]
    words += ["rank,heads", "--lose", "20%", "--minutes", "1", "--out", str(tmp_path / "found")]
    printed = finish(Forked(words, tmp_path / "printed.txt", 2))
    assert printed.count("report: ") == 1
    assert printed.count(" as fast, keeps 100.00%") >= 3, "the network of the settings, after each hurdle"
    for name in ("base", "best"):
        assert json.loads((tmp_path / "found" / name / "scores.json").read_text())["accuracy"] >= 0


def test_alone_a_share_is_all() -> None:
    batches = [torch.ones(1, 3, 2) * number for number in range(4)]
    share = Share(batches)
    assert [x[0, 0, 0].item() for x in share] == [0, 1, 2, 3]
    assert len(share[1:3]) == 2
    sums: Any = Sums(share)
    for x in share:
        sums.products("C", x)
    assert sums.done()["C"][0, 0, 0].item() == 3 * (1 + 4 + 9)
    assert anywhere(True, share)
    assert first(None, share) is None
    check_share(1)
