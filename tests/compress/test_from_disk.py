"""From disk to disk: the same as in memory, without the model in memory."""

import json
import shutil

import pytest
import torch
import transformers
from command_line import refused, run
from models import folder, tokenizer
from safetensors import safe_open
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes import Bits, Int8, LowRank, Product
from greenformers.changes._recipe import RECIPE, read_recipe
from greenformers.checkpoint.save import REPORT
from greenformers.compress import from_disk
from greenformers.compress.from_disk import carry, compress_from_disk
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification
from greenformers.solve import stream

HALF = LowRank(keep=0.5, solver="svd")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: folder(root, name, cls) for name, cls in (("bert", "BertModel"), ("gpt2", "GPT2LMHeadModel"))}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert", HALF), ("gpt2", HALF.but(uniform=True)), ("gpt2", HALF.but(select=("linear", "embedding"))),
        ("bert", LowRank(rank=5, solver="svd", select=("linear", "embedding"))),
        ("bert", Bits(4, by="rounding", group=16)), ("bert", LowRank(energy=0.8, solver="svd")),
        ("gpt2", Product(4, 16, by="kmeans")), ("gpt2", Bits(3, by="rounding", per="row")),
    ],
)  # fmt: skip
def test_it_is_what_compress_makes(models, tmp_path, name, change):
    report = compress_from_disk(models[name], tmp_path / "out", [change])
    read = greenformers.load(tmp_path / "out")
    cls = getattr(transformers, json.loads((models[name] / "config.json").read_text())["architectures"][0])
    model = cls.from_pretrained(models[name]).eval()
    expected = greenformers.compress(model, change)
    by_path = {unit.path: unit for unit in expected.units}
    assert {unit.path: unit.form for unit in report.units} == {path: unit.form for path, unit in by_path.items()}
    for unit in report.units:
        other = by_path[unit.path]
        assert (unit.before, unit.after, unit.tied) == (other.before, other.after, other.tied)
    for done in (report, expected):
        assert (done.parameters, done.size) == (expected.parameters, expected.size)
        assert (done.steps[0].parameters, done.steps[0].size) == (parameters(read), bytes_of(read))
    assert json.loads((tmp_path / "out" / REPORT).read_text())["kept"] == report.size_share
    # To rounding: some processors sum a narrow product otherwise than the first columns of a wide one.
    batch = inputs("bert", batch=2, length=9)
    torch.testing.assert_close(outputs(read, batch)[0], outputs(model, batch)[0], rtol=1e-5, atol=1e-5)


def test_the_row_of_padding_stays_zero(tmp_path):
    network("bert", "BertModel").save_pretrained(tmp_path / "bert")
    change = LowRank(rank=5, solver="random", select=("embedding",))
    compress_from_disk(tmp_path / "bert", tmp_path / "out", [change])
    dense, words = (
        greenformers.load(tmp_path / name).embeddings.word_embeddings for name in ("bert", "out")
    )  # fmt: skip
    assert not dense.weight[dense.padding_idx].any()
    assert not words.decoder[words.padding_idx].any()
    assert words.decoder[words.padding_idx + 1].any()


def test_what_it_wrote_can_be_written_and_read_again(models, tmp_path):
    compress_from_disk(models["gpt2"], tmp_path / "out", [HALF.but(select=("*",))])
    read = greenformers.load(tmp_path / "out")
    again = greenformers.load(greenformers.save(read, tmp_path / "again"))
    assert difference(outputs(again, inputs("gpt2")), outputs(read, inputs("gpt2"))) == 0.0
    with pytest.raises(ValueError, match="out is compressed already"):
        compress_from_disk(tmp_path / "out", tmp_path / "third", [HALF])


