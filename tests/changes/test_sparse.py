"""Sparse weights in networks: which layers, on what inputs, in how many bytes, and that zeros stay zeros."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import sentences, tokenizer
from safetensors.torch import load_file, save_file
from test_neurons import texts
from torch import Tensor, nn
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Heal, Int8, LowRank, Neurons, Sparse
from greenformers.changes._report import CompressionReport
from greenformers.measure.parameters import bytes_of
from greenformers.solve.sparse_linear import SparseLinear, SparseTransposed, sparse_layers
from greenformers.solve.sparse_linear import sparse as as_sparse
from greenformers.solve.sparsify import sparsegpt

FIRST = "bert.encoder.layer.0.attention.self.query"


def sparse(name: str, change: Sparse, **more: Any) -> tuple[Any, CompressionReport]:
    model = network(name, **more)
    given: dict[str, Any] = {"calibration": texts(2)} if change.needs else {}
    return model, greenformers.compress(model, change, **given)


def zeros(model: nn.Module) -> dict[str, Tensor]:
    return {path: layer.weight == 0 for path, layer in sparse_layers(model)}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_heads_and_embeddings_stay_dense(name: str) -> None:
    model, report = sparse(name, Sparse(by="magnitude"))
    pruned = dict(sparse_layers(model))
    inner = {"bert": ".encoder.layer.", "gpt2": ".h.", "llama": ".layers."}[name]
    expected = [
        path
        for path, part in model.named_modules()
        if inner in path and hasattr(part, "weight") and part.weight.dim() == 2
    ]
    assert list(pruned) == expected
    assert all(isinstance(part, SparseTransposed if name == "gpt2" else SparseLinear) for part in pruned.values())
    assert "1.0x the speed in torch, which multiplies by zeros as well" in report.steps[0].report.summary


def test_half_of_the_weights_take_little_more_than_half_of_the_bytes(tmp_path: Path) -> None:
    model, report = sparse("bert", Sparse(by="magnitude"), hidden_size=64, intermediate_size=256)
    greenformers.save(model, tmp_path / "small", report)
    written = load_file(tmp_path / "small" / "model.safetensors")
    for path, layer in sparse_layers(model):
        assert isinstance(layer, SparseLinear)
        size = sum(written[f"{path}.{name}"].nbytes for name in ("mask", "values"))
        assert size == layer.stored_bytes <= 0.55 * layer.weight.nbytes
        assert written[f"{path}.values"].equal(layer.weight[layer.weight != 0])
        assert f"{path}.weight" not in written
    assert sum(x.nbytes for x in {x.data_ptr(): x for x in written.values()}.values()) == bytes_of(model)
    units = report.steps[0].report.units
    assert sum(unit.after for unit in units) <= 0.55 * sum(unit.before for unit in units)


def test_layers_are_pruned_in_order_on_inputs_as_changed() -> None:
    """By hand: the second layer sees what the pruned first one gives."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6)).double()
    first, second = (copy.deepcopy(model[place]) for place in (0, 2))
    batches = [torch.randn(5, 7, 8).double() for _ in range(3)]
    greenformers.compress(model, Sparse(), calibration=batches)
    x = torch.cat([batch.flatten(0, 1) for batch in batches])
    W = sparsegpt(first.weight.detach(), x.T @ x, keep=0.5)
    torch.testing.assert_close(model[0].weight.detach(), W)
    h = (x @ W.T + first.bias.detach()).relu()
    torch.testing.assert_close(model[2].weight.detach(), sparsegpt(second.weight.detach(), h.T @ h, keep=0.5))


@pytest.mark.parametrize("by", ["sparsegpt", "wanda"])
def test_padding_does_not_matter(by: str) -> None:
    model, other = network("bert"), network("bert")
    greenformers.compress(model, Sparse(by=by), calibration=texts(2, garbage=3))
    greenformers.compress(other, Sparse(by=by), calibration=texts(2, garbage=41))
    for (path, x), (_, y) in zip(sparse_layers(model), sparse_layers(other), strict=True):
        torch.testing.assert_close(x.weight, y.weight, rtol=1e-4, atol=1e-6, msg=path)


def test_two_of_four_and_layers_that_it_does_not_fit() -> None:
    model, report = sparse("bert", Sparse(pattern="2:4"), intermediate_size=46)
    for path, layer in sparse_layers(model):
        assert (layer.weight.unflatten(1, (-1, 4)) != 0).sum(-1).eq(2).all(), path
    assert "; dense stay bert.encoder.layer.0.output.dense, bert.encoder.layer.1.output.dense" in (
        report.steps[0].report.summary
    )
    assert [unit.path for unit in report.steps[0].report.units if unit.form == "dense"] == [
        f"bert.encoder.layer.{place}.output.dense" for place in range(2)
    ]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_zeros_stay_in_healing_and_the_others_learn(name: str) -> None:
    model, _ = sparse(name, Sparse(by="magnitude", keep=0.3))
    before = {path: layer.weight.detach().clone() for path, layer in sparse_layers(model)}
    assert before
    greenformers.compress(
        model, Heal(steps=3, batch_size=4, learning_rate=1e-4), teacher=network(name), texts=sentences(40),
        tokenizer=tokenizer(name), length=9,
    )  # fmt: skip
    for path, layer in sparse_layers(model):
        assert (layer.weight == 0).equal(before[path] == 0), path
        assert not layer.weight.equal(before[path]), path


