"""Int8 weights: what they compute, what they weigh, and training that knows of them."""

import copy

import pytest
import torch
from models import sentences, tokenizer
from torch import Tensor, nn
from zoo import EVERYTHING, ZOO, difference, inputs, network, outputs

import greenformers
from greenformers._torch import has_vnni
from greenformers.changes import Heal, Int8, LowRank
from greenformers.changes._int8 import (
    Int8Embedding,
    Int8Linear,
    aware,
    int8_of,
    jittered,
    quantise,
    quantised,
    targets,
)
from greenformers.lowrank.linear import LED
from greenformers.measure.parameters import bytes_of
from greenformers.solve.walk import kind_of

LEVELS = 255 if torch.cpu._is_vnni_supported() else 127
"""Of inputs, in the fused kernel: without VNNI one bit less."""


def linear(m: int = 24, n: int = 16, bias: bool = True) -> tuple[nn.Linear, Int8Linear]:
    dense = nn.Linear(n, m, bias)
    return dense, Int8Linear.of(dense.weight, dense.bias)


def oracle(x: Tensor, layer: Int8Linear, levels: int = 255) -> Tensor:
    """The formula, in float64; the step and what is rounded by it in float32, as it is stated."""
    low, high = x.float().amin().clamp(max=0), x.float().amax().clamp(min=0)
    step = (high - low) / levels
    step = step if step > 0 else torch.tensor(1.0)
    zero = (-low / step).round()
    q = ((x.float() / step).round() + zero).clamp(0, levels)
    read = (q - zero).double() * step.double()
    product = read @ (layer.quantised.double() * layer.scale.double()[:, None]).T
    return product if layer.bias is None else product + layer.bias.double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16)])
def test_it_computes_its_formula(shape: tuple[int, ...], bias: bool) -> None:
    dense, layer = linear(bias=bias)
    x = torch.randn(shape) + 0.3
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), oracle(x, layer, LEVELS), atol=1e-5, rtol=1e-5)
        flat = layer._in_graph(x.flatten(0, -2) if x.ndim > 1 else x[None]).view(*shape[:-1], 24)
        torch.testing.assert_close(flat.double(), oracle(x, layer), atol=1e-5, rtol=1e-5)
        if LEVELS == 255:
            torch.testing.assert_close(flat, layer(x), atol=1e-6, rtol=1e-6)
        assert (layer(x) - dense(x)).abs().max() < 0.05
    assert layer.quantised.dtype == torch.int8


def test_weights_are_within_half_a_step() -> None:
    weight = torch.randn(9, 33) * torch.logspace(-6, 3, 9)[:, None]
    weight[4] = 0
    q, scale = quantised(weight)
    error = (q.double() * scale.double()[:, None] - weight.double()).abs().amax(1)
    assert (error <= scale.double() / 2 * (1 + 1e-5)).all()
    assert q[4].eq(0).all()
    assert scale.gt(0).all()
    assert (q.abs().amax(1) == 127).sum() == 8


def test_the_last_digits_of_inputs() -> None:
    _, layer = linear()
    low = LED(16, 24, 4)
    net, x, seen = nn.ModuleList([low]), torch.randn(5, 16), []
    quantise(net)
    net.append(layer)
    low.encoder.register_forward_hook(lambda _, args, __: seen.append(args[0]))
    with torch.no_grad():
        before = layer(x)
        for seed in (0, 0, 1):
            with jittered(net, seed):
                torch.testing.assert_close(layer(x), before, rtol=0, atol=0.05)
                low(x)
        assert layer(x).equal(before)
        low(x)
    assert seen[0].equal(seen[1])
    assert not seen[0].equal(seen[2])
    assert seen[3].equal(x)
    assert 0 < ((seen[0] - x) / x).abs().max() < 1e-5


