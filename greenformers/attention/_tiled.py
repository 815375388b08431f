"""Softmax attention in tiles, forward and backward.

A tile is b queries beside L keys; many tiles are computed by two batched products on views of q, k and v, without a
gather for a window. Scores exist for a slice of tiles at a time, and are computed again for the backward pass (Dao
2022, arXiv:2205.14135, 3.1), so that memory is that of q, k, v and the output. Where a query is in two tilings, the
outputs of both are merged by their log-sum-exp.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from greenformers.attention._base2 import LN2, exp2_
from greenformers.attention._contract import accurate, exact, full_precision
from greenformers.attention._tiles import SLICE, Group
from greenformers.attention._workspace import Workspace


class Plan(NamedTuple):
    """The arguments of a call that are no tensors."""

    groups: tuple[Group, ...]
    per_tile: int
    dropout: float
    seed: int


class Inputs(NamedTuple):
    """The tensors of a call, see `tiled_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    column_k: Tensor | None
    column_v: Tensor | None
    column_bias: Tensor | None
    column_positions: Tensor | None
    labels: Tensor | None
    key_bias: Tensor | None
    extra_blocks: Tensor | None


def forward(x: Inputs, plan: Plan) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, N, D), and the base-2 logarithms of the sums of weights (B, H, N)."""
    merged = any(group.merge for group in plan.groups)
    out = torch.empty_like(x.q, dtype=accurate(x.q) if merged else x.q.dtype)
    lse = torch.empty_like(x.q[..., 0], dtype=accurate(x.q))
    with full_precision(x.q):
        for part in _slices(x, plan):
            weights = part.scores()
            top = weights.amax(-1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).min / 4)
            exp2_(weights.sub_(top))
            # A query without keys: 0 / tiny.
            total = weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).tiny)
            part.drop_(weights)
            part.write(out, lse, (weights @ part.v).mul_(1 / total), (top + total.log2())[..., 0])
    return out.to(x.q.dtype), lse


def backward(x: Inputs, plan: Plan, out: Tensor, lse: Tensor, dout: Tensor) -> list[Tensor]:
    """Gradients of q, k, v, and of keys and values of columns and labels, if there are any."""
    given = [y for y in (x.k, x.v, x.column_k, x.column_v, x.labels) if y is not None]
    grads = [torch.zeros_like(y, dtype=accurate(y)) for y in given]
    dck, dcv = (None, None) if x.column_k is None else grads[2:4]
    of_labels = None if x.labels is None else grads[-1]
    dq = torch.zeros_like(x.q, dtype=accurate(x.q))
    with full_precision(x.q):
        for part in _slices(x, plan):
            part.backward(dout, out, lse, dq, grads[0], grads[1], dck, dcv, of_labels)
    return [grad.to(y.dtype) for grad, y in zip((dq, *grads), (x.q, *given), strict=True)]


class Part(NamedTuple):
    """n tiles of a group, from a corner on along one axis of (B, H, classes, tiles), each beside `width` keys."""

    group: Group
    corner: tuple[int, ...]
    axis: int
    n: int
    columns: int
    width: int


def parts(plan: Plan, sizes: Sequence[int], columns: int, gathered: int) -> Iterator[Part]:
    """All tiles in parts along the longest axis, the other three axes one by one; scores of a part fit `SLICE`.

    Args:
        plan: The plan with the groups of tiles.
        sizes: The sizes B, H, N and D.
        columns: Number of keys beside every tile.
        gathered: Number of extra blocks of each tile.
    """
    batch, heads, _, dim = sizes
    for group in plan.groups:
        first, end = group.tiling.heads
        axes = (range(batch), range(first, heads if end is None else end), range(group.classes), range(group.tiles))
        axis = max(range(4), key=lambda at: len(axes[at]))
        beside = group.keys + gathered * group.tiling.rows
        # Keys from several places are copied together.
        of_each = max(group.rows, dim) if columns or gathered else group.rows
        step = max(1, SLICE // (of_each * (beside + columns)))
        for corner in product(*(places[::step] if at == axis else places for at, places in enumerate(axes))):
            n = min(step, axes[axis].stop - corner[axis])
            # Causal: columns up to the last tile.
            last = group.first + corner[3] + (n if axis == 3 else 1)
            seen = min(columns, last * plan.per_tile) if plan.per_tile else columns
            yield Part(group, corner, axis, n, seen, beside + seen)


def _slices(x: Inputs, plan: Plan) -> Iterator["_Slice"]:
    workspace = Workspace(x.q, accurate(x.q))
    columns = 0 if x.column_k is None else x.column_k.shape[2]
    gathered = 0 if x.extra_blocks is None else x.extra_blocks.shape[2]
    for count, part in enumerate(parts(plan, x.q.shape, columns, gathered)):
        yield _Slice(x, plan, part, plan.seed + count, workspace)


class _Slice:
    """n tiles of b queries each, and their keys: those of the tile, the columns, and the extra blocks."""

    def __init__(self, x: Inputs, plan: Plan, part: Part, seed: int, workspace: Workspace) -> None:
        self.x, self.plan, self.seed, self.workspace = x, plan, seed, workspace
        self.group, self.corner, self.axis, self.n, self.seen, _ = part
        # Scores are logarithms to the base 2.
        self.q = exact(self._queries(x.q)) * (x.q.shape[3] ** -0.5 / LN2)
        # Keys of the tile, columns and extra blocks, in this order.
        last = self.group.keys + self.seen
        self.own, self.of_columns, self.of_extra = (
            slice(self.group.keys),
            slice(self.group.keys, last),
            slice(last, None),
        )
        if x.extra_blocks is not None:
            self.blocks = self._extra_blocks(x.extra_blocks)
        self.k, self.v = self._beside("keys", x.k, x.column_k), self._beside("values", x.v, x.column_v)

    def _beside(self, name: str, y: Tensor, columns: Tensor | None) -> Tensor:
        """Keys (B, H, M, D) or values of these tiles: (n, L, D), those from several places copied together.

        A product whose result is not contiguous is computed matrix by matrix.
        """
        sources = [self._keys(y)]
        if columns is not None:
            sources.append(self._columns(columns).expand(self.n, -1, -1))
        if self.x.extra_blocks is not None:
            sources.append(self._gathered(y))
        if len(sources) == 1:
            return exact(sources[0])
        together = self.workspace(name, self.n, sum(source.shape[1] for source in sources), y.shape[3])
        return torch.cat(sources, 1, out=together)

    def _queries(self, y: Tensor) -> Tensor:
        """Of (B, H, N, ...): (n, b, ...)."""
        return self._rows(y, self.group.q_start, self.group.rows)

    def _keys(self, y: Tensor) -> Tensor:
        """Of (B, H, M, ...): (n, L, ...)."""
        return self._rows(y, self.group.k_start, self.group.keys)

    def _rows(self, y: Tensor, start: int, rows: int) -> Tensor:
        """View of (B, H, N, ...): rows of each tile (n, rows, ...), those of the first tile of all from `start` on."""
        batch, head, residue, tile = self.corner
        tiling, step = self.group.tiling, y.stride(2)
        strides = (y.stride(0), y.stride(1), step, tiling.rows * tiling.stride * step)
        first = y[batch, head, start + residue + tile * tiling.rows * tiling.stride :]
        sizes = (self.n, rows, *y.shape[3:])
        return first.as_strided(sizes, (strides[self.axis], tiling.stride * step, *y.stride()[3:]))

    def _columns(self, y: Tensor) -> Tensor:
        """Of (B, H, C, ...): (n or 1, C, ...), the columns up to the last tile where they are causal."""
        return self._shared(y[:, :, : self.seen])

    def _shared(self, y: Tensor) -> Tensor:
        """Of (B, H, ...), the same for all classes and tiles: (n or 1, ...)."""
        batch, head = self.corner[:2]
        if self.axis == 0:
            return y[batch : batch + self.n, head]
        return y[batch, head : head + (self.n if self.axis == 1 else 1)]

    def _extra_blocks(self, extra_blocks: Tensor) -> Tensor:
        """Of (H, T, r): the blocks (heads, r), those of all tiles of a head after each other."""
        head, tile = self.corner[1], self.group.first + self.corner[3]
        heads, tiles = (self.n if self.axis == at else 1 for at in (1, 3))
        return extra_blocks[head : head + heads, tile : tile + tiles].flatten(1)

    def _gathered(self, y: Tensor) -> Tensor:
        """Of (B, H, M, ...): (n, r b, ...), the extra blocks."""
        by_head = [
            blocks.index_select(1, chosen)
            for blocks, chosen in zip(self._blocks(y).unbind(1), self.blocks, strict=True)
        ]
        rows = by_head[0].flatten(0, 2) if len(by_head) == 1 else torch.stack(by_head, 1).flatten(0, 3)
        return rows.unflatten(0, (self.n, -1))

    def _blocks(self, y: Tensor) -> Tensor:
        """Of (B, H, M, ...): the blocks (examples, heads, M / b, b, ...)."""
        b, (batch, head) = self.group.tiling.rows, self.corner[:2]
        examples, heads = (self.n if self.axis == at else 1 for at in (0, 1))
        some = y[batch : batch + examples, head : head + heads]
        return some[:, :, : some.shape[2] // b * b].unflatten(2, (-1, b))

    def products(self, name: str, rows: Tensor, y: Tensor) -> Tensor:
        """Of rows (n, b, D) with keys or values (n, L, D): (n, b, L)."""
        return torch.bmm(rows, y.mT, out=self.workspace(name, self.n, rows.shape[1], y.shape[1]))

    def scores(self) -> Tensor:
        """All scores (n, b, L), -inf where not visible."""
        group, x = self.group, self.x
        scores = self.products("scores", self.q, self.k)
        if x.labels is not None:
            self._add_labels(scores)
        for start, bias in group.bias:
            scores[..., start : start + bias.shape[1]] += bias
        if x.key_bias is not None:
            scores[..., self.own] += self._keys(self._wide(x.key_bias))[:, None]
            if x.extra_blocks is not None:
                scores[..., self.of_extra] += self._gathered(self._wide(x.key_bias))[:, None]
        if x.column_bias is not None:
            scores[..., self.of_columns] += self._columns(self._wide(x.column_bias))[:, None]
        if x.column_positions is not None:
            self._hide_later(scores[..., self.of_columns], x.column_positions)
        return scores

    def _wide(self, y: Tensor) -> Tensor:
        """(B or 1, H or 1, M) to (B, H, M)."""
        return y.expand(*self.x.q.shape[:2], -1)

    def _hide_later(self, scores: Tensor, positions: Tensor) -> None:
        """Set the scores of columns (H, C) after the query to -inf, in one class of positions."""
        queries, keys = self.x.q.shape[2], self.x.k.shape[2]
        row = torch.arange(keys - queries, keys, device=scores.device).expand(*self.x.q.shape[:3])
        column = self._columns(positions.expand(self.x.q.shape[0], -1, -1))
        scores.masked_fill_(column[:, None] > self._queries(row)[..., None], -torch.inf)

    def drop_(self, weights: Tensor) -> None:
        """Drop some weights, the same ones in the forward and the backward pass."""
        if self.plan.dropout:
            keep_rate = 1 - self.plan.dropout
            generator = torch.Generator(weights.device).manual_seed(self.seed)
            weights.mul_(torch.empty_like(weights).bernoulli_(keep_rate, generator=generator)).div_(keep_rate)

    def write(self, out: Tensor, lse: Tensor, mixed: Tensor, sums: Tensor) -> None:
        """Write outputs (n, b, D) and logarithms of the sums of weights (n, b), merged with earlier ones if any."""
        place, place_of_sums = self._queries(out), self._queries(lse)
        if self.group.merge:
            both = torch.logaddexp2(place_of_sums, sums)
            mixed = mixed * (sums - both).exp2()[..., None] + place * (place_of_sums - both).exp2()[..., None]
            sums = both
        place.copy_(mixed)
        place_of_sums.copy_(sums)

    def backward(
        self, dout: Tensor, out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
        dck: Tensor | None, dcv: Tensor | None, dlabels: Tensor | None,
    ) -> None:  # fmt: skip
        """Add the contributions of these queries to the gradients. Dao 2022, algorithm 4."""
        weights = exp2_(self.scores().sub_(self._queries(lse)[..., None]))
        grad = exact(self._queries(dout))
        of_scores = self.products("of scores", grad, self.v)
        dropped = weights
        if self.plan.dropout:
            dropped = weights.clone()
            self.drop_(dropped)
            self.drop_(of_scores)
        self._add(dropped, grad, dv, dcv)
        of_scores.sub_((grad * self._queries(out)).sum(-1, keepdim=True)).mul_(weights)
        self._add(of_scores, self.q.mul_(LN2), dk, dck)
        grad_q = of_scores @ self.k
        if dlabels is not None:
            grad_q += self._of_labels(of_scores, dlabels)
        self._queries(dq).add_(grad_q, alpha=dq.shape[3] ** -0.5)

    def _add(self, weights: Tensor, rows: Tensor, grad: Tensor, of_columns: Tensor | None) -> None:
        """Add weights^T rows (n, L, D) to the gradients of keys or values."""
        group = self.group
        sums = torch.bmm(weights.mT, rows, out=self.workspace("rows", self.n, weights.shape[2], rows.shape[2]))
        own = sums[:, self.own]
        if self.axis != 3:
            self._keys(grad).add_(own)
        else:  # the keys of neighbouring tiles overlap, but not a block of each
            b, d = group.tiling.rows, group.tiling.stride
            for start in range(0, group.keys, b):
                count = min(b, group.keys - start)
                self._rows(grad, group.k_start + start * d, count).add_(own[:, start : start + count])
        if of_columns is not None:
            rest = sums[:, self.of_columns]
            self._columns(of_columns).add_(rest if self.axis < 2 else rest.sum(0, keepdim=True))
        if self.x.extra_blocks is not None:
            place = self._blocks(grad)
            rest = sums[:, self.of_extra].reshape(*place.shape[:2], -1, *place.shape[3:])
            for head, chosen in enumerate(self.blocks):
                place[:, head].index_add_(1, chosen, rest[:, head])

    def _add_labels(self, scores: Tensor) -> None:
        """Add q_i a, for the label a of each key of the tile."""
        R = self.q @ self._labels().mT  # (n, b, 2c + 1)
        place = scores[..., : self.group.keys].transpose(0, 1)
        place.baddbmm_(R.transpose(0, 1), self._labelled())

    def _of_labels(self, of_scores: Tensor, dlabels: Tensor) -> Tensor:
        """Gradients of the queries through the labels (n, b, D); adds the gradients of the labels."""
        dR = (of_scores[..., : self.group.keys].transpose(0, 1) @ self._labelled().mT).transpose(0, 1)
        grad_labels = dR.mT @ self.q  # (n, 2c + 1, D)
        head = self.corner[1]
        dlabels[head : head + grad_labels.shape[0] if self.axis == 1 else head + 1].add_(
            grad_labels if self.axis == 1 else grad_labels.sum(0)
        )
        return dR @ self._labels()

    def _labels(self) -> Tensor:
        """Labels of these tiles (n, 2c + 1, D)."""
        assert self.x.labels is not None
        return exact(self._shared(self.x.labels[None].expand(self.x.q.shape[0], -1, -1, -1)).expand(self.n, -1, -1))

    def _labelled(self) -> Tensor:
        """One-hot labels of the pairs of a tile (b, 2c + 1, L)."""
        assert self.x.labels is not None
        group, count = self.group, self.x.labels.shape[1]
        past = self.x.k.shape[2] - self.x.q.shape[2]
        row = torch.arange(group.rows, device=self.q.device) + group.q_start + past
        key = torch.arange(group.keys, device=self.q.device) + group.k_start
        label = (key - row[:, None]).clamp(-(count // 2), count // 2) + count // 2
        return (label[:, None] == torch.arange(count, device=self.q.device)[:, None]).to(self.q.dtype)