def test_zeros_stay_under_weight_decay_and_rounding() -> None:
    from greenformers.changes._int8 import aware

    model, _ = sparse("bert", Sparse(by="magnitude"))
    before = zeros(model)
    query: Any = model.get_submodule(FIRST)
    with torch.no_grad():
        place = tuple(query.weight.nonzero()[0])
        query.weight[place] = 1e-6  # which int8 rounds to 0
    with aware(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        for _ in range(3):
            model(**inputs("bert"), labels=inputs("bert")["input_ids"]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    after = zeros(model)
    assert all(after[path].equal(before[path]) for path in before)
    assert query.weight[place].abs() > 1e-4  # and is learnt all the same


def test_int8_numbers_keep_the_zeros_and_merging_makes_plain_layers() -> None:
    model, _ = sparse("gpt2", Sparse(by="magnitude"))
    before, expected = zeros(model), outputs(model, inputs("gpt2"))[0]
    merged: Any = copy.deepcopy(model)
    plain: Any = network("gpt2")
    assert greenformers.merge(merged) == len(before) == 8
    assert not list(sparse_layers(merged))
    assert type(merged.transformer.h[0].attn.c_attn) is type(plain.transformer.h[0].attn.c_attn)
    assert outputs(merged, inputs("gpt2"))[0].equal(expected)
    greenformers.compress(model, Int8())
    for path, at in before.items():
        assert not model.get_parameter(f"{path}.quantised")[at.T].any(), path


def test_exported_graphs_hold_no_mask() -> None:
    """Outside of `no_grad` too, as torch.export traces."""
    layer = as_sparse(nn.Linear(8, 4))
    with torch.no_grad():
        layer.weight[:, ::2] = 0
    x = torch.randn(3, 8)
    program = torch.export.export(layer, (x,))
    assert program.module()(x).equal(layer(x))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["aten.linear.default"]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    model, report = sparse("bert", Sparse(by="magnitude"))
    folder = greenformers.save(model, tmp_path / "small", report)
    path = folder / "model.safetensors"
    written = load_file(path)
    damaged = written[f"{FIRST}.mask"].clone()
    damaged[0] ^= 1
    save_file(written | {f"{FIRST}.mask": damaged}, path, metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=rf"{FIRST}: the mask of 1024 weights has 51[13] ones, and there are 512 values"
    ):
        greenformers.load(folder)
    with pytest.raises(RuntimeError, match=rf"{FIRST}\.weight: the mask of 1024 weights has 51[13] ones"):
        model.load_state_dict(model.state_dict() | {f"{FIRST}.mask": damaged})
    save_file(written, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["changes"]["sparse"][FIRST] = 500
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"small: .*"):
        greenformers.load(folder)


def test_refusals_leave_the_network_as_it_was() -> None:
    options: dict[str, Any]
    for options, message in (
        ({"keep": 1.0}, r"weights to keep must be a share in \(0, 1\), got 1.0"),
        ({"pattern": "1:2"}, "pattern must be of any, 2:4; got '1:2'"),
        ({"by": "random"}, "by must be of sparsegpt, wanda, magnitude, magnitude_rows, magnitude_all; got 'random'"),
        ({"pattern": "2:4", "keep": 0.6}, "the pattern 2:4 keeps 0.5 of the weights, got 0.6"),
        ({"pattern": "2:4", "by": "magnitude_all"}, "chooses among each four inputs: by magnitude, not magnitude_all"),
    ):
        with pytest.raises(ValueError, match=message):
            Sparse(**options)
    model, batches = network("bert"), texts(2)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"sparse 0\.5 needs examples to calibrate with"):
        greenformers.compress(model, Sparse())
    for change in (LowRank(), Neurons()):
        with pytest.raises(ValueError, match=f"{change.name()} cannot follow sparse, whose zeros it would fill"):
            greenformers.compress(model, [Sparse(), change], calibration=batches)
    with pytest.raises(ValueError, match="BertForMaskedLM has no linear layer to prune"):
        greenformers.compress(model, Sparse(select=("*word_embeddings",)), calibration=batches)
    broken: Any = model.get_parameter("bert.encoder.layer.1.output.dense.bias")
    with torch.no_grad():
        broken.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"the inputs of '.*' are not finite|inputs of calibration"):
        greenformers.compress(model, Sparse(select=("*.layer.0.*", "cls.*")), calibration=batches)
    broken.data.copy_(before["bert.encoder.layer.1.output.dense.bias"])
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(x.equal(before[name]) for name, x in after.items())
