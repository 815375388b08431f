"""From disk to disk: the same as in memory, without the model in memory."""

import json

import pytest
import torch
import transformers
from greenformers.compress.shards import compress_shards
from models import folder
from safetensors import safe_open

import greenformers
from greenformers import Budget
from greenformers.compress import shards


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: folder(root, name, cls) for name, cls in (("bert", "BertModel"), ("gpt2", "GPT2LMHeadModel"))}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("budget", [Budget(0.5), Budget(0.5, "uniform"), Budget(5, "rank"), Budget(0.8, "energy")])
@pytest.mark.parametrize("select", [None, ["linear", "embedding"]])
def test_it_is_what_compress_makes(models, tmp_path, name, budget, select):
    report = compress_shards(models[name], tmp_path / "out", budget, solver="svd", select=select)
    read = greenformers.load(tmp_path / "out")
    cls = getattr(transformers, json.loads((models[name] / "config.json").read_text())["architectures"][0])
    model = cls.from_pretrained(models[name]).eval()
    expected = greenformers.compress(model, budget, solver="svd", select=select)
    assert [layer.rank for layer in report.layers] == [
        next(layer.rank for layer in expected.layers if layer.path == found.path) for found in report.layers
    ]
    assert report.after == expected.after
    ids = torch.randint(3, 53, (2, 9))
    with torch.no_grad():
        ours, theirs = read(ids)[0], model(ids)[0]
    # To rounding: some processors sum a narrow product otherwise than the first columns of a wide one.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_large_checkpoints_are_written_in_parts(models, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BUFFER", 10_000)
    compress_shards(models["bert"], tmp_path / "out", Budget(0.5), solver="svd")
    index = json.loads((tmp_path / "out" / shards.INDEX).read_text())
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
    compress_shards(tmp_path / "dense", tmp_path / "again", Budget(0.5), solver="svd")
    greenformers.load(tmp_path / "again")


def test_never_more_than_one_weight_is_read_at_a_time(models, tmp_path, monkeypatch):
    held = []
    solve = shards.solve

    def watched(site, *args, **kwargs):
        held.append(sum(1 for found in everything if found.module.weight.device.type != "meta"))
        return solve(site, *args, **kwargs)

    everything = []
    sites = shards.sites

    def kept(*args):
        everything.extend(sites(*args))
        return everything

    monkeypatch.setattr(shards, "solve", watched)
    monkeypatch.setattr(shards, "sites", kept)
    compress_shards(models["bert"], tmp_path / "out", Budget(0.5), solver="svd")
    assert held
    assert set(held) == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "activation"}, "from disk, solver must be one of svd, randomized, nmf, semi_nmf, random"),
        ({"solver": "svdd"}, "from disk, solver must be one of"),
        ({"solver": "nmf"}, "from disk, solver 'nmf' cannot spend a budget 'hull' of parameters"),
        ({"budget": Budget(0.5, of="flops")}, "cannot spend a budget 'hull' of flops"),
        ({"multiple": -8}, "multiple must be at least 1, got -8"),
        ({"select": "*.nothing"}, "matches none of"),
    ],
)
def test_what_cannot_be_done_is_refused(models, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        compress_shards(models["bert"], tmp_path / "out", **({"budget": Budget(0.5)} | options))
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_that_does_not_fit_its_configuration_is_refused(models, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in models["bert"].iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    with pytest.raises(ValueError, match="in the checkpoint"):
        compress_shards(broken, tmp_path / "out", Budget(0.5), solver="svd")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]
