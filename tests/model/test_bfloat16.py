"""Half precision: a network in bfloat16, and one under autocast, are near the float32 one."""

import pytest
import torch
from networks import FOUR, VOCABULARY, config, stir

from greenformers.model import GreenformerForMaskedLM

IDS = torch.arange(39).view(3, 13) % VOCABULARY


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FOUR)
def test_near_float32(name, grad):
    network = stir(GreenformerForMaskedLM(config(name))).eval()
    with torch.set_grad_enabled(grad):
        expected = network(IDS).logits
        scale = expected.std()
        with torch.autocast("cpu", torch.bfloat16):
            cast = network(IDS).logits
        half = network.to(torch.bfloat16)(IDS).logits
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(cast.float() / scale, expected / scale, rtol=0.1, atol=0.1)
    torch.testing.assert_close(half.float() / scale, expected / scale, rtol=0.2, atol=0.2)
