"""Routing Transformer. Roy 2020, arXiv:2003.05997, algorithm 1: attention within clusters of queries and keys.

q and k go through layer norm without scale and bias; each cluster takes the w queries and the w keys with the largest
product with its centroid, for softmax attention; where clusters overlap, the mean; positions in no cluster get 0.
Time O(N c D + c w^2 D), memory O(N c + c w (w + D)), with c clusters; O(N^1.5 D) with c = w = sqrt(N).
The fast form gathers the rows of all clusters, attends once, and adds the outputs at the positions of the rows.

No causal form: whether a position is among the w of its cluster depends on all positions, later ones too.
"""

import math
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.attention._aligned import finite, length_of, text_of
from greenformers.attention._contract import Attention, Shape, check_fit, drawn_by, exact, set_
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
    N, window = q.shape[2], mechanism.window or math.ceil(q.shape[2] / mechanism.clusters)
    q, k = (F.layer_norm(x, x.shape[-1:]) for x in (q, k))
    query_mask = key_mask if query_mask is None else query_mask
    rows = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        total, times = torch.zeros_like(q[b, h]), torch.zeros(N, 1)
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
        rows.append(total / times.clamp(min=1))
    return torch.stack(rows).view(q.shape)


class Routing(Attention):
    """Softmax attention within clusters, whose centroids follow the vectors assigned to them.

    Args:
        shape: Heads, width and length.
        clusters: Number c of clusters; by default the square root of `max_len`.
        window: Number w of queries and of keys of a cluster; by default N / c, rounded up, where N is the length of a
            text from its first kept position to its last.
        decay: Decay of the moving average of the centroids, in [0, 1], which `update_` computes.
        commitment: Weight of the loss, the mean squared distance of queries and keys to their centroids.
        seed: Seed of the initial centroids, with the layer.
        dropout: Probability of dropping an attention weight in training.

    Attributes:
        centroids: The centroids (H, c, D), saved in checkpoints.

    Raises:
        ValueError: The attention is causal or cross-attention, or an option is out of range.
    """

    has_loss = True
    chooses = True

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
    ) -> None:
        super().__init__(shape)
        if shape.causal:
            raise ValueError("routing has no causal form: whom a cluster takes depends on later positions")
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
        self.commitment, self.seed, self.dropout = commitment, seed, dropout
        self.register_buffer("centroids", torch.empty(shape.heads, clusters, shape.head_dim))
        # Of the current step: sums and numbers of the vectors assigned to each centroid.
        self.register_buffer("sums", torch.zeros(shape.heads, clusters, shape.head_dim), persistent=False)
        self.register_buffer("counts", torch.zeros(shape.heads, clusters), persistent=False)
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

    @torch.no_grad()
    def update_(self) -> None:
        """Move each centroid towards the mean of the vectors assigned to it; one without any stays."""
        means = self.sums / self.counts.clamp(min=1)[..., None]
        moved = self.decay * self.centroids + (1 - self.decay) * means.to(self.centroids.dtype)
        self.centroids.copy_(torch.where(self.counts[..., None] > 0, moved, self.centroids))
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
        choice: Int[Tensor, "2 B H c w"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        q, k, v = self._normal(q, k, v, key_mask, query_mask)
        query_mask = key_mask if query_mask is None else query_mask
        return self._mixed(q, k, v, query_mask, key_mask, choice)

    def forward_with_loss(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        choice: Int[Tensor, "2 B H c w"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, ""]]:
        q, k, v = self._normal(q, k, v, key_mask, query_mask)
        query_mask = key_mask if query_mask is None else query_mask
        out = self._mixed(q, k, v, query_mask, key_mask, choice)
        losses = [self._commitment(x, mask) for x, mask in ((q, query_mask), (k, key_mask))]
        return out, self.commitment * (losses[0] + losses[1]) / 2

    @torch.no_grad()
    def choose(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Int[Tensor, "2 B H c w"]:
        q, k, v = self._normal(q, k, v, key_mask, query_mask)
        return self._chosen(q, k, key_mask if query_mask is None else query_mask, key_mask)

    def _normal(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Check the inputs, and return normalised queries and keys, and the values."""
        check_fit(q, k, v, key_mask, self.shape)
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"there must be as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
        q, k, v = finite(q, k, v, key_mask, query_mask)
        return _normal(q), _normal(k), v

    def _near(self, x: Tensor) -> Float[Tensor, "B H c N"]:
        """Products with the centroids."""
        return self.centroids.to(x.dtype) @ x.mT

    @torch.no_grad()
    def _chosen(self, q: Tensor, k: Tensor, query_mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
        """Positions of the w queries and of the w keys of each cluster; N beyond the window of a shorter text."""
        N, text = q.shape[2], text_of(key_mask, query_mask)
        window = min(N, -(-N // self.clusters) if self.window is None else self.window)
        beyond = None
        if text is not None and self.window is None:
            own = -(-length_of(text) // self.clusters)
            beyond = torch.arange(window, device=q.device) >= own[:, None, None, None]  # (B, 1, 1, w)
        choices = []
        for x, mask in ((q, query_mask), (k, key_mask)):
            near = self._near(x)
            if mask is not None:
                near = near.masked_fill(~mask[:, None, None], -torch.inf)
            places = near.topk(window, dim=-1, sorted=beyond is not None).indices
            if beyond is not None:
                places = places.masked_fill(beyond, N)
            # In ascending order: gathered rows lie closer together.
            choices.append(places.sort(-1).values)
        return torch.stack(choices)

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None, key_mask: Tensor | None, choice: Tensor | None
    ) -> Tensor:
        if choice is None:
            choice = self._chosen(q, k, query_mask, key_mask)
        B, H, N, D = q.shape
        first = N * torch.arange(B * H, device=q.device).view(B, H, 1, 1)
        real = choice < N
        asked, read = (choice.clamp(max=N - 1) + first).unbind()  # rows of all positions (B H N, D), (B, H, c, w) each
        # Four dimensions, for torch's fast kernel.
        queries, keys, values = (
            _rows(x, at).view(B, -1, *at.shape[3:], D) for x, at in ((q, asked), (k, read), (v, read))
        )
        mask = None
        if key_mask is not None:
            mask = key_mask[:, None].expand(-1, H, -1).reshape(-1)[read] & real[1]
            mask = mask.view(B, -1, 1, read.shape[3])
            none = ~mask.any(-1, keepdim=True)
            mask = mask | none
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
        if key_mask is not None:
            mixed = mixed.masked_fill(none | ~real[0].reshape(B, -1, read.shape[3], 1), 0.0)
        rows = asked.flatten()
        total = mixed.new_zeros(B * H * N, D).index_add_(0, rows, mixed.reshape(-1, D))
        times = mixed.new_zeros(B * H * N).index_add_(0, rows, real[0].flatten().to(mixed.dtype))
        if self.training:
            self._gather(q, query_mask)
            self._gather(k, key_mask)
        return total.div_(times.clamp_(min=1)[:, None]).view(q.shape)

    @torch.no_grad()
    def _gather(self, x: Tensor, mask: Tensor | None) -> None:
        """Add the vectors nearest to each centroid to the sums of the step."""
        heads, width = self.shape.heads, x.shape[3]
        # Padding is added to a row of its own, which is dropped.
        nearest = self._near(x).argmax(2)  # (B, H, N)
        if mask is not None:
            nearest = nearest.masked_fill(~mask[:, None], self.clusters)
        place = (nearest + torch.arange(heads, device=x.device)[:, None] * (self.clusters + 1)).flatten()
        sums = self.sums.new_zeros(heads * (self.clusters + 1), width)
        sums.index_add_(0, place, x.reshape(-1, width).to(sums.dtype))
        counts = self.counts.new_zeros(len(sums)).index_add_(0, place, torch.ones_like(place, dtype=sums.dtype))
        self.sums += sums.view(heads, -1, width)[:, :-1]
        self.counts += counts.view(heads, -1)[:, :-1]

    def _commitment(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mean squared distance to the nearest centroid."""
        nearest = self._near(x.detach()).argmax(2)
        own = self.centroids.to(x.dtype)[torch.arange(self.shape.heads, device=x.device)[:, None], nearest]
        far = exact(x - own).square().mean(-1)
        if mask is None:
            return far.mean()
        return (far * mask[:, None]).sum() / (self.shape.heads * mask.sum().clamp(min=1))


def _normal(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _rows(x: Float[Tensor, "B H N D"], at: Int[Tensor, "B H c w"]) -> Float[Tensor, "R D"]:
    return x.reshape(-1, x.shape[3]).index_select(0, at.flatten())
