"""`greenformers.load`: files that are damaged, foreign or hostile are refused in one line, and nothing in them runs."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mixed import all_of, mixed, tokens
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel
from zoo import EVERYTHING, difference, inputs, network, outputs

import greenformers
from greenformers.changes import Attention, Int8, Layers, LowRank
from greenformers.changes._recipe import RECIPE
from greenformers.changes._units import groups_of, ranks_of
from greenformers.checkpoint.description import STRUCTURE
from greenformers.checkpoint.pretrained import pretrained
from greenformers.checkpoint.save import REPORT

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = network("bert", "BertModel")
    greenformers.compress(model)
    return greenformers.save(model, tmp_path_factory.mktemp("saved") / "good")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "copy"))


class Bomb:
    """What a pickle can do to who loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def refused(folder: Path, message: str | None = None, **options: Any) -> None:
    with pytest.raises((ValueError, OSError), match=message) as caught:
        greenformers.load(folder, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def low_rank(config: dict[str, Any]) -> dict[str, Any]:
    """The description of low-rank units in a configuration, or in the file of another network."""
    return config.get("quantization_config", config)["changes"]["low_rank"]


def test_whoever_may_read_the_configuration_may_read_the_weights(good: Path) -> None:
    """safetensors makes files that only their owner can read: no service of another user could load them."""
    rights = {path.name: path.stat().st_mode for path in good.iterdir()}
    assert rights[WEIGHTS] == rights["config.json"]


def test_what_is_whole_is_read(folder: Path) -> None:
    assert ranks_of(greenformers.load(folder))
    assert ranks_of(greenformers.load(str(folder), cls=AutoModel))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_files_that_are_missing(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, f"{name} is missing$")
    (folder / name).mkdir()
    refused(folder, f"{name} is missing$")
    refused(folder / "nowhere", "nowhere is not a folder")
    refused(folder / "README.md", "README.md is not a folder")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_weights_cut_short(folder: Path, share: float) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: int(share * len(data))])
    refused(folder, "is not a whole safetensors file")


@pytest.mark.parametrize("data", [b"\xff" * 64, b"\0" * 64, b"{}", (2**60).to_bytes(8, "little") + b"{}" * 50])
def test_weights_that_are_none(folder: Path, data: bytes) -> None:
    (folder / WEIGHTS).write_bytes(data)
    refused(folder, "is not a whole safetensors file")


def test_a_dense_checkpoint_is_read_and_those_of_others_are_refused(tmp_path: Path) -> None:
    model = network("bert", "BertModel")
    model.save_pretrained(tmp_path)
    assert difference(outputs(greenformers.load(tmp_path), inputs("bert")), outputs(model, inputs("bert"))) == 0
    edit(tmp_path / "config.json", lambda config: config.update(quantization_config={"quant_method": "bitsandbytes"}))
    refused(tmp_path, "does not describe a network of ours, but {'quant_method': 'bitsandbytes'}")
    # And one that says it is compressed, but holds dense weights.
    ranks = {"encoder.layer.0.attention.self.query": 8}
    changes = {"low_rank": {"ranks": ranks, "ties": []}}
    described = {"quant_method": "greenformers", "changes": changes, "order": ["low_rank"]}
    edit(tmp_path / "config.json", lambda config: config.update(quantization_config=described))
    refused(tmp_path, "1 unexpected keys|2 missing keys")


def test_pickles_are_not_opened(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(mark)))
    greenformers.load(folder)  # beside good weights it is not looked at
    (folder / WEIGHTS).unlink()
    refused(folder, "model.safetensors is missing; pytorch_model.bin is a pickle, which could run code: not read")
    (folder / WEIGHTS).write_bytes(pickle.dumps(Bomb(mark)))
    refused(folder, "is not a whole safetensors file")
    torch.save({"x": Bomb(mark)}, folder / WEIGHTS)
    refused(folder, "is not a whole safetensors file")
    (folder / WEIGHTS).unlink()
    edit_index = {"metadata": {}, "weight_map": {"pooler.dense.bias": "pytorch_model.bin"}}
    (folder / INDEX).write_text(json.dumps(edit_index))
    refused(folder, "is not a whole safetensors file")
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))  # it is a live one
    assert mark.exists()


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/{root}/outside.safetensors", "sub/../../outside.safetensors", "..", ""]
)
def test_an_index_that_leads_out(folder: Path, name: str) -> None:
    name = name.replace("/{root}", str(folder.parent))
    (folder / "sub").mkdir()
    keys = load_file(folder / WEIGHTS).keys()
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(keys, name)}))
    refused(folder, "is not a file of its folder: not read")


