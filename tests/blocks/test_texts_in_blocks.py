"""A text in a block is what it is alone, whatever padding stands before and behind it, and whatever that holds."""

import pytest
import torch
from torch import nn

from greenformers.blocks import block_class, build, names
from greenformers.model import GreenformerConfig
from greenformers.model.block import size_of

WIDTH, MAX_LEN, LAYERS = 12, 37, 2
CONFIG = GreenformerConfig(
    hidden_size=WIDTH, num_attention_heads=2, intermediate_size=31, max_position_embeddings=MAX_LEN,
    num_hidden_layers=LAYERS, position="learned",
)  # fmt: skip
TEXTS = [slice(4, MAX_LEN), slice(0, 7), slice(3, 8), slice(0, MAX_LEN), slice(MAX_LEN - 1, MAX_LEN)]
"""Where the text of each example stands: behind padding, before it, between, without any, and the shortest."""
AT = torch.arange(MAX_LEN)
MASK = torch.stack([(text.start <= AT) & (text.stop > AT) for text in TEXTS])
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def stack(name, causal):
    """Two layers, one on the memory of the other, with parameters far from their first values."""
    torch.manual_seed(0)
    layers = nn.ModuleList(
        build(name, size_of(CONFIG, layer, causal=causal))
        for layer in range(LAYERS if block_class(name).keeps_length else 1)
    ).double()
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layers


def run(layers, x, mask=None):
    memory = None
    for layer in layers:
        x, memory = layer(x, mask, memory)
    return x


def forms():
    for name in names():
        yield name, False
        try:
            build(name, size_of(CONFIG, 0, causal=True))
        except ValueError:
            continue
        yield name, True


@pytest.mark.parametrize(("name", "causal"), list(forms()))
@pytest.mark.parametrize("content", [3.0, torch.nan])
def test_a_text_among_padding_is_the_text_alone(name, causal, content):
    """Outputs and gradients, and those of the parameters; the padding gets none."""
    layers = stack(name, causal)
    x = torch.randn(len(TEXTS), MAX_LEN, WIDTH, dtype=torch.float64)
    x = x.masked_fill(~MASK[..., None], content).requires_grad_()
    out = run(layers, x, MASK)
    cut = TEXTS if layers[0].keeps_length else [slice(None)] * len(TEXTS)
    together = torch.cat([out[b, text] for b, text in enumerate(cut)])
    apart = torch.cat([run(layers, x[b : b + 1, text])[0] for b, text in enumerate(TEXTS)])
    torch.testing.assert_close(together, apart, **EXACT)
    weights = torch.linspace(-1, 2, apart.numel(), dtype=x.dtype).view(apart.shape)
    everything = [x, *layers.parameters()]
    got, expected = (
        torch.autograd.grad((weights * y).sum(), everything, materialize_grads=True) for y in (together, apart)
    )
    torch.testing.assert_close(got, expected, **EXACT)
