"""Segment-level memory: what a segment is read on top of. Dai 2019, arXiv:1901.02860, 3.2; Rae 2019, arXiv:1911.05507.

Of each layer the detached inputs at the last positions of earlier segments; of layers that compress, older ones in
front of these, c in one. With current weights they become keys and values of the segment's queries.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class SegmentMemory:
    """Memory of B sequences; `SegmentMemory(512)` is an empty one.

    Attributes:
        length: positions that are kept; where memory is compressed up to c - 1 more.
        recent: of each layer (B, m, d).
        compressed: of each layer (B, m', d), m' = 0 in layers that do not compress.
        mask: True = keep (B, m), of the recent ones; None: all.
        compressed_mask: True = keep, of the compressed ones of each layer; None: all.

    Raises:
        ValueError: length below 0.
    """

    length: int
    recent: tuple[Float[Tensor, "B m d"], ...] = ()
    compressed: tuple[Float[Tensor, "B m d"], ...] = ()
    mask: Bool[Tensor, "B m"] | None = None
    compressed_mask: tuple[Bool[Tensor, "B m"] | None, ...] = ()

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length must be at least 0, got {self.length}")

    def of(self, layer: int) -> Float[Tensor, "B m d"] | None:
        """What a layer attends besides its segment; None where there is nothing."""
        if not self.recent:
            return None
        return torch.cat([self.compressed[layer], self.recent[layer]], 1)

    def key_mask(self, layer: int, mask: Bool[Tensor, "B N"] | None, x: Tensor) -> Bool[Tensor, "B M"] | None:
        """The mask of all keys of a layer, given that of the segment `x` (B, N, d); None where all are kept."""
        if not self.recent:
            return mask
        parts = [
            (self.compressed_mask[layer], self.compressed[layer]),
            (self.mask, self.recent[layer]),
            (mask, x),
        ]
        if all(one is None for one, _ in parts):
            return None
        return torch.cat([_or_all(one, of) for one, of in parts], 1)

    def after(
        self, layers: Sequence[Any], inputs: Sequence[Float[Tensor, "B N d"]], mask: Bool[Tensor, "B N"] | None
    ) -> tuple["SegmentMemory", Float[Tensor, ""] | None]:
        """The memory of the next segment, and the loss of what was compressed, in training.

        Args:
            layers: of the network.
            inputs: of each layer, of this segment.
            mask: True = keep, of this segment.
        """
        inputs = [x.detach() for x in inputs]
        empty = tuple(x.new_empty(len(x), 0, x.shape[2]) for x in inputs)
        held = (
            self if self.recent else replace(self, recent=empty, compressed=empty, compressed_mask=(None,) * len(empty))
        )
        whole = [torch.cat(pair, 1) for pair in zip(held.recent, inputs, strict=True)]
        masks = None
        if held.mask is not None or mask is not None:
            masks = torch.cat([_or_all(held.mask, held.recent[0]), _or_all(mask, inputs[0])], 1)
        over = max(0, whole[0].shape[1] - self.length)
        # All layers forget alike, and each compresses so many positions at a time.
        over -= over % math.lcm(*(layer.attention.mechanism.compress_multiple for layer in layers))
        old_mask = None if masks is None else masks[:, :over]
        compressed, compressed_masks, losses = list(held.compressed), list(held.compressed_mask), []
        for index, layer in enumerate(layers):
            mechanism = layer.attention.mechanism
            if over and mechanism.compresses:
                new, new_mask, loss = layer.compress(inputs[index], whole[index][:, :over], old_mask)
                first, limit = compressed[index], mechanism.compressed
                if compressed_masks[index] is not None or new_mask is not None:
                    both = torch.cat([_or_all(compressed_masks[index], first), _or_all(new_mask, new)], 1)
                    compressed_masks[index] = both[:, -limit:]
                compressed[index] = torch.cat([first, new], 1)[:, -limit:]
                losses += [] if loss is None else [loss]
        memory = SegmentMemory(
            self.length,
            tuple(x[:, over:] for x in whole),
            tuple(compressed),
            None if masks is None else masks[:, over:],
            tuple(compressed_masks),
        )
        return memory, sum(losses[1:], losses[0]) if losses else None

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, each with memory of its own, as `read` takes it."""
        return {name: x.clone(memory_format=torch.contiguous_format) for name, x in self._named().items()}

    def _named(self) -> dict[str, Tensor]:
        found = {f"recent.{index}": x for index, x in enumerate(self.recent)}
        found |= {f"compressed.{index}": x for index, x in enumerate(self.compressed)}
        found |= {f"compressed_mask.{index}": x for index, x in enumerate(self.compressed_mask) if x is not None}
        return found | ({} if self.mask is None else {"mask": self.mask})

    def rows(self, count: int) -> "SegmentMemory":
        """That of the first sequences."""
        return self._each(lambda x: x[:count])

    def repeated(self, times: int) -> "SegmentMemory":
        """Each sequence so many times in a row, for beams."""
        return self._each(lambda x: x.repeat_interleave(times, 0))

    def to(self, device: torch.device) -> "SegmentMemory":
        """The same on a device."""
        return self._each(lambda x: x.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "SegmentMemory":
        return SegmentMemory.read(self.length, {name: change(x) for name, x in self._named().items()})

    @classmethod
    def read(cls, length: int, tensors: dict[str, Tensor]) -> "SegmentMemory":
        """A memory from what `tensors` gave."""
        layers = sum(name.startswith("recent.") for name in tensors)
        recent, compressed = (
            tuple(tensors[f"{part}.{index}"] for index in range(layers)) for part in ("recent", "compressed")
        )
        masks = tuple(tensors.get(f"compressed_mask.{index}") for index in range(layers))
        return cls(length, recent, compressed, tensors.get("mask"), masks)


def _or_all(mask: Tensor | None, x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