def test_links_that_lead_out(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    (folder / WEIGHTS).symlink_to(folder.parent / "outside.safetensors")
    refused(folder, "is not a file of its folder: not read")
    # The folder itself may be reached by a link.
    (folder / WEIGHTS).unlink()
    (folder.parent / "outside.safetensors").rename(folder / WEIGHTS)
    (folder.parent / "link").symlink_to(folder)
    assert ranks_of(greenformers.load(folder.parent / "link"))


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', '{"weight_map": {}}', "{", "\xff", '"x"']
)
def test_an_index_that_is_none(folder: Path, index: str) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_bytes(index.encode("latin-1"))
    refused(folder, "weight_map|is not JSON|must hold a JSON object|missing|do not fit")


def test_sharded_weights_are_read(folder: Path) -> None:
    model = greenformers.load(folder)
    model.save_pretrained(folder.parent / "shards", max_shard_size=20_000)
    assert (folder.parent / "shards" / INDEX).exists()
    again = greenformers.load(folder.parent / "shards")
    assert difference(outputs(again, inputs("bert")), outputs(model, inputs("bert"))) == 0.0
    shard = sorted((folder.parent / "shards").glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-9])
    refused(folder.parent / "shards", "model-00002-of-.* is not a whole safetensors file")
    shard.unlink()
    refused(folder.parent / "shards", "model-00002-of-.* is missing")


def test_code_of_its_own_is_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    (folder / "modeling_x.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass X: pass\n")
    edit(folder / "config.json", lambda config: config.update(auto_map={"AutoModel": "modeling_x.X"}))
    refused(folder, "asks for code of its own")
    assert not mark.exists()


@pytest.mark.parametrize(
    "ranks", [[], "x", {"pooler.dense": "8"}, {"pooler.dense": 8.0}, {"pooler.dense": True}, {"pooler.dense": 0}]
)
def test_ranks_of_another_form(folder: Path, ranks: object) -> None:
    edit(folder / "config.json", lambda config: low_rank(config).update(ranks=ranks))
    refused(folder, "ranks must be whole numbers from 1 on, by path")


@pytest.mark.parametrize(
    ("path", "rank", "message"),
    [
        ("pooler.dense", 33, "pooler.dense: rank must be in 1..32"),
        ("pooler.dense", 10**30, "pooler.dense: rank must be in 1..32"),
        ("pooler.dense", 7, "mismatched keys|do not fit"),
        ("encoder.layer.0", 8, "encoder.layer.0: a BertLayer has no low-rank form"),
        ("embeddings.LayerNorm", 8, "a LayerNorm has no low-rank form"),
        ("__class__", 8, "the network has no '__class__'"),
        ("", 8, "the network has no ''"),
        (".", 8, "the network has no '.'"),
        ("pooler.dense.weight", 8, "the network has no 'pooler.dense.weight'"),
        ("pooler.dense.__init__", 8, "the network has no"),
        (
            "encoder.layer.7.output.dense",
            8,
            "the network has no 'encoder.layer.7.output.dense', one of 1 changed parts",
        ),
        ("embeddings.word_embeddings", 8, "1 unexpected keys|2 missing keys"),
    ],
)
def test_ranks_that_do_not_fit(folder: Path, path: str, rank: int, message: str) -> None:
    edit(folder / "config.json", lambda config: low_rank(config)["ranks"].update({path: rank}))
    refused(folder, message)


def test_a_map_that_is_said_to_be_dense(folder: Path) -> None:
    edit(folder / "config.json", lambda config: low_rank(config)["ranks"].pop("pooler.dense"))
    refused(folder, "missing keys|unexpected keys")


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        ("x", "ties must be (lists|a list) of paths"),
        ([3], "ties must be (lists|a list) of paths"),
        ([["pooler.dense", 3]], "ties must be (lists|a list) of paths"),
        ([["pooler.dense", "encoder.layer.0.intermediate.dense"]], "cannot be tied: their factors differ in shape"),
    ],
)
def test_ties_that_do_not_fit(folder: Path, ties: object, message: str) -> None:
    edit(folder / "config.json", lambda config: low_rank(config).update(ties=ties))
    refused(folder, message)


