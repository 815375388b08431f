"""Decoders with a cache of keys and values: each token that follows a text costs one row, not the whole text again.

A file takes the new tokens (B, N), the mask (B, P + N) of all, and the keys and values (B, h, P, d) of the P tokens
before them; it gives the logits (B, N, vocabulary) and the keys and values of all P + N. OpenVINO's keeps them itself.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from greenformers.checkpoint.load import line
from greenformers.export.network import CACHED, Batch, Network, positions


class Decoder(Protocol):
    """A decoder that remembers the texts of one batch."""

    def reset(self, size: int) -> None:
        """Forget the texts; `size` texts follow."""

    def step(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits (B, N, vocabulary) of new tokens (B, N), under the mask (B, P + N) of old and new ones."""


class CachedCall:
    """A decoder as a function of whole texts.

    Args:
        decoder: The decoder.
        pieces: Whether texts are given in pieces, so that the cache is used; else at once.
    """

    def __init__(self, decoder: Decoder, *, pieces: bool) -> None:
        self.decoder, self.pieces = decoder, pieces

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits (B, N, vocabulary) of tokens and mask (B, N)."""
        length = ids.shape[1]
        ends = [length // 2, length // 2 + 1, length] if self.pieces else [length]
        self.decoder.reset(len(ids))
        return torch.cat([self.decoder.step(ids[:, start:end], mask[:, :end]) for start, end in _pairs(ends)], dim=1)


def _pairs(ends: list[int]) -> Iterator[tuple[int, int]]:
    places = sorted({0, *ends})
    yield from zip(places[:-1], places[1:], strict=True)


class TorchDecoder:
    """The model itself as a decoder."""

    def __init__(self, network: Network) -> None:
        self.network, self.cache = network, DynamicCache()

    def reset(self, size: int) -> None:
        """Forget the texts."""
        self.cache = DynamicCache()

    def step(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits of new tokens."""
        logits: Tensor = self.network.with_cache(ids, mask, self.cache).logits
        return logits


class CachedNetwork(nn.Module):
    """A decoder as a function of tensors: tokens, mask, keys and values, to logits, keys and values.

    Args:
        network: The network; it must keep a cache.
        shapes: Heads and features of each tensor of the cache, keys and values of each layer in turn.

    Attributes:
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        axes: Names of the free dimensions of each input, by their places.
    """

    def __init__(self, network: Network, shapes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.network, self.shapes = network, shapes
        places = [f"{layer}.{what}" for layer in range(len(shapes) // 2) for what in ("key", "value")]
        self.inputs = (*network.inputs, *(CACHED + place for place in places))
        self.outputs = (network.output, *(f"present.{place}" for place in places))
        whole, new, old = ({0: "batch", at: name} for at, name in ((1, "total"), (1, "length"), (2, "past")))
        self.axes = (new, whole, *(old for _ in places))

    def forward(self, ids: Tensor, mask: Tensor, *cached: Tensor) -> tuple[Tensor, ...]:
        """Logits, and the keys and values of all tokens."""
        cache = DynamicCache()
        for keys, values in zip(cached[::2], cached[1::2], strict=True):
            layer = DynamicLayer()
            layer.dtype, layer.device = keys.dtype, keys.device
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            cache.layers.append(layer)
        output = self.network.with_cache(ids, mask, cache)
        return (output.logits, *_tensors(cache))

    def batch(self, size: int, length: int) -> Batch:
        """Inputs of random tokens (size, length), which follow as many of which the cache is random."""
        ids, mask = self.network.batch(size, length)
        draw = torch.Generator().manual_seed(0)
        cached = (torch.randn(size, heads, length, width, generator=draw) for heads, width in self.shapes)
        return (ids, mask.repeat(1, 2), *cached)


def cached_network(network: Network) -> CachedNetwork | str:
    """A decoder as a function that takes and gives its cache, or the reason why it can only run whole texts.

    Args:
        network: A network that gives logits.
    """
    if not network.generates:
        return "it does not continue texts"
    if network.inputs != tuple(network.inputs[:2]):
        return f"it takes {', '.join(network.inputs[2:])} too"
    ids, mask = network.batch(2, 5)
    decoder = TorchDecoder(network)
    try:
        with torch.inference_mode():
            whole, pieces = network(ids, mask), CachedCall(decoder, pieces=True)(ids, mask)
    except Exception as error:  # whatever networks raise that keep no cache
        return f"it cannot run with a cache: {line(error)}"
    layers: list[Any] = decoder.cache.layers
    other = next((type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer), None)
    if other is not None or not layers:
        return f"its cache holds {'nothing' if other is None else f'a {other}'} in place of keys and values"
    if any(layer.keys.shape[2] != ids.shape[1] for layer in layers):
        return "its cache does not hold the keys and values of all tokens"
    if not (whole - pieces).abs().max() <= 1e-3 * whole.abs().max():
        return "with a cache it gives something else"
    return CachedNetwork(network, [(tensor.shape[1], tensor.shape[3]) for tensor in _tensors(decoder.cache)])


def _tensors(cache: DynamicCache) -> list[Tensor]:
    layers: list[Any] = cache.layers
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]
