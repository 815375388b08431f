"""Other number formats: whole models in bfloat16, and autocast."""

import pytest
import torch
from networks import NETWORKS, VOCABULARY, config, padding, stir

from greenformers.model import GreenformerForMaskedLM

B, N = 3, 13


def make(name):
    return stir(GreenformerForMaskedLM(config(name))).eval()


def inputs():
    ids = torch.randint(VOCABULARY, (B, N))
    return {"input_ids": ids, "attention_mask": padding(B, N), "labels": ids}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16(name, train):
    model, given = make(name), inputs()
    expected = model(**given).logits[given["attention_mask"]]
    model = model.bfloat16().train(train)
    with torch.set_grad_enabled(train):
        out = model(**given)
    assert out.logits.dtype == torch.bfloat16
    # Eight bits of a number, through two layers.
    torch.testing.assert_close(out.logits[given["attention_mask"]].float(), expected, atol=0.3, rtol=0)
    if train:
        out.loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_autocast(name, train):
    model, given = make(name).train(train), inputs()
    expected = model(**given).logits[given["attention_mask"]]
    with torch.set_grad_enabled(train), torch.autocast("cpu", torch.bfloat16):
        out = model(**given)
    assert out.logits.dtype == torch.bfloat16
    logits = out.logits[given["attention_mask"]].float()
    torch.testing.assert_close(logits, expected, atol=0.3, rtol=0)
    assert not torch.equal(logits, expected)
    if train:
        out.loss.backward()
        for parameter in model.parameters():
            assert parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all()