def test_rows_and_inputs_of_nothing() -> None:
    dense, layer = linear()
    with torch.no_grad():
        dense.weight[3] = 0
        layer = Int8Linear.of(dense.weight, dense.bias)
        assert layer(torch.randn(4, 16))[:, 3].equal(dense.bias[3].expand(4))
        torch.testing.assert_close(layer(torch.zeros(4, 16)), dense.bias.expand(4, -1))
        torch.testing.assert_close(layer._in_graph(torch.zeros(4, 16)), dense.bias.expand(4, -1))


def test_made_in_inference_mode() -> None:
    model = network("bert", "BertModel", num_hidden_layers=1)
    ids = torch.randint(3, 53, (2, 7))
    with torch.inference_mode():
        greenformers.compress(model, Int8())
        inside = model(ids).last_hidden_state
    assert not any(parameter.is_inference() for parameter in model.parameters())
    assert model(ids).last_hidden_state.equal(inside)


def test_types_gradients_and_copies() -> None:
    _, layer = linear()
    x = torch.randn(4, 16)
    half = layer(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half, layer(x.bfloat16().float()).bfloat16())
    expected = layer(x)  # packed now, and what is packed cannot be copied
    again = copy.deepcopy(layer)
    assert again(x).equal(expected)
    with torch.no_grad():
        again.scale.mul_(2)
        again.bias.zero_()
    torch.testing.assert_close(again(x), 2 * (expected - layer.bias), atol=1e-5, rtol=1e-5)
    assert layer(x).equal(expected)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_pass_through(bias: bool) -> None:
    """Training beside int8 layers (LoRA) failed with "int8 weights have no gradient"."""
    _, layer = linear(bias=bias)
    x = torch.randn(2, 5, 16, requires_grad=True)
    y = layer(x)
    assert y.equal(layer(x.detach()))
    grad = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, grad, create_graph=True)
    torch.testing.assert_close(gradient, grad @ (layer.weight + 0))
    (first,) = torch.autograd.grad((layer(x) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.abs().sum() > 0
    assert layer.quantised.grad is layer.scale.grad is None
    half = x.detach().bfloat16().requires_grad_()
    layer(half).sum().backward()
    assert half.grad.dtype == torch.bfloat16


def test_who_reads_the_weight_finds_what_it_stands_for() -> None:
    """Networks that read `.weight` and never call the layer multiplied by the whole numbers."""
    dense, layer = linear()
    assert isinstance(layer, nn.Linear)
    assert (layer.weight.dtype, layer.weight.shape, layer.weight.device) == (
        dense.weight.dtype, dense.weight.shape, dense.weight.device,
    )  # fmt: skip
    x = torch.randn(4, 16)
    torch.testing.assert_close(nn.functional.linear(x, layer.weight), x @ (layer.scale[:, None] * layer.quantised).T)
    assert (layer.weight.T + 0).shape == (16, 24)
    with pytest.raises(RuntimeError, match="cannot be written to"):
        layer.weight.data = torch.zeros(24, 16)


def test_embeddings() -> None:
    table = nn.Embedding(11, 8, padding_idx=2)
    embedding, ids = Int8Embedding.of(table), torch.arange(11)[None]
    assert (embedding(ids) - table(ids)).abs().max() <= embedding.scale.max() / 2 * 1.001
    assert embedding(ids).equal((embedding.quantised * embedding.scale[:, None])[None])
    assert embedding(ids)[0].equal(embedding.weight + 0)
    assert embedding.padding_idx == 2
    assert embedding.extra_repr() == "11, 8"


@pytest.mark.parametrize("name", ["bert", "gpt2", "albert", "t5"])
def test_a_quarter_of_the_bytes(name: str) -> None:
    model, dense = network(name, **({"vocab_size": 530} if name != "t5" else {})), network(name)
    weight = sum(part.numel() * part.element_size() for part in model.parameters())
    count = sum(part.numel() for part in model.parameters())
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is table.weight
    paths = [path for path, _, _ in quantise(model)]
    assert paths == int8_of(model)
    assert paths
    assert not any(part.requires_grad for part in model.parameters())
    small = sum(part.numel() * part.element_size() for part in model.parameters())
    assert 0.25 < small / weight < 0.36  # of rows as narrow as these, scales weigh an eighth
    assert 1 < sum(part.numel() for part in model.parameters()) / count < 1.05
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    assert isinstance(head, Int8Linear)
    assert isinstance(table, Int8Embedding)
    assert head.quantised is table.quantised
    assert head.scale is table.scale
    small_model = copy.deepcopy(dense)
    quantise(small_model)
    expected = outputs(dense, inputs(name))[0]
    error = difference(outputs(small_model, inputs(name))[:1], [expected])
    assert 0 < error < 0.1 * expected.abs().max()


def test_low_rank_layers_too() -> None:
    model = network("bert")
    greenformers.compress(model, LowRank(keep=0.5, select=EVERYTHING))
    expected = outputs(model, inputs("bert"))[0]
    quantise(model)
    # The factors of the head are those of the embedding, whose rows are looked up: as int8 they would be held twice.
    head = model.cls.predictions.decoder
    assert head.encoder.weight is model.bert.embeddings.word_embeddings.encoder
    low = [part for part in model.modules() if isinstance(part, LED) and part is not head]
    assert low
    assert all(isinstance(part.encoder, Int8Linear) and isinstance(part.decoder, Int8Linear) for part in low)
    assert difference(outputs(model, inputs("bert"))[:1], [expected]) < 0.1 * expected.abs().max()


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear layer and no embedding"):
        quantise(nn.Sequential(nn.ReLU()))
    model = network("bert")
    quantise(model)
    with pytest.raises(ValueError, match="no linear layer and no embedding"):
        quantise(model)
    model = network("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        quantise(model)
    assert not int8_of(model)
    assert all(part.requires_grad for part in model.parameters())


@pytest.mark.skipif(not has_vnni(), reason="without VNNI inputs have 7 bits here, and 8 in training")
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_training_that_is_aware(name: str) -> None:
    model, small = network(name), network(name)
    quantise(small)
    before = {key: (part, part.detach().clone()) for key, part in model.named_parameters()}
    given = inputs(name)
    dense, quantised_outputs = outputs(model, given)[0], outputs(small, given)[0]
    with aware(model):
        seen = outputs(model, given)[0]
        # Nearly what the quantised one will say, which the dense one does not.
        assert 0 < difference([seen], [quantised_outputs]) < 0.5 * difference([dense], [quantised_outputs])
        model(**given, labels=given["input_ids"]).loss.backward()
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[key] is part and part.equal(value) for key, (part, value) in before.items())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(module.weight.grad.abs().sum() > 0 for path, module in targets(model) if "token_type" not in path)
    assert outputs(model, given)[0].equal(dense)


def test_aware_rounds_the_rows_that_are_looked_up() -> None:
    torch.manual_seed(0)
    model, ids = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4)), torch.tensor([3, 1, 3, 8])
    table = model[0].weight.detach()
    right, gradient = Int8Embedding.of(model[0])(ids), torch.randn(4, 8)
    with aware(model):
        rows = model[0](ids)
        torch.testing.assert_close(rows, right, rtol=1e-6, atol=1e-7)
        assert not rows.equal(table[ids])
        rows.backward(gradient)
    torch.testing.assert_close(model[0].weight.grad, torch.zeros(9, 8).index_add_(0, ids, gradient))
    assert model[0](ids).equal(table[ids])


