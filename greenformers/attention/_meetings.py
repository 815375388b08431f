"""Who sees whom in attention by hash: positions sorted by hash, in tiles that read themselves and the tile before.

What a query sees of them is said by numbers, see `Meetings`. Causal tiles begin anew in each bucket, so that nothing
later moves a position to another place.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers._torch import is_fake

HIDDEN = 1e18
"""Minus this, or a multiple, is the score of a key that is not seen: boolean masks are slow on the CPU."""

LAST = 2**31 - 1
"""The hash of masked positions, which are sorted behind."""

NOWHERE = -3.0
"""The number of masked positions, and of slots without a position; that of others is at least 0."""

LARGEST = 2**24
"""Whole numbers that float32, in which chunks are told apart, does not hold begin here."""

VECTOR = 32
"""Numbers that fill vectors of any processor."""


@dataclass(frozen=True)
class Meetings:
    """Who sees whom: in each of R rounds a position sees those whose number `own` is its own or its `before`.

    Attributes:
        order: Positions in the order of their hashes, masked ones behind (R, B, H, N).
        own: Number of each position (R, B, H, N); `NOWHERE` where masked.
        before: The other number that a position sees (R, B, H, N).
        chunk: Number c of positions of a chunk.
        circle: Whether the first chunk sees the last one.
        buckets: Number of hashes, where chunks begin anew in each and no position sees a later one; else None.
        asked: Whether the numbers matter within a tile; else it sees all that it reads.
    """

    order: Int[Tensor, "R B H N"]
    own: Float[Tensor, "R B H N"]
    before: Float[Tensor, "R B H N"]
    chunk: int
    circle: bool = False
    buckets: int | None = None
    asked: bool = True


@torch.no_grad()
def in_windows(
    hashes: Int[Tensor, "B H R N"], keep: Bool[Tensor, "B N"] | None, chunk: int, kind: torch.dtype
) -> Meetings:
    """Positions of one hash see each other within their chunk of the sorted sequence and the chunk before.

    Args:
        hashes: Hash of each position and round, at least 0.
        keep: True = keep (B, N).
        chunk: Number c of positions of a chunk.
        kind: Dtype of the scores.
    """
    hashes, order, slot = _sorted(hashes, keep)
    return _of_hashes(hashes, slot // chunk, order, keep, chunk, kind)


def check_numbers(name: str, buckets: int, positions: int, chunk: int, kind: torch.dtype) -> None:
    """Raise ValueError where chunks of so many hashes have more numbers than the dtype of the scores tells apart."""
    numbers = buckets * (-(-positions // chunk) + 1)
    if kind != torch.float64 and numbers >= LARGEST:
        raise ValueError(f"{name} times chunks must be below 2^24 for {positions} positions, got {numbers}")


@torch.no_grad()
def in_the_past(
    hashes: Int[Tensor, "B H R N"], keep: Bool[Tensor, "B N"] | None, chunk: int, kind: torch.dtype, buckets: int
) -> Meetings:
    """Positions see earlier ones of their hash within their chunk and the chunk before, counted within the hash.

    Args:
        hashes: Hash of each position and round, at least 0.
        keep: True = keep (B, N).
        chunk: Number c of positions of a chunk.
        kind: Dtype of the scores.
        buckets: Number of hashes.
    """
    hashes, order, slot = _sorted(hashes, keep)
    ranked = hashes.gather(3, order)
    place = torch.arange(order.shape[3], device=order.device).expand_as(order)
    same = F.pad(ranked[..., 1:] == ranked[..., :-1], (1, 0))
    rank = slot - place.masked_fill(same, 0).cummax(3).values.gather(3, slot)
    return _of_hashes(hashes, rank // chunk, order, keep, chunk, kind, buckets)


@torch.no_grad()
def across_buckets(
    hashes: Int[Tensor, "B H R N"], keep: Bool[Tensor, "B N"] | None, chunk: int, kind: torch.dtype
) -> Meetings:
    """Positions see all of their chunk of the sorted sequence and of the chunk before; before the first is the last.

    Args:
        hashes: Hash of each position and round, at least 0.
        keep: True = keep (B, N).
        chunk: Number c of positions of a chunk.
        kind: Dtype of the scores.
    """
    _, order, slot = _sorted(hashes, keep)
    N, of = order.shape[3], slot // chunk
    last = torch.full_like(of[:, :, :, :1], -(-N // chunk) - 1)
    if keep is not None:
        last = ((keep.sum(1) - 1).clamp(min=0) // chunk).view(1, -1, 1, 1).expand_as(last)
    own, before = (_numbers(x, keep, kind) for x in (of, torch.where(of == 0, last, of - 1)))
    return Meetings(order, own, before, chunk, circle=True, asked=keep is not None or N % chunk > 0)


def _sorted(hashes: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Hashes (R, B, H, N), positions in their order with the masked ones behind, and the slot of each position."""
    hashes = hashes.long().movedim(2, 0)
    if keep is not None:
        hashes = hashes.masked_fill(~keep[:, None], LAST)
    order = hashes.int().sort(dim=-1, stable=True).indices
    place = torch.arange(order.shape[3], device=order.device).expand_as(order)
    return hashes, order, torch.empty_like(order).scatter_(3, order, place)


