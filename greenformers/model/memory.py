"""Segment memory: inputs of earlier segments that a segment attends. Dai 2019, arXiv:1901.02860, 3.2.

Compressed memory: Rae 2019, arXiv:1911.05507.

For each layer it holds the detached inputs at the last positions of earlier segments; for layers that compress, older
inputs in front of these, c in one. Current weights project them to keys and values for the queries of the segment.

Kept positions of each sequence stand at the end, so that padding before and behind segments adds no distance.
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
        length: Number of positions that are kept; up to c - 1 more where memory is compressed.
        recent: Recent inputs of each layer (B, m, d).
        compressed: Compressed inputs of each layer (B, m', d), m' = 0 in layers that do not compress.
        mask: True = keep (B, m), for recent inputs; None: all.
        compressed_mask: True = keep (B, m'), for compressed inputs of each layer; None: all.

    Raises:
        ValueError: `length` is below 0.
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
        """The inputs that a layer attends besides its segment; None for an empty memory."""
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
        """The memory for the next segment, and in training the loss of the compression.

        Args:
            layers: Layers of the network.
            inputs: Input of each layer for this segment (B, N, d).
            mask: True = keep (B, N), for this segment.
        """
        inputs = [x.detach() for x in inputs]
        empty = tuple(x.new_empty(len(x), 0, x.shape[2]) for x in inputs)
        memory_before = (
            self if self.recent else replace(self, recent=empty, compressed=empty, compressed_mask=(None,) * len(empty))
        )
        recent = [torch.cat(pair, 1) for pair in zip(memory_before.recent, inputs, strict=True)]
        total = recent[0].shape[1]
        masks, counts = None, [total] * len(inputs[0])
        if memory_before.mask is not None or mask is not None:
            recent, masks, counts = _at_the_end(
                recent, _or_all(memory_before.mask, memory_before.recent[0]), _or_all(mask, inputs[0])
            )
        # All layers drop the same positions, a multiple of what each compresses at a time.
        multiple = math.lcm(*(layer.attention.mechanism.compress_multiple for layer in layers))
        over = [max(0, count - self.length) // multiple * multiple for count in counts]
        compressed, compressed_masks, losses = list(memory_before.compressed), list(memory_before.compressed_mask), []
        for index, layer in enumerate(layers):
            mechanism = layer.attention.mechanism
            if any(over) and mechanism.compresses:
                old = [(total - count, total - count + removed) for count, removed in zip(counts, over, strict=True)]
                new, new_mask, loss = _compress(layer, inputs[index], mask, recent[index], masks, old)
                first, limit = compressed[index], mechanism.compressed
                both = torch.cat([first, new], 1)
                if compressed_masks[index] is not None or new_mask is not None:
                    own = torch.cat([_or_all(compressed_masks[index], first), _or_all(new_mask, new)], 1)
                    both, own = without_gap(both, own, first.shape[1])
                    compressed_masks[index] = own[:, -limit:]
                compressed[index] = both[:, -limit:]
                losses += [] if loss is None else [loss]
        left = [count - removed for count, removed in zip(counts, over, strict=True)]
        start = total - max(left)
        if masks is not None:
            at, own = (torch.tensor(x, device=masks.device) for x in (range(start, total), left))
            masks = masks[:, start:] & (at >= total - own[:, None])
        memory = SegmentMemory(
            self.length, tuple(x[:, start:] for x in recent), tuple(compressed), masks, tuple(compressed_masks)
        )
        return memory, sum(losses[1:], losses[0]) if losses else None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, as contiguous copies, for `read`."""
        return {name: x.clone(memory_format=torch.contiguous_format) for name, x in self._named().items()}

    def _named(self) -> dict[str, Tensor]:
        tensors = {f"recent.{index}": x for index, x in enumerate(self.recent)}
        tensors |= {f"compressed.{index}": x for index, x in enumerate(self.compressed)}
        tensors |= {f"compressed_mask.{index}": x for index, x in enumerate(self.compressed_mask) if x is not None}
        return tensors | ({} if self.mask is None else {"mask": self.mask})

    def repeated(self, times: int) -> "SegmentMemory":
        """The memory with each sequence repeated, for beams."""
        return self._each(lambda x: x.repeat_interleave(times, 0))

    def to(self, device: torch.device) -> "SegmentMemory":
        """The memory on a device."""
        return self._each(lambda x: x.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "SegmentMemory":
        return SegmentMemory.read(self.length, {name: change(x) for name, x in self._named().items()})

    @classmethod
    def read(cls, length: int, tensors: dict[str, Tensor]) -> "SegmentMemory":
        """A memory from the result of `tensors`."""
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
    """Move the padding before both parts of x to the front; the second part begins at position `second`."""
    if bool(mask[:, second].all()):
        return x, mask
    own = torch.cat([_from_first(part) for part in (mask[:, :second], mask[:, second:])], 1)
    return _padding_first(x, own), _padding_first(mask, own)


def _at_the_end(
    whole: Sequence[Tensor], old: Bool[Tensor, "B m"], new: Bool[Tensor, "B N"]
) -> tuple[list[Tensor], Bool[Tensor, "B M"], list[int]]:
    """Positions of each layer with padding around the new ones moved to the front, their mask, and their numbers.

    The number of a sequence counts positions from its first kept one on.
    """
    own = torch.cat([_from_first(old), _from_first(new) & _from_first(new.flip(1)).flip(1)], 1)
    masks = torch.cat([old, new], 1)
    counts: list[int] = own.sum(1).tolist()
    return [_padding_first(x, own) for x in whole], _padding_first(masks, own), counts


def _compress(
    layer: Any, x: Tensor, mask: Tensor | None, recent: Tensor, masks: Tensor | None, old: Sequence[tuple[int, int]]
) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
    """Compress the positions `old` of each sequence, a range, which leave the memory of a layer.

    Sequences with equally many are compressed together; padding stands before those with fewer.
    """
    groups: dict[int, list[int]] = {}
    for row, (first, end) in enumerate(old):
        groups.setdefault(end - first, []).append(row)
    groups.pop(0, None)
    by_row: dict[int, Tensor] = {}
    masks_by_row: dict[int, Tensor] = {}
    losses: list[Tensor] = []
    for rows in groups.values():
        parts = torch.stack([recent[row, slice(*old[row])] for row in rows])
        part_masks = None if masks is None else torch.stack([masks[row, slice(*old[row])] for row in rows])
        new, new_mask, loss = layer.compress(x[rows], parts, part_masks, None if mask is None else mask[rows])
        by_row |= dict(zip(rows, new, strict=True))
        masks_by_row |= dict(zip(rows, _or_all(new_mask, new), strict=True))
        losses += [] if loss is None else [loss * (len(rows) / len(x))]
    size = max(len(new) for new in by_row.values())
    none = recent.new_zeros(0, recent.shape[2])
    new_rows = [F.pad(by_row.get(row, none), (0, 0, size - len(by_row.get(row, none)), 0)) for row in range(len(x))]
    new_masks = [masks_by_row.get(row, none[:, 0].bool()) for row in range(len(x))]
    padded = torch.stack([F.pad(row_mask, (size - len(row_mask), 0)) for row_mask in new_masks])
    loss = sum(losses[1:], losses[0]) if losses else None
    return torch.stack(new_rows), None if masks is None else padded, loss


def _from_first(mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Mask of the positions from the first kept one on."""
    return mask.cumsum(1) > 0


def _padding_first(x: Tensor, own: Bool[Tensor, "B N"]) -> Tensor:
    """(B, N, ...) with positions outside `own` moved to the front, the others in order."""
    at = own.int().argsort(dim=1, stable=True)
    return x.gather(1, at if x.dim() == 2 else at[..., None].expand_as(x))
