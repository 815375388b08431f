"""Reformer. Kitaev 2020, arXiv:2001.04451, section 2: softmax attention among positions of like hash; queries are keys.

h(x) = argmax([x R; -x R]), R (D x n_buckets / 2) normal. Positions sorted by N h + position are cut into chunks of c;
each attends its own chunk and the one before with weights softmax(s q_i k_j), k_j = q_j / |q_j|; so in each of several
rounds, with R of its own. The fast form takes the chunks as tiles, some at a time, and computes weights again backward.
Time O(N (c + n_buckets) D rounds), memory O(N (D + n_buckets)). Bidirectional only.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers._gradients import by_hand
from greenformers._torch import in_transform
from greenformers.attention._contract import (
    Attention,
    Shape,
    accurate,
    check_fit,
    drawn_by,
    exact,
    full_precision,
    set_,
)
from greenformers.attention._dropout import drop_, new_seed

LN2 = math.log(2)

OWN = -1e5
"""Score of the own token. The paper's own code and transformers agree on it."""

MOST_BUCKETS = 128
"""Largest default number of buckets: hashing to more costs more than the attention."""

HIDDEN = 1e18
"""Minus this is the score of a key that is not seen, set by `minimum`: boolean masks are slow on the CPU."""

SLICE = 2**17
"""Number of scores computed at a time, which fit a cache."""


