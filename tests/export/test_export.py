"""Exported networks give what the model gives, for every batch and length, with padding."""

import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxruntime
import pytest
import torch
from forked import printed
from torch import Tensor
from transformers import (
    BertModel,
    LayoutLMConfig,
    LayoutLMModel,
    PreTrainedModel,
    TapasConfig,
    TapasModel,
    XLNetConfig,
    XLNetModel,
)
from zoo import EVERYTHING, network

import greenformers
from greenformers import GreenformerConfig, GreenformerForSentenceEmbedding, GreenformerForSequenceClassification
from greenformers.changes import Attention, Int8, LowRank
from greenformers.export import compare, measure
from greenformers.export import write as writing
from greenformers.export.measure import check_loss, latencies, size_of
from greenformers.export.network import Network, examples
from greenformers.export.write import FORMATS, PACKED, reader, write
from greenformers.measure.record import Record
from greenformers.model.positions import reach
from greenformers.solve.units import TransposedLED, units

OF_ANY = [form for form in FORMATS if form != PACKED]
"""Formats of any network; the other one is of layers of few bits."""


class Exported(NamedTuple):
    """A model, the folder of its files, its weights before these were written, and its mode afterwards."""

    model: PreTrainedModel
    folder: Path
    differences: dict[str, float]
    before: dict[str, Tensor]
    training: bool


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """An encoder or a language model of low rank in all linear layers, embeddings too, in all formats; made once."""

    @cache
    def exported_model(name: str) -> Exported:
        cls, layers = {"bert": ("BertModel", "num_hidden_layers"), "gpt2": ("GPT2LMHeadModel", "n_layer")}[name]
        with torch.random.fork_rng(devices=[]):  # draws of the test that asks first are those of any other
            model, folder = network(name, cls, **{layers: 1}), tmp_path_factory.mktemp(name)
            with torch.no_grad():
                for parameter in model.parameters():  # as first drawn, attention hardly looks at its keys
                    parameter.mul_(6 if parameter.dim() == 2 else 1)
            greenformers.compress(model, LowRank(keep=0.5, select=EVERYTHING))
            before = {key: value.clone() for key, value in model.state_dict().items()}
            differences = write(model.train(), folder, OF_ANY, length=16).differences
        return Exported(model, folder, differences, before, model.training)

    return exported_model


@torch.no_grad()
def said(model: PreTrainedModel, *batch: Tensor) -> Tensor:
    return Network(model)(*batch)


