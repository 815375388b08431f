"""Block by block from disk: the same as in memory, with one block in memory, also after the process was killed."""

import json
import multiprocessing
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from command_line import refused, run
from models import folder, sentences, tokenizer
from safetensors.torch import load_file, save_file
from zoo import difference, network, outputs

import greenformers
from greenformers._torch import leaves
from greenformers.changes import Bits, Change, Exits, Heads, Int8, LowRank, Neurons, Prune, Shrink, Sparse
from greenformers.changes._recipe import RECIPE, read_recipe
from greenformers.checkpoint.save import REPORT
from greenformers.compress import block_walk, states
from greenformers.compress.block_by_block import compress_block_by_block
from greenformers.compress.block_walk import Walk
from greenformers.compress.block_work import Work
from greenformers.measure.parameters import bytes_of, parameters

SEQUENTIAL = LowRank(keep=0.5, solver="sequential", uniform=True, multiple=1)
BLOCKS = ("*layer*", "*.h.*")
"""Patterns of which each kind of network has one: the other selects nothing."""


def ids(rows: int = 3, length: int = 11, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 53, (rows, length), generator=torch.Generator().manual_seed(seed))


BATCHES = [{"input_ids": ids(seed=seed)} for seed in (1, 2)]
JUDGED = {"input_ids": ids(2, 9, seed=3)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    by_name = {
        name: folder(root, name, cls) for name, cls in (("bert", "BertForMaskedLM"), ("gpt2", "GPT2LMHeadModel"))
    }
    for name, kind in (("llama", torch.float32), ("llama-bf16", torch.bfloat16)):
        model = network("llama", tie_word_embeddings=False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(6 if parameter.dim() == 2 else 1)
        model.to(kind).save_pretrained(root / name)
        by_name[name] = root / name
    return by_name


def dense(path: Path) -> transformers.PreTrainedModel:
    cls = getattr(transformers, json.loads((path / "config.json").read_text())["architectures"][0])
    model: transformers.PreTrainedModel = cls.from_pretrained(path).eval()
    return model


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", [SEQUENTIAL]), ("llama", [Bits(4, group=16, select=BLOCKS[:1])]), ("llama-bf16", [SEQUENTIAL]),
        ("bert", [SEQUENTIAL.but(solver="activation"), Int8()]), ("bert", [Sparse(by="wanda")]), ("gpt2", [Sparse()]),
        ("gpt2", [Bits(3, group=16, select=("*.mlp.*", "*.h.0.*.c_attn"))]),
    ],
)  # fmt: skip
def test_it_is_what_compress_makes(models: dict[str, Path], tmp_path: Path, name: str, changes: list[Change]) -> None:
    report = compress_block_by_block(models[name], tmp_path / "out", changes, BATCHES)
    read = greenformers.load(tmp_path / "out")
    model = dense(models[name])
    whole = outputs(model, JUDGED)
    expected = greenformers.compress(model, changes, calibration=BATCHES)
    for step, other in zip(report.steps, expected.steps, strict=True):
        assert (step.parameters, step.size) == (other.parameters, other.size)
        forms = [{unit.path: (unit.form, unit.before, unit.after) for unit in s.report.units} for s in (step, other)]
        assert forms[0] == forms[1]
    assert (report.steps[-1].parameters, report.steps[-1].size) == (parameters(read), bytes_of(read))
    # Hidden states are stored in the network's own number format: nothing is rounded on the way.
    torch.testing.assert_close(outputs(read, JUDGED)[0], outputs(model, JUDGED)[0], rtol=1e-5, atol=1e-5)
    assert difference(outputs(read, JUDGED), whole) > 1e-2
    assert json.loads((tmp_path / "out" / REPORT).read_text())["kept"] == report.size_share
    assert read_recipe(tmp_path / "out" / RECIPE) == changes
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_both_blocks_at_once_are_the_same(models: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Layers see what the changed ones before them give, whether their block is alone in memory or not."""
    for at_once in (1, 2):
        compress_block_by_block(models[name], tmp_path / str(at_once), [SEQUENTIAL], BATCHES, at_once=at_once)
    ours, theirs = (outputs(greenformers.load(tmp_path / folder), JUDGED)[0] for folder in "12")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_disk_for_what_blocks_are_called_with_is_known_before(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where the shortest text is as long as the network is wide."""
    stated, written = [], []
    called, save = block_walk.called, states._save

    def saved(tensors: dict[str, torch.Tensor], file: Path) -> None:
        written.append(sum(x.nbytes for x in tensors.values()) if file.parent.name == "calls" else 0)
        save(tensors, file)

    monkeypatch.setattr(block_walk, "called", lambda *told: (stated.append(called(*told)), stated[-1])[1])
    monkeypatch.setattr(states, "_save", saved)
    width = dense(models[name]).config.hidden_size
    heads = dense(models[name]).config.num_attention_heads
    batches = [{"input_ids": ids(2, width // heads)}, {"input_ids": ids(3, width)}, {"input_ids": ids(3, width)}]
    padded = torch.ones(2, width + 1, dtype=torch.long).tril(width - 2)
    batches.append({"input_ids": ids(2, width + 1), "attention_mask": padded})
    compress_block_by_block(models[name], tmp_path / "out", [Sparse(by="wanda")], batches)
    assert stated == [sum(written)]
    assert stated[0] > 0


@pytest.mark.parametrize("at_once", [0, 3])
def test_no_more_blocks_than_there_are(models: dict[str, Path], tmp_path: Path, at_once: int) -> None:
    with pytest.raises(ValueError, match=rf"blocks at once must be 1 to 2, the blocks of the network; got {at_once}"):
        compress_block_by_block(models["llama"], tmp_path / "out", [SEQUENTIAL], BATCHES, at_once=at_once)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "change", "forms", "most"),
    [
        ("llama", Heads(keep=0.5), "1 of 2 heads", 1.5), ("bert", Neurons(keep=0.5), "16 of 44 neurons", 1.5),
        ("gpt2", Prune(keep=0.6), None, 1.5), ("bert", LowRank(keep=0.6, solver="loss"), None, 4),
    ],
)  # fmt: skip
def test_what_looks_at_the_outputs_looks_at_those_of_the_block(
    models: dict[str, Path], tmp_path: Path, name: str, change: Change, forms: str | None, most: float
) -> None:
    """Every block then keeps its share, where in memory the network keeps it in all: more is lost, up to `most` times.

    Weights are random: what a block loses is felt at the outputs about as much as anything else.
    """
    report = compress_block_by_block(models[name], tmp_path / "out", [change], BATCHES)
    for unit in report.units if forms else ():
        assert unit.form == forms
    read, model = greenformers.load(tmp_path / "out"), dense(models[name])
    whole = outputs(model, JUDGED)[0]
    greenformers.compress(model, change, calibration=BATCHES)
    lost, usual = ((outputs(small, JUDGED)[0] - whole).norm() for small in (read, model))
    assert 0 < lost < most * usual


def test_what_comes_after_heads_and_neurons_were_removed_on_one_budget(models: dict[str, Path], tmp_path: Path) -> None:
    """They are described by changes of their own, which come where their budget stands in the recipe."""
    compress_block_by_block(models["bert"], tmp_path / "out", [Prune(keep=0.6), LowRank(keep=0.8), Int8()], BATCHES)
    description = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert description["order"] == ["heads", "neurons", "low_rank", "int8"]
    greenformers.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "key"), [("bert", "bert.embeddings.position_ids"), ("gpt2", "transformer.h.0.attn.bias")]
)
def test_what_older_versions_saved_and_none_reads_is_left_out(
    models: dict[str, Path], tmp_path: Path, name: str, key: str
) -> None:
    """Numbers of positions and masks, as many checkpoints of the hub still hold them."""
    shutil.copytree(models[name], tmp_path / "old")
    (file,) = (tmp_path / "old").glob("*.safetensors")
    save_file(load_file(file) | {key: torch.zeros(1, 8)}, file, metadata={"format": "pt"})
    (tmp_path / "out").mkdir()
    for source in (models[name], tmp_path / "old"):
        compress_block_by_block(source, tmp_path / "out" / source.name, [SEQUENTIAL], BATCHES)
    ours, theirs = (greenformers.load(tmp_path / "out" / path).state_dict() for path in ("old", models[name].name))
    assert ours.keys() == theirs.keys()
    assert all(x.equal(theirs[own]) for own, x in ours.items())


