"""Texts packed into one row, without padding: what each gets is what it would get alone.

`transformers.DataCollatorWithFlattening` packs them, and says by `cu_seq_lens_q` where each begins, or by
`position_ids` that begin anew. Here they are laid side by side in rows of their own, for no mechanism knows of others.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from greenformers.attention._aligned import is_traced


class Lengths(NamedTuple):
    """What `DataCollatorWithFlattening` says of packed texts; the longest lengths follow from where texts begin."""

    cu_seq_lens_q: Int[Tensor, " n"] | None = None
    cu_seq_lens_k: Int[Tensor, " n"] | None = None
    max_length_q: int | None = None
    max_length_k: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Lengths":
        """Raise TypeError for what is none of these."""
        for name in given:
            if name not in cls._fields:
                raise TypeError(f"this network takes no {name!r}")
        return cls(**given)


class Packing(NamedTuple):
    """Where texts stand in a row.

    Attributes:
        lengths: of the texts, one after the other.
    """

    lengths: tuple[int, ...]

    def unpacked(self, x: Tensor) -> Tensor:
        """(1, N, ...) to (texts, longest, ...), 0 behind the end of a text."""
        return torch.nn.utils.rnn.pad_sequence(list(x[0].split(self.lengths)), batch_first=True)

    def all_unpacked(self, *several: Tensor | None) -> list[Tensor | None]:
        """Several, of which some may be None."""
        return [None if x is None else self.unpacked(x) for x in several]

    def packed(self, x: Tensor) -> Tensor:
        """(texts, longest, ...) to (1, N, ...)."""
        return x[self.mask(x.device)][None]

    def mask(self, device: torch.device) -> Bool[Tensor, "texts longest"]:
        """True = of a text."""
        lengths = torch.tensor(self.lengths, device=device)
        return torch.arange(max(self.lengths), device=device) < lengths[:, None]


def packing(
    shape: Sequence[int],
    attention_mask: Tensor | None,
    position_ids: Int[Tensor, "1 N"] | None,
    lengths: Lengths,
) -> Packing | None:
    """How the texts of a batch are packed, None where they are not.

    Args:
        shape: of the tokens, (B, N).
        attention_mask: of tokens: packed texts have none.
        position_ids: that begin anew with each text, or not.
        lengths: where each text begins, and the end of the last, where it is said.

    Raises:
        ValueError: what is said does not fit the batch.
    """
    given = [each for each in lengths[:2] if each is not None]
    if given:
        starts: list[int] = given[0].tolist()
        if len({tuple(each.tolist()) for each in given}) > 1:
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


def _counted(starts: Sequence[int], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(e - s, device=device) for s, e in pairwise(starts)])
