"""Blocks of attention and convolutions, and what they are made of one position, head and kernel place at a time.

Sequences are lists of rows, None where a position is masked: attention passes it over, a convolution reads zeros.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from greenformers.blocks import build
from greenformers.model import GreenformerConfig
from greenformers.model.block import size_of

EXACT = {"rtol": 1e-9, "atol": 1e-11}


def sizes(**given):
    default = {
        "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 22, "max_position_embeddings": 64,
        "num_hidden_layers": 3, "position": "learned", "decoder_layers": 3,
    }  # fmt: skip
    return GreenformerConfig(**default | given)


def make(name, layer=0, *, causal=False, decoder=False, given=None, **options):
    """A block in double, with parameters that are all at random."""
    torch.manual_seed(3)
    size = size_of(sizes(**given or {}), layer, causal=causal or decoder, decoder=decoder)
    block = build(name, size, **options).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.6)
    return block


def draw(length, batch=3, width=12, seed=1):
    return torch.randn(batch, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def holes(length, batch=3):
    """All of the first example, a single position of the second, and holes in the third."""
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) < 0.6
    mask[0], mask[1], mask[2, length // 2] = True, torch.arange(length) == length // 2, True
    return mask


def rows_of(x, mask=None):
    """The rows of each example, None at masked positions."""
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    return [
        [row if present else None for row, present in zip(*pair, strict=True)] for pair in zip(x, keep, strict=True)
    ]


def each(function, *sequences):
    """A function of one position, at every kept one."""
    return [None if rows[0] is None else function(*rows) for rows in zip(*sequences, strict=True)]


def norm(layer, row):
    centred = row - row.mean()
    return layer.weight * centred / torch.sqrt((centred**2).mean() + layer.eps) + layer.bias


def linear(layer, row):
    return row @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def attention(module, rows, keys=None, *, causal=False):
    """Multi-head attention of rows to themselves, or to the rows `keys`, projected."""
    heads, width = module.mechanism.shape.heads, module.head_dim
    q = each(lambda row: linear(module.projections["q"], row), rows)
    k, v = (
        each(lambda row, name=name: linear(module.projections[name], row), rows if keys is None else keys)
        for name in "kv"
    )
    out = []
    for i, query in enumerate(q):
        if query is None:
            out.append(None)
            continue
        seen = [j for j, key in enumerate(k) if key is not None and not (causal and j > i)]
        parts = []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            weights = [torch.exp(query[own] @ k[j][own] / math.sqrt(width)) for j in seen]
            parts.append(sum(w * v[j][own] for w, j in zip(weights, seen, strict=True)) / sum(weights))
        out.append(linear(module.output, torch.cat(parts)))
    return out


def window(rows, i, kernel, causal, zero):
    """What the kernel reads at position i: zeros for what is masked or outside."""
    first = i - kernel + 1 if causal else i - kernel // 2
    return [rows[j] if 0 <= j < len(rows) and rows[j] is not None else zero for j in range(first, first + kernel)]


def convolution(module, rows):
    """A dense or a depthwise convolution."""
    dense = module.weight.shape[1] > 1
    out = []
    for i, row in enumerate(rows):
        read = window(rows, i, module.kernel, module.causal, torch.zeros(module.channels, dtype=torch.float64))
        parts = [
            module.weight[:, :, k] @ part if dense else module.weight[:, 0, k] * part for k, part in enumerate(read)
        ]
        out.append(None if row is None else sum(parts) + (module.bias if dense else 0))
    return out


def separable(module, rows):
    return each(lambda row: linear(module.pointwise, row), convolution(module.depthwise, rows))


def feed_forward(module, row, activation):
    return linear(module.down, activation(linear(module.up, row)))


def padded(row, width):
    return F.pad(row, (0, width - len(row)))


def check(block, oracle, x, mask=None, encoded=None):
    """Outputs and all gradients of a block at kept positions against those of an oracle of one example's rows."""
    x = x.clone().requires_grad_()
    named = {"encoder_output": encoded[0], "encoder_mask": encoded[1]} if encoded else {}
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    out = block(x, mask, **named)[0][keep]
    sources = [()] * len(x) if encoded is None else [(rows,) for rows in rows_of(*encoded)]
    expected = [
        row for rows, source in zip(rows_of(x, mask), sources, strict=True) for row in oracle(block, rows, *source)
    ]
    expected = torch.stack([row for row in expected if row is not None])
    torch.testing.assert_close(out, expected, **EXACT)
    weights, everything = torch.randn_like(out), [x, *block.parameters()]
    got, correct = (
        torch.autograd.grad((y * weights).sum(), everything, materialize_grads=True) for y in (out, expected)
    )
    torch.testing.assert_close(got, correct, **EXACT)
