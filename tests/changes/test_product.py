"""Product quantisation: what layers compute and weigh, how codebooks are trained, and the way back."""

from typing import Any

import pytest
import torch
from models import sentences, tokenizer
from test_bits import distance
from test_neurons import lively, texts
from torch import nn
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Bits, Heal, Int8, Product
from greenformers.changes._coded import CodedEmbedding, CodedLinear, coded
from greenformers.changes._product_layers import Codes
from greenformers.measure.parameters import bytes_of


def test_layers_multiply_by_centroids() -> None:
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 5, (6, 6), generator=draw).to(torch.uint8)
    held = Codes.of(codes, torch.randn(5, 4, generator=draw), 22)
    dense = torch.stack([torch.cat([held.centroids[int(code)] for code in row])[:22] for row in codes]).detach()
    layer = CodedLinear(held, nn.Parameter(torch.randn(6)))
    x = torch.randn(2, 3, 22, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, x @ dense.T + layer.bias)
    y.square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * y.detach() @ dense)
    assert held.centroids.grad is not None
    of_weight, total = (2 * y.detach()).flatten(0, 1).T @ x.detach().flatten(0, 1), torch.zeros(5, 4)
    for i in range(6):
        for j in range(22):
            total[int(codes[i, j // 4]), j % 4] += of_weight[i, j]
    torch.testing.assert_close(held.centroids.grad, total)
    ids = torch.tensor([[0, 5], [3, 3]])
    assert CodedEmbedding(held)(ids).equal(dense[ids])


@pytest.mark.parametrize("by", ["gptvq", "ipq", "kmeans"])
def test_files_hold_a_byte_for_each_vector(by: str) -> None:
    model = network("bert", hidden_size=64, intermediate_size=128)
    rest = sum(x.numel() for name, x in model.named_parameters() if x.dim() == 1)
    rest += sum(x.numel() for name, x in model.named_parameters() if x.dim() > 1 and "token_type" in name)
    change = Product(
        4, 16, by=by, select=("*.dense", "*.query", "*.key", "*.value", "*word*", "*position*", "*decoder")
    )
    greenformers.compress(model, change, calibration=None if by == "kmeans" else texts(2))
    shared = list({id(layer.held): layer for _, layer in coded(model, Codes)}.values())
    held = sum(layer.held.m * -(-layer.held.n // 4) + 4 * 16 * 4 for layer in shared)
    assert bytes_of(model) == held + 4 * rest


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_second_order_loses_less_than_plain_kmeans(name: str) -> None:
    batches = texts(6)
    whole, far = lively(name, torch.float32), {}
    dense = [outputs(whole, batch) for batch in batches]
    for by in ("kmeans", "gptvq"):
        small = lively(name, torch.float32)
        change = Product(4, 64, by=by, select=("linear",))  # embeddings have one way only
        greenformers.compress(small, change, calibration=None if by == "kmeans" else batches)
        far[by] = sum(distance(outputs(small, batch), x) for batch, x in zip(batches, dense, strict=True))
    assert far["gptvq"] < far["kmeans"]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_way_back_is_the_network_of_the_class_with_the_same_outputs(name: str) -> None:
    model = network(name)
    before = {path: type(module) for path, module in model.named_modules()}
    greenformers.compress(model, Product(4, 16, by="kmeans"))
    expected = outputs(model, inputs(name))
    assert greenformers.merge(model) > 0
    assert {path: type(module) for path, module in model.named_modules()} == before
    for ours, theirs in zip(outputs(model, inputs(name)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    if name == "gpt2":
        assert model.lm_head.weight is model.transformer.wte.weight


def test_kinds_of_layers_in_turn_with_healing_between_as_ipq_does() -> None:
    model = network("bert")
    first = Product(4, 16, by="ipq", select=("*intermediate*", "*.output.dense"))
    rest = Product(2, 16, by="ipq")
    given: dict[str, Any] = {"texts": sentences(40), "tokenizer": tokenizer("bert")}
    greenformers.compress(model, [first, Heal(2, 4), rest, Heal(2, 4)], **given)
    widths = {path: layer.held.centroids.shape[1] for path, layer in coded(model, Codes)}
    assert widths["bert.encoder.layer.0.intermediate.dense"] == 4
    assert widths["bert.encoder.layer.0.attention.self.query"] == 2


def test_healing_trains_codebooks_and_leaves_codes() -> None:
    model = network("bert")
    given: dict[str, Any] = {"texts": sentences(40), "tokenizer": tokenizer("bert")}
    greenformers.compress(model, Product(4, 16, by="kmeans"))
    layer: Any = model.get_submodule("bert.encoder.layer.0.intermediate.dense")
    codes, centroids = layer.held.codes.clone(), layer.held.centroids.detach().clone()
    greenformers.compress(model, Heal(10, 8, learning_rate=1e-3), teacher=network("bert"), **given)
    assert layer.held.codes.equal(codes)
    assert not layer.held.centroids.equal(centroids)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_training_sees_entries_of_codebooks_and_noise_a_share_of_them(name: str) -> None:
    model, change = network(name), Product(4, 16, by="kmeans")
    paths = {"bert": "bert.encoder.layer.0.intermediate.dense", "gpt2": "transformer.h.0.mlp.c_fc"}
    layer: Any = model.get_submodule(paths[name])
    W = layer.weight.detach().clone()
    with change.rounding(model):
        model.eval()
        seen, whole = outputs(model, inputs(name)), layer.weight.detach().clone()
    with change.rounding(model, share=0.25):
        model.train()
        layer.weight.square().sum().backward()
        assert layer.parametrizations.weight.original.grad.count_nonzero() > 0.9 * W.numel()  # straight through
        moved = torch.stack([layer.weight != W for _ in range(30)])
        model.eval()
    vectors = (moved.mT if name == "gpt2" else moved).unflatten(-1, (-1, 4))
    assert vectors.any(-1).equal(vectors.all(-1))  # whole vectors are drawn
    assert vectors.any(-1).double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert layer.weight.equal(W)
    greenformers.compress(model, change)
    rows = model.get_submodule(paths[name]).held.rows()  # type: ignore[union-attr,operator]
    torch.testing.assert_close(whole.mT if name == "gpt2" else whole, rows)
    for ours, theirs in zip(outputs(model, inputs(name)), seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    for options, message in (
        ({"block": 0}, "product block must be at least 1 input, got 0"),
        ({"centroids": 257}, "product centroids must be from 2 to 256, got 257"),
        ({"by": "magic"}, "product by must be of gptvq, ipq, kmeans; got 'magic'"),
    ):
        with pytest.raises(ValueError, match=message):
            Product(**options)
    with pytest.raises(ValueError, match="product 8 needs examples to calibrate with"):
        greenformers.compress(network("bert"), Product())
    small = network("bert")
    greenformers.compress(small, Product(4, 16, by="kmeans"))
    with pytest.raises(ValueError, match="has no linear layer and no embedding"):
        greenformers.compress(small, Product(4, 16, by="kmeans"))
    for change in (Int8(), Bits(by="rounding"), Product(by="kmeans")):
        small = network("bert")
        with pytest.raises(ValueError, match=f"^{change.name()} cannot follow product of all layers, which leaves no"):
            greenformers.compress(small, [Product(4, 16, by="kmeans"), change])
        assert type(small.bert.encoder.layer[0].output.dense) is torch.nn.Linear
    small = network("bert")
    greenformers.compress(small, Bits(4, by="rounding"))
    with pytest.raises(ValueError, match="cannot follow bits, which leaves rounded weights"):
        greenformers.compress(small, Product(by="kmeans"))