def test_weights_have_the_type_of_the_file_where_the_configuration_has_none(
    models: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(models["llama-bf16"], tmp_path / "plain")
    config = json.loads((tmp_path / "plain/config.json").read_text())
    config.pop("dtype")
    (tmp_path / "plain/config.json").write_text(json.dumps(config))
    compress_block_by_block(tmp_path / "plain", tmp_path / "out", [SEQUENTIAL], BATCHES)
    assert {x.dtype for x in load_file(next((tmp_path / "out").glob("*.safetensors"))).values()} == {torch.bfloat16}


def test_padding_changes_nothing(models: dict[str, Path], tmp_path: Path) -> None:
    short, long = ids(1, 7, seed=4), ids(1, 11, seed=5)
    padded = torch.full_like(long, 9)
    padded[:, :7] = short
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, 7:] = 0
    both = {"input_ids": torch.cat([padded, long]), "attention_mask": mask}
    for name, batches in (("apart", [{"input_ids": short}, {"input_ids": long}]), ("padded", [both])):
        compress_block_by_block(models["llama"], tmp_path / name, [Sparse(by="wanda")], batches)
    apart, together = (outputs(greenformers.load(tmp_path / name), JUDGED)[0] for name in ("apart", "padded"))
    torch.testing.assert_close(apart, together, rtol=1e-5, atol=1e-5)


