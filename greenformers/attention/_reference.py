"""Building blocks of the formulas of this folder: dense, plain and slow. No fast form uses them.

Every mechanism's file begins with `reference(mechanism, q, k, v, key_mask=None)`, the formula of its paper. Tests
compare the fast form below it with this formula, outputs and gradients.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._contract import Attention

Formula = Callable[[Any, int, int, int, int], bool]
"""(mechanism, i, j, head, length) -> whether position i sees position j, before the causal mask."""

Visible = Callable[[int, int], Bool[Tensor, "... H N M"]]
"""(N, M) -> which keys each query sees, the queries being the last N of M positions."""


def dot_products(q: Float[Tensor, "... N D"], k: Float[Tensor, "... M D"]) -> Float[Tensor, "... N M"]:
    """Scores q k^T / sqrt(D)."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def seen_keys(
    mechanism: Attention, q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"], key_mask: Tensor | None
) -> Bool[Tensor, "b 1 N M"]:
    """Whether query i may see key j: it is kept, and where causal no later than i, queries being the last N of M."""
    queries, keys = q.shape[2], k.shape[2]
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q.device)
    if mechanism.shape.causal:
        seen = seen.tril(keys - queries)
    return seen if key_mask is None else seen & key_mask[:, None, None]


def weighted_mean(
    weights: Float[Tensor, "... N M"], v: Float[Tensor, "... M D"], seen: Bool[Tensor, "... N M"]
) -> Float[Tensor, "... N D"]:
    """sum_j w_ij v_j / sum_j w_ij over the keys j that query i sees; 0 where it sees none."""
    weights = torch.where(seen, weights, 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights @ v / torch.where(total > 0, total, 1.0)


def pairs(formula: Formula, mechanism: Attention, queries: int, keys: int) -> Bool[Tensor, "H N M"]:
    """For which pairs the formula of a pattern holds, the queries being the last N of M positions."""
    length = range(keys)
    rows = length[keys - queries :]
    heads = range(mechanism.shape.heads)
    return torch.tensor([[[formula(mechanism, i, j, head, keys) for j in length] for i in rows] for head in heads])


class Reference(Protocol):
    """Signature of the functions that `text_by_text` returns."""

    def __call__(
        self,
        mechanism: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """The outputs (B, H, N, D). Tensors in `others` belong to the queries, (B, N) or (B, H, N, D)."""


def text_by_text(formula: Callable[..., Tensor]) -> Reference:
    """A reference that applies a formula to each text alone, from its first kept position to its last.

    Other positions are padding, and get 0: `formula` never sees them. It gets the masks within the text.
    """
    reads_query_mask = "query_mask" in inspect.signature(formula).parameters

    def reference(
        mechanism: Any,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        query_mask: Bool[Tensor, "B N"] | None = None,
        **others: Any,
    ) -> Float[Tensor, "B H N D"]:
        outputs = []
        for b in range(len(q)):
            own_key_mask, own_query_mask = (None if x is None else x[b] for x in (key_mask, query_mask))
            queries, keys = _text(mechanism, q.shape[2], k.shape[2], own_key_mask, own_query_mask)
            out = 0.0 * q[b]  # an example without text has gradients too
            if range(q.shape[2])[queries] and range(k.shape[2])[keys]:
                tensors = [q[b, :, queries], k[b, :, keys], v[b, :, keys]]
                given = {
                    name: x[b : b + 1, ..., queries, :] if x.dim() == 4 else x[b : b + 1, queries]
                    for name, x in others.items()
                    if isinstance(x, Tensor)
                }
                if own_key_mask is not None:
                    given["key_mask"] = own_key_mask[None, keys]
                if reads_query_mask and own_query_mask is not None:
                    given["query_mask"] = own_query_mask[None, queries]
                alone = formula(mechanism, *(x[None] for x in tensors), **{**others, **given})[0]
                out = torch.cat([out[:, : queries.start], alone, out[:, queries.stop :]], 1)
            outputs.append(out)
        return torch.stack(outputs)

    return reference


def _text(
    mechanism: Attention, queries: int, keys: int, key_mask: Tensor | None, query_mask: Tensor | None
) -> tuple[slice, slice]:
    """The ranges of queries and keys from the first kept one to the last; without keys there are no queries."""
    if not mechanism.shape.causal and (mechanism.shape.cross or queries != keys):
        return _kept(query_mask, queries), _kept(key_mask, keys)
    if key_mask is not None and query_mask is not None and queries == keys:
        key_mask = key_mask | query_mask
    of_keys, past = _kept(key_mask, keys), keys - queries
    if past and of_keys.stop:  # the queries are the last positions, up to the end
        of_keys = slice(of_keys.start, keys)
    return slice(max(0, of_keys.start - past), max(0, of_keys.stop - past)), of_keys


def _kept(mask: Tensor | None, length: int) -> slice:
    if mask is None:
        return slice(0, length)
    places = mask.nonzero().flatten().tolist()
    return slice(places[0], places[-1] + 1) if places else slice(0, 0)


def over_pairs(formula: Formula) -> Reference:
    """The reference of a pattern: softmax(q k^T / sqrt(D)) v over the pairs for which its formula holds.

    It takes another argument, `visible`, a function from N and M to (H, N, M) that replaces the formula.
    """

    def reference(
        mechanism: Any,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        visible: Visible | None = None,
    ) -> Float[Tensor, "B H N D"]:
        seen = pairs_or(visible, formula, mechanism, q.shape[2], k.shape[2]).to(q.device)
        return weighted_mean(dot_products(q, k).exp(), v, seen & seen_keys(mechanism, q, k, key_mask))

    return text_by_text(reference)


def pairs_or(
    visible: Visible | None, formula: Formula, mechanism: Attention, queries: int, keys: int
) -> Bool[Tensor, "... H N M"]:
    """The pairs of `visible` where it is given, else those of the formula."""
    return pairs(formula, mechanism, queries, keys) if visible is None else visible(queries, keys)
