"""Segment-level memory: what a segment is read on top of. Dai 2019, arXiv:1901.02860, 3.2; Rae 2019, arXiv:1911.05507.

Of each layer the detached inputs at the last positions of earlier segments; of layers that compress, older ones in
front of these, c in one. With current weights they become keys and values of the segment's queries.

Of each sequence what is kept stands at the end: padding before and behind its segments is not remembered as distance.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
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
        return self._joined(layer)[0]

    def key_mask(self, layer: int, mask: Bool[Tensor, "B N"] | None, x: Tensor) -> Bool[Tensor, "B M"] | None:
        """The mask of all keys of a layer, given that of the segment `x` (B, N, d); None where all are kept."""
        if not self.recent:
            return mask
        before, before_mask = self._joined(layer)
        if before_mask is None and mask is None:
            return None
        return torch.cat([_or_all(before_mask, before), _or_all(mask, x)], 1)

    def _joined(self, layer: int) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None]:
        """Compressed and recent positions of a layer, and their mask."""
        compressed, recent, of_compressed = self.compressed[layer], self.recent[layer], self.compressed_mask[layer]
        both = torch.cat([compressed, recent], 1)
        if of_compressed is None and self.mask is None:
            return both, None
        mask = torch.cat([_or_all(of_compressed, compressed), _or_all(self.mask, recent)], 1)
        return without_gap(both, mask, compressed.shape[1]) if recent.shape[1] else (both, mask)

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
        recent = [torch.cat(pair, 1) for pair in zip(held.recent, inputs, strict=True)]
        total = recent[0].shape[1]
        masks, counts = None, [total] * len(inputs[0])
        if held.mask is not None or mask is not None:
            recent, masks, counts = _at_the_end(recent, _or_all(held.mask, held.recent[0]), _or_all(mask, inputs[0]))
        # All layers forget alike, and each compresses so many positions at a time.
        multiple = math.lcm(*(layer.attention.mechanism.compress_multiple for layer in layers))
        over = [max(0, count - self.length) // multiple * multiple for count in counts]
        compressed, compressed_masks, losses = list(held.compressed), list(held.compressed_mask), []
        for index, layer in enumerate(layers):
            mechanism = layer.attention.mechanism
            if any(over) and mechanism.compresses:
                old = [(total - count, total - count + some) for count, some in zip(counts, over, strict=True)]
                new, new_mask, loss = _compress(layer, inputs[index], mask, recent[index], masks, old)
                first, limit = compressed[index], mechanism.compressed
                both = torch.cat([first, new], 1)
                if compressed_masks[index] is not None or new_mask is not None:
                    own = torch.cat([_or_all(compressed_masks[index], first), _or_all(new_mask, new)], 1)
                    both, own = without_gap(both, own, first.shape[1])
                    compressed_masks[index] = own[:, -limit:]
                compressed[index] = both[:, -limit:]
                losses += [] if loss is None else [loss]
        left = [count - some for count, some in zip(counts, over, strict=True)]
        start = total - max(left)
        if masks is not None:
            at, own = (torch.tensor(x, device=masks.device) for x in (range(start, total), left))
            masks = masks[:, start:] & (at >= total - own[:, None])
        memory = SegmentMemory(
            self.length, tuple(x[:, start:] for x in recent), tuple(compressed), masks, tuple(compressed_masks)
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


def without_gap(
    x: Float[Tensor, "B M d"], mask: Bool[Tensor, "B M"], second: int
) -> tuple[Float[Tensor, "B M d"], Bool[Tensor, "B M"]]:
    """Two parts, of which the second begins at position `second`, with all padding before a part in front of both."""
    if bool(mask[:, second].all()):
        return x, mask
    own = torch.cat([_from_first(part) for part in (mask[:, :second], mask[:, second:])], 1)
    return _padding_first(x, own), _padding_first(mask, own)


def _at_the_end(
    whole: Sequence[Tensor], old: Bool[Tensor, "B m"], new: Bool[Tensor, "B N"]
) -> tuple[list[Tensor], Bool[Tensor, "B M"], list[int]]:
    """Positions of each layer with the padding before and behind the new ones in front, their mask, and their number.

    Of each sequence the number is that of positions from the first kept one on.
    """
    own = torch.cat([_from_first(old), _from_first(new) & _from_first(new.flip(1)).flip(1)], 1)
    masks = torch.cat([old, new], 1)
    counts: list[int] = own.sum(1).tolist()
    return [_padding_first(x, own) for x in whole], _padding_first(masks, own), counts


def _compress(
    layer: Any, x: Tensor, mask: Tensor | None, recent: Tensor, masks: Tensor | None, old: Sequence[tuple[int, int]]
) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
    """What a layer makes of the positions that leave its memory, from one to another of each sequence.

    Sequences of as many are compressed together; where there are fewer than in others, padding stands before them.
    """
    groups: dict[int, list[int]] = {}
    for row, (first, end) in enumerate(old):
        groups.setdefault(end - first, []).append(row)
    groups.pop(0, None)
    found: dict[int, Tensor] = {}
    found_masks: dict[int, Tensor] = {}
    losses: list[Tensor] = []
    for rows in groups.values():
        parts = torch.stack([recent[row, slice(*old[row])] for row in rows])
        part_masks = None if masks is None else torch.stack([masks[row, slice(*old[row])] for row in rows])
        new, new_mask, loss = layer.compress(x[rows], parts, part_masks, None if mask is None else mask[rows])
        found |= dict(zip(rows, new, strict=True))
        found_masks |= dict(zip(rows, _or_all(new_mask, new), strict=True))
        losses += [] if loss is None else [loss * (len(rows) / len(x))]
    size = max(len(new) for new in found.values())
    none = recent.new_zeros(0, recent.shape[2])
    news = [F.pad(found.get(row, none), (0, 0, size - len(found.get(row, none)), 0)) for row in range(len(x))]
    new_masks = [found_masks.get(row, none[:, 0].bool()) for row in range(len(x))]
    padded = torch.stack([F.pad(one, (size - len(one), 0)) for one in new_masks])
    loss = sum(losses[1:], losses[0]) if losses else None
    return torch.stack(news), None if masks is None else padded, loss


def _from_first(mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """From the first kept position on."""
    return mask.cumsum(1) > 0


def _padding_first(x: Tensor, own: Bool[Tensor, "B N"]) -> Tensor:
    """(B, N, ...) with what is not `own` in front, all else in its order."""
    at = own.int().argsort(dim=1, stable=True)
    return x.gather(1, at if x.dim() == 2 else at[..., None].expand_as(x))
