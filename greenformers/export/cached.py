"""Decoders with a cache of keys and values: each token that follows a text costs one row, not the whole text again.

A file takes the new tokens (B, N), the mask (B, P + N) of all, and the keys and values (B, h, P, d) of the P tokens
before them; it gives the logits (B, N, vocabulary) and the keys and values of all P + N. OpenVINO's keeps them itself.
"""

from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from greenformers.export.compare import Comparison
from greenformers.export.network import CACHED, IDS, MASK, Batch, Network
from greenformers.model.cache import GrowingLayer

PLAIN = (DynamicLayer, GrowingLayer)
"""Kinds of layers of a cache that hold the keys and values of all tokens, and nothing else."""


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
        places = sorted({0, length // 2, length // 2 + 1, length} if self.pieces else {0, length})
        self.decoder.reset(len(ids))
        return torch.cat(
            [self.decoder.step(ids[:, start:end], mask[:, :end]) for start, end in pairwise(places)], dim=1
        )


class Continued:
    """A text that goes on by one token in each call.

    Args:
        decoder: The decoder, which runs the first tokens at once.
        ids: All tokens (B, N), which must be enough for all calls.
        first: Number of the first tokens.
    """

    def __init__(self, decoder: Decoder, ids: Tensor, first: int) -> None:
        self.decoder, self.ids, self.mask, self.length = decoder, ids, torch.ones_like(ids), first
        decoder.reset(len(ids))
        decoder.step(ids[:, :first], self.mask[:, :first])

    def __call__(self) -> Tensor:
        """The logits (B, 1, vocabulary) of the next token."""
        start, self.length = self.length, self.length + 1
        return self.decoder.step(self.ids[:, start : self.length], self.mask[:, : self.length])


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
        places = [f"{layer}.{part}" for layer in range(len(shapes) // 2) for part in ("key", "value")]
        self.inputs = (*network.inputs, *(CACHED + place for place in places))
        self.outputs = (*network.outputs, *(f"present.{place}" for place in places))
        whole, new, old = ({0: "batch", at: name} for at, name in ((1, "total"), (1, "length"), (2, "past")))
        self.axes = (new, whole, *(old for _ in places))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Logits, and the keys and values of all tokens."""
        (ids, mask, *cached), cache = tensors, DynamicCache()
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


def cached_network(network: Network, comparison: Comparison) -> CachedNetwork | str:
    """A decoder as a function that takes and gives its cache, or the reason why it can only run whole texts.

    The reason is empty for a network that does not continue texts.

    Args:
        network: A network.
        comparison: The outputs of the network without a cache.
    """
    if not network.generates:
        return ""
    if not network.remembers:
        return "it takes no past_key_values"
    if network.inputs != (IDS, MASK):
        return f"it takes {', '.join(network.inputs[2:])} too"
    decoder = TorchDecoder(network)
    try:
        comparison("the model with a cache", CachedCall(decoder, pieces=True))
    except ValueError as error:
        return str(error)
    layers: list[Any] = decoder.cache.layers
    other = next((type(layer).__name__ for layer in layers if type(layer) not in PLAIN), None)
    if other is not None or not layers:
        return f"its cache holds {'nothing' if other is None else f'a {other}'} in place of keys and values"
    length = comparison.batches[-1][0].shape[1]
    if any(layer.keys.shape[2] != length for layer in layers):
        return "its cache does not hold the keys and values of all tokens"
    return CachedNetwork(network, [(tensor.shape[1], tensor.shape[3]) for tensor in _tensors(decoder.cache)])


def _tensors(cache: DynamicCache) -> list[Tensor]:
    layers: list[Any] = cache.layers
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]
