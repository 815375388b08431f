"""Examples as the inputs of a network: one by one, and together in batches."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Row = Mapping[str, Tensor]
"""Arguments of a network's `forward` for one example, without the batch dimension."""

IGNORED = -100
"""The label of a position that is not scored."""

SOUND = ("input_values", "input_features")


class Rows(Sequence[Row]):
    """Examples that are read as they are asked for.

    Args:
        items: Items that `read` takes: rows themselves, paths or indices.
        read: Function from an item to its row.
        filler: Value that pads the shorter rows of a batch, by argument; 0 for others, -100 for labels.
        lengths: Length of each row, to batch rows of similar length; None where all are as long.
    """

    def __init__(
        self,
        items: Sequence[Any],
        read: Callable[[Any], Row] = lambda row: row,
        *,
        filler: Mapping[str, int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.items, self.read, self.lengths = items, read, lengths
        self.filler = {"labels": IGNORED} | dict(filler or {})

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> "Rows": ...

    def __getitem__(self, place: int | slice) -> "Row | Rows":
        if isinstance(place, slice):
            return self.at(range(len(self))[place])
        return self.read(self.items[place])

    def at(self, places: Sequence[int]) -> "Rows":
        """The rows at some places."""
        lengths = None if self.lengths is None else [self.lengths[place] for place in places]
        return Rows([self.items[place] for place in places], self.read, filler=self.filler, lengths=lengths)

    @cached_property
    def longest(self) -> int:
        """Length of the longest row; 0 where all are as long."""
        return max(self.lengths or [0])

    def collate(self, rows: Sequence[Row], multiple: int = 1) -> dict[str, Tensor]:
        """A batch: the shorter rows are padded; recordings are cut to the shortest instead.

        So student and teacher hear the same sound, and padding changes the output of neither.

        Args:
            rows: The rows.
            multiple: Number of which the length of a batch of texts is to be a multiple, unless it would be longer than
                the longest text that there is.
        """
        if (heard := next((name for name in SOUND if name in rows[0]), None)) is not None:
            rows = _cut(rows, heard)
        batch = {}
        for name in rows[0]:
            parts = [row[name] for row in rows]
            uneven = len({part.shape for part in parts}) > 1
            filler = self.filler.get(name, 0)
            batch[name] = pad_sequence(parts, batch_first=True, padding_value=filler) if uneven else torch.stack(parts)
        if heard is None and multiple > 1 and "attention_mask" in batch:
            self._lengthen(batch, rows, multiple)
        return batch

    def _lengthen(self, batch: dict[str, Tensor], rows: Sequence[Row], multiple: int) -> None:
        """Pad what is as long as the text in every row, until its length is a multiple."""
        lengths = [len(row["attention_mask"]) for row in rows]
        length = max(lengths)
        more = min(-length % multiple, self.longest - length)
        if more <= 0 or length == 1:  # of one token it could not be told what is as long as the text
            return
        for name, x in batch.items():
            if x.dim() > 1 and [len(row[name]) for row in rows] == lengths:
                batch[name] = F.pad(x, (0, 0) * (x.dim() - 2) + (0, more), value=self.filler.get(name, 0))


def _cut(rows: Sequence[Row], heard: str) -> Sequence[Row]:
    """Recordings, and their masks, as long as the shortest of them."""
    shortest, longest = (of(len(row[heard]) for row in rows) for of in (min, max))
    if shortest == longest:
        return rows
    names = (heard, "attention_mask")
    return [{name: x[:shortest] if name in names else x for name, x in row.items()} for row in rows]


class Batches(Sequence[dict[str, Tensor]]):
    """Batches of rows, made as they are asked for.

    Args:
        rows: The examples.
        size: Most rows in a batch.
        exact: Whether a batch holds rows of one length only, so that nothing is padded or cut.
    """

    def __init__(self, rows: Rows, size: int, *, exact: bool = False) -> None:
        self.rows = rows
        order = list(range(len(rows)))
        lengths = rows.lengths
        if lengths is not None:
            order.sort(key=lambda place: lengths[place])
        self.places: list[list[int]] = []
        for place in order:
            last = self.places[-1] if self.places else []
            alike = not exact or lengths is None or (bool(last) and lengths[last[0]] == lengths[place])
            if last and len(last) < size and alike:
                last.append(place)
            else:
                self.places.append([place])

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, number: int) -> dict[str, Tensor]: ...

    @overload
    def __getitem__(self, number: slice) -> list[dict[str, Tensor]]: ...

    def __getitem__(self, number: int | slice) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        if isinstance(number, slice):
            return [self[at] for at in range(len(self))[number]]
        return self.rows.collate([self.rows[place] for place in self.places[number]])
