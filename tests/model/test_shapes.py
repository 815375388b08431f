"""The jaxtyping shapes of public signatures, run: right ones pass, wrong ones are found."""

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from networks import NETWORKS, VOCABULARY, config, d, layer, padding

from greenformers.lowrank.linear import LED
from greenformers.model import GreenformerForMaskedLM, GreenformerForSequenceClassification, GreenformerModel
from greenformers.model.embedding import Embedding
from greenformers.position.sinusoidal import sinusoidal

B, N, C = 3, 13, 2


def checked(function):
    return jaxtyped(typechecker=beartype)(function)


def tokens(*shape):
    return torch.randint(VOCABULARY, shape)


@pytest.mark.parametrize("shape", [(d,), (N, d), (B, N, d)])
def test_led(shape):
    assert checked(LED.forward)(LED(d, 7, 3), torch.randn(shape)).shape == (*shape[:-1], 7)
    with pytest.raises(TypeCheckError):
        checked(LED.forward)(LED(d, 7, 3), torch.ones(shape).long())
    assert checked(LED.weight.fget)(LED(d, 7, 3)).shape == (7, d)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_layer(name, grad):
    block, x, mask = layer(name), torch.randn(B, N, d, dtype=torch.float64), padding(B, N)
    forward = checked(type(block).forward)
    with torch.set_grad_enabled(grad):
        assert forward(block, x, mask).shape == forward(block, x).shape == (B, N, d)
        for wrong in ((x[0], None), (x, mask[1:]), (x, mask.long())):
            with pytest.raises(TypeCheckError):
                forward(block, *wrong)
        # With a cache the mask is longer than x, so its length is no matter of the signature; models check theirs.
        with pytest.raises((ValueError, RuntimeError), match="12"):
            forward(block, x, mask[:, 1:])


def test_embedding():
    forward, module = checked(Embedding.forward), Embedding(config())
    assert forward(module, tokens(B, N)).shape == (B, N, d)
    for wrong in (tokens(N), tokens(B, N).float()):
        with pytest.raises(TypeCheckError):
            forward(module, wrong)
    values = Embedding(config(input_features=C))
    assert forward(values, input_values=torch.randn(B, N, C)).shape == (B, N + 1, d)
    with pytest.raises(TypeCheckError):
        forward(values, input_values=torch.randn(B, N))
    assert checked(sinusoidal)(torch.arange(N), d).shape == (N, d)


@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForMaskedLM, GreenformerForSequenceClassification])
def test_models(kind):
    forward, model = checked(kind.forward), kind(config())
    out = forward(model, tokens(B, N), padding(B, N))
    assert out[0].shape[0] == B
    with pytest.raises(TypeCheckError):
        forward(model, tokens(N))
    with pytest.raises(TypeCheckError):
        forward(model, tokens(B, N).double())