def test_aware_ends_with_an_error_too() -> None:
    model = network("bert")
    keys = model.state_dict().keys()
    with pytest.raises(KeyError), aware(model):
        raise KeyError
    assert model.state_dict().keys() == keys


def test_healing_that_is_aware_brings_it_nearer() -> None:
    original, words = network("bert", "BertModel"), tokenizer("bert")
    with torch.no_grad():
        for part in original.parameters():
            part.mul_(4 if part.dim() == 2 else 1)
    model = copy.deepcopy(original)
    given = {"texts": sentences(60), "tokenizer": words, "teacher": original, "length": 16}
    aware_of_it = Heal(12, batch_size=8, learning_rate=2e-3, aware=True)
    report = greenformers.compress(model, [LowRank(keep=0.5, solver="svd"), aware_of_it, Int8()], **given)
    log = report.steps[1].report.log
    distances = [row["eval_distance"] for row in log if "eval_distance" in row]
    assert distances[-1] < distances[0]
    assert not any("parametrizations" in key for key in model.state_dict())
    assert int8_of(model)
    with pytest.raises(ValueError, match=r"heal cannot follow int8, .*: put heal before it"):
        greenformers.compress(model, Heal(12, batch_size=8), **given)
    for recipe in ([aware_of_it], [aware_of_it, LowRank(keep=0.5)]):
        with pytest.raises(ValueError, match="aware healing needs a later change of the recipe that rounds weights"):
            greenformers.compress(network("bert", "BertModel"), recipe, **given)


