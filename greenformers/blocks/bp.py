"""BP-Transformer. Ye 2019, arXiv:1911.04070: a token sees near tokens, and longer and longer spans of farther ones.

Binary partition: level 0 are the n tokens, node j of level l covers tokens j 2^l to (j + 1) 2^l - 1, up to one root.
Time O(N k log N d + N d^2), memory O(N k log N) scores a head, and spans as many as tokens beside them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import left_padding, moved, moved_back
from greenformers.attention._contract import exact, full_precision
from greenformers.blocks._bp_graph import Graph, graph, levels_of
from greenformers.blocks._contract import Block, Size

HIDDEN = -1e18
"""Score of a node that is not seen."""


class Bp(Block):
    """Z = norm(H + GSA(H)), H' = norm(Z + FFN(Z)), for tokens and spans alike, all from the H of the layer before.

    A token sees itself, and on each side k nodes a level, from level 0 up until the sequence ends. Where the parent of
    the next node covers a token already seen, the node itself stands in its parent's place. So the nodes a token sees
    cover each token once; causal, each token up to its own once. A span sees the tokens it covers, also those to come:
    a token sees it only when they are past.

    Scores of a token are q . (k_j + a_r) / sqrt(D), with a learned a of each label r, the same for all heads. With
    m = min(level, clip), r is (2 k + 1) m for the token itself, and for the i-th place of a level, i from 0,
    (2 k + 1) m + 2 i + 1 on the left and + 2 on the right. Affiliated edges, of a span to its tokens, would all have
    the label (2 k + 1) m of the span's level; as one number added to all scores of a softmax it changes nothing, and
    is left out.

    In the first layer a span is the mean of the kept tokens it covers; the paper starts from zeros. `memory` is the
    spans, level 1 first. The partition counts from the first kept position of a text, to where it is moved for the time
    of a layer; spans of padding alone are never seen.

    Args:
        size: Sizes of the network around it.
        k: Number of nodes a token sees on each side, per level.
        clip: Highest level with labels of its own; by default that of the root of `max_len` tokens.
        dropout: Probability of dropping an attention weight in training.

    Attributes:
        labels: The vectors a (R, D), one row a label.

    Raises:
        ValueError: An option is out of range.
    """

    has_feed_forward = True
    positions = "own"

    def __init__(self, size: Size, *, k: int = 4, clip: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(size)
        clip = len(levels_of(size.max_len)) - 1 if clip is None else clip
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if clip < 0:
            raise ValueError(f"clip must be at least 0, got {clip}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.places, self.clip, self.dropout = k, clip, dropout
        self.q, self.k, self.v, self.output = (size.linear_layer(name) for name in ("q", "k", "v", "output"))
        self.feed_forward = size.make_feed_forward()
        self.attention_norm = size.make_norm()
        self.feed_forward_norm = size.make_norm()
        self.drop = nn.Dropout(size.dropout)
        self.labels = nn.Parameter(torch.empty((clip + 1) * (2 * k + 1), size.width // size.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a from N(0, 0.02^2)."""
        nn.init.normal_(self.labels, std=0.02)

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B S d"] | None = None,
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, "B S d"] | None]:
        """One layer.

        Args:
            x: The tokens (B, N, d).
            mask: True = keep (B, N).
            memory: The S spans (B, S, d); None in the first layer.

        Returns:
            The tokens, and the spans; None for the spans of the last of several layers, which nothing reads.

        Raises:
            ValueError: `memory` does not hold S spans.
        """
        batch, n, width = x.shape
        edges = graph(x, self.places, self.clip, self.size.causal)
        shape = batch, sum(edges.levels[1:]), width
        if memory is not None and memory.shape != shape:
            raise ValueError(f"memory must be {shape}, the spans of {n} tokens, got {tuple(memory.shape)}")
        if mask is not None:  # a weight of 0 times NaN would be NaN
            x = x.masked_fill(~mask[..., None], 0.0)
        if mask is None or (shift := left_padding(mask)) is None:
            return self._from_the_front(x, mask, memory, edges)
        x, spans = self._from_the_front(moved(x[:, None], shift)[:, 0], moved(mask, shift), memory, edges)
        return moved_back(x[:, None], shift)[:, 0], spans

    def _from_the_front(
        self, x: Tensor, mask: Tensor | None, memory: Tensor | None, edges: Graph
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, "B S d"] | None]:
        """One layer, for texts that begin at the first position."""
        n = x.shape[1]
        if memory is None or mask is not None:
            means, kept_nodes = _means(x, mask, edges.levels)
            memory = means if memory is None else memory
        H = torch.cat([x, memory], 1)
        last = 0 < self.size.layer == self.size.layers - 1
        changed = x if last else H
        Z = self.attention_norm(
            changed + self.drop(self._attend(changed, H, edges, None if mask is None else kept_nodes))
        )
        nodes = None if mask is None else kept_nodes[:, : Z.shape[1]]
        Z = self.feed_forward_norm(Z + self.drop(self.feed_forward(Z, nodes)))
        return Z[:, :n], None if last else Z[:, n:]

    def _attend(self, changed: Tensor, H: Tensor, edges: Graph, kept_nodes: Tensor | None) -> Tensor:
        """GSA of the tokens, or of all nodes (B, M, d). `kept_nodes` (B, M) are those that cover a kept token."""
        n, heads, dropout = edges.levels[0], self.size.heads, self.dropout if self.training else 0.0
        pairs = ((self.q, changed), (self.k, H), (self.v, H))
        q, k, v = (project(x).unflatten(2, (heads, -1)).transpose(1, 2) for project, x in pairs)
        with full_precision(q):
            q, k, v = exact(q) * q.shape[-1] ** -0.5, exact(k), exact(v)  # (B, H, M, D)
            used = (2 * self.places + 1) * min(self.clip + 1, len(edges.levels))
            out = _tokens(q[:, :, :n], k, v, exact(self.labels[:used]), edges, kept_nodes, dropout)
            if changed is H:
                out = torch.cat([out, _spans(q, k[:, :, :n], v[:, :, :n], edges, kept_nodes, dropout)], 2)
            if kept_nodes is not None:
                sees_any = (
                    kept_nodes[:, :n].cumsum(1) > 0
                    if self.size.causal
                    else kept_nodes[:, :n].any(1, keepdim=True).expand(-1, n)
                )
                # The nodes a token sees cover the sequence, or its past where attention is causal.
                sees_any = torch.cat([sees_any, kept_nodes[:, n:]], 1)[:, : out.shape[2]]
                out = out.masked_fill(~sees_any[:, None, :, None], 0.0)
        return self.output(out.to(H.dtype).transpose(1, 2).flatten(2))