def test_what_the_checkpoint_holds_apart_is_not_tied(folder: Path) -> None:
    expected = outputs(greenformers.load(folder), inputs("bert"))
    for ties in ([["pooler.dense", "encoder.layer.0.attention.output.dense"]], [["nothing", "pooler.dense"], []]):
        edit(folder / "config.json", lambda config, ties=ties: low_rank(config).update(ties=ties))
        model = greenformers.load(folder)
        assert groups_of(model) == []
        assert difference(outputs(model, inputs("bert")), expected) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": None}, {"architectures": []}, {"architectures": "BertModel"}, {"architectures": [3]},
        {"architectures": ["pipeline"]}, {"architectures": ["../x"]}, {"architectures": ["Trainer"]},
        {"hidden_size": 31}, {"hidden_size": "wide"},
        {"hidden_size": -32}, {"num_hidden_layers": 3}, {"num_hidden_layers": 1}, {"vocab_size": 54},
        {"hidden_act": "__import__"}, {"architectures": ["GPT2Model"]}, {"quantization_config": "greenformers"},
        {"quantization_config": {"quant_method": "greenformers", "changes": []}},
        {"quantization_config": {"quant_method": "greenformers", "changes": {"os": []}}},
        {"quantization_config": {"quant_method": "greenformers", "changes": {"_contract": []}}},
        {"quantization_config": {"quant_method": "greenformers", "changes": {"heal": 3}}},
        {"quantization_config": {"quant_method": "greenformers", "self": 1}},
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(folder: Path, change: dict[str, Any]) -> None:
    edit(folder / "config.json", lambda config: config.update(change))
    refused(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\x00", "[" * 100_000])
def test_a_configuration_that_is_no_json(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, "config.json")


@pytest.mark.parametrize("lost", ["pooler.dense.decoder.weight", "pooler.dense.bias", "embeddings.LayerNorm.weight"])
def test_a_tensor_is_missing_or_too_much(folder: Path, lost: str) -> None:
    state = load_file(folder / WEIGHTS)
    save_file(state | {"more": torch.zeros(3)}, folder / WEIGHTS, {"format": "pt"})
    refused(folder, "1 unexpected keys: more")
    save_file(state | {lost: torch.zeros(5, 3)}, folder / WEIGHTS, {"format": "pt"})
    refused(folder, "1 mismatched keys|do not fit the configuration")
    del state[lost]
    save_file(state, folder / WEIGHTS, {"format": "pt"})
    refused(folder, f"1 missing keys: {lost}")


def test_other_networks_are_read_into_the_dense_one(tmp_path: Path) -> None:
    model = mixed()
    report = greenformers.compress(model, LowRank(keep=0.6, select=EVERYTHING, multiple=1))
    folder = greenformers.save(model, tmp_path / "new", report)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", REPORT, STRUCTURE, WEIGHTS, RECIPE,
    ]  # fmt: skip
    again = greenformers.load(folder, into=mixed().train())
    assert not again.training
    assert repr(again) == repr(model)
    ids = tokens()[0]
    assert again(ids).equal(model(ids))
    assert "greenformers.load" in (folder / "README.md").read_text()
    refused(folder, "config.json is missing")
    refused(folder, "do not fit the network|the network has no", into=nn.Sequential(nn.Linear(3, 3)))
    larger = mixed()
    larger.head = nn.Linear(20, 40)
    refused(folder, "do not fit the network", into=larger)
    for change, message in [
        ({"ranks": {"head": 21}}, "head: rank must be in 1..20"),
        ({"ranks": {"nothing": 2}}, "the network has no 'nothing'"),
        ({"ranks": {"": 2}}, "the network has no ''"),
        ({"ranks": {"head": -3}}, "whole numbers from 1 on"),
        ({"ranks": {}}, "do not fit the network"),
    ]:
        copy = Path(shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True))
        edit(copy / STRUCTURE, lambda structure, change=change: low_rank(structure).update(change))
        refused(copy, message, into=mixed())
    (copy / STRUCTURE).unlink()
    refused(copy, f"{STRUCTURE} is missing", into=mixed())


def test_what_may_be_replaced(tmp_path: Path) -> None:
    model = mixed()
    with pytest.raises(ValueError, match="compress it first"):
        greenformers.save(model, tmp_path / "new")
    all_of(model, 0.6)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "empty", "deep/er/new"):
        greenformers.save(model, tmp_path / name)
    # A project with a README, or another's model: not ours to remove.
    for files in (["README.md", "main.py"], [WEIGHTS], ["README.md", WEIGHTS, "config.json"]):
        other = tmp_path / "other"
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        for name in files:
            (other / name).write_text("dear to me")
        with pytest.raises(FileExistsError, match="exists and holds no compressed network"):
            greenformers.save(model, other)
        assert sorted(path.name for path in other.iterdir()) == sorted(files)
    (tmp_path / "file").write_text("dear to me")
    with pytest.raises(FileExistsError, match="exists and holds"):
        greenformers.save(model, tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "deep", "other", "file"}