def test_nothing_that_grows_with_the_texts_is_held(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of all pairs of positions and rotary embeddings, of every batch, are on disk."""
    held, written, block = [], [], Walk._block

    def watched(walk: Walk, number: int, tensors: dict[str, torch.Tensor]) -> None:
        held.extend(leaf for leaf in leaves(walk.calls._forms) if isinstance(leaf, torch.Tensor))
        written.append(len(list(walk.calls.folder.iterdir())))
        block(walk, number, tensors)

    monkeypatch.setattr(Walk, "_block", watched)
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[0, 7:] = 0
    batches = [{**batch, "attention_mask": mask} for batch in BATCHES]
    compress_block_by_block(models["llama"], tmp_path / "out", [Sparse(by="wanda")], batches)
    assert held == []
    assert written == [2, 2]


def killed_at(place: str, model: Path, out: Path) -> None:
    """Compress in a process that kills itself between two blocks, within one, or where the result is put together."""

    def last(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    keep, block = Work.keep, Walk._pass

    def after(work: Work, number: int | None, *given: object) -> None:
        keep(work, number, *given)  # type: ignore[arg-type]
        last()

    def within(walk: Walk, network: torch.nn.Module, inputs: object, states: object) -> None:
        block(walk, network, inputs, states)  # type: ignore[arg-type]
        if walk.work.part(0) is not None:
            last()

    if place == "between":
        Work.keep = after  # type: ignore[method-assign, assignment]
    elif place == "at the end":
        Walk.try_again = last  # type: ignore[method-assign]
    else:
        Walk._pass = within  # type: ignore[method-assign, assignment]
    compress_block_by_block(model, out, [SEQUENTIAL, Int8()], BATCHES)


@pytest.mark.parametrize("place", ["between", "within", "at the end"])
def test_killed_it_goes_on_to_the_same_bits(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    compress_block_by_block(models["llama"], whole, [SEQUENTIAL, Int8()], BATCHES)
    running = multiprocessing.get_context("fork").Process(target=killed_at, args=(place, models["llama"], parts))
    running.start()
    running.join()
    assert running.exitcode == -signal.SIGKILL
    (unfinished,) = tmp_path.glob("parts.unfinished-*")
    assert (unfinished / "block-0.json").is_file()
    assert (unfinished / "block-1.json").is_file() == (place == "at the end")
    assert not parts.exists()
    with pytest.raises(FileExistsError, match="holds unfinished work of another recipe, or on other weights or texts"):
        compress_block_by_block(models["llama"], parts, [SEQUENTIAL, Int8()], BATCHES[:1])
    blocks, keep = [], Work.keep
    monkeypatch.setattr(
        Work, "keep", lambda work, number, *given: (blocks.append(number), keep(work, number, *given))[1]
    )
    compress_block_by_block(models["llama"], parts, [SEQUENTIAL, Int8()], BATCHES)
    assert blocks == ([] if place == "at the end" else [1, None])  # the first block was not done again
    for file in sorted(whole.glob("*.safetensors")):
        ours, theirs = load_file(parts / file.name), load_file(file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "the recipe holds no change"),
        ([LowRank(of="flops", solver="activation")], "nothing is measured: a budget of flops is not available"),
        ([LowRank(solver="activation", only_if_faster=True)], "nothing is measured: only_if_faster is not available"),
        ([Bits(budget=4)], "a budget of bits looks at all layers at once"),
        ([Sparse(by="magnitude_all")], "magnitude_all compares the weights of all layers"),
        ([Prune(of="latency")], "nothing is measured: a budget of latency is not available"),
        ([Shrink()], "shrink shares one budget among all layers"),
        ([Exits()], "exits looks at a whole network: it cannot be applied block by block"),
        ([SEQUENTIAL.but(select=("*.nothing",))], "the selection '\\*.nothing' matches none of the"),
        ([Sparse(select=("*.query", "*.kye"))], "the selection '\\*.kye' matches none of the"),
        ([Int8(), SEQUENTIAL], "low_rank cannot follow int8, which leaves rounded weights"),
        ([LowRank(rank=10**6, solver="activation")], "no weight became low rank: within the budget"),
    ],
)
def test_what_looks_at_the_whole_is_refused(
    models: dict[str, Path], tmp_path: Path, changes: list[Change], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compress_block_by_block(models["bert"], tmp_path / "out", changes, BATCHES)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [("t5", "is an encoder-decoder: .* a network must be one stack"), ("albert", "has no stack of layers")],
)
def test_networks_of_another_build_are_refused(tmp_path: Path, name: str, message: str) -> None:
    network(name).save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        compress_block_by_block(tmp_path / name, tmp_path / "out", [Int8()], BATCHES)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("scarce", ["memory", "disk"])
def test_too_little_room_is_said_before_work_begins(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    if scarce == "memory":
        monkeypatch.setattr(block_walk, "free", lambda _: 1000.0)
    else:
        monkeypatch.setattr(block_walk.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=f"GiB of {scarce} are needed.*, 0.0 are free"):
        compress_block_by_block(models["llama"], tmp_path / "out", [SEQUENTIAL], BATCHES)
    assert not any(tmp_path.iterdir())


def test_a_batch_without_tokens_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    for batches, message in (([], "at least one batch"), ([{"pixels": ids()}], "a mapping with input_ids")):
        with pytest.raises(ValueError, match=message):
            compress_block_by_block(models["bert"], tmp_path / "out", [Int8()], batches)


def test_the_command(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences(60)) + "\n")
    words = ["compress", str(models["bert"]), "--sparse", "0.5", "--from-disk", "--calibrate", str(texts)]
    assert run(monkeypatch, *words, "--length", "12", "--out", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert re.search(r"2 blocks, one at a time: at most \d\.\d\d GiB of memory, .*; hidden states in float32", shown)
    assert "sparse: 2 blocks, one at a time, and what is around them: " in shown
    usual, lines = dense(models["bert"]), texts.read_text().split("\n")[:-1]
    greenformers.compress(usual, [Sparse()], texts=lines, tokenizer=tokenizer("bert"), length=12)
    ours, theirs = (outputs(model, JUDGED)[0] for model in (greenformers.load(tmp_path / "out"), usual))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert run(monkeypatch, *words, "--length", "12", "--blocks-at-once", "2", "--out", str(tmp_path / "both")) == 0
    assert "2 blocks, 2 at a time: at most" in capsys.readouterr().out
    with_texts = ["compress", str(models["bert"]), "--bits", "8", "--bits-by", "rounding", "--blocks-at-once", "2"]
    for given in ([*with_texts, "--from-disk"], [*with_texts, "--calibrate", str(texts)]):
        assert "--blocks-at-once is of --from-disk with texts to calibrate with" in refused(
            monkeypatch, capsys, *given, "--out", str(tmp_path / "more")
        )
    more = ["--evaluate", str(texts), "--out", str(tmp_path / "more")]
    assert "--from-disk cannot be combined with --evaluate" in refused(monkeypatch, capsys, *words, *more)
    alone = ["compress", str(models["bert"]), "--int8", "--from-disk", "--calibrate", str(texts)]
    assert "no change of the recipe needs such texts" in refused(
        monkeypatch, capsys, *alone, "--out", str(tmp_path / "more")
    )
    healed = ["compress", str(models["bert"]), "--keep", "0.5", "--solver", "svd", "--heal", "4", "--heal-batch", "2"]
    healed += ["--from-disk", "--calibrate", str(texts), "--length", "12"]
    assert "--texts is of no use beside --calibrate" in refused(
        monkeypatch, capsys, *healed, "--texts", str(texts), "--out", str(tmp_path / "more")
    )
    assert run(monkeypatch, *healed, "--out", str(tmp_path / "healed")) == 0


def summary_of(model: Path, out: Path, there: Any) -> None:
    batches = [{"input_ids": torch.arange(128).remainder(60).expand(8, -1)}]
    there.send(compress_block_by_block(model, out, [Sparse(by="wanda")], batches).summary()[0])


def test_memory_stays_within_what_was_stated(tmp_path: Path) -> None:
    """In a fork of this process, whose peak begins with what it holds: that of a process is of its whole life."""
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=384, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=6,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "dense")
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    running = context.Process(target=summary_of, args=(tmp_path / "dense", tmp_path / "out", there))
    running.start()
    there.close()
    assert here.poll(120), "the child said nothing"
    said = re.search(r"at most ([\d.]+) GiB of memory, ([\d.]+) were stated", here.recv())
    running.join()
    assert said is not None
    # How much less it may be is not asked: what earlier tests left free in this process is no growth.
    assert 0 < float(said[1]) <= float(said[2])
