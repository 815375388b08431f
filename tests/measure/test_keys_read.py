"""The share of keys that DACS reads, counted query by query."""

import pytest
import torch

from greenformers.attention.dacs import Dacs
from greenformers.measure.keys_read import keys_read
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForMaskedLM

SIZES = {
    "vocab_size": 20, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2,
    "max_position_embeddings": 16, "attention": "dacs", "initializer_range": 0.3,
}  # fmt: skip
MASK = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 0, 0]])


@pytest.mark.parametrize("kind", [GreenformerForCausalLM, GreenformerForMaskedLM])
def test_keys_are_counted_query_by_query(kind) -> None:
    torch.manual_seed(0)
    model = kind(GreenformerConfig(**SIZES)).eval()
    tokens = torch.randint(4, 20, MASK.shape)
    seen = []
    for module in model.modules():
        if isinstance(module, Dacs):
            module.register_forward_hook(
                lambda module, _, given, __: seen.append((module, given["q"], given["k"])), with_kwargs=True
            )
    with torch.no_grad(), keys_read(model) as counts:
        before = model(tokens, attention_mask=MASK).logits
    assert len(seen) == 2
    read = in_sight = 0
    for module, q, k in seen:
        a = torch.sigmoid(q @ k.mT / q.shape[3] ** 0.5)
        for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
            if not MASK[b, i]:
                continue
            keys = [j for j in range(9) if MASK[b, j] and (j <= i or not module.shape.causal)]
            stop = next((n for n in range(1, len(keys)) if a[b, h, i, keys[:n]].sum() >= 1), len(keys))
            read, in_sight = read + stop, in_sight + len(keys)
    assert (counts.read, counts.in_sight) == (read, in_sight)
    assert counts.share == read / in_sight < 0.9
    with torch.no_grad():  # nothing is left behind
        torch.testing.assert_close(model(tokens, attention_mask=MASK).logits, before, rtol=0, atol=0)
    assert (counts.read, counts.in_sight) == (read, in_sight)


def test_other_attention_has_no_share() -> None:
    model = GreenformerForCausalLM(GreenformerConfig(**SIZES | {"attention": "full"}))
    with keys_read(model) as counts:
        model(torch.ones(1, 4, dtype=torch.long))
    assert counts.share is None