@pytest.mark.parametrize("point", ["card_of", "save_model", "shutil.rmtree"])
def test_a_crash_leaves_the_old_or_the_new(tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = mixed(), mixed()
    all_of(first, 0.6)
    all_of(second, 0.8)
    folder = greenformers.save(first, tmp_path / "it")

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"greenformers.checkpoint.save.{point}", broken)
        with pytest.raises(KeyboardInterrupt):
            greenformers.save(second, folder)
    ids, loaded = tokens()[0], greenformers.load(folder, into=mixed())
    assert loaded(ids).equal((second if point == "shutil.rmtree" else first)(ids))
    if point != "shutil.rmtree":
        assert [path.name for path in tmp_path.iterdir()] == ["it"]
    # Or while one takes the place of the other.
    plain, calls = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise OSError("no space left")
        return plain(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(OSError, match="no space left"):
            greenformers.save(second, folder)
    assert greenformers.load(folder, into=mixed())(ids).equal(loaded(ids))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that went through every change."""
    model = network("bert", num_hidden_layers=4)
    attention = Attention("linformer", options={"k": 4, "sharing": "layerwise"}, length=60)
    greenformers.compress(model, [Layers(2), attention, LowRank(keep=0.5), Int8()])
    return greenformers.save(model, tmp_path_factory.mktemp("saved") / "whole")


def spoil(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        described = config["quantization_config"]["changes"]
        for key in keys[:-1]:
            described = described[key]
        described[keys[-1]] = value

    return change


PLACE = "bert.encoder.layer.0.attention.self"
MADE = {"name": "linformer", "options": {}, "shape": {"heads": 2, "head_dim": 16, "max_len": 60}}


@pytest.mark.parametrize(
    "change",
    [
        spoil("attention", value={PLACE: "linformer"}),
        spoil("attention", PLACE, value={"name": "linformer"}),
        spoil("attention", PLACE, "name", value="os.system"),
        spoil("attention", PLACE, "options", value={"k": "many"}),
        spoil("attention", PLACE, "options", value={"k": -1}),
        spoil("attention", PLACE, "shape", "heads", value=0),
        spoil("attention", PLACE, "shape", "max_len", value=17),
        spoil("attention", "bert.nowhere", value=MADE),
        spoil("attention", PLACE, "shape", "width", value=1),
        spoil("int8", value="all"),
        spoil("int8", "paths", value=["bert.nowhere"]),
        spoil("int8", "paths", value=["bert.encoder.layer.0.output.LayerNorm"]),
        spoil("int8", "paths", value=[]),
        spoil("int8", "ties", value=[3]),
        spoil("int8", "ties", value=[[["bert.pooler.dense"]]]),
        spoil("layers", value=[-1]),
        spoil("layers", value=[True]),
        spoil("low_rank", value={"ranks": {}}),
        spoil("low_rank", "more", value=1),
        spoil("tomorrow", value={}),
        lambda config: config["quantization_config"]["order"].reverse(),
        lambda config: config["quantization_config"]["order"].append("int8"),
        lambda config: config["quantization_config"]["order"].pop(),
        lambda config: config["quantization_config"].update(order="layers"),
        lambda config: config["quantization_config"].update(order=[3, None, {}, []]),
    ],
)
def test_damaged_descriptions_are_refused(
    whole: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    edit(folder / "config.json", change)
    with pytest.raises(ValueError, match=r".+") as caught:
        greenformers.load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


def test_a_snapshot_of_the_cache_of_the_hub(tmp_path: Path) -> None:
    model = network("bert", "BertModel")
    model.save_pretrained(tmp_path / "plain")
    root = tmp_path / "hub" / "models--me--tiny"
    snapshot = root / "snapshots" / "abc"
    (root / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in (tmp_path / "plain").iterdir():
        shutil.copy(file, root / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    again, _ = pretrained(str(snapshot))
    assert all(x.equal(again.state_dict()[name]) for name, x in model.state_dict().items())
    assert type(greenformers.load(snapshot)) is type(model)
    (tmp_path / "elsewhere").write_bytes((root / "blobs" / "model.safetensors").read_bytes())
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    refused(snapshot, "is not a file of its folder")
