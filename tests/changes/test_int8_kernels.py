"""The kernels of int8 linear layers: their formulas, and a torch that lacks the fused one."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models import sentences, tokenizer
from torch import Tensor, nn
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers._torch import fake_tensors, has_fused_int8, has_prepacked_int8
from greenformers.changes import Int8, _int8_kernels
from greenformers.changes._int8 import Int8Linear, quantise
from greenformers.changes._int8_kernels import by_token, fused, kernel, prepacked
from greenformers.changes._int8_linear import quantised

BY_TOKEN = [
    by_token,
    pytest.param(prepacked, marks=pytest.mark.skipif(not has_prepacked_int8(), reason="torch was built without it")),
]


@pytest.fixture(params=[by_token, prepacked], ids=lambda form: form.__name__)
def successor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without the fused kernel, where every weight is multiplied by one of the others."""
    if request.param is prepacked and not has_prepacked_int8():
        pytest.skip("torch was built without it")
    monkeypatch.setattr(_int8_kernels, "has_fused_int8", lambda: False)
    monkeypatch.setattr(_int8_kernels, "fused", lambda *_: pytest.fail("torch does not have it"))
    monkeypatch.setattr(_int8_kernels, "LARGE", 1 if request.param is prepacked else 2**60)
    monkeypatch.setattr(_int8_kernels, "has_vnni", lambda: False)


def weights(m: int = 24, n: int = 16, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    return *quantised(torch.randn(m, n)), torch.randn(m) if bias else None


def product(x: Tensor, q: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    y = x.double() @ (q.double() * scale.double()[:, None]).T
    return y if bias is None else y + bias.double()


def oracle(x: Tensor, *weight: Tensor | None) -> Tensor:
    """The formula of tokens, in float64; what is rounded, in float32."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    c = low + (high - low) / 2
    h = (high - c).clamp(min=1e-38)
    q = (127 * ((x - c) * h.reciprocal())).round()
    return product(q.double() * h.double() / 127 + c.double(), *weight)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 16), (5, 16), (2, 3, 16), (0, 16)])
@pytest.mark.parametrize("factory", BY_TOKEN)
def test_a_step_of_each_token(factory: Callable[..., Callable[[Tensor], Tensor]], shape: tuple[int, ...], bias: bool):
    weight = weights(bias=bias)
    x = torch.randn(shape) * torch.logspace(0, 6, shape[-2])[:, None] + 0.7
    output = factory(*weight)(x).double()
    assert output.shape == (*shape[:-1], 24)
    exact, size = product(x, *weight), (weight[0].abs() * weight[1][:, None]).sum(1)
    steps = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / 254
    assert ((output - exact).abs() <= 1.001 * steps / 2 * size + 1e-5).all()
    # But for a number or so in the middle between two integers, which the last digit rounds either way.
    off = (output - oracle(x, *weight)).abs() / (steps * weight[0].abs().amax(1) * weight[1])
    assert (off <= 1.001).all()
    assert off.numel() == 0 or off.median() < 1e-3


@pytest.mark.parametrize("factory", BY_TOKEN)
def test_a_token_is_alone(factory: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    product = factory(*weights())
    x = torch.randn(7, 16)
    x[2:5] = torch.tensor([0.0, 1e9, torch.nan])[:, None]
    output = product(x)
    assert all(product(x[at : at + 1])[0].equal(output[at]) for at in (0, 1, 2, 3, 5, 6))
    assert output[2].equal(product(torch.zeros(1, 16))[0])
    assert output[4].isnan().all()


@pytest.mark.parametrize("factory", BY_TOKEN)
def test_tokens_of_one_value_are_not_rounded(factory: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    weight = weights()
    assert factory(*weight)(torch.zeros(3, 16)).equal(weight[2].expand(3, -1))
    x = torch.tensor([1.3, -7.0, 1e-40])[:, None].expand(3, 16)
    torch.testing.assert_close(factory(*weight)(x).double(), product(x, *weight), atol=1e-4, rtol=1e-5)


@pytest.mark.skipif(not has_fused_int8(), reason="torch has it no longer")
def test_the_fused_kernel_is_taken_where_it_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weights(), torch.randn(5, 16)
    assert kernel(*weight)(x).equal(fused(*weight)(x))
    assert kernel(*weight)(x[:1]).equal(fused(*weight)(x[:1]))
    monkeypatch.setattr(_int8_kernels, "LARGE", 1)
    for there, factory in ((True, by_token), (False, fused)):
        monkeypatch.setattr(_int8_kernels, "has_vnni", lambda there=there: there)
        assert kernel(*weight)(x).equal(fused(*weight)(x))
        assert kernel(*weight)(x[:1]).equal(factory(*weight)(x[:1]))


@pytest.mark.usefixtures("successor")
def test_without_it_a_layer_computes_what_it_stands_for() -> None:
    dense = nn.Linear(16, 24)
    layer = Int8Linear.of(dense.weight, dense.bias)
    x = torch.randn(2, 3, 16, requires_grad=True)
    y = layer(x)
    expected = oracle(x.detach(), layer.quantised, layer.scale, layer.bias.detach())
    torch.testing.assert_close(y.detach().double(), expected, atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(gradient, torch.ones_like(y) @ (layer.weight + 0))
    assert layer(x[0, 0]).equal(y[0, 0])
    half = layer(x.detach().bfloat16())
    assert half.dtype == torch.bfloat16
    again = copy.deepcopy(layer)
    with torch.no_grad():
        again.scale.mul_(2)
        again.bias.zero_()
    torch.testing.assert_close(again(x), 2 * (y - layer.bias), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("successor")
def test_without_it_texts_do_not_depend_on_their_batch() -> None:
    model = network("bert", "BertModel")
    quantise(model)
    ids = inputs("bert")["input_ids"][:1]
    padded = torch.cat([torch.cat([ids, ids.new_ones(1, 3)], 1), torch.randint(5, 20, (1, ids.shape[1] + 3))])
    mask = torch.ones_like(padded)
    mask[0, ids.shape[1] :] = 0
    with torch.no_grad():
        alone = model(ids).last_hidden_state[0]
        beside = model(padded, attention_mask=mask).last_hidden_state[0, : ids.shape[1]]
    torch.testing.assert_close(beside, alone, atol=2e-2 * alone.abs().max().item(), rtol=0.0)


@pytest.mark.usefixtures("successor")
def test_without_it_models_reload_and_are_traced(tmp_path: Path) -> None:
    model, given = network("bert", "BertModel"), inputs("bert")
    dense = outputs(model, given)[0]
    greenformers.compress(model, Int8(), texts=sentences(8), tokenizer=tokenizer("bert"), length=16)
    output = outputs(model, given)[0]
    assert difference([output], [dense]) < 0.1 * dense.abs().max()
    greenformers.save(model, tmp_path / "small")
    assert outputs(greenformers.load(tmp_path / "small"), given)[0].equal(output)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")(**given).last_hidden_state
        exported = torch.export.export(model, (), given).module()(**given).last_hidden_state
    allowed = 0.05 * output.abs().max().item()
    torch.testing.assert_close(compiled, output, atol=allowed, rtol=0.0)
    torch.testing.assert_close(exported, output, atol=allowed, rtol=0.0)


def test_tensors_without_content_pass_and_pack_nothing() -> None:
    layer = Int8Linear(16, 24)
    with fake_tensors():
        assert layer(torch.randn(3, 16)).shape == (3, 24)
    assert layer._packed is None
