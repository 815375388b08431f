"""Routing Transformer. Roy 2020, arXiv:2003.05997, algorithm 1: attention within clusters of queries and keys.

q and k go through layer norm without scale and bias; each cluster takes the w queries and the w keys with the largest
product with its centroid, for softmax attention; where clusters overlap, the mean. A query that no cluster takes
attends the keys of the cluster whose centroid is nearest to it, where the paper gives it 0.
Time O(N c D + c w^2 D), memory O(N c + c w (w + D)), with c clusters; O(N^1.5 D) with c = w = sqrt(N).
The fast form gathers the rows of all clusters of a few heads, attends once, and adds the outputs at the positions of
the rows (`_parts.py`); which rows those are is found by `_cluster_choice.py`.

Causal: queries are the keys (algorithm 1: K <- Q), and each attends those before it of its nearest centroid, of the
last w to 2 w of them (`_hashed.py`). Whether a position is among the w nearest of a cluster, as in the paper, would
depend on later positions.
"""

import math
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers._initial import set_
from greenformers.attention._aligned import finite, length_of, text_of
from greenformers.attention._by_cluster import of_one_cluster
from greenformers.attention._cluster_choice import choose_positions, nearest_centroids
from greenformers.attention._contract import Attention, Shape, accurate, check_fit, drawn_by, exact
from greenformers.attention._followed import Followed, add_followed, distance, share_of_each
from greenformers.attention._hashed import attend, kept_as_both, together
from greenformers.attention._meetings import check_numbers, in_the_past
from greenformers.attention._parts import Parts
from greenformers.attention._reference import dot_products, text_by_text


