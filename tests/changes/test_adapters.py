"""Adapters: products of two narrow weights, learned beside weights of few bits, which stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models import folder, sentences, tokenizer
from safetensors.torch import load_file
from torch import nn
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers.changes import Bits, Change, Heal, Int8
from greenformers.changes._adapters import adapting
from greenformers.changes._bits_layers import BitsLinear
from greenformers.compress.block_by_block import compress_block_by_block

ROUNDED = Bits(2, by="rounding", group=16, select=("linear",))
LEARNED = Heal(steps=60, batch_size=16, learning_rate=3e-3, adapters=4)


def layers(model: nn.Module) -> dict[str, BitsLinear]:
    return {path: module for path, module in model.named_modules() if isinstance(module, BitsLinear)}


def compressed(changes: list[Change], name: str = "bert", **options: Any) -> Any:
    model: Any = network(name)
    greenformers.compress(
        model, changes, texts=sentences(80), tokenizer=tokenizer(name), length=12, teacher=network(name), **options
    )
    return model


def away(model: nn.Module) -> float:
    """How far outputs are from those of the network as it was."""
    y = outputs(network("bert"), inputs("bert"))[0]
    return float((outputs(model, inputs("bert"))[0] - y).norm() / y.norm())


def test_only_the_products_are_learned_and_they_make_up_for_rounding(tmp_path: Path) -> None:
    rounded, learned = compressed([ROUNDED]), compressed([ROUNDED, LEARNED])
    for path, layer in layers(rounded).items():
        held = learned.get_submodule(path).held
        assert torch.equal(layer.held.packed, held.packed)
        assert torch.equal(layer.held.steps, held.steps)
        assert layer.held.left is None
        if "encoder" not in path:  # what the loss does not compare gets no product
            continue
        assert (held.left.m, held.left.n, held.right.n) == (layer.held.m, min(4, layer.held.m, layer.held.n), held.n)
    stays = {name: x for name, x in rounded.state_dict().items() if ".held." not in name}
    assert stays
    assert all(x.equal(learned.state_dict()[name]) for name, x in stays.items())
    assert not any(parameter.requires_grad for parameter in learned.parameters())
    assert away(learned) < 0.8 * away(rounded)
    greenformers.save(learned, tmp_path / "out", tokenizer=tokenizer("bert"))
    batch = inputs("bert")
    assert difference(outputs(greenformers.load(tmp_path / "out"), batch), outputs(learned, batch)) == 0


def test_the_formula_and_its_gradients() -> None:
    """W x + L (R x) with the rounded W, by hand; only L and R learn, and inputs pass their gradient on."""
    model = compressed([ROUNDED])
    path, layer = next(iter(layers(model).items()))
    source = torch.Generator().manual_seed(3)
    x = torch.randn(5, layer.in_features, generator=source, requires_grad=True)
    W = layer.held.rows().detach()
    with adapting(model, 3, seed=1) as learned:
        adapter: Any = layer.adapter
        assert {id(each) for each in learned} == {id(p) for p in model.parameters() if p.requires_grad}
        torch.testing.assert_close(layer(x), F.linear(x, W, layer.bias))  # it begins as nothing
        with torch.no_grad():
            adapter.left.normal_(generator=source)
        L, R = adapter.left.detach().clone().requires_grad_(), adapter.right.detach().clone().requires_grad_()
        y, expected = layer(x), F.linear(x, W, layer.bias) + x @ R.T @ L.T
        torch.testing.assert_close(y, expected)
        slopes = torch.autograd.grad(y.square().sum(), [x, adapter.left, adapter.right])
        torch.testing.assert_close(
            slopes, torch.autograd.grad(expected.square().sum(), [x, L, R]), rtol=1e-4, atol=1e-4
        )
    assert path in layers(model)
    assert not any("adapter" in name for name, _ in model.named_parameters())
    after = layer(x)
    assert (after - y).norm() < 0.02 * y.norm()  # L and R in 8 bits
    assert (after - y).norm() > 0
    assert all(other.held.left is None for name, other in layers(model).items() if name != path)


def test_what_bits_has_added_is_learned_on(tmp_path: Path) -> None:
    added = ROUNDED.but(by="gptq", rank=4)
    rounded, learned = compressed([added]), compressed([added, LEARNED])
    first, second = (next(iter(layers(model).values())).held for model in (rounded, learned))
    assert first.left is not None
    assert not torch.equal(first.left.packed, second.left.packed)
    assert away(learned) < away(rounded)
    greenformers.save(learned, tmp_path / "out", tokenizer=tokenizer("bert"))
    batch = inputs("bert")
    assert difference(outputs(greenformers.load(tmp_path / "out"), batch), outputs(learned, batch)) == 0


def test_few_rows_see_the_product_too() -> None:
    """One token is multiplied by a kernel of packed weights where there is no product."""
    model = compressed([Bits(4, by="rounding", group=32, select=("linear",))])
    layer = next(iter(layers(model).values()))
    x = torch.randn(1, layer.in_features, generator=torch.Generator().manual_seed(0))
    before = layer(x)
    with adapting(model, 2, seed=0), torch.no_grad():
        layer.adapter.left.fill_(1.0)  # type: ignore[union-attr, operator]
        assert (layer(x) - before).abs().max() > 1e-2
    assert (layer(x) - before).abs().max() > 1e-2


def test_a_head_that_is_the_embedding_too_stays() -> None:
    model = network("gpt2", "GPT2LMHeadModel")
    greenformers.compress(model, Bits(8, by="rounding"), texts=sentences(40), tokenizer=tokenizer("gpt2"), length=12)
    with adapting(model, 2, seed=0):
        assert not hasattr(model.lm_head, "adapter")
        assert sum(hasattr(layer, "adapter") for layer in layers(model).values()) == len(layers(model)) - 1


def test_one_block_at_a_time(tmp_path: Path) -> None:
    bert = folder(tmp_path, "bert", "BertForMaskedLM")
    batches = [
        {"input_ids": torch.randint(3, 53, (4, 12), generator=torch.Generator().manual_seed(seed))}
        for seed in range(12)
    ]  # fmt: skip
    y = outputs(greenformers.load(bert), batches[0])[0]
    lost = {}
    for name, recipe in (("rounded", [ROUNDED]), ("learned", [ROUNDED, LEARNED.but(batch_size=4)])):
        compress_block_by_block(bert, tmp_path / name, recipe, batches)
        lost[name] = (outputs(greenformers.load(tmp_path / name), batches[0])[0] - y).norm()
    assert lost["learned"] < lost["rounded"]
    held = [load_file(file) for file in (tmp_path / "learned").glob("*.safetensors")]
    assert any("held.left" in name for tensors in held for name in tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([LEARNED], "adapters are learned beside weights of few bits: put bits before heal"),
        ([Int8(), LEARNED], "adapters are learned beside weights of few bits, not those of int8"),
        ([ROUNDED, Heal(steps=1, batch_size=2)], "heal cannot follow bits"),
        ([ROUNDED.but(by="gptq", rank=2), LEARNED], "the products beside the layers have rank 2: .* so many, got 4"),
    ],
)
def test_where_they_cannot_be_they_are_refused(changes: list[Change], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compressed(changes)


@pytest.mark.parametrize("other", [{"aware": True}, {"movement": 0.5}, {"muon_rate": 0.1}, {"shard": True}])
def test_with_what_learns_all_weights_they_exclude_each_other(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"adapters and {next(iter(other))} exclude each other"):
        Heal(adapters=4, **other)
    with pytest.raises(ValueError, match="adapters must be a rank of at least 1, got 0"):
        Heal(adapters=0)
