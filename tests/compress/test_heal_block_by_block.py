"""Healing block by block: every block learns what the block of the original network gave, also after a kill."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from models import folder
from safetensors.torch import load_file
from torch import nn
from zoo import network

import greenformers
from greenformers.changes import Given, Heal, Int8, LowRank, Sparse
from greenformers.changes._block_healing import heal_block
from greenformers.checkpoint.pretrained import pretrained
from greenformers.checkpoint.save import REPORT
from greenformers.checkpoint.structure import structure
from greenformers.compress.block_by_block import compress_block_by_block
from greenformers.compress.block_work import Work
from greenformers.solve.sparse_linear import sparse_layers

HEAL = Heal(steps=40, batch_size=4, learning_rate=3e-3)
BRIEF = HEAL.but(steps=8)  # where nothing is said of how much it brings back
HALF = LowRank(keep=0.4, solver="svd", uniform=True)


def ids(rows: int, seed: int, length: int = 12) -> torch.Tensor:
    return torch.randint(3, 53, (rows, length), generator=torch.Generator().manual_seed(seed))


BATCHES = [{"input_ids": ids(4, seed)} for seed in range(12)]
JUDGED = ids(16, 100)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    model = network("llama", tie_word_embeddings=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    model.to(request.param).save_pretrained(path)
    return path


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return {name: x for file in path.glob("*.safetensors") for name, x in load_file(file).items()}


def states(path: Path) -> torch.Tensor:
    model = pretrained(str(path))[0].float().eval()
    with torch.no_grad():
        return model(JUDGED, output_hidden_states=True).hidden_states[-1]


def lost(path: Path, original: Path) -> float:
    y = states(original)
    return float((states(path) - y).norm() / y.norm())


def test_it_loses_less(llama: Path, tmp_path: Path) -> None:
    for name, recipe in (("plain", [HALF]), ("healed", [HALF, HEAL])):
        compress_block_by_block(llama, tmp_path / name, recipe, BATCHES)
    plain, healed = (lost(tmp_path / name, llama) for name in ("plain", "healed"))
    assert healed < 0.85 * plain
    dtypes = [{x.dtype for x in tensors(path).values()} for path in (llama, tmp_path / "healed")]
    assert dtypes[0] == dtypes[1]
    report = json.loads((tmp_path / "healed" / REPORT).read_text())
    units = report["steps"][1]["report"]["units"]
    assert len(units) == json.loads((llama / "config.json").read_text())["num_hidden_layers"]
    for unit in units:
        first, last = (float(word) for word in unit["form"].removeprefix("healed, error ").split(" -> "))
        assert last < first


def test_what_learns_together_loses_less(tmp_path: Path) -> None:
    bert, gone = tmp_path / "bert", {}
    network("bert", "BertForMaskedLM", num_hidden_layers=4).save_pretrained(bert)
    for at_once in (1, 3):  # 4 blocks: a section of three, and one of one
        out = tmp_path / str(at_once)
        report = compress_block_by_block(bert, out, [HALF, HEAL], BATCHES, at_once=at_once)
        assert len(report.steps[1].report.units) == {1: 4, 3: 2}[at_once]
        gone[at_once] = lost(out, bert)
    assert gone[3] < gone[1]


def test_zeros_stay_and_int8_follows(tmp_path: Path) -> None:
    bert = folder(tmp_path, "bert", "BertForMaskedLM")
    for name, recipe in (("sparse", [Sparse(0.5), BRIEF]), ("int8", [HALF, BRIEF, Int8()])):
        compress_block_by_block(bert, tmp_path / name, recipe, BATCHES)
    small = greenformers.load(tmp_path / "sparse")
    left = [layer.sizes for _, layer in sparse_layers(small)]
    assert left
    assert all(nonzero <= 0.55 * total for nonzero, total in left)
    assert structure(greenformers.load(tmp_path / "int8")).order == ["low_rank", "int8"]
    compress_block_by_block(bert, tmp_path / "floats", [HALF, BRIEF], BATCHES)
    torch.testing.assert_close(states(tmp_path / "int8"), states(tmp_path / "floats"), rtol=0.1, atol=0.1)


def test_padding_is_not_learned_from(tmp_path: Path) -> None:
    bert = folder(tmp_path, "bert", "BertForMaskedLM")
    rows = [ids(4, seed) for seed in range(6)]
    short = [row[:, :8] for row in rows]
    mask = torch.cat([torch.ones(4, 8, dtype=torch.long), torch.zeros(4, 4, dtype=torch.long)], 1)
    padded = [{"input_ids": row.masked_fill(mask == 0, value), "attention_mask": mask} for row, value in
              zip(rows, (0, 5, 0, 7, 9, 3), strict=True)]  # fmt: skip
    compress_block_by_block(bert, tmp_path / "padded", [HALF, BRIEF], padded)
    compress_block_by_block(bert, tmp_path / "short", [HALF, BRIEF], [{"input_ids": row} for row in short])
    torch.testing.assert_close(states(tmp_path / "padded"), states(tmp_path / "short"), rtol=1e-3, atol=1e-3)


def killed(model: Path, out: Path, at_once: int) -> None:
    """Compress in a process that kills itself after the first section."""
    keep = Work.keep

    def after(work: Work, number: int | None, *given: object) -> None:
        keep(work, number, *given)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGKILL)

    Work.keep = after  # type: ignore[method-assign]
    compress_block_by_block(model, out, [HALF, BRIEF], BATCHES, at_once=at_once)


@pytest.mark.parametrize("at_once", [1, 2])
def test_killed_it_goes_on_to_the_same_bits(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    compress_block_by_block(llama, tmp_path / "whole", [HALF, BRIEF], BATCHES, at_once=at_once)
    process = multiprocessing.get_context("fork").Process(target=killed, args=(llama, tmp_path / "parts", at_once))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    sections, keep = [], Work.keep
    monkeypatch.setattr(
        Work, "keep", lambda work, number, *given: (sections.append(number), keep(work, number, *given))[1]
    )
    compress_block_by_block(llama, tmp_path / "parts", [HALF, BRIEF], BATCHES, at_once=at_once)
    assert 0 not in sections  # the first section was not done again
    assert sections
    whole, parts = (tensors(tmp_path / name) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(x.equal(parts[name]) for name, x in whole.items())


@pytest.mark.parametrize("options", [{"patience": 2}, {"weights": {"hidden": 1.0}}, {"aware": True}, {"shard": True}])
def test_what_is_of_a_whole_network_is_refused(llama: Path, tmp_path: Path, options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"block by block, from disk, .* {name} must be left out"):
        compress_block_by_block(llama, tmp_path / "out", [HALF, HEAL.but(**options)], BATCHES)
    assert not list(tmp_path.iterdir())


def test_it_cannot_follow_what_freezes(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"heal cannot follow int8"):
        compress_block_by_block(llama, tmp_path / "out", [Int8(), HEAL], BATCHES)


def test_farther_than_before_stays_as_it_was() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    inputs = [{"input": torch.randn(2, 3, 4)} for _ in range(4)]
    outputs = [layer(batch["input"]).detach() + 1e-4 * torch.randn(2, 3, 4) for batch in inputs]
    log = heal_block(
        layer, inputs, outputs, steps=3, batch_size=2, learning_rate=10.0, seed=0, progress=lambda _: None
    )  # fmt: skip
    assert log[-1]["eval_distance"] > log[0]["eval_distance"]
    assert layer.weight.equal(before)


def test_a_block_alone_needs_what_the_original_gave() -> None:
    with pytest.raises(ValueError, match=r"what the original block gave"):
        HEAL.apply(nn.Linear(2, 2), Given(calibration=[torch.zeros(1, 2)], part=True))