def test_large_checkpoints_are_written_in_parts(models, tmp_path, monkeypatch):
    monkeypatch.setattr(from_disk, "BUFFER", 10_000)
    compress_from_disk(models["bert"], tmp_path / "out", [HALF])
    index = json.loads((tmp_path / "out" / from_disk.INDEX).read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert files == {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    for key, name in index["weight_map"].items():
        with safe_open(tmp_path / "out" / name, framework="pt") as file:
            assert key in file.keys()  # noqa: SIM118
    greenformers.load(tmp_path / "out")
    # And read in parts again.
    merged = greenformers.load(tmp_path / "out")
    greenformers.merge(merged)
    merged.save_pretrained(tmp_path / "dense", max_shard_size="20KB")
    compress_from_disk(tmp_path / "dense", tmp_path / "again", [HALF])
    greenformers.load(tmp_path / "again")


def test_never_more_than_one_weight_is_read_at_a_time(models, tmp_path, monkeypatch):
    held = []
    solve = stream.solve

    def watched(site, *args, **kwargs):
        held.append(sum(1 for other in everything if other.module.weight.device.type != "meta"))
        return solve(site, *args, **kwargs)

    everything = []
    sites = stream.sites

    def listed_sites(*args):
        everything.extend(sites(*args))
        return everything

    monkeypatch.setattr(stream, "solve", watched)
    monkeypatch.setattr(stream, "sites", listed_sites)
    compress_from_disk(models["bert"], tmp_path / "out", [HALF])
    assert held
    assert set(held) == {1}


def test_the_command(models, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = ["compress", str(models["bert"]), "--keep", "0.5", "--solver", "svd", "--from-disk", "--out"]
    assert run(monkeypatch, *words, str(out)) == 0
    shown = capsys.readouterr().out
    assert "low_rank: " in shown
    assert f"model:  {out}" in shown
    assert read_recipe(out / RECIPE) == [HALF]
    compress_from_disk(models["bert"], tmp_path / "other", [HALF])
    model, other = (greenformers.load(folder) for folder in (out, tmp_path / "other"))
    assert difference(outputs(model, inputs("bert")), outputs(other, inputs("bert"))) == 0.0
    assert "--from-disk cannot be combined with --measure, --length" in refused(
        monkeypatch, capsys, *words, str(tmp_path / "new"), "--measure", "--length", "9"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([LowRank(solver="activation")], "from disk, solver must be one of svd, randomized, nmf, semi_nmf, random"),
        ([LowRank(keep=0.5, of="flops")], "cannot spend a budget 'hull' of flops"),
        ([LowRank(energy=0.5, solver="nmf")], "from disk, solver 'nmf' cannot spend a budget 'energy' of parameters"),
        ([HALF.but(only_if_faster=True)], "from disk nothing is measured: only_if_faster is not available"),
        ([HALF.but(select=("*.nothing",))], "matches none of"),
        ([Bits()], "from disk there are no inputs to look at, which 4 bits needs: choose a way by weights alone"),
        ([LowRank(rank=10**6)], "no weight became low rank: within the budget"),
        ([Int8()], "from disk, a recipe must be one change that .*; got int8"),
        ([HALF, HALF], "from disk, a recipe must be one change .*; got low_rank, low_rank"),
        ([], "from disk, a recipe must be one change"),
    ],
)
def test_what_cannot_be_done_is_refused(models, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        compress_from_disk(models["bert"], tmp_path / "out", changes)
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_that_does_not_fit_its_configuration_is_refused(models, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in models["bert"].iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    with pytest.raises(ValueError, match="in the checkpoint"):
        compress_from_disk(broken, tmp_path / "out", [HALF])
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def mixture(root):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=53, hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=3, max_position_embeddings=40,
    )  # fmt: skip
    transformers.MixtralForCausalLM(config).save_pretrained(root)
    return root


def test_experts_stay_as_they_are_and_are_named(tmp_path):
    """On disk each expert has a name of its own, and transformers joins them as it loads."""
    report = compress_from_disk(mixture(tmp_path / "dense"), tmp_path / "out", [HALF])
    said = report.steps[0].report.summary.partition("left as they are")[2]
    assert "experts 49 % (`model.layers.*.mlp.experts.up`, `model.layers.*.mlp.experts.down`)" in said
    read = greenformers.load(tmp_path / "out")
    dense = transformers.MixtralForCausalLM.from_pretrained(tmp_path / "dense")
    expected = greenformers.compress(dense, HALF.but(select=("linear",)))
    assert [unit.form for unit in report.units] == [unit.form for unit in expected.units]
    torch.testing.assert_close(
        outputs(read, inputs("gpt2"))[0], outputs(dense, inputs("gpt2"))[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("fault", ["rank", "name", "missing"])
def test_what_was_written_is_held_against_the_network_that_reads_it(models, tmp_path, monkeypatch, fault):
    """A folder was written that nobody could load, and called done."""
    tensors = stream.Stream.tensors

    def wrong(self, stored):
        for number, (key, tensor) in enumerate(tensors(self, stored)):
            last = number == len(stored) // 2
            if fault == "rank":
                yield key, tensor[:, 1:].contiguous() if key.endswith("decoder.weight") else tensor
            elif not (fault == "missing" and last):
                yield f"{key}_" if last else key, tensor

    monkeypatch.setattr(stream.Stream, "tensors", wrong)
    with pytest.raises(ValueError, match=r"the network was not saved: the written tensors (have|do not fit)"):
        compress_from_disk(models["bert"], tmp_path / "out", [HALF])
    assert not (tmp_path / "out").exists()


def test_experts_of_our_own_models(tmp_path):
    config = GreenformerConfig(
        vocab_size=53, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=44,
        max_position_embeddings=40, pad_token_id=0, feed_forward="switch",
        feed_forward_options={"experts": 3, "capacity": None, "jitter": 0.0},
    )  # fmt: skip
    GreenformerForSequenceClassification(config).save_pretrained(tmp_path / "switch")
    compress_from_disk(tmp_path / "switch", tmp_path / "small", [LowRank(keep=0.5, solver="svd")])
    model, ids = greenformers.load(tmp_path / "small"), torch.randint(1, 53, (2, 9))
    other = GreenformerForSequenceClassification.from_pretrained(tmp_path / "switch").eval()
    greenformers.compress(other, LowRank(keep=0.5, solver="svd"))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, other(ids).logits, rtol=1e-3, atol=1e-4)


def test_layers_of_one_shape_are_not_drawn_alike(tmp_path):
    network("bert", "BertModel").save_pretrained(tmp_path / "bert")
    compress_from_disk(tmp_path / "bert", tmp_path / "small", [LowRank(rank=4, solver="random")])
    attention = greenformers.load(tmp_path / "small").encoder.layer[0].attention.self
    assert not attention.query.encoder.weight.equal(attention.key.encoder.weight)


def test_the_chat_template_comes_along(tmp_path):
    network("llama", tie_word_embeddings=False).save_pretrained(tmp_path / "llama")
    own = tokenizer("llama")
    own.chat_template = "{{ messages }}"
    own.save_pretrained(tmp_path / "llama")
    compress_from_disk(tmp_path / "llama", tmp_path / "small", [LowRank(keep=0.5, solver="svd")])
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "small").chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    "name", ["source.spm", "target_vocab.json", "bpe.codes", "normalizer.json", "additional_chat_templates/tool.jinja"]
)
def test_every_file_of_a_tokenizer_comes_along(models, tmp_path, name):
    dense = tmp_path / "dense"
    shutil.copytree(models["bert"], dense)
    (dense / name).parent.mkdir(exist_ok=True)
    (dense / name).write_text("x")
    carry(dense, None, tmp_path)
    assert (tmp_path / name).read_text() == "x"
