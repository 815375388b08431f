"""Decoder and encoder-decoder as the papers write them: no cache, every map by itself, softmax written out."""

import torch
import torch.nn.functional as F

from greenformers.attention.linformer import Linformer
from greenformers.position.learned import Learned
from greenformers.position.sinusoidal import Sinusoidal, sinusoidal


def causal_lm(model, ids, mask=None):
    """Logits (B, N, V) of `model`, a GreenformerForCausalLM."""
    decoder = model.decoder
    positions = places(ids, mask)
    x = stack(decoder, embed(decoder.embedding, ids, positions), mask, positions, causal=True)
    return score(model, x, decoder.embedding.word.weight)


def seq2seq(model, ids, mask, target, target_mask=None):
    """Logits (B, N, V) of `model`, a GreenformerForSeq2SeqLM."""
    encoder, decoder = model.encoder, model.decoder
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    memory = stack(encoder, embed(encoder.embedding, ids, positions), mask, positions)
    positions = places(target, target_mask)
    x = embed(decoder.embedding, target, positions)
    x = stack(decoder, x, target_mask, positions, causal=True, memory=memory, memory_mask=mask)
    return score(model, x, encoder.embedding.word.weight)


def places(ids, mask):
    """A token's place among those kept."""
    keep = torch.ones_like(ids) if mask is None else mask.long()
    return (keep.cumsum(1) - 1).clamp(min=0)


def embed(block, ids, positions):
    x = F.embedding(ids, block.word.weight, padding_idx=block.word.padding_idx)
    if isinstance(block.position, Learned):
        x = x + block.position.weight[positions]
    if isinstance(block.position, Sinusoidal):
        x = x * x.shape[2] ** 0.5 + sinusoidal(positions, x.shape[2], x.dtype)
    x = norm(block.norm, x)
    return x if isinstance(block.widen, torch.nn.Identity) else linear(block.widen, x)


def stack(model, x, mask, positions, *, causal=False, memory=None, memory_mask=None):
    pre = model.config.residual == "pre"
    for layer in model.layers:
        own = layer.attention
        angles = positions if own.position is not None else None
        parts = [(layer.attention_norm, lambda y, own=own, angles=angles: attend(own, y, y, mask, causal, angles))]
        if memory is not None:
            cross = layer.cross_attention
            parts += [(layer.cross_attention_norm, lambda y, cross=cross: attend(cross, y, memory, memory_mask))]
        parts += [(layer.feed_forward_norm, lambda y, layer=layer: feed_forward(layer.feed_forward, y))]
        for layer_norm, block in parts:
            x = x + block(norm(layer_norm, x)) if pre else norm(layer_norm, x + block(x))
    return norm(model.final_norm, x) if pre else x


def attend(block, x, memory, mask, causal=False, positions=None):
    heads, head_dim = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    projections = block.projections
    q, k, v = (
        linear(projections[name], y).reshape(*y.shape[:2], -1, head_dim).transpose(1, 2)
        for name, y in (("q", x), ("k", memory), ("v", memory))
    )
    if block.normalised is not None:
        q, k = norm(block.normalised["q"], q), norm(block.normalised["k"], k)
    if positions is not None:
        q, k = rotated(q, positions), rotated(k, positions)
    # Head h of the queries reads head h H' / H of the keys and values.
    k, v = (torch.stack([y[:, h * y.shape[1] // heads] for h in range(heads)], 1) for y in (k, v))
    N, M = x.shape[1], memory.shape[1]
    keep = torch.ones(x.shape[0], M, dtype=torch.bool) if mask is None else mask
    visible = keep[:, None, None, :].expand(-1, heads, N, -1)
    if causal:
        visible = visible & (torch.arange(M) <= torch.arange(N)[:, None])
    if isinstance(block.mechanism, Linformer):
        E, k_ = block.mechanism.E, block.mechanism.k
        values = getattr(block.mechanism, "F", E)
        k = E[:, :k_, :M] @ (k * keep[:, None, :, None])
        v = values[:, :k_, :M] @ (v * keep[:, None, :, None])
        visible = torch.ones(1, 1, N, k_, dtype=torch.bool)
    scores = q @ k.mT / head_dim**0.5  # (B, H, N, M)
    seen = visible.any(-1, keepdim=True)
    weights = scores.masked_fill(~visible & seen, -torch.inf).exp()
    weights = weights / weights.sum(-1, keepdim=True) * seen  # a query without keys gets 0
    return linear(block.output, (weights @ v).transpose(1, 2).reshape(x.shape))


def rotated(x, positions):
    """Column c and column c + D/2, as one complex number, times e^(i 10000^(-2c/D)); an odd last column stays."""
    half = x.shape[3] // 2
    angles = positions[:, None, :, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.exp(1j * angles)
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], 3).to(x.dtype)


def feed_forward(block, x):
    if hasattr(block, "gate"):
        return linear(block.down, block.activation(linear(block.gate, x)) * linear(block.up, x))
    return linear(block.down, block.activation(linear(block.up, x)))


def linear(item, x):
    """One map: x E D + b where it has two factors, x W + b where not."""
    bias = 0 if item.bias is None else item.bias
    if hasattr(item, "encoder"):
        return x @ item.encoder.weight.T @ item.decoder.weight.T + bias
    return x @ item.weight.T + bias


def norm(item, x):
    if isinstance(item, torch.nn.Identity):
        return x
    if isinstance(item, torch.nn.RMSNorm):
        return x / (x.square().mean(-1, keepdim=True) + item.eps).sqrt() * item.weight
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + item.eps).sqrt() * item.weight + item.bias


def score(model, x, words):
    return (x if isinstance(model.narrow, torch.nn.Identity) else linear(model.narrow, x)) @ words.T
