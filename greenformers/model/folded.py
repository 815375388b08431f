"""Low-rank attention to a few projected keys, in inference: the factors next to it are folded into keys and values.

With the code c = x E_q of a query, keys k and values v (K x D) of head h, and the encoder E_o of the output,

    scores_h = (c D_qh + b_qh) k_h^T / sqrt(D) = c A_h + b_h,     A_h = D_qh k_h^T / sqrt(D),  b_h = k_h b_qh / sqrt(D)
    output   = (sum_h softmax(scores_h) v_h E_oh) D_o + b_o       = (softmax([scores_1 ... scores_H]) B) D_o + b_o

so that queries are never decoded and outputs never joined: two products of width H K a position, with a softmax of each
head between, as a feed-forward block. Linformer (Wang 2020, arXiv:2006.04768) has such keys, and A and B cost
2 H K D r once a text. Multiply-adds a position: H K (r_q + r_o), in place of H K 2 D + d (r_q + r_o).
"""

from typing import NamedTuple, cast, get_args

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._torch import is_watched
from greenformers.attention import Role
from greenformers.lowrank.linear import LED, decode
from greenformers.model.projected import Projected


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
    mechanism, keys = block.mechanism, block.mechanism.folded_keys
    if keys is None or not block.can_reduce:
        return False
    query, output = block.projections["q"], block.output
    if not (isinstance(query, LED) and isinstance(output, LED)):
        return False
    if any(is_watched(layer) or not layer.plain for layer in (query, output)):  # hooks see what passes through modules
        return False
    H, D = mechanism.shape.heads, mechanism.shape.head_dim
    ranks = query.rank + output.rank
    return positions * (H * keys * (2 * D - ranks) + H * D * ranks) > H * keys * D * ranks


def folded(block: Projected, x: Float[Tensor, "B M d"], key_mask: Bool[Tensor, "B M"] | None) -> list[Folded]:
    """What each text of a batch attends, with keys and values of these inputs."""
    mechanism = block.mechanism
    codes = block.codes(x, *get_args(Role))
    k, v = (block.for_every_head(block.reduce(role, codes[role], key_mask)) for role in get_args(Role))
    query, output = cast(LED, block.projections["q"]), cast(LED, block.output)
    H, D = mechanism.shape.heads, mechanism.shape.head_dim
    k = k * D**-0.5
    A = (k @ query.decoder.weight.view(H, D, -1)).flatten(1, 2)  # (B, H K, r_q)
    b = None if query.bias is None else (k @ query.bias.view(H, D, 1)).flatten(1)
    # (r_o, H D) by heads (H, D, r_o): values times the part of the encoder that reads their head.
    B = (v @ output.encoder.weight.view(-1, H, D).permute(1, 2, 0)).flatten(1, 2).mT  # (B, r_o, H K)
    return [Folded(H, A[row], None if b is None else b[row], B[row]) for row in range(len(x))]


def query_code(block: Projected, x: Tensor) -> Tensor:
    """Codes of queries."""
    return F.linear(x, cast(LED, block.projections["q"]).encoder.weight)


def output_of(block: Projected, code: Tensor) -> Tensor:
    """The output of attention, from its code."""
    return decode(cast(LED, block.output), code)