def test_causal_models_are_healed_with_blocks() -> None:
    original, words = network("gpt2"), tokenizer("gpt2")
    model = copy.deepcopy(original)
    healing = Heal(2, batch_size=8)
    recipe = [LowRank(keep=0.5, solver="svd"), healing]
    greenformers.compress(model, recipe, texts=sentences(60), tokenizer=words, length=16)
    with pytest.raises(ValueError, match="one block of 40"):
        greenformers.compress(model, healing, texts=sentences(3), tokenizer=words, length=40)
    with pytest.raises(ValueError, match="length must be at most 40, the longest input of the model, got 41"):
        greenformers.compress(model, healing, texts=sentences(60), tokenizer=words, length=41)


def test_what_is_said_of_each_part() -> None:
    model, dense = network("gpt2"), network("gpt2")
    report = greenformers.compress(model, [LowRank(keep=0.5), Int8()])
    units = {unit.path: unit for unit in report.steps[1].report.units}
    assert list(units) == int8_of(model)
    table, first = units["transformer.wte"], units["transformer.h.0.mlp.c_fc.encoder"]
    weight, embedding = dense.transformer.wte.weight, model.transformer.wte
    assert (table.before, table.after) == (4 * weight.numel(), weight.numel() + 4 * len(weight))
    error = (weight - embedding.weight).norm() / weight.norm()
    assert table.lost == pytest.approx(error.item(), rel=1e-4)
    assert 0 < first.lost < 0.02
    assert first.before == 4 * model.transformer.h[0].mlp.c_fc.encoder.quantised.numel()
    assert report.steps[1].size == bytes_of(model) < report.steps[0].size < report.size


def test_a_tied_table_is_counted_once() -> None:
    model = network("gpt2", vocab_size=2000)
    held = {id(module.weight): 4 * module.weight.numel() for module in model.modules() if kind_of(module)}
    report = greenformers.compress(model, Int8())
    assert f"{sum(held.values()) / 2**20:.1f} MiB ->" in report.steps[0].report.summary
    assert report.steps[0].report.summary.startswith(f"{len(held)} layers and embeddings")


def test_a_graph_computes_the_same() -> None:
    model = network("bert", num_hidden_layers=1)
    quantise(model)
    given = inputs("bert")
    expected = outputs(model, given)[0]
    with torch.no_grad():
        logits = torch.compile(model, backend="eager")(**given).logits
    torch.testing.assert_close(logits, expected, atol=0.02 * expected.abs().max().item(), rtol=0.0)
    assert ZOO["bert"][0] == type(model).__name__


@pytest.mark.parametrize("bias", [True, False])
def test_a_compiled_layer_has_a_step_for_each_token(bias: bool) -> None:
    _, layer = linear(bias=bias)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(2, 3, 16) * torch.logspace(0, 6, 6).view(2, 3, 1)
    x[0, 1] = 0
    largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    with torch.no_grad():
        output = compiled(x)
        alone = compiled(x[:1, :1])
    expected = nn.functional.linear((x * (127 / largest)).round() * largest / 127, layer.weight + 0, layer.bias)
    torch.testing.assert_close(output / largest, expected / largest, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(alone, output[:1, :1], atol=1e-6, rtol=1e-6)
