"""Attention of single queries to the keys of one cluster each, in tiles of queries of the same cluster."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers.attention._aligned import is_traced

TILE = 32
"""Queries of a cluster that attend at once."""


def of_one_cluster(
    q: Float[Tensor, "B H N D"],
    keys: Float[Tensor, "C w D"],
    values: Float[Tensor, "C w D"],
    chosen: Bool[Tensor, " R"],
    cluster: Int[Tensor, " R"],
    there: Bool[Tensor, "C w"] | None,
    dropout: float,
) -> Float[Tensor, "R D"]:
    """Outputs of the chosen queries by row, R = B H N, each of the keys of its cluster; of the others 0.

    Args:
        q: Queries.
        keys: Keys of each cluster, of the C = B H c of all sequences.
        values: Values of each cluster.
        chosen: Which queries attend.
        cluster: Cluster of each query.
        there: Which of these keys are seen; None: all.
        dropout: Probability of dropping a weight.
    """
    R, D, clusters, device = len(chosen), q.shape[3], len(keys), q.device
    if is_traced(q):  # the number of tiles must not depend on values
        rows, cluster, tiles = torch.arange(R, device=device), cluster.masked_fill(~chosen, clusters), None
    else:
        rows = chosen.nonzero()[:, 0]
        cluster, tiles = cluster[rows], 0
    if not len(rows):
        return values.new_zeros(R, D)
    cluster, order = cluster.sort(stable=True)
    rows, place = rows[order], torch.arange(len(order), device=device)
    first = F.pad(cluster[1:] != cluster[:-1], (1, 0), value=True)
    rank = place - place.masked_fill(~first, 0).cummax(0).values
    tile = (rank % TILE == 0).long().cumsum(0) - 1
    tiles = clusters + 1 + R // TILE if tiles is None else int(tile[-1]) + 1
    slots = torch.full((tiles * TILE,), R, dtype=torch.long, device=device)
    slots = slots.scatter(0, tile * TILE + rank % TILE, rows)
    of = torch.zeros(tiles, dtype=torch.long, device=device).scatter(0, tile, cluster.clamp(max=clusters - 1))
    mask = none = None
    # Four dimensions, for torch's fast kernel.
    queries = q.reshape(R, D).index_select(0, slots.clamp(max=R - 1)).view(1, tiles, TILE, D)
    keys, values = (x.index_select(0, of)[None] for x in (keys, values))
    if there is not None:
        mask = there[of][None, :, None]
        none = ~mask.any(-1, keepdim=True)
        mask = mask | none
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
    if none is not None:
        mixed = mixed.masked_fill(none, 0.0)
    # Slots without a query, and in a traced call those that were not chosen, go to a row that is dropped.
    slots = slots.masked_fill((slots == R) | ~F.pad(chosen, (0, 1))[slots], R)
    # Under autocast `mixed` may be narrower than q.
    return mixed.new_zeros(R + 1, D).index_copy(0, slots, mixed.reshape(-1, D))[:R]
