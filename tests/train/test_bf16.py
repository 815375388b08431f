"""Products in bf16: attention beside them in float32 on a CPU, and where they are the quicker ones."""

import pytest
import torch
import torch.nn.functional as F

from greenformers.data._rows import Rows
from greenformers.train.bf16 import AttentionInFloat32, products, quickest

CPU = torch.device("cpu")


def operands(dtype, *, requires_grad=False):
    source = torch.Generator().manual_seed(0)
    parts = (torch.randn(2, 3, 8, 16, generator=source).to(dtype) for _ in range(3))
    return [part.requires_grad_(requires_grad) for part in parts]


@pytest.mark.parametrize("how", ["plain", "causal", "bias", "kept", "scaled"])
def test_attention_is_that_in_float32_rounded_once(how):
    q, k, v = operands(torch.bfloat16)
    options = {
        "plain": {}, "causal": {"is_causal": True}, "scaled": {"scale": 0.3},
        "bias": {"attn_mask": torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).bfloat16()},
        "kept": {"attn_mask": torch.ones(8, 8, dtype=torch.bool).tril()},
    }[how]  # fmt: skip
    with AttentionInFloat32():
        out = F.scaled_dot_product_attention(q, k, v, **options)
        named = F.scaled_dot_product_attention(query=q, key=k, value=v, **options)
    wide = {name: x.float() if name == "attn_mask" and x.is_floating_point() else x for name, x in options.items()}
    right = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **wide).bfloat16()
    assert out.equal(right)
    assert named.equal(right)
    assert not right.equal(F.scaled_dot_product_attention(q, k, v, **options))


def test_its_gradients_are_those_in_float32_rounded_once():
    narrow, wide = operands(torch.bfloat16, requires_grad=True), operands(torch.bfloat16, requires_grad=True)
    with products("bf16", CPU):
        F.scaled_dot_product_attention(*narrow).sum().backward()
    F.scaled_dot_product_attention(*(x.float() for x in wide)).bfloat16().sum().backward()
    for ours, right in zip(narrow, wide, strict=True):
        assert ours.grad.equal(right.grad)


def test_other_attention_stays_as_it_is():
    q, k, v = operands(torch.float32)
    with AttentionInFloat32():
        assert F.scaled_dot_product_attention(q, k, v).equal(F.scaled_dot_product_attention(q, k, v))
        assert F.scaled_dot_product_attention(q, k, v).dtype == torch.float32


def test_products_are_in_the_precision_that_is_asked_for():
    x, layer = torch.randn(4, 8), torch.nn.Linear(8, 8)
    with products("fp32", CPU):
        assert layer(x).dtype == torch.float32
    with products("bf16", CPU):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("has", "right"), [({"amx_bf16": True}, "bf16"), ({"avx512_bf16": True}, "bf16"), ({}, "fp32")]
)
def test_the_quickest_is_bf16_where_a_processor_multiplies_matrices_so(monkeypatch, has, right):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: has, raising=False)
    assert quickest() == right


def test_a_label_that_is_one_number_is_not_as_long_as_the_text() -> None:
    items = [
        {"input_ids": torch.arange(n), "attention_mask": torch.ones(n, dtype=torch.long), "labels": torch.tensor(1)}
        for n in (5, 6, 8)
    ]
    rows = Rows(items, lengths=[5, 6, 8])
    batch = rows.collate(items[:2], 8)
    assert batch["input_ids"].shape == (2, 8)
    assert batch["labels"].tolist() == [1, 1]
