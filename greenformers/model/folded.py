"""Low-rank attention to few projected keys, in inference: the factors next to it are folded into keys and values.

With codes c of a query and c_j of a key, D_qh, D_kh and D_vh the parts of the last factors that belong to head h, and
E_oh that of the first factor of the output (biases left out),

    scores_h,j = (c D_qh) (c_j D_kh)^T / sqrt(D) = c A_hj,         A_hj = D_qh D_kh^T c_j^T / sqrt(D)
    output     = (sum_h sum_j p_hj c_j D_vh E_oh) D_o = (p B) D_o, B_hj = c_j D_vh E_oh

so that queries, keys and values are never decoded and outputs never joined: two products of width H K a position, with
a softmax of each head between, as a feed-forward block. The keys are the K projected ones of Linformer (Wang 2020,
arXiv:2006.04768). Multiply-adds a query: H K (r_q + r_o), in place of H K 2 D + d (r_q + r_o); a key:
H r_k r_q + H r_v r_o, in place of d (r_k + r_v).
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention import Role
from greenformers.lowrank.linear import LED, LinearLayer, decode, is_plain
from greenformers.model.projected import Projected

WIDEST = 4096
"""The most scores of a position at once, of all heads: with those of a slice of positions they stay in a cache."""


class Folded(NamedTuple):
    """What the positions of one text attend.

    Attributes:
        heads: Number H of heads.
        A: Folded keys (H K, r_q).
        b: What the bias of queries adds to scores (H K); None without one.
        B: Folded values (r_o, H K).
    """

    heads: int
    A: Float[Tensor, "HK q"]
    b: Float[Tensor, " HK"] | None
    B: Float[Tensor, "o HK"]

    def __call__(self, code: Float[Tensor, "S q"]) -> Float[Tensor, "S o"]:
        """Codes of the output, from codes of queries."""
        scores = F.linear(code, self.A, self.b)
        weights = scores.view(len(scores), self.heads, -1).softmax(-1)
        return F.linear(weights.view_as(scores), self.B)


def folds(block: Projected, positions: int) -> bool:
    """Whether attention can be folded, and is cheaper so, for texts of so many positions."""
    keys = block.mechanism.folded_keys
    H, D = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    if keys is None or H * keys > WIDEST or block.normalised is not None:
        return False
    query, output = block.projections["q"], block.output
    if not (isinstance(query, LED) and isinstance(output, LED) and is_plain(query) and is_plain(output)):
        return False  # what is no LED has no code, and hooks see what passes through modules
    saved = H * keys * (2 * D - query.rank - output.rank) + H * D * (query.rank + output.rank)
    return positions * saved > _added(block, "k", query.rank, keys) + _added(block, "v", output.rank, keys)


def folded(block: Projected, x: Float[Tensor, "B M d"], key_mask: Bool[Tensor, "B M"] | None) -> list[Folded]:
    """What each text of a batch attends, with keys and values of these inputs."""
    query, output = cast(LED, block.projections["q"]), cast(LED, block.output)
    H, D = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    by_head = query.decoder.weight.view(H, D, -1)
    if query.bias is not None:
        by_head = torch.cat([by_head, query.bias.view(H, D, 1)], 2)
    codes = block.codes(x, "k", "v")
    A = _times(block, "k", codes["k"], key_mask, by_head * D**-0.5)  # (B, H, K, r_q + 1)
    B = _times(block, "v", codes["v"], key_mask, output.encoder.weight.view(-1, H, D).permute(1, 2, 0))
    b = None if query.bias is None else A[..., -1]
    A = A[..., : query.rank].flatten(1, 2)
    return [
        Folded(H, A[row], None if b is None else b[row].flatten(), B[row].flatten(0, 1).mT) for row in range(len(x))
    ]


def query_code(block: Projected, x: Tensor) -> Tensor:
    """Codes of queries."""
    return F.linear(x, cast(LED, block.projections["q"]).encoder.weight)


def output_of(block: Projected, code: Tensor) -> Tensor:
    """The output of attention, from its code."""
    return decode(cast(LED, block.output), code)


def _times(
    block: Projected, role: Role, code: Float[Tensor, "B M r"], key_mask: Tensor | None, y: Float[Tensor, "H D s"]
) -> Float[Tensor, "B H K s"]:
    """Keys or values of each head, times a matrix of that head."""
    layer, ones = cast(LinearLayer, block.projections[role]), code.new_ones(*code.shape[:2], 1)
    code, weight_sum = (block.mechanism.reduce(part, key_mask, role=role) for part in (code, ones))
    if not _skips(block, layer, y.shape[2]):
        return block.for_every_head(block.split_heads(decode(layer, code, weight_sum))) @ y
    led = cast(LED, layer)
    matrix = _of_heads(block, led.decoder.weight).mT @ y  # (H, r, s)
    # One product for all heads: of heads by themselves the codes would be copied.
    product = (code @ matrix.transpose(0, 1).flatten(1)).unflatten(2, (len(y), -1)).transpose(1, 2)
    if led.bias is None:
        return product
    of_bias = _of_heads(block, led.bias[:, None]).mT @ y  # (H, 1, s)
    return product + weight_sum[:, None] * of_bias


def _of_heads(block: Projected, x: Tensor) -> Tensor:
    """Rows (h D, r) of the heads of keys or values as those of the heads of queries (H, D, r)."""
    return block.for_every_head(x.view(1, -1, block.head_dim, x.shape[1]))[0]


def _skips(block: Projected, layer: LinearLayer, width: int) -> bool:
    """Whether a key is not decoded: its code meets the product of both factors, which is made once for all keys."""
    H, D = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    if not (isinstance(layer, LED) and is_plain(layer)):
        return False
    return H * layer.rank * width < block.key_heads * D * layer.rank + H * D * width


def _added(block: Projected, role: Role, width: int, keys: int) -> int:
    """Multiply-adds that folding takes more for the keys or values of a text."""
    layer = cast(LinearLayer, block.projections[role])
    H, D = block.mechanism.shape.heads, block.mechanism.shape.head_dim
    if not _skips(block, layer, width):
        return keys * H * D * width
    rank = cast(LED, layer).rank
    return keys * (H * rank * width - block.key_heads * D * rank) + H * D * rank * width
