"""Decoder and encoder-decoder as the papers write them: no cache, every map by itself, softmax written out."""

import torch
import torch.nn.functional as F

from greenformers.attention.linformer import Linformer
from greenformers.model.embedding import sinusoidal


def causal_lm(model, ids, mask=None):
    """Logits (B, N, V) of `model`, a GreenformerForCausalLM."""
    decoder = model.decoder
    x = stack(decoder, embed(decoder.embedding, ids, places(ids, mask)), mask, causal=True)
    return score(model, x, decoder.embedding.word.weight)


def seq2seq(model, ids, mask, target, target_mask=None):
    """Logits (B, N, V) of `model`, a GreenformerForSeq2SeqLM."""
    encoder, decoder = model.encoder, model.decoder
    memory = stack(encoder, embed(encoder.embedding, ids, torch.arange(ids.shape[1]).expand_as(ids)), mask)
    x = embed(decoder.embedding, target, places(target, target_mask))
    x = stack(decoder, x, target_mask, causal=True, memory=memory, memory_mask=mask)
    return score(model, x, encoder.embedding.word.weight)


def places(ids, mask):
    """A token's place among those kept."""
    kept = torch.ones_like(ids) if mask is None else mask.long()
    return (kept.cumsum(1) - 1).clamp(min=0)


def embed(block, ids, positions):
    x = F.embedding(ids, block.word.weight, padding_idx=block.word.padding_idx)
    if block.config.position == "learned":
        x = x + block.position.weight[positions]
    if block.config.position == "sinusoidal":
        x = x * x.shape[2] ** 0.5 + sinusoidal(positions, x.shape[2])
    x = norm(block.norm, x)
    return x if isinstance(block.widen, torch.nn.Identity) else linear(block.widen, x)


def stack(model, x, mask, *, causal=False, memory=None, memory_mask=None):
    pre = model.config.residual == "pre"
    for layer in model.layers:
        parts = [(layer.attention_norm, lambda y, layer=layer: attend(layer.attention, y, y, mask, causal))]
        if memory is not None:
            cross = layer.cross_attention
            parts += [(layer.cross_attention_norm, lambda y, cross=cross: attend(cross, y, memory, memory_mask))]
        parts += [(layer.feed_forward_norm, lambda y, layer=layer: feed_forward(layer.feed_forward, y))]
        for layer_norm, block in parts:
            x = x + block(norm(layer_norm, x)) if pre else norm(layer_norm, x + block(x))
    return norm(model.final_norm, x) if pre else x


def attend(block, x, memory, mask, causal=False):
    heads, head_dim = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    maps = block.maps
    q, k, v = (
        linear(maps[name], y).reshape(*y.shape[:2], heads, head_dim).transpose(1, 2)
        for name, y in (("q", x), ("k", memory), ("v", memory))
    )
    N, M = x.shape[1], memory.shape[1]
    kept = torch.ones(x.shape[0], M, dtype=torch.bool) if mask is None else mask
    visible = kept[:, None, None, :].expand(-1, heads, N, -1)
    if causal:
        visible = visible & (torch.arange(M) <= torch.arange(N)[:, None])
    if isinstance(block.mechanism, Linformer):
        E, k_ = block.mechanism.E, block.mechanism.k
        values = getattr(block.mechanism, "F", E)
        k = E[:, :k_, :M] @ (k * kept[:, None, :, None])
        v = values[:, :k_, :M] @ (v * kept[:, None, :, None])
        visible = torch.ones(1, 1, N, k_, dtype=torch.bool)
    scores = q @ k.mT / head_dim**0.5  # (B, H, N, M)
    seen = visible.any(-1, keepdim=True)
    weights = scores.masked_fill(~visible & seen, -torch.inf).exp()
    weights = weights / weights.sum(-1, keepdim=True) * seen  # a query without keys gets 0
    return linear(block.output, (weights @ v).transpose(1, 2).reshape(x.shape))


def feed_forward(block, x):
    return linear(block.down, block.activation(linear(block.up, x)))


def linear(item, x):
    """One map: x E D + b where it has two factors, x W + b where not."""
    if hasattr(item, "encoder"):
        return x @ item.encoder.T @ item.decoder.T + item.bias
    return x @ item.weight.T + item.bias


def norm(item, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + item.eps).sqrt() * item.weight + item.bias


def score(model, x, words):
    return (x if isinstance(model.narrow, torch.nn.Identity) else linear(model.narrow, x)) @ words.T
