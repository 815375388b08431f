"""Softmax attention of a sequence to itself, among positions of like hash, in several rounds. For Reformer and Routing.

Who sees whom, and in which tiles, is found by `_meetings.py`. A pair that meets in several rounds counts once.

The weights of a few tiles at a time are in a cache; they are computed again for the backward pass.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers._torch import in_transform, is_fake
from greenformers.attention._base2 import LN2, exp2_
from greenformers.attention._contract import full_precision
from greenformers.attention._dropout import drop_, new_seed
from greenformers.attention._meetings import HIDDEN, Group, Layout, Meetings, whole_vectors

SLICE = 2**17
"""Number of scores computed at a time, which fit a cache."""


def together(q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H M D"]:
    """Queries of all positions, where queries are the keys: earlier ones were passed as keys."""
    return q if q.shape[2] == k.shape[2] else torch.cat([k[:, :, : k.shape[2] - q.shape[2]], q], 2)


def kept_as_both(
    key_mask: Bool[Tensor, "B M"] | None, query_mask: Bool[Tensor, "B N"] | None, keys: int
) -> Bool[Tensor, "B M"] | None:
    """The positions that take part, where queries are the keys: those that both masks keep. None: all."""
    if query_mask is None:
        return key_mask
    asks = F.pad(query_mask, (keys - query_mask.shape[1], 0), value=True)
    return asks if key_mask is None else key_mask & asks


def attend(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    meetings: Meetings,
    *,
    scale: float,
    itself: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H N D"]:
    """softmax(s q k) v over what is seen in any round. Each position sees itself at least.

    Args:
        q: Queries; where there are fewer than keys, of the last positions.
        k: Keys.
        v: Values.
        meetings: Who sees whom.
        scale: Factor s of scores.
        itself: Score of a position with itself, which then has no gradient; None: as of any two.
        dropout: Probability of dropping a weight.
    """
    if not q.shape[0]:  # a batch of nothing has nothing to sort
        return q * 1
    seed = new_seed(dropout)
    with full_precision(q):
        if in_transform() or q.shape[2] < k.shape[2]:
            return _plain(q, k, v, meetings, scale, itself, dropout)
        tensors = meetings.order, meetings.own, meetings.before
        how = meetings.chunk, meetings.circle, meetings.buckets, meetings.asked
        out: Tensor = _Tiled.apply(q, k, v, *tensors, how, (scale, itself, dropout, seed))
        return out


class _Tiles:
    """A slice of the tiles of a group, with their scores to the base 2.

    Args:
        q: Queries of all positions (B H N, D).
        k: Keys of all positions (B H N, D).
        layout: Layout of the round.
        group: The group.
        earlier: Numbers of all positions, own and before, in each earlier round.
        some: Slice of the tiles of the group.
        scale: Factor of scores.
        itself: Score of a position with itself; None: as of any two.
    """

    def __init__(
        self, q: Tensor, k: Tensor, layout: Layout, group: Group, earlier: list[tuple[Tensor, Tensor]], some: slice,
        scale: float, itself: float | None,
    ) -> None:  # fmt: skip
        self.queries, self.keys = group.queries[some], group.keys[some]
        self.q, self.k = _rows(q, self.queries).mul_(scale / LN2), _rows(k, self.keys)
        self.scores = self.q @ self.k.mT  # (t, c, L)
        if itself is not None:
            self.own(self.scores).fill_(itself / LN2)
        if group.numbers is not None:
            own, before, keys = (x[some] for x in group.numbers)
            apart, other = (x[..., None] - keys[:, None] for x in (own, before))
            if layout.circle:  # a key may be between the two
                other = apart.mul_(other)
            self.scores.addcmul_(apart, other, value=-HIDDEN)  # 0 where it is seen, else above
        if layout.triangle is not None:
            half = self.scores[..., : self.queries.shape[1]]
            torch.minimum(half, layout.triangle, out=half)
        for own, before in earlier:  # a pair counts in the first round in which it is seen
            keys = own[self.keys][:, None]
            apart = (own[self.queries][..., None] - keys).mul_(before[self.queries][..., None] - keys)
            # 0 where it was: -HIDDEN there, and large elsewhere.
            torch.minimum(self.scores, apart.abs_().mul_(2 * HIDDEN).sub_(HIDDEN), out=self.scores)

    def own(self, x: Tensor) -> Tensor:
        """View (t, c) of the diagonal of (t, c, L): each query with itself."""
        return x.view(len(x), -1)[:, :: x.shape[2] + 1]


def _rounds(
    q: Tensor, k: Tensor, meetings: Meetings, scale: float, itself: float | None
) -> Iterator[tuple[Layout, Iterator[tuple[Group, Iterator[tuple[slice, _Tiles]]]]]]:
    """Every round, its groups, and of these the tiles a slice at a time; all at once where compiled or not on a CPU."""
    earlier: list[tuple[Tensor, Tensor]] = []
    whole = torch.compiler.is_compiling() or q.device.type != "cpu"
    numbers = 16 * SLICE if is_fake(q) else SLICE  # what is only counted is counted sooner in fewer parts

    def slices(layout: Layout, group: Group) -> Iterator[tuple[slice, _Tiles]]:
        tiles = len(group.queries)
        few = whole_vectors(meetings.chunk)
        of_a_tile = max(1, group.keys.shape[1:].numel()) * meetings.chunk
        step = tiles if whole else max(few, numbers // of_a_tile // few * few)
        for at in range(0, tiles, step):
            some = slice(at, min(at + step, tiles))
            yield some, _Tiles(q, k, layout, group, earlier, some, scale, itself)

    for round_ in range(len(meetings.order)):
        layout = Layout(meetings, round_)
        yield layout, ((group, slices(layout, group)) for group in layout.groups)
        earlier.append((layout.own, layout.before))


def _put(grid: Tensor, group: Group, x: Tensor) -> None:
    """Write what a group of tiles has computed to its places among all tiles, if it is not there."""
    if group.tiles is not None:
        grid.index_copy_(0, group.tiles, x)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, meetings: Meetings, scale: float, itself: float | None, dropout: float
) -> Tensor:
    """The output of `_Tiled`, in operations that torch differentiates, over all pairs; also of the last queries."""
    N, M = q.shape[2], k.shape[2]
    own, before = (x[..., M - N :, None] for x in (meetings.own, meetings.before))  # (R, B, H, N, 1)
    keys = meetings.own[..., None, :]
    seen = ((own == keys) | (before == keys)).any(0)
    if meetings.buckets is not None:
        seen = seen.tril(M - N)
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    if itself is not None:
        scores = scores.masked_fill(torch.ones_like(seen).tril(M - N).triu(M - N), itself)
    return F.dropout(scores.softmax(-1), dropout) @ v


def _again(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    how, (scale, itself, dropout, _) = ctx.given
    if dropout:
        raise RuntimeError(f"attention by hash has no second derivative with dropout: it must be 0, got {dropout}")
    with full_precision(q):
        return _plain(q, k, v, Meetings(*ctx.saved_tensors[3:6], *how), scale, itself, 0.0)


class _Tiled(torch.autograd.Function):
    """Attention in all rounds. Weights are computed again for the backward pass, from their sum over all rounds."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Tensor, own: Tensor, before: Tensor,
        how: tuple[Any, ...], factors: tuple[Any, ...],
    ) -> Tensor:  # fmt: skip
        inputs, ctx.given, shape = (q, k, v), (how, factors), q.shape
        scale, itself, dropout, seed = factors
        q, k, v = (x.reshape(-1, shape[3]) for x in (q, k, v))
        out = lse = None
        for layout, groups in _rounds(q, k, Meetings(order, own, before, *how), scale, itself):
            grid = v.new_empty(layout.tiles, how[0], shape[3])
            sums = v.new_empty(layout.tiles, how[0])
            for group, slices in groups:
                mixed, of_group = grid, sums
                if group.tiles is not None:
                    mixed, of_group = (x.new_empty(len(group.tiles), *x.shape[1:]) for x in (grid, sums))
                for some, tiles in slices:
                    weights = tiles.scores
                    top = weights.amax(-1, keepdim=True)
                    total = exp2_(weights.sub_(top)).sum(-1, keepdim=True)
                    seed = drop_(weights, dropout, seed)
                    torch.bmm(weights, _rows(v, tiles.keys), out=mixed[some]).mul_(1 / total)
                    of_group[some] = (top + total.log2())[..., 0]
                _put(grid, group, mixed)
                _put(sums, group, of_group)
            outputs, of_outputs = layout.positions(grid), sums.view(-1)[layout.place]
            if out is None or lse is None:
                out, lse = outputs, of_outputs
            else:
                both = torch.logaddexp2(lse, of_outputs)
                out.mul_((lse - both).exp2()[:, None]).addcmul_(outputs, (of_outputs - both).exp2()[:, None])
                lse = both
        assert out is not None
        ctx.save_for_backward(*inputs, order, own, before, out, lse)
        return out.view(shape)

    @staticmethod
    @by_hand(3, _again)
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Dao 2022, arXiv:2205.14135, algorithm 4, in each round with the sums over all."""
        q, k, v, *meetings, out, lse = ctx.saved_tensors
        how, (scale, itself, dropout, seed) = ctx.given
        shape, c, dout = dout.shape, how[0], dout.reshape(out.shape)
        q, k, v = (x.reshape(out.shape) for x in (q, k, v))
        grads: list[Tensor] = []
        delta = (dout * out).sum(-1)
        with full_precision(dout):
            for layout, groups in _rounds(q, k, Meetings(*meetings, *how), scale, itself):
                # Of the queries, and of the keys and values of each tile; the last is of no tile.
                grids = [v.new_empty(layout.tiles + 1, c, shape[3]) for _ in range(3)]
                of_before: list[tuple[Tensor, list[Tensor]]] = []
                for group, slices in groups:
                    whole = [grid[:-1] for grid in grids]
                    if group.tiles is not None:
                        whole = [v.new_empty(len(group.tiles), c, shape[3]) for _ in grids]
                    dq_, dk_, dv_ = whole
                    if group.read is not None:
                        of_before.append((group.read, [torch.empty_like(dk_), torch.empty_like(dv_)]))
                    for some, tiles in slices:
                        sums = lse[tiles.queries]
                        if group.empty is not None:
                            sums = sums.masked_fill_(group.empty[some], torch.inf)
                        weights = exp2_(tiles.scores.sub_(sums[..., None]))
                        grad = _rows(dout, tiles.queries)
                        of_scores = grad @ _rows(v, tiles.keys).mT
                        seed_after = drop_(of_scores, dropout, seed)
                        of_scores.sub_(delta[tiles.queries][..., None]).mul_(weights)
                        if itself is not None:
                            tiles.own(of_scores).zero_()  # a constant
                        drop_(weights, dropout, seed)
                        seed = seed_after
                        torch.bmm(of_scores, tiles.k, out=dq_[some])
                        parts = [(dk_, dv_)] if group.read is None else [(dk_, dv_), tuple(of_before[-1][1])]
                        for number, (of_keys, of_values) in enumerate(parts):
                            part = slice(number * c, (number + 1) * c)
                            torch.bmm(of_scores[..., part].mT, tiles.q, out=of_keys[some])
                            torch.bmm(weights[..., part].mT, grad, out=of_values[some])
                    for grid, x in zip(grids, whole, strict=True):
                        _put(grid, group, x)
                for read, pair in of_before:  # no tile is read by two
                    for grid, x in zip(grids[1:], pair, strict=True):
                        grid.index_copy_(0, read, x.add_(grid.index_select(0, read)))
                round_grads = [layout.positions(grid[:-1]) for grid in grids]
                grads = [total.add_(x) for total, x in zip(grads, round_grads, strict=True)] if grads else round_grads
        dq, dk, dv = (x.view(shape) for x in (grads[0].mul_(scale), grads[1].mul_(LN2), grads[2]))
        return dq, dk, dv, None, None, None, None, None


def _rows(x: Float[Tensor, "R D"], at: Int[Tensor, "t c"]) -> Float[Tensor, "t c D"]:
    return x.index_select(0, at.flatten()).view(*at.shape, x.shape[1])
