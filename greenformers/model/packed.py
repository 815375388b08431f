"""Texts packed into one row, without padding: the outputs of each are those of the text alone.

`transformers.DataCollatorWithFlattening` packs them, and marks the start of each by `cu_seq_lens_q`, or by
`position_ids` that restart at 0. Here each text gets a row of its own, as mechanisms attend within a row.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from greenformers.attention._aligned import is_traced


class Lengths(NamedTuple):
    """The arguments of `DataCollatorWithFlattening` for packed texts; the longest lengths follow from the starts."""

    cu_seq_lens_q: Int[Tensor, " n"] | None = None
    cu_seq_lens_k: Int[Tensor, " n"] | None = None
    max_length_q: int | None = None
    max_length_k: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Lengths":
        """These arguments; raises TypeError for others."""
        for name in given:
            if name not in cls._fields:
                raise TypeError(f"this network takes no {name!r}")
        return cls(**given)


class Packing(NamedTuple):
    """Lengths of the texts packed in a row.

    Attributes:
        lengths: Length of each text, in order.
    """

    lengths: tuple[int, ...]

    def unpacked(self, x: Tensor) -> Tensor:
        """Unpack (1, N, ...) to (texts, longest, ...), with 0 behind the end of a text."""
        return torch.nn.utils.rnn.pad_sequence(list(x[0].split(self.lengths)), batch_first=True)

    def all_unpacked(self, *several: Tensor | None) -> list[Tensor | None]:
        """Unpack several tensors, of which some may be None."""
        return [None if x is None else self.unpacked(x) for x in several]

    def packed(self, x: Tensor) -> Tensor:
        """Pack (texts, longest, ...) to (1, N, ...)."""
        return x[self.mask(x.device)][None]

    def mask(self, device: torch.device) -> Bool[Tensor, "texts longest"]:
        """Mask of the unpacked texts: True at positions of a text."""
        lengths = torch.tensor(self.lengths, device=device)
        return torch.arange(max(self.lengths), device=device) < lengths[:, None]


def packing(
    shape: Sequence[int],
    attention_mask: Tensor | None,
    position_ids: Int[Tensor, "1 N"] | None,
    lengths: Lengths,
) -> Packing | None:
    """The packing of the texts of a batch; None where they are not packed.

    Args:
        shape: Shape of the tokens, (B, N).
        attention_mask: Mask of the tokens; packed texts have none.
        position_ids: Positions (1, N), which restart at 0 with each packed text.
        lengths: Start of each text, and end of the last, where given.

    Raises:
        ValueError: The arguments do not fit the batch.
    """
    given = [offsets for offsets in lengths[:2] if offsets is not None]
    if given:
        starts: list[int] = given[0].tolist()
        if len({tuple(offsets.tolist()) for offsets in given}) > 1:
            raise ValueError("cu_seq_lens_q and cu_seq_lens_k must be the same: a text attends itself")
        if shape[0] != 1 or starts[0] != 0 or starts[-1] != shape[1] or sorted(set(starts)) != starts:
            raise ValueError(f"cu_seq_lens_q must rise from 0 to the length of the one row, {shape[1]}, got {starts}")
    elif position_ids is None or attention_mask is not None or shape[0] != 1 or is_traced(position_ids):
        return None
    else:
        starts = [*(position_ids[0] == 0).nonzero().flatten().tolist(), shape[1]]
        if len(starts) <= 2 or not torch.equal(position_ids[0], _counted(starts, position_ids.device)):
            return None
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("attention_mask must be None where texts are packed: there is no padding")
    return Packing(tuple(end - start for start, end in pairwise(starts)))


def is_one_text(shape: Sequence[int], attention_mask: Tensor | None, position_ids: Int[Tensor, "1 N"] | None) -> bool:
    """Whether positions of a batch of one text, without a mask, are 0, 1, 2 and so on, as they are without any."""
    if position_ids is None or attention_mask is not None or shape[0] != 1 or is_traced(position_ids):
        return False
    return torch.equal(position_ids, torch.arange(shape[1], device=position_ids.device)[None])


def _counted(starts: Sequence[int], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(e - s, device=device) for s, e in pairwise(starts)])