def _means(x: Tensor, mask: Tensor | None, levels: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The mean of the kept tokens that each span covers, as x is 0 at others; and whether each node covers any."""
    total = exact(x)
    count = torch.ones_like(x[..., 0], dtype=torch.int32) if mask is None else mask.to(torch.int32)
    means, counts = [x[:, :0]], [count]
    for size in levels[1:]:
        odd = total.shape[1] % 2
        total = F.pad(total, (0, 0, 0, odd)).unflatten(1, (size, 2)).sum(2)
        count = F.pad(count, (0, odd)).unflatten(1, (size, 2)).sum(2)
        means.append((total / count.clamp(min=1)[..., None]).to(x.dtype))
        counts.append(count)
    return torch.cat(means, 1), torch.cat(counts, 1) > 0


def _tiles(x: Tensor, tile: int, value: float = 0.0) -> Tensor:
    """Split (B, H, N, D) into tiles (B, H, tiles, T, D), padded with a value."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % tile), value=value).unflatten(2, (-1, tile))


def _gather(x: Tensor, nodes: Tensor) -> Tensor:
    """Gather the nodes (tiles, W) of every tile from (B, H, M, D): (B, H, tiles, W, D)."""
    batch, heads, count = x.shape[:3]
    offsets = torch.arange(batch * heads, device=x.device).view(batch, heads, 1, 1) * count
    # Rows indexed in one dimension: other look-ups take twice as long, forward or backward.
    rows = x.reshape(-1, x.shape[3]).index_select(0, (nodes + offsets).flatten())
    return rows.view(batch, heads, *nodes.shape, x.shape[3])


def _tokens(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, edges: Graph, kept_nodes: Tensor | None, dropout: float
) -> Float[Tensor, "B H N D"]:
    """Attention of tokens to the nodes they see."""
    q, unseen = _tiles(q, edges.tile), edges.labels < 0
    scores = q @ _gather(k, edges.seen).mT  # (B, H, tiles, T, W)
    labels = edges.labels.clamp(min=0).long().expand(scores.shape)
    scores = scores.add_((q @ a.mT).gather(-1, labels)).masked_fill_(unseen, HIDDEN)
    if kept_nodes is not None:
        scores = scores.masked_fill_(~kept_nodes[:, edges.seen][:, None, :, None], HIDDEN)
    weights = F.dropout(scores.softmax(-1), dropout)
    return (weights @ _gather(v, edges.seen)).flatten(2, 3)[:, :, : edges.levels[0]]


def _spans(
    q: Tensor, k: Tensor, v: Tensor, edges: Graph, kept_nodes: Tensor | None, dropout: float
) -> Float[Tensor, "B H S D"]:
    """Attention of spans to the tokens they cover: tile by tile, then the parts of spans over several tiles are joined.

    With z the log-sum-exp of the scores of a part, parts are weighted by softmax(z).
    """
    n, tile = edges.levels[0], edges.tile
    k, v = _tiles(k, tile), _tiles(v, tile)
    scores = _gather(q, edges.spans) @ k.mT  # (B, H, tiles, R, T)
    real = torch.arange(k.shape[2] * tile, device=q.device).view(-1, tile) < n
    if kept_nodes is not None:
        real = real & F.pad(kept_nodes[:, :n], (0, -n % tile)).unflatten(1, (-1, tile))[:, None]
    scores = scores.masked_fill_(~(real[..., None, :] & edges.covers), HIDDEN)
    parts = F.dropout(scores.softmax(-1), dropout) @ v  # (B, H, tiles, R, D)
    inside = tile - 1  # rows of spans within a tile
    z = scores[..., inside:, :].logsumexp(-1, keepdim=True)
    low = parts[..., :inside, :].split([tile >> level for level in range(1, edges.low + 1)], 3)
    high = zip(parts[..., inside:, :].unbind(3), z.unbind(3), strict=True)
    by_level = [part.flatten(2, 3) for part in low]
    by_level += [_joined(part, of_part, 2**up) for up, (part, of_part) in enumerate(high, 1)]
    spans = [part[:, :, :size] for part, size in zip(by_level, edges.levels[1:], strict=True)]
    return torch.cat([q[:, :, :0], *spans], 2)  # a single token has no spans


def _joined(parts: Tensor, z: Tensor, tiles: int) -> Tensor:
    """Join parts (B, H, tiles, D) of spans over `tiles` tiles each, with z (B, H, tiles, 1): (B, H, nodes, D)."""
    parts, z = (_tiles(x, tiles, value) for x, value in ((parts, 0.0), (z, HIDDEN)))
    return (z.softmax(3).mT @ parts).squeeze(3)