def inputs(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """The inputs of an exported file; token types are those of two segments."""
    types = (torch.arange(ids.shape[1]) > ids.shape[1] // 3).long() * mask
    return (ids, mask, types)[: len(Network(model).inputs)]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_differences_are_those_of_rounding(exported: Callable[[str], Exported], name: str) -> None:
    export = exported(name)
    assert name == "bert" or any(isinstance(unit, TransposedLED) for _, unit in units(export.model))
    assert list(export.differences) == OF_ANY
    assert all(0 <= value < 1e-5 for value in export.differences.values())
    files = {str(path.relative_to(export.folder)) for path in export.folder.rglob("*") if path.is_file()}
    assert files >= {*(FORMATS[form] for form in OF_ANY), "openvino/openvino_model.bin", "config.json"}
    assert not any(path.name.startswith(".") for path in export.folder.iterdir())


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("form", OF_ANY)
def test_any_batch_and_length_with_its_mask(exported: Callable[[str], Exported], name: str, form: str) -> None:
    model, folder, *_ = exported(name)
    run = reader(form, folder, Network(model).inputs, exact=True)
    for size, length in [(1, 1), (7, 19), (2, 40), (11, 2)]:
        ids, mask = torch.randint(3, 53, (size, length)), torch.ones(size, length, dtype=torch.long)
        for row in range(1, size):
            mask[row, max(1, length - row) :] = 0
        right, got = said(model, *inputs(model, ids, mask)), run(*inputs(model, ids, mask))
        torch.testing.assert_close(got.detach()[mask.bool()], right[mask.bool()], rtol=1e-4, atol=1e-5)
        # What stands at the padding changes nothing; without the mask it would.
        other = run(*inputs(model, torch.where(mask.bool(), ids, 55 - ids), mask))
        torch.testing.assert_close(other[mask.bool()], got[mask.bool()], rtol=1e-4, atol=1e-5)
        if name == "bert" and not mask.all():
            everything = run(ids, torch.ones_like(mask), inputs(model, ids, mask)[2])
            assert (everything - got)[mask.bool()].abs().max() > 1e-3
            assert (run(ids, mask, 1 - inputs(model, ids, mask)[2]) - got)[mask.bool()].abs().max() > 1e-3


def test_onnx_names_its_axes(exported: Callable[[str], Exported]) -> None:
    export = exported("bert")
    session = onnxruntime.InferenceSession(export.folder / FORMATS["onnx"], providers=["CPUExecutionProvider"])
    network = Network(export.model)
    assert [(given.name, given.shape) for given in session.get_inputs()] == [
        (name, ["batch", "length"]) for name in network.inputs
    ]
    assert [given.name for given in session.get_outputs()] == list(network.outputs)
    assert [given.shape[:2] for given in session.get_outputs()] == [["batch", "length"]]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_no_addition_is_fused_with_a_norm(exported: Callable[[str], Exported], name: str) -> None:
    nodes = onnx.load(exported(name).folder / FORMATS["onnx"]).graph.node
    by = {name: node.op_type for node in nodes for name in node.output}
    before = [by[node.input[0]] for node in nodes if node.op_type == "LayerNormalization"]
    assert "Sum" in before
    assert "Add" not in before


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_files_name_no_folder_of_this_machine(exported: Callable[[str], Exported], name: str) -> None:
    home = str(Path(greenformers.__file__).parents[1]).encode()
    for path in (path for path in exported(name).folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert home not in data
        assert b"site-packages" not in data


def test_the_model_stays_as_it_was(exported: Callable[[str], Exported]) -> None:
    model, _, _, before, training = exported("bert")
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert not training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.config._attn_implementation == "sdpa"


def test_a_classifier_of_half_precision_that_looks_for_the_last_token(tmp_path: Path) -> None:
    """Files hold its weights in float32."""
    model, folder = network("gpt2", "GPT2ForSequenceClassification", n_layer=1).bfloat16(), tmp_path / "new" / "folder"
    assert write(model, folder, ["program"], length=8).differences["program"] < 1e-5
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.pt2"]
    assert {x.dtype for x in model.parameters()} == {torch.bfloat16}
    whole = Network(model.float())
    ids, mask = whole.batch(5, 9, padded="right")
    run: Any = reader("program", folder, whole.inputs)
    assert not isinstance(run, torch.nn.Module)  # programs refuse to be put into evaluation mode, which they are in
    got = run(ids, mask)
    torch.testing.assert_close(got, said(model, ids, mask), check_stride=False)
    assert got.shape == (5, 2)


def test_batches_pad_with_what_stands_nowhere_else() -> None:
    model = network("roberta", num_hidden_layers=1)
    for side in ("left", "right"):
        ids, mask, _ = Network(model).batch(5, 12, padded=side)
        assert ((ids == model.config.pad_token_id) == (mask == 0)).all()
        assert mask.sum(1).tolist() == [12, 10, 9, 7, 6]
        assert bool(mask[-1, 0]) is (side == "right")
    assert Network(model).batch(3, 4)[1].all()


class Bert(BertModel):
    """One that may be told to go wrong."""

    how: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **more: Any) -> Any:
        return super().forward(*self.how(input_ids, attention_mask), **more)


def forgets_the_mask(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return ids, torch.ones_like(mask) if torch.compiler.is_exporting() else mask


def bakes_the_length(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return (ids.flip(1) if ids.shape[1] == 8 else ids), mask


def bakes_the_longest(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return (ids, mask) if ids.shape[1] <= 8 or not torch.compiler.is_exporting() else (ids[:, :8], mask[:, :8])


def bakes_the_batch(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return ids[torch.arange(len(ids) if len(ids) == 2 else 0)], mask


def reads_a_value(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return (ids, mask) if ids[0, 0] != 54 else (ids + 1, mask)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (forgets_the_mask, "model.pt2 differs from the model by .* on a batch of 4 with 2 tokens"),
        (bakes_the_length, "cannot be traced for every batch and length"),
        (bakes_the_longest, r"model\.pt2 cannot be run on a batch of 4 with 13 tokens"),
        (bakes_the_batch, "cannot be run on a batch of 1 with [12] tokens|cannot be traced for every batch"),
        (reads_a_value, "cannot be traced for every batch and length"),
    ],
)
def test_what_is_baked_in_or_forgotten_is_found(how: Any, message: str, tmp_path: Path) -> None:
    model = Bert(network("bert", "BertModel", num_hidden_layers=1).config).eval()
    model.how = how
    with pytest.raises(ValueError, match=message):
        write(model, tmp_path, ["program"], length=16)


def test_an_onnx_file_that_says_something_else(
    exported: Callable[[str], Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (exported("gpt2").folder / FORMATS["onnx"]).read_bytes()
    monkeypatch.setattr(writing, "save_onnx", lambda _, path, *__: path.write_bytes(data))
    other = network("gpt2", n_layer=1)
    with pytest.raises(ValueError, match=r"model\.onnx differs from the model by"):
        write(other, tmp_path, ["onnx"], length=4)
    distilbert = network("distilbert", "DistilBertModel", n_layers=1)
    with pytest.raises(ValueError, match=r"model\.onnx gives \(1, 1, 53\) where the model gives \(1, 1, 32\)"):
        write(distilbert, tmp_path, ["onnx"], length=4)
    with pytest.raises(
        ValueError, match=r"model\.onnx takes input_ids, attention_mask, and not input_ids, .*, token_ty"
    ):
        write(network("bert", "BertModel", num_hidden_layers=1), tmp_path, ["onnx"], length=4)
    data = data[:-100]
    with pytest.raises(ValueError, match=r"onnxruntime cannot read model\.onnx"):
        write(other, tmp_path, ["onnx"], length=4)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        (
            "bert",
            {"formats": ["tflite"]},
            f"formats must be of {', '.join(FORMATS)}, each once; got 'tflite'",
        ),
        ("bert", {"formats": [PACKED]}, "there is no linear layer of few bits"),
        ("bert", {"formats": []}, "each once; got ''"),
        ("bert", {"formats": ["onnx", "onnx"]}, "each once; got 'onnx,onnx'"),
        ("bert", {"length": 3}, "length must be at least 4, got 3"),
        ("bert", {"length": 41}, "the model cannot be run on a batch of 4 with 41 tokens"),
        (
            "t5",
            {},
            "input_ids and attention_mask alone can be exported; got a T5\\w+, whose encoder and decoder",
        ),
        ("vit", {}, "can be exported; got a ViTForImageClassification"),
    ],
)
def test_refusals(name: str, more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        write(network(name), tmp_path / "out", **more)
    assert list(tmp_path.iterdir()) == []


def test_networks_that_read_more_than_texts_are_refused() -> None:
    sizes = {"vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    layout, table = LayoutLMModel(LayoutLMConfig(**sizes)), TapasModel(TapasConfig(**sizes))
    for model, more in ((layout, "bbox"), (table, "token_type_ids of several kinds")):
        with pytest.raises(ValueError, match=f"can be exported; got a {type(model).__name__}, which reads {more} too"):
            Network(model)
    config = GreenformerConfig(num_labels=3, **sizes)  # type: ignore[arg-type]
    model = GreenformerForSequenceClassification(config)  # which takes values in place of texts
    assert Network(model).outputs == ("logits",)


def test_embeddings_of_whole_texts(tmp_path: Path) -> None:
    sizes = {"vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = GreenformerForSentenceEmbedding(GreenformerConfig(pooling="cls", **sizes)).eval()  # type: ignore[arg-type]
    assert write(model, tmp_path, ["program"], length=16).differences["program"] < 1e-4
    network = Network(model)
    ids, mask = network.batch(5, 9, padded="left")
    got = reader("program", tmp_path, network.inputs)(ids, mask)
    torch.testing.assert_close(got, model(ids, mask).embeddings.detach(), check_stride=False)


def test_a_network_that_names_no_longest_input_takes_any() -> None:
    assert reach(XLNetModel(XLNetConfig(vocab_size=53, d_model=32, n_head=2, d_inner=44, n_layer=1))) is None


@pytest.mark.parametrize(
    ("texts", "got"),
    [([], "none"), ("a text", "a single text"), (["a text", 1], "a int in it"), ((None,), "a NoneType in it")],
)
def test_what_is_no_list_of_texts_is_refused_and_not_told(texts: Any, got: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"texts must be a list of at least one text, got {got}"):
        greenformers.export(network("bert"), tmp_path / "out", ["program"], texts=texts)


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript", "openvino"])
def test_without_the_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    form = "openvino" if name == "openvino" else "onnx"
    with pytest.raises(ImportError, match=rf"the format {form} needs all of onnx, onnx.*: .* its extra 'export'"):
        write(network("bert"), tmp_path, [form])


def test_latencies(exported: Callable[[str], Exported], monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder, *_ = exported("bert")
    plain = torch.compile
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    monkeypatch.setattr(torch, "compile", lambda network, **_: network)  # Inductor takes half a minute
    records = latencies(model, folder, OF_ANY, [5, 9], size=3, repeats=2, about={"seed": 1})
    names = ["torch", "torch, compiled", "OpenVINO", "ONNX Runtime", "torch.export"]
    assert [(record.variant, record.setting) for record in records] == [
        (name, {"length": length, "batch": 3}) for length in (5, 9) for name in names
    ]
    assert all(record.metric == "latency" and record.value > 0 for record in records)
    assert latencies(model, folder, ["onnx"], [], about={}) == []

    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", partial(plain, backend=broken))
    records = latencies(model, folder, ["onnx"], [5], repeats=1, about={})
    assert [record.variant for record in records] == ["torch", "ONNX Runtime"]


@pytest.mark.slow
def test_other_attentions_go_with_it(tmp_path: Path) -> None:
    model = network("bert", "BertModel")
    greenformers.compress(model, [Attention("linear_transformer", layers=(0,)), Attention("linformer", layers=(1,))])
    assert write(model, tmp_path, ["program"], length=16).differences["program"] < 1e-5


def test_a_program_that_cannot_be_read_again_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"^model\.pt2 cannot be read again: .+$"):
        reader("program", tmp_path, ["input_ids", "attention_mask"])


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_damaged_files_are_one_line(exported: Callable[[str], Exported], form: str, tmp_path: Path) -> None:
    model, folder, *_ = exported("bert")
    path = tmp_path / FORMATS[form]
    path.parent.mkdir()
    path.write_bytes((folder / FORMATS[form]).read_bytes()[:-200])
    with pytest.raises(ValueError, match=rf"^\w+ cannot read {path.name}: .+$"):
        reader(form, tmp_path, Network(model).inputs)
    with pytest.raises(FileNotFoundError, match=f"{path.name} is missing"):
        reader(form, tmp_path / "elsewhere", Network(model).inputs)


@pytest.mark.parametrize(("rounds", "there"), [(True, False), (True, True), (False, False)])
def test_int8_that_overflows_is_told_from_other_differences(
    rounds: bool, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "has_vnni", lambda: there)
    model = network("bert", "BertModel", num_hidden_layers=1)
    if rounds:
        greenformers.compress(model, Int8())
    whole = Network(model)
    with pytest.raises(ValueError, match="the file differs from the model by") as refused:
        compare.Comparison(whole, examples(whole, 16))("the file", lambda *batch: 2 * whole(*batch))
    assert ("no VNNI" in str(refused.value)) == (rounds and not there)


@pytest.mark.parametrize(("metric", "own"), [("accuracy", 0.0), ("spearman", -4.0)])
def test_a_loss_of_nothing_is_none(metric: str, own: float) -> None:
    records = [Record.of(metric, own, benchmark="export", variant=name) for name in ("torch", "ONNX Runtime")]
    with pytest.raises(ValueError, match=f"the texts cannot judge a loss: the model itself has a {metric} of"):
        check_loss(records, 1.0)


def test_the_size_is_that_of_the_graph_and_its_weights(exported: Callable[[str], Exported]) -> None:
    folder = exported("bert").folder
    before = {form: size_of(form, folder) for form in OF_ANY}
    (folder / "openvino" / "openvino_tokenizer.bin").write_bytes(b"a vocabulary")
    assert {form: size_of(form, folder) for form in OF_ANY} == before
    (folder / "openvino" / "openvino_tokenizer.bin").unlink()
    files = (folder / "openvino").glob("openvino_model.*")
    assert before["openvino"] == sum(file.stat().st_size for file in files)


def test_weights_of_an_earlier_file_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / FORMATS["onnx"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.data").write_bytes(b"earlier")  # as of a model of more than `onnx_file.LARGE` bytes
    write(network("bert", "BertModel", num_hidden_layers=1), tmp_path, ["onnx"], length=4, few=True)
    assert size_of("onnx", tmp_path) == path.stat().st_size


AS_THEY_CAME = """
import os, signal, sys
from pathlib import Path

import openvino
from openvino import opset13

from greenformers.export.openvino_file import read_openvino

path = Path(sys.argv[1])
given = opset13.parameter([1], openvino.Type.f32, name="x")
openvino.save_model(openvino.Model([opset13.relu(given)], [given], "relu"), path)
first, second = (read_openvino(path, ["x"]) for _ in range(2))
del first
del second
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_signal_is_heard_after_files_that_went_as_they_came(tmp_path: Path) -> None:
    assert printed(AS_THEY_CAME, tmp_path / "model.xml").splitlines()[-1] == "heard"
