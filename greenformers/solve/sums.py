"""Running sums of products over batches: in float32 over many positions at a time, added up in float64."""

from collections.abc import Hashable, Sequence

from torch import Tensor

from greenformers.lowrank.factorize import gram
from greenformers.solve.share import total
from greenformers.solve.watch import Batch

CHUNK = 1024
"""Positions in one product: with fewer, adding up the d x d sums takes longer than the products themselves."""


class Sums:
    """Running sums over batches, by key: products of float32 over `CHUNK` positions at a time, added up in float64.

    Args:
        batches: The batches; of a share, the sums are in the end over those of all processes.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._sums: dict[Hashable, Tensor] = {}
        self._gathered: dict[Hashable, tuple[list[Tensor], int]] = {}

    def add(self, key: Hashable, term: Tensor) -> None:
        """Add a term to a sum."""
        self._sums[key] = self._sums[key].add_(term) if key in self._sums else term.double()

    def products(self, key: Hashable, *rows: Tensor) -> None:
        """Add the sum over positions of a b^T, or of a a^T. Rows are (g, positions, n), and copied if they are held."""
        positions, at = rows[0].shape[1], 0
        while at < positions:
            buffers, held = self._gathered.get(key, ([], 0))
            if not held and positions - at >= CHUNK:
                self.add(key, _product([part[:, at:] for part in rows]))
                return
            buffers = buffers or [part.new_empty(len(part), CHUNK, part.shape[2]) for part in rows]
            count = min(CHUNK - held, positions - at)
            for buffer, part in zip(buffers, rows, strict=True):
                buffer[:, held : held + count] = part[:, at : at + count]
            self._gathered[key] = buffers, held + count
            at += count
            if held + count == CHUNK:
                self._multiply(key)

    def _multiply(self, key: Hashable) -> None:
        buffers, held = self._gathered[key]
        if held:
            self.add(key, _product([buffer[:, :held] for buffer in buffers]))
        self._gathered[key] = buffers, 0

    def done(self) -> dict[Hashable, Tensor]:
        """All sums, by key."""
        for key in self._gathered:
            self._multiply(key)
        self._gathered.clear()
        return total(self._sums, self._batches)


def _product(rows: Sequence[Tensor]) -> Tensor:
    return gram(rows[0]) if len(rows) == 1 else rows[0].mT @ rows[1]