@text_by_text
def reference(
    mechanism: "Routing",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """Cluster by cluster, softmax attention of the w nearest queries to the w nearest keys; the mean over clusters."""
    if mechanism.shape.causal:
        past = k.shape[2] - q.shape[2]
        return _of_the_past(mechanism, torch.cat([k[:, :, :past], q], 2), v, key_mask, query_mask)[:, :, past:]
    N, window = q.shape[2], mechanism.window or math.ceil(q.shape[2] / mechanism.clusters)
    q, k = (F.layer_norm(x, x.shape[-1:]) for x in (q, k))
    query_mask = key_mask if query_mask is None else query_mask
    rows = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        total, times, read = torch.zeros_like(q[b, h]), torch.zeros(N, 1), []
        for centroid in mechanism.centroids[h]:
            queries, keys = (
                sorted(
                    range(N) if mask is None else mask[b].nonzero().flatten().tolist(),
                    key=(x[b, h] @ centroid).tolist().__getitem__,
                    reverse=True,
                )[:window]
                for x, mask in ((q, query_mask), (k, key_mask))
            )
            if keys:
                mixed = dot_products(q[b, h, queries], k[b, h, keys]).softmax(-1) @ v[b, h, keys]
                total = total.index_add(0, torch.tensor(queries, dtype=torch.long), mixed)
            times[queries] += 1
            read.append(keys)
        for i in range(N):
            keys = read[int((mechanism.centroids[h] @ q[b, h, i]).argmax())]
            if mechanism.every_query and not times[i] and keys and (query_mask is None or query_mask[b, i]):
                alone = dot_products(q[b, h, i : i + 1], k[b, h, keys]).softmax(-1) @ v[b, h, keys]
                total = total.index_add(0, torch.tensor([i]), alone)
        rows.append(total / times.clamp(min=1))
    return torch.stack(rows).view(q.shape)


def _of_the_past(
    mechanism: "Routing", x: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
) -> Tensor:
    """Softmax attention to earlier positions of the same cluster, in the chunk of w of it or the chunk before."""
    B, H, M, _ = x.shape
    N = M if query_mask is None else query_mask.shape[1]
    keep = torch.ones(B, M, dtype=torch.bool) if key_mask is None else key_mask.clone()
    if query_mask is not None:
        keep[:, M - N :] &= query_mask
    x, out = F.layer_norm(x, x.shape[-1:]), torch.zeros_like(v)
    for b, h in product(range(B), range(H)):
        cluster, members = (x[b, h] @ mechanism.centroids[h].T).argmax(1).tolist(), dict[int, list[int]]()
        for i in keep[b].nonzero().flatten().tolist():
            own = members.setdefault(cluster[i], [])
            own.append(i)
            seen = own[max(0, (len(own) - 1) // mechanism.chunk - 1) * mechanism.chunk :]
            out[b, h, i] = (dot_products(x[b, h, i : i + 1], x[b, h, seen]).softmax(-1) @ v[b, h, seen])[0]
    return out


class Routing(Attention):
    """Softmax attention within clusters, whose centroids follow the vectors assigned to them.

    Args:
        shape: Heads, width and length.
        clusters: Number c of clusters; by default the square root of `max_len`.
        window: Number w of queries and of keys of a cluster; by default N / c, rounded up, where N is the length of a
            text from its first kept position to its last, or causal the longest length.
        decay: Decay of the moving average of the centroids, in [0, 1], which `update_` computes.
        commitment: Weight of the loss, the mean squared distance of queries and keys to their centroids.
        seed: Seed of the initial centroids, with the layer.
        dropout: Probability of dropping an attention weight in training.
        every_query: Whether a query that no cluster takes attends its nearest one; else it gets 0, as in the paper.

    Attributes:
        centroids: The centroids (H, c, D), saved in checkpoints.
        chunk: Causal, the number w of positions of a chunk of a cluster.

    Raises:
        ValueError: It is cross-attention, or an option is out of range or of no effect.
    """

    has_loss = True
    chooses = True
    summed = ("sums", "counts")

    def __init__(
        self,
        shape: Shape,
        *,
        clusters: int | None = None,
        window: int | None = None,
        decay: float = 0.999,
        commitment: float = 1e-4,
        seed: int = 0,
        dropout: float = 0.0,
        every_query: bool = True,
    ) -> None:
        super().__init__(shape)
        if shape.causal and not every_query:
            raise ValueError("routing has no causal form without every_query: each query has a cluster")
        if shape.cross:
            raise ValueError("routing has no cross-attention: queries and keys of a cluster are of one sequence")
        clusters = max(1, round(math.sqrt(shape.max_len))) if clusters is None else clusters
        for name, value in (("clusters", clusters), ("window", 1 if window is None else window)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must be in 0..1, got {decay}")
        if not commitment >= 0:
            raise ValueError(f"commitment must be at least 0, got {commitment}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.clusters, self.window, self.decay = clusters, window, decay
        self.commitment, self.seed, self.dropout, self.every_query = commitment, seed, dropout, every_query
        self.chunk = -(-shape.max_len // clusters) if window is None else window
        if shape.causal:
            self.projections, self.shares_qk = ("q", "v"), True
        wide = accurate(torch.empty(0))
        self.register_buffer("centroids", torch.empty(shape.heads, clusters, shape.head_dim, dtype=wide))
        # Of the current step, see `summed`: sums and numbers of the vectors assigned to each centroid.
        self.register_buffer("sums", torch.zeros(shape.heads, clusters, shape.head_dim, dtype=wide), persistent=False)
        self.register_buffer("counts", torch.zeros(shape.heads, clusters, dtype=wide), persistent=False)
        self.centroids: Tensor
        self.sums: Tensor
        self.counts: Tensor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw centroids at random, with the norm of queries and keys."""
        if not self.centroids.is_meta:
            drawn = torch.randn(self.centroids.shape, generator=drawn_by(self.seed, self.shape))
            set_(self.centroids, _normal(drawn))
            nn.init.zeros_(self.sums)
            nn.init.zeros_(self.counts)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Sums and moving averages of many vectors stay in float32 at least, whatever the dtype of the module."""
        super()._apply(fn, recurse)
        for name in (*self.summed, "centroids"):
            held = getattr(self, name)
            setattr(self, name, held.to(accurate(held)))
        return self

    @torch.no_grad()
    def update_(self) -> None:
        """Move each centroid towards the mean of the vectors assigned to it; one without any stays."""
        means = self.sums / self.counts.clamp(min=1)[..., None]
        moved = self.decay * self.centroids + (1 - self.decay) * means
        self.centroids.copy_(torch.where(self.counts[..., None] > 0, moved, self.centroids.to(moved.dtype)))
        self.sums.zero_()
        self.counts.zero_()

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        choice: Int[Tensor, "B H n"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        return self._out(q, k, v, key_mask, query_mask, choice)[0]

    def forward_with_loss(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        choice: Int[Tensor, "B H n"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, ""]]:
        out, followed = self._out(q, k, v, key_mask, query_mask, choice)
        distances = [distance(some, self.centroids) for some in followed]
        return out, self.commitment * sum(distances, out.new_zeros((), dtype=accurate(out)))

    @torch.no_grad()
    def choose(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Int[Tensor, "B H n"]:
        self._check(q, k, v, key_mask, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        if self.shape.causal:
            return self._nearest(_normal(together(q, k)))
        query_mask = key_mask if query_mask is None else query_mask
        return self._chosen(_normal(q), _normal(k), query_mask, key_mask, self.centroids)

    def _check(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None) -> None:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        if q.shape[2] != k.shape[2] and not self.shape.causal:
            raise ValueError(f"there must be as many queries as keys, got {q.shape[2]} and {k.shape[2]}")

    def _out(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, choice: Tensor | None
    ) -> tuple[Tensor, list[Followed]]:
        """The output, and the vectors that centroids follow; in training they are added to the sums of the step."""
        self._check(q, k, v, key_mask, query_mask)
        if self.shape.causal:
            q, k, v = finite(q, k, v, key_mask, query_mask)
            N, M = q.shape[2], k.shape[2]
            x, keep = _normal(together(q, k)), kept_as_both(key_mask, query_mask, M)
            choice = self._nearest(x) if choice is None else choice
            out, followed = (
                self._past(x, v, keep, N, choice),
                [Followed(x, keep, choice, slice(None), share_of_each(x, keep))],
            )
        else:
            query_mask = key_mask if query_mask is None else query_mask
            shares = [share_of_each(q, query_mask) / 2, share_of_each(k, key_mask) / 2]
            parts, outputs, followed = Parts.of(q), [], []
            for *part, heads in zip(
                *map(parts.of_heads, (q, k, v)), *map(parts.of_sequences, (query_mask, key_mask)),
                parts.of_heads(choice), parts.slices, strict=True,
            ):  # fmt: skip
                output, vectors = self._of_some(*part, heads)  # type: ignore[call-arg]
                outputs.append(output)
                followed += [Followed(*of, heads, share) for of, share in zip(vectors, shares, strict=True)]
            out = parts.joined(outputs)
        if self.training:
            for some in followed:
                add_followed(some, self.sums, self.counts, self.centroids)
        return out, followed

    def _of_some(
        self, q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None, key_mask: Tensor | None,
        choice: Tensor | None, heads: slice,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor | None, Tensor | None]]]:  # fmt: skip
        """The output of some sequences and heads; their queries and keys with their masks and nearest centroids."""
        q, k, v = finite(q, k, v, key_mask, query_mask)
        q, k, centroids = _normal(q), _normal(k), self.centroids[heads]
        choice = self._chosen(q, k, query_mask, key_mask, centroids) if choice is None else choice
        asked, read, near_q, near_k = self._parts(choice, q.shape[2])
        if near_q is None and self.every_query:
            near_q = nearest_centroids(q, centroids)
        out = self._mixed(q, k, v, query_mask, key_mask, asked, read, near_q)
        return out, [(q, query_mask, near_q), (k, key_mask, near_k)]

    def _past(
        self, x: Float[Tensor, "B H M D"], v: Tensor, keep: Tensor | None, N: int, choice: Int[Tensor, "B H M"]
    ) -> Float[Tensor, "B H N D"]:
        """Attention of the last N positions to those before them of the same cluster."""
        M, kind, hashes = x.shape[2], v.dtype, choice[:, :, None]
        check_numbers("clusters", self.clusters, M, self.chunk, accurate(x))
        x, v = exact(x), exact(v)
        if keep is not None:
            x, v = (y.masked_fill(~keep[:, None, :, None], 0.0) for y in (x, v))
        meetings = in_the_past(hashes, keep, self.chunk, x.dtype, self.clusters)
        # Few queries behind many keys see them all in less time than all positions their own.
        few = N < M and self.chunk >= N
        dropout = self.dropout if self.training else 0.0
        out = attend(x[:, :, M - N :] if few else x, x, v, meetings, scale=x.shape[3] ** -0.5, dropout=dropout)
        out = out[:, :, -N:]
        return (out if keep is None else out.masked_fill(~keep[:, None, M - N :, None], 0.0)).to(kind)

    @torch.no_grad()
    def _nearest(self, x: Float[Tensor, "B H N D"]) -> Int[Tensor, "B H N"]:
        """The centroid with the largest product."""
        return nearest_centroids(x, self.centroids)

    @torch.no_grad()
    def _chosen(
        self, q: Tensor, k: Tensor, query_mask: Tensor | None, key_mask: Tensor | None, centroids: Tensor
    ) -> Int[Tensor, "B H n"]:
        """The choice: positions of the w queries and of the w keys of each cluster; the nearest of each query and key.

        In place of positions beyond the window of a shorter text stands N. The nearest ones stand where they are used.
        """
        N, text = q.shape[2], text_of(key_mask, query_mask)
        window, beyond = self._window(N), None
        if text is not None and self.window is None:
            own = -(-length_of(text) // self.clusters)
            beyond = torch.arange(window, device=q.device) >= own[:, None, None, None]  # (B, 1, 1, w)
        choices: list[Tensor] = []
        nearest: list[Tensor] = []
        for x, mask, used in ((q, query_mask, self.every_query or self.training), (k, key_mask, self.training)):
            places, near = choose_positions(
                x, centroids, mask, window, in_order=beyond is not None, nearest=used
            )  # fmt: skip
            if beyond is not None:
                places = places.masked_fill(beyond, N)
            # In ascending order: gathered rows lie closer together.
            choices.append(places.sort(-1).values.flatten(2))
            nearest += [] if near is None else [near]
        return torch.cat([*choices, *nearest], 2)

    def _window(self, N: int) -> int:
        """The number w of positions of a cluster."""
        return min(N, -(-N // self.clusters) if self.window is None else self.window)

    def _parts(self, choice: Int[Tensor, "B H n"], N: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The parts of a choice: positions of queries and of keys (B, H, c, w), nearest centroids of both (B, H, N)."""
        taken = 2 * self.clusters * self._window(N)
        asked, read = choice[..., :taken].unflatten(2, (2, self.clusters, -1)).unbind(2)
        near: list[Tensor | None] = [*choice[..., taken:].split(N, 2)] if choice.shape[2] > taken else []
        near += [None] * (2 - len(near))
        return asked, read, near[0], near[1]

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None, key_mask: Tensor | None,
        asked: Tensor, read: Tensor, nearest: Tensor | None,
    ) -> Tensor:  # fmt: skip
        B, H, N, D = q.shape
        chosen = torch.stack([asked, read])
        first = N * torch.arange(B * H, device=q.device).view(B, H, 1, 1)
        real = chosen < N
        asked, read = (chosen.clamp(max=N - 1) + first).unbind()  # rows of all positions (B H N, D), (B, H, c, w) each
        # Four dimensions, for torch's fast kernel.
        queries, keys, values = (
            _rows(x, at).view(B, H * at.shape[2], *at.shape[3:], D) for x, at in ((q, asked), (k, read), (v, read))
        )
        mask = there = None
        if key_mask is not None:
            there = key_mask[:, None].expand(-1, H, -1).reshape(-1)[read] & real[1]  # (B, H, c, w)
            mask = there.view(B, H * read.shape[2], 1, read.shape[3])
            none = ~mask.any(-1, keepdim=True)
            mask = mask | none
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
        if key_mask is not None:
            mixed = mixed.masked_fill(none | ~real[0].reshape(B, H * asked.shape[2], asked.shape[3], 1), 0.0)
        rows = asked.flatten()
        total = mixed.new_zeros(B * H * N, D).index_add_(0, rows, mixed.reshape(-1, D))
        times = mixed.new_zeros(B * H * N).index_add_(0, rows, real[0].flatten().to(mixed.dtype))
        if nearest is not None and self.every_query:
            left = times == 0
            if query_mask is not None:
                left = left & query_mask[:, None].expand(-1, H, -1).flatten()
            cluster = (nearest + self.clusters * torch.arange(B * H, device=q.device).view(B, H, 1)).flatten()
            total = total + of_one_cluster(
                q, keys.flatten(0, 1), values.flatten(0, 1), left, cluster,
                None if there is None else there.flatten(0, 2), dropout,
            )  # fmt: skip
        return total.div(times.clamp_(min=1)[:, None]).view(q.shape)


def _normal(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _rows(x: Float[Tensor, "B H N D"], at: Int[Tensor, "..."]) -> Float[Tensor, "R D"]:
    return x.reshape(-1, x.shape[3]).index_select(0, at.flatten())