def reference(
    mechanism: "Reformer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(s q_i k_j - log(rounds in which i and j meet)) v of each round, weighted by its sums (appendix A)."""
    del k  # keys are q / |q|
    keep = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
    for mask in (key_mask, query_mask):
        keep = keep if mask is None else keep & mask
    rows = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        at = keep[b].nonzero().flatten()
        x, out = q[b, h, at], torch.zeros_like(v[b, h])
        meet = torch.stack([_meeting(mechanism, round_, h, x.detach()) for round_ in range(mechanism.rounds)])
        scores = mechanism.scale * x @ (x / x.norm(dim=-1, keepdim=True)).T
        scores = scores.masked_fill(torch.eye(len(at), dtype=torch.bool), OWN) - meet.sum(0).clamp(min=1).to(x).log()
        scores = scores.masked_fill(~meet, -torch.inf)  # (R, n, n)
        of_rounds = scores.logsumexp(2).softmax(0)[..., None] * (scores.softmax(2) @ v[b, h, at])
        rows.append(out.index_add(0, at, of_rounds.sum(0)))
    return torch.stack(rows).view(q.shape)


def _meeting(mechanism: "Reformer", round_: int, head: int, x: Float[Tensor, "n D"]) -> Bool[Tensor, "n n"]:
    """Pairs that see each other in a round: a chunk of the sorted positions sees itself and the chunk before."""
    n, chunk = len(x), mechanism.chunk
    projected = x @ mechanism.rotations[round_, head]
    hashes = torch.cat([projected, -projected], 1).argmax(1).tolist() if mechanism.n_buckets > 1 else [0] * n
    order = sorted(range(n), key=lambda i: n * hashes[i] + i)
    chunk_of = torch.tensor([order.index(i) // chunk for i in range(n)], dtype=torch.long)  # the chunk of each
    before = (chunk_of - 1) % max(1, math.ceil(n / chunk))
    return (chunk_of == chunk_of[:, None]) | (chunk_of == before[:, None])


class Reformer(Attention):
    """Attention of each position to those of its chunk and the chunk before, sorted by hash; `k` is not read.

    A pair that meets in several rounds counts once. Appendix A subtracts the logarithm of the number of rounds from its
    score; here only its first round counts it, which gives the same sum. Rounds are combined by their log-sum-exp.
    A position sees itself only where it sees nothing else (section 2, "Causal masking for shared-QK attention").

    A position takes part if both masks keep it: query and key are one. The others are sorted behind all kept ones and
    get 0, and the first chunk looks back to the last one with a kept position, so that padding, wherever it stands,
    changes nothing. With at most two chunks all positions meet, and nothing is hashed.

    There is no causal form: a hash bucket's place among the chunks depends on how many positions, later ones too, fall
    into the buckets before it, so who sees whom depends on the future.

    Args:
        shape: Heads, width and length.
        n_buckets: Number of buckets, even; or 1: positions stay in order, without hashing. By default two for each
            chunk of the longest sequence (section 2: chunks of m = 2 l / n_buckets), at most 128.
        rounds: Number of rounds of hashing.
        chunk: Number c of positions of a chunk.
        scale: Factor s of scores; by default D^-1/2 (eq. 1). With 1.0 it is the Reformer of transformers, where D^-1/2
            only turns a key of root mean square 1 into a unit vector.
        dropout: Probability of dropping an attention weight in training.
        redraw: Number of training steps after which `update_` draws new R; None: never.
        seed: Seed of R, with the layer.

    Raises:
        ValueError: The attention is causal or cross-attention, or an option is out of range.
    """

    projections = ("q", "v")
    shares_qk = True
    chooses = True
    rank_option = "chunk"

    rotations: Tensor
    steps: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        n_buckets: int | None = None,
        rounds: int = 2,
        chunk: int = 64,
        scale: float | None = None,
        dropout: float = 0.0,
        redraw: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(shape)
        if shape.causal:
            raise ValueError("reformer has no causal form: positions are sorted by hashes of all, later ones too")
        if shape.cross:
            raise ValueError("reformer has no cross-attention: its queries are its keys")
        for name, value in (("rounds", rounds), ("chunk", chunk)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if n_buckets is None:
            n_buckets = min(MOST_BUCKETS, max(2, 2 * round(shape.max_len / chunk)))
        if n_buckets < 1 or (n_buckets > 1 and n_buckets % 2):
            raise ValueError(f"n_buckets must be 1 or even, got {n_buckets}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if redraw is not None and redraw < 1:
            raise ValueError(f"redraw must be at least 1 step, got {redraw}")
        self.n_buckets, self.rounds, self.chunk = n_buckets, rounds, chunk
        self.scale = shape.head_dim**-0.5 if scale is None else scale
        self.dropout, self.redraw = dropout, redraw
        self.register_buffer("rotations", torch.empty(rounds, shape.heads, shape.head_dim, n_buckets // 2))
        self.seed = seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the R of the first step."""
        if not self.rotations.is_meta:
            set_(self.rotations, self._drawn(0))
            nn.init.zeros_(self.steps)

    @torch.no_grad()
    def update_(self) -> None:
        """Draw new R after every `redraw` steps; to be called once a training step.

        They depend on seed, layer and step alone, so that all processes of a training draw the same.
        """
        self.steps += 1
        if self.redraw is not None and int(self.steps) % self.redraw == 0:
            self.rotations.copy_(self._drawn(int(self.steps)))

    def _drawn(self, step: int) -> Tensor:
        """R of a training step, normal."""
        return torch.randn(self.rotations.shape, generator=drawn_by(self.seed, self.shape, step))

    @torch.no_grad()
    def buckets(
        self, q: Float[Tensor, "B H N D"], key_mask: Bool[Tensor, "B N"] | None = None
    ) -> Int[Tensor, "B H R N"]:
        """The bucket of each position in each round, 0 to n_buckets - 1, and n_buckets where it is masked."""
        if self.n_buckets == 1:
            hashes = torch.zeros(*q.shape[:2], self.rounds, q.shape[2], dtype=torch.long, device=q.device)
        else:
            with full_precision(q):
                rotations = self.rotations.to(accurate(q))
                hashes = torch.stack([_largest(exact(q) @ R) for R in rotations], 2)
        return hashes if key_mask is None else hashes.masked_fill(~key_mask[:, None, None], self.n_buckets)

    def choose(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Int[Tensor, "B H R N"]:
        return self.buckets(q)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        choice: Int[Tensor, "B H R N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape)
        N = q.shape[2]
        if k.shape[2] != N:
            raise ValueError(f"reformer needs as many keys as queries, got {k.shape[2]} and {N}")
        expected = (*q.shape[:2], self.rounds, N)
        if choice is not None and choice.shape != expected:
            raise ValueError(f"choice must be {expected}, got {tuple(choice.shape)}")
        masks = [mask for mask in (key_mask, query_mask) if mask is not None]
        keep = torch.stack(masks).all(0) if masks else None
        x, values = exact(q), exact(v)
        if keep is not None:
            x, values = (y.masked_fill(~keep[:, None, :, None], 0.0) for y in (x, values))
        with full_precision(q):
            keys = x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny ** 0.5)
            order, count = self._order(x, keep, choice)
            dropout = self.dropout if self.training else 0.0
            seed = new_seed(dropout)
            given = x, keys, values, order, count, self.chunk, self.scale, dropout
            out: Tensor = _plain(*given) if in_transform() else _Chunked.apply(*given, seed)
        if keep is not None:
            out = out.masked_fill(~keep[:, None, :, None], 0.0)
        return out.to(v.dtype)

    @torch.no_grad()
    def _order(
        self, q: Tensor, keep: Tensor | None, buckets: Tensor | None
    ) -> tuple[Int[Tensor, "R B H N"], Int[Tensor, " B"] | None]:
        """Positions in the order of their buckets, kept ones first, and the number kept; R = 1 where all pairs meet."""
        if self.n_buckets == 1 or q.shape[2] <= 2 * self.chunk:
            hashes = torch.zeros(*q.shape[:2], 1, q.shape[2], dtype=torch.int, device=q.device)
        else:
            hashes = (self.buckets(q) if buckets is None else buckets).int()
        if keep is not None:
            hashes = hashes.masked_fill(~keep[:, None, None], torch.iinfo(torch.int).max)
        return hashes.sort(dim=-1, stable=True).indices.movedim(2, 0), None if keep is None else keep.sum(1)


def _largest(x: Float[Tensor, "... n"]) -> Int[Tensor, "..."]:
    """argmax([x; -x]) over the last dimension."""
    index = x.abs().max(-1, keepdim=True).indices
    return (index + x.shape[-1] * (x.gather(-1, index) < 0))[..., 0]


class _Layout:
    """One round: T tiles of a chunk of c queries each, beside L keys, those of the chunk and of the chunk before.

    Positions are rows of (B H N, D). Slots behind the last position repeat the first one, and are never seen.

    Args:
        order: Positions in the order of their buckets (B, H, N).
        count: Number of these that are kept (B,); None: all.
        chunk: Number c of positions of a chunk.
        kind: Dtype of scores.
    """

    def __init__(self, order: Tensor, count: Tensor | None, chunk: int, kind: torch.dtype) -> None:
        batch, heads, N = order.shape
        n = -(-N // chunk)
        sequences, slots, device = batch * heads, n * chunk, order.device
        order = order.reshape(sequences, N)
        rank = torch.arange(slots, device=device)
        first = torch.arange(sequences, device=device)[:, None]
        tile = torch.arange(n, device=device).expand(sequences, n)
        self.n, self.kind = n, kind
        if count is None:
            last = torch.full_like(first, n - 1)
        else:
            last = ((count - 1).clamp(min=0) // chunk)[:, None].expand(-1, heads).reshape(sequences, 1)
        self.last = last
        before = torch.where(tile == 0, last, tile - 1)
        # Slot of each position (B H, N).
        slot = torch.empty_like(order).scatter_(1, order, rank[:N].expand(sequences, N))
        self.chunk_of = slot // chunk
        self.queries = (torch.nn.functional.pad(order, (0, slots - N)) + first * N).view(-1, chunk)  # (T, c)
        self.place = (slot + first * slots).flatten()
        # Keys are one chunk, or two, the query's own first.
        self.halves = (slice(chunk), slice(chunk, None))[: 1 if n == 1 else 2]
        self.keys = self.queries
        if n > 1:
            self.keys = torch.cat([self.queries, self.queries[(before + first * n).flatten()]], 1)
        # Which slots hold a kept position.
        self.seen = self.most = None
        if count is not None or slots > N:
            end = torch.full_like(first, N) if count is None else count[:, None].expand(-1, heads).reshape(-1, 1)
            seen = (rank < end).view(sequences, n, chunk)
            self.seen = seen.flatten(0, 1)
            if n > 1:
                behind = seen.gather(1, before[..., None].expand_as(seen)) & (before != tile)[..., None]
                seen = torch.cat([seen, behind], 2)
            self.most = torch.where(seen.flatten(0, 1), HIDDEN, -HIDDEN).to(kind)

    def positions(self, x: Tensor) -> Tensor:
        """Rows of the chunks (T, c, D) to those of the positions (B H N, D)."""
        return x.view(-1, x.shape[-1]).index_select(0, self.place)

    def joined(self, halves: list[Tensor]) -> Tensor:
        """Add the gradients of each chunk (T, c, D) from its own queries and from those of the next chunk."""
        if len(halves) == 1:
            return halves[0]
        own, before = (x.unflatten(0, (-1, self.n)) for x in halves)
        own[:, :-1].add_(before[:, 1:])
        own[torch.arange(len(own), device=own.device), self.last[:, 0]] += before[:, 0]
        return halves[0]

    def meetings(self) -> tuple[Tensor, Tensor]:
        """The chunk of each position (B H N) and the chunk before, from which later rounds see which pairs met."""
        before = torch.where(self.chunk_of == 0, self.last, self.chunk_of - 1)
        return self.chunk_of.flatten().to(self.kind), before.flatten().to(self.kind)


class _Tiles:
    """A slice of the tiles of a round, with their scores to the base 2.

    Args:
        q: Queries of all positions (B H N, D).
        k: Keys of all positions (B H N, D).
        layout: Layout of the round.
        earlier: Chunks of all positions, and those before them, in each earlier round.
        some: Slice of the tiles.
        scale: Factor of scores.
    """

    def __init__(
        self, q: Tensor, k: Tensor, layout: _Layout, earlier: list[tuple[Tensor, Tensor]], some: slice, scale: float
    ) -> None:
        self.queries, self.keys = layout.queries[some], layout.keys[some]
        self.q, self.k = _rows(q, self.queries).mul_(scale / LN2), _rows(k, self.keys)
        self.seen = None if layout.seen is None else layout.seen[some]
        self.scores = self.q @ self.k.mT  # (t, c, L)
        self.own(self.scores).fill_(OWN / LN2)
        if layout.most is not None:
            torch.minimum(self.scores, layout.most[some, None], out=self.scores)
        for chunk_of, before in earlier:  # a pair counts in the first round in which it meets
            keys = chunk_of[self.keys][:, None]
            apart = (chunk_of[self.queries][..., None] - keys).mul_(before[self.queries][..., None] - keys)
            # 0 where they met: -HIDDEN there, and large elsewhere.
            torch.minimum(self.scores, apart.square_().mul_(2 * HIDDEN).sub_(HIDDEN), out=self.scores)

    def own(self, x: Tensor) -> Tensor:
        """View (t, c) of the diagonal of (t, c, L): each query with itself."""
        return x.view(len(x), -1)[:, :: x.shape[2] + 1]


def _slices(
    q: Tensor, k: Tensor, order: Tensor, count: Tensor | None, chunk: int, scale: float
) -> Iterator[tuple[_Layout, Iterator[tuple[slice, _Tiles]]]]:
    """Every round, and its tiles a slice at a time; all at once where compiled or not on a CPU."""
    earlier: list[tuple[Tensor, Tensor]] = []
    for round_order in order:
        layout = _Layout(round_order, count, chunk, q.dtype)
        tiles = len(layout.queries)
        whole = torch.compiler.is_compiling() or q.device.type != "cpu"
        step = tiles if whole else max(1, SLICE // layout.keys[0].numel() // chunk)
        starts = range(0, tiles, step)
        tile_slices = (slice(at, min(at + step, tiles)) for at in starts)
        yield layout, ((tile_slice, _Tiles(q, k, layout, earlier, tile_slice, scale)) for tile_slice in tile_slices)
        earlier.append(layout.meetings())


def _plain(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, count: Tensor | None, chunk: int, scale: float, dropout: float
) -> Tensor:
    """The output of `_Chunked`, in operations that torch differentiates, over all N^2 pairs."""
    met, N = None, q.shape[2]
    for round_order in order:
        layout = _Layout(round_order, count, chunk, q.dtype)
        own = layout.chunk_of
        before = torch.where(own == 0, layout.last, own - 1)
        meets = (own[:, None] == own[..., None]) | (own[:, None] == before[..., None])  # (B H, query, key)
        if count is not None:  # kept positions come first in every round
            rank = round_order.argsort(-1).flatten(0, 1)
            keep = rank < count.repeat_interleave(q.shape[1])[:, None]
            meets = meets & keep[:, None]
        met = meets if met is None else met | meets
    assert met is not None
    itself = torch.eye(N, dtype=torch.bool, device=q.device)
    scores = (q @ k.mT * scale).masked_fill(~met.view(*q.shape[:2], N, N), -torch.inf).masked_fill(itself, OWN)
    return F.dropout(scores.softmax(-1), dropout) @ v


def _again(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    chunk, scale, dropout, _ = ctx.given
    if dropout:
        raise RuntimeError(f"reformer has no second derivative with dropout: it must be 0, got {dropout}")
    with full_precision(q):
        order, count = ctx.saved_tensors[3:5]
        return _plain(q, k, v, order, count, chunk, scale, 0.0)


class _Chunked(torch.autograd.Function):
    """Attention in all rounds. Weights are computed again for the backward pass, from their sum over all rounds."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Tensor, count: Tensor | None,
        chunk: int, scale: float, dropout: float, seed: int,
    ) -> Tensor:  # fmt: skip
        inputs, ctx.given, shape = (q, k, v), (chunk, scale, dropout, seed), q.shape
        q, k, v = (x.reshape(-1, shape[3]) for x in (q, k, v))
        out = lse = None
        for layout, slices in _slices(q, k, order, count, chunk, scale):
            mixed = v.new_empty(*layout.queries.shape, shape[3])
            sums = v.new_empty(layout.queries.shape)
            for some, tiles in slices:
                weights = tiles.scores
                top = weights.amax(-1, keepdim=True)
                total = _exp2_(weights.sub_(top)).sum(-1, keepdim=True)
                seed = drop_(weights, dropout, seed)
                torch.bmm(weights, _rows(v, tiles.keys), out=mixed[some]).mul_(1 / total)
                sums[some] = (top + total.log2())[..., 0]
            outputs, of_outputs = layout.positions(mixed), sums.view(-1)[layout.place]
            if out is None or lse is None:
                out, lse = outputs, of_outputs
            else:
                both = torch.logaddexp2(lse, of_outputs)
                out.mul_((lse - both).exp2()[:, None]).addcmul_(outputs, (of_outputs - both).exp2()[:, None])
                lse = both
        assert out is not None
        ctx.save_for_backward(*inputs, order, count, out, lse)
        return out.view(shape)

    @staticmethod
    @by_hand(3, _again)
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Dao 2022, arXiv:2205.14135, algorithm 4, in each round with the sums over all."""
        q, k, v, order, count, out, lse = ctx.saved_tensors
        chunk, scale, dropout, seed = ctx.given
        shape, dout = dout.shape, dout.reshape(out.shape)
        q, k, v = (x.reshape(out.shape) for x in (q, k, v))
        grads: list[Tensor] = []
        delta = (dout * out).sum(-1)
        with full_precision(dout):
            for layout, slices in _slices(q, k, order, count, chunk, scale):
                dq_, *rest = (v.new_empty(*layout.queries.shape, shape[3]) for _ in range(1 + 2 * len(layout.halves)))
                dk_, dv_ = rest[::2], rest[1::2]
                for some, tiles in slices:
                    sums = lse[tiles.queries]
                    if tiles.seen is not None:  # slots behind the last position
                        sums = sums.masked_fill_(~tiles.seen, torch.inf)
                    weights = _exp2_(tiles.scores.sub_(sums[..., None]))
                    grad = _rows(dout, tiles.queries)
                    of_scores = grad @ _rows(v, tiles.keys).mT
                    seed_after = drop_(of_scores, dropout, seed)
                    of_scores.sub_(delta[tiles.queries][..., None]).mul_(weights)
                    tiles.own(of_scores).zero_()  # a constant
                    drop_(weights, dropout, seed)
                    seed = seed_after
                    torch.bmm(of_scores, tiles.k, out=dq_[some])
                    for half, of_keys, of_values in zip(layout.halves, dk_, dv_, strict=True):
                        torch.bmm(of_scores[..., half].mT, tiles.q, out=of_keys[some])
                        torch.bmm(weights[..., half].mT, grad, out=of_values[some])
                round_grads = [layout.positions(x) for x in (dq_, layout.joined(dk_), layout.joined(dv_))]
                grads = [total.add_(x) for total, x in zip(grads, round_grads, strict=True)] if grads else round_grads
        dq, dk, dv = (x.view(shape) for x in (grads[0].mul_(scale), grads[1].mul_(LN2), grads[2]))
        return dq, dk, dv, None, None, None, None, None, None


def _rows(x: Float[Tensor, "R D"], at: Int[Tensor, "t c"]) -> Float[Tensor, "t c D"]:
    return x.index_select(0, at.flatten()).view(*at.shape, x.shape[1])


def _exp2_(x: Tensor) -> Tensor:
    """2^x in place, for x of at most about 0; results too small to count in a sum are 0, as subnormals are slow."""
    return torch.threshold_(x.exp2_(), 1e-30, 0.0)
