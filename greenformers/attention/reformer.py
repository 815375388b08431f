"""Reformer. Kitaev 2020, arXiv:2001.04451, section 2: softmax attention among positions of like hash; queries are keys.

h(x) = argmax([x R; -x R]), R (D x n_buckets / 2) normal. Positions sorted by N h + position are cut into chunks of c;
each attends those of its own hash in its chunk and the one before, with weights softmax(s q_i k_j), k_j = q_j / |q_j|;
so in each of several rounds, with R of its own (eq. 3 to 6). The fast form is `_hashed.py`.
Time O(N (c + n_buckets) D rounds), memory O(N (D + n_buckets)).
"""

from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers._initial import set_
from greenformers.attention._contract import (
    Attention,
    Shape,
    accurate,
    check_fit,
    drawn_by,
    exact,
    full_precision,
)
from greenformers.attention._hashed import attend, kept_as_both, together
from greenformers.attention._meetings import Meetings, across_buckets, check_numbers, in_the_past, in_windows

OWN = -1e5
"""Score of the own token. The paper's own code and transformers agree on it."""

MOST_BUCKETS = 128
"""Largest default number of buckets: hashing to more costs more than the attention."""


def reference(
    mechanism: "Reformer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(s q_i k_j - log(rounds in which i sees j)) v of each round, weighted by its sums (appendix A)."""
    N, M = q.shape[2], k.shape[2]
    q = torch.cat([k[:, :, : M - N], q], 2)  # keys are q / |q|
    keep = torch.ones(q.shape[0], M, dtype=torch.bool) if key_mask is None else key_mask.clone()
    if query_mask is not None:
        keep[:, M - N :] &= query_mask
    rows = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        at = keep[b].nonzero().flatten()
        x, out = q[b, h, at], torch.zeros_like(v[b, h])
        seen = torch.stack([_seen(mechanism, round_, h, x.detach()) for round_ in range(mechanism.rounds)])
        scores = mechanism.scale * x @ (x / x.norm(dim=-1, keepdim=True)).T
        scores = scores.masked_fill(torch.eye(len(at), dtype=torch.bool), OWN) - seen.sum(0).clamp(min=1).to(x).log()
        scores = scores.masked_fill(~seen, -torch.inf)  # (R, n, n)
        of_rounds = scores.logsumexp(2).softmax(0)[..., None] * (scores.softmax(2) @ v[b, h, at])
        rows.append(out.index_add(0, at, of_rounds.sum(0)))
    return torch.stack(rows).view(v.shape)[:, :, M - N :]


def _seen(mechanism: "Reformer", round_: int, head: int, x: Float[Tensor, "n D"]) -> Bool[Tensor, "n n"]:
    """Whether position i sees position j in a round (eq. 4 to 6): h_i = h_j, and j's chunk is i's or the one before."""
    n, chunk, causal = len(x), mechanism.chunk, mechanism.shape.causal
    projected = x @ mechanism.rotations[round_, head]
    hashes = torch.cat([projected, -projected], 1).argmax(1).tolist() if mechanism.n_buckets > 1 else [0] * n
    order = sorted(range(n), key=lambda i: n * hashes[i] + i)
    if causal:
        chunks = [sum(hashes[j] == hashes[i] for j in range(i)) // chunk for i in range(n)]
    else:
        chunks = [order.index(i) // chunk for i in range(n)]

    def sees(i: int, j: int) -> bool:
        if mechanism.across_buckets:
            return chunks[j] in (chunks[i], (chunks[i] - 1) % max(1, -(-n // chunk)))
        return hashes[i] == hashes[j] and chunks[j] in (chunks[i], chunks[i] - 1) and (j <= i or not causal)

    return torch.tensor([[sees(i, j) for j in range(n)] for i in range(n)], dtype=torch.bool).view(n, n)


class Reformer(Attention):
    """Attention of each position to those of its hash in its chunk and the chunk before; `k` is not read.

    A pair that meets in several rounds counts once. Appendix A subtracts the logarithm of the number of rounds from its
    score; here only its first round counts it, which gives the same sum. Rounds are combined by their log-sum-exp.
    A position sees itself only where it sees nothing else (section 2, "Causal masking for shared-QK attention").

    The public implementations also let a position see other buckets that stand in the same two chunks, and the first
    chunk the last one: `across_buckets`. With at most two chunks all positions then meet, and nothing is hashed.

    A position takes part if both masks keep it: query and key are one. The others are sorted behind all kept ones and
    get 0, so that padding, wherever it stands, changes nothing.

    Causal: chunks are counted within each bucket, from its first position, so that who sees whom depends on the past
    alone. The paper and the public implementations cut the sorted sequence, where later positions move the chunks:
    what they see is never later, but which earlier ones they see depends on the later ones.

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
        across_buckets: Whether positions of other hashes in the same chunks are seen too, as in the public
            implementations; not causal.

    Raises:
        ValueError: It is cross-attention, or causal across buckets, or an option is out of range.
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
        across_buckets: bool = False,
    ) -> None:
        super().__init__(shape)
        if shape.causal and across_buckets:
            raise ValueError("reformer has no causal form across buckets: later positions would move the chunks")
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
        self.dropout, self.redraw, self.across_buckets = dropout, redraw, across_buckets
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
        return self.buckets(together(q, k))

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        choice: Int[Tensor, "B H R M"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        N, M = q.shape[2], k.shape[2]
        if M != N and not self.shape.causal:
            raise ValueError(f"reformer needs as many keys as queries, got {M} and {N}")
        expected = (*q.shape[:2], self.rounds, M)
        if choice is not None and choice.shape != expected:
            raise ValueError(f"choice must be {expected}, got {tuple(choice.shape)}")
        keep = kept_as_both(key_mask, query_mask, M)
        x, values = exact(together(q, k)), exact(v)
        if keep is not None:
            x, values = (y.masked_fill(~keep[:, None, :, None], 0.0) for y in (x, values))
        with full_precision(q):
            keys = x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny ** 0.5)
            meetings = self._meetings(x, keep, choice)
            # Few queries behind many keys see them all in less time than all positions their own.
            few = N < M and self.chunk * self.rounds >= N
            out = attend(
                x[:, :, M - N :] if few else x, keys, values, meetings, scale=self.scale, itself=OWN,
                dropout=self.dropout if self.training else 0.0,
            )  # fmt: skip
        out = out[:, :, -N:]
        if keep is not None:
            out = out.masked_fill(~keep[:, None, M - N :, None], 0.0)
        return out.to(v.dtype)

    @torch.no_grad()
    def _meetings(self, x: Tensor, keep: Tensor | None, buckets: Tensor | None) -> Meetings:
        """Who sees whom; in one round where nothing is hashed."""
        if not self.across_buckets:
            check_numbers("n_buckets", self.n_buckets, x.shape[2], self.chunk, x.dtype)
        if self.n_buckets == 1 or (self.across_buckets and x.shape[2] <= 2 * self.chunk):
            hashes = torch.zeros(*x.shape[:2], 1, x.shape[2], dtype=torch.long, device=x.device)
        else:
            hashes = self.buckets(x) if buckets is None else buckets
        if self.across_buckets:
            return across_buckets(hashes, keep, self.chunk, x.dtype)
        if self.shape.causal:
            return in_the_past(hashes, keep, self.chunk, x.dtype, self.n_buckets)
        return in_windows(hashes, keep, self.chunk, x.dtype)


def _largest(x: Float[Tensor, "... n"]) -> Int[Tensor, "..."]:
    """argmax([x; -x]) over the last dimension."""
    index = x.abs().max(-1, keepdim=True).indices
    return (index + x.shape[-1] * (x.gather(-1, index) < 0))[..., 0]