def _of_hashes(
    hashes: Tensor, chunk_of: Tensor, order: Tensor, keep: Tensor | None, chunk: int, kind: torch.dtype,
    buckets: int | None = None,
) -> Meetings:  # fmt: skip
    """Meetings of positions of one hash. Different hashes are further apart than any two chunks."""
    own = _numbers(hashes * (-(-order.shape[3] // chunk) + 1) + chunk_of, keep, kind)
    return Meetings(order, own, own - 1, chunk, buckets=buckets)


def _numbers(x: Int[Tensor, "R B H N"], keep: Bool[Tensor, "B N"] | None, kind: torch.dtype) -> Tensor:
    return x.to(kind) if keep is None else x.to(kind).masked_fill(~keep[:, None], NOWHERE)


@dataclass(frozen=True)
class Group:
    """Tiles that read as many keys.

    Attributes:
        tiles: Number of each tile among those of the round (t,); None: all of them, in order.
        queries: Rows of the queries (t, c); the first row in slots without a position.
        keys: Rows of the keys (t, L), those of the own tile first.
        read: Number of the tile before (t,), T where there is none; None where none is read.
        empty: Which slots have no position (t, c); None where all have.
        numbers: Numbers of the queries, own and before, and of the keys; None where all that is read is seen.
    """

    tiles: Int[Tensor, " t"] | None
    queries: Int[Tensor, "t c"]
    keys: Int[Tensor, "t L"]
    read: Int[Tensor, " t"] | None
    empty: Bool[Tensor, "t c"] | None
    numbers: tuple[Tensor, Tensor, Tensor] | None


class Layout:
    """One round: T tiles of c slots. Positions are rows of (B H N, D).

    Args:
        meetings: Who sees whom.
        round_: The round, from 0.

    Attributes:
        own: Number of each position (B H N,).
        before: The other number that it sees.
        tiles: Number T of tiles.
        groups: The tiles, in groups.
        place: Slot of each position (B H N,), of all slots (T c,); that of a masked position means nothing.
        triangle: Greatest score of each pair of a tile (c, c), which hides later positions; None: not causal.
    """

    def __init__(self, meetings: Meetings, round_: int) -> None:
        order, c = meetings.order[round_].flatten(0, 1), meetings.chunk
        sequences, N = order.shape
        rows = order + N * torch.arange(sequences, device=order.device)[:, None]
        self.own, self.before = (x[round_].flatten() for x in (meetings.own, meetings.before))
        self.circle, self.triangle = meetings.circle, None
        chosen: list[tuple[Tensor | None, Tensor | None]]
        if meetings.buckets is None:
            slot, tiles, before = self._cut(sequences, N, meetings)
            chosen = [(None, before if bool(c < N) else None)]
        else:
            slot, tiles, before = self._begun_anew(rows, c, meetings.buckets)
            later = torch.ones(c, c, dtype=torch.bool, device=order.device).triu(1)
            self.triangle = torch.where(later, -HIDDEN, HIDDEN).to(self.own.dtype)
            chosen = [(None, before)]
            if not _unknown(order):
                chosen, tiles = self._split(before, tiles, c)
        self.tiles = tiles
        slot = slot.masked_fill(slot < 0, tiles * c).flatten()
        slots = torch.full((tiles * c + 1,), -1, dtype=torch.long, device=order.device)
        slots = slots.scatter_(0, slot, rows.flatten())
        slots[-1] = -1
        slots = F.pad(slots[:-1].view(tiles, c), (0, 0, 0, 1), value=-1)
        self.place = torch.empty_like(slot).scatter_(0, rows.flatten(), slot).clamp(max=tiles * c - 1)
        full = meetings.buckets is None and tiles * c == sequences * N
        asked = meetings.asked and len(chosen) == 1
        self.groups = [self._group(slots, some, read, asked, full) for some, read in chosen]

    def _group(self, slots: Tensor, some: Tensor | None, before: Tensor | None, asked: bool, full: bool) -> Group:
        own, none = slots[:-1] if some is None else slots[some], len(slots) - 1
        read = None if before is None else before.masked_fill(before < 0, none)
        keys = own if read is None else torch.cat([own, slots[read]], 1)
        numbers = None
        if asked:
            own_, before_, of_keys = (
                x[at.clamp(min=0)].masked_fill_(at < 0, NOWHERE)
                for x, at in ((self.own, own), (self.before, own), (self.own, keys))
            )
            numbers = own_, before_, of_keys
        return Group(some, own.clamp(min=0), keys.clamp(min=0), read, None if full else own < 0, numbers)

    def _cut(self, sequences: int, N: int, meetings: Meetings) -> tuple[Tensor, int, Tensor]:
        """The slot of each sorted position, the number of tiles, and the tile before each, -1 for none."""
        c, device = meetings.chunk, self.own.device
        n = -(-N // c)
        sequence, tile = torch.arange(sequences, device=device)[:, None], torch.arange(n, device=device)
        before = (tile - 1 + n * sequence).masked_fill(tile == 0, -1)
        if self.circle:
            last = torch.full_like(sequence, n - 1)
            if meetings.asked:
                last = self.own.view(sequences, N).amax(1, keepdim=True).long().clamp(min=0)
            before = torch.where(tile == 0, last + n * sequence, before)
            # The first is not read twice, and behind the last are masked positions alone.
            before = before.masked_fill(((tile == 0) & (last == 0)) | (tile > last), -1)
        return torch.arange(N, device=device) + n * c * sequence, sequences * n, before.flatten()

    def _begun_anew(self, rows: Tensor, c: int, buckets: int) -> tuple[Tensor, int, Tensor]:
        """The same; tiles begin anew in each bucket. The slot of a masked position is -1."""
        sequences, N = rows.shape
        numbers = self.own[rows]  # ascending, those of a chunk alike, and masked ones last
        fresh = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True) & (numbers >= 0)
        tile, counts = fresh.long().cumsum(1) - 1, fresh.sum(1)
        if _unknown(rows):
            most = N // c + min(buckets, N)
            tiles, first = sequences * most, most * torch.arange(sequences, device=rows.device)
        else:
            tiles, first = max(1, int(counts.sum())), counts.cumsum(0) - counts
        tile = tile + first[:, None]
        place = torch.arange(N, device=rows.device).expand_as(rows)
        within = place - place.masked_fill(~fresh, 0).cummax(1).values
        # A chunk whose number follows that of the tile before it is of the same bucket.
        follows = F.pad(numbers[:, 1:] == numbers[:, :-1] + 1, (1, 0)) & fresh
        before = torch.full((tiles + 1,), -1, dtype=torch.long, device=rows.device)
        before = before.scatter_(0, tile.masked_fill(~follows, tiles).flatten(), (tile - 1).flatten())[:-1]
        return (tile * c + within).masked_fill(numbers < 0, -1), tiles, before

    @staticmethod
    def _split(before: Tensor, tiles: int, c: int) -> tuple[list[tuple[Tensor | None, Tensor | None]], int]:
        """Tiles that are first in their bucket and others, and the number of tiles with some that are empty.

        The ends of vectors are computed by other instructions, to other last digits: with empty tiles, numbers are as
        many in each group as fill vectors, whatever later positions are.
        """
        multiple = whole_vectors(c)
        chosen: list[tuple[Tensor | None, Tensor | None]] = []
        for some, reads in (((before < 0).nonzero()[:, 0], False), ((before >= 0).nonzero()[:, 0], True)):
            if len(some):
                more = -len(some) % multiple
                read = F.pad(before[some], (0, more), value=-1) if reads else None
                chosen.append((torch.cat([some, torch.arange(tiles, tiles + more, device=some.device)]), read))
                tiles += more
        return chosen, tiles

    def positions(self, x: Float[Tensor, "T c D"]) -> Float[Tensor, "R D"]:
        """Rows of the slots to those of the positions."""
        return x.view(-1, x.shape[-1]).index_select(0, self.place)


def whole_vectors(c: int) -> int:
    """Number of tiles, of which any multiple has scores that fill whole vectors."""
    return VECTOR // math.gcd(VECTOR, c * c)


def _unknown(x: Tensor) -> bool:
    """Whether the number of tiles must not depend on values: they are compiled, or have none."""
    return torch.compiler.is_compiling() or x.is_meta or is_fake(x)
