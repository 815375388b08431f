"""Engine of softmax attention under masks: torch's scaled_dot_product_attention, and the cases it does not handle."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from greenformers._torch import in_transform


def of_groups(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B h M D"],
    v: Float[Tensor, "B h M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(q k^T / sqrt(D)) v for few queries, where each of the h heads of keys is that of H / h heads of queries.

    Queries of such heads are queries of one, so that keys and values are not copied.
    """
    of_one = q.reshape(len(q), k.shape[1], -1, q.shape[3])
    if key_mask is None:
        return F.scaled_dot_product_attention(of_one, k, v).reshape(q.shape)
    seen = key_mask.any(1, keepdim=True)  # without any the output is 0, and the softmax must not be one of nothing
    out = F.scaled_dot_product_attention(of_one, k, v, attn_mask=(key_mask | ~seen)[:, None, None]).reshape(q.shape)
    return out.masked_fill(~seen[..., None, None], 0.0)


def dense_attention(
    q: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M E"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    *,
    causal: bool = False,
    visible: Bool[Tensor, "b h N M"] | None = None,
    bias: Float[Tensor, "b H N M"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H N D"]:
    """softmax(scale q k^T + bias) v over the keys a query may see, 0 for a query that sees none.

    Memory O(N), but O(N M) for a mask where `causal` meets a key mask or M > N, for `visible` and for a bias.

    Args:
        q: Queries (B, H, N, E).
        k: Keys (B, H, M, E).
        v: Values (B, H, M, D).
        key_mask: True = keep (B, M).
        causal: Whether queries, at the last N of M positions, see no later position.
        visible: Which of these keys each query sees (b, h, N, M).
        bias: Bias of the scores (b, H, N, M); the same for all examples where b = 1.
        scale: Factor of the products; by default E^-1/2.
        dropout: Probability of dropping an attention weight.
    """
    queries, keys, dim = q.shape[2], k.shape[2], v.shape[3]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if q.shape[3] != dim:  # torch's fast kernel has one width, and is slower at odd ones
        width = max(q.shape[3], dim) + 7 & ~7
        q, k, v = (F.pad(x, (0, width - x.shape[3])) for x in (q, k, v))
    # The sizes last: in an exported program they are unknown, and asked only where the rest allows the kernel.
    by_kernel = causal and key_mask is None and visible is None and bias is None and bool(queries == keys)
    if not by_kernel:
        of_masks = visible_keys(queries, keys, key_mask, causal=causal, device=q.device)
        visible = of_masks if visible is None else visible if of_masks is None else visible & of_masks
    seen = None
    if visible is not None:
        # A row without visible keys would be 0/0: let it see all, then set it to 0.
        seen = visible.any(-1, keepdim=True)
        visible = visible | ~seen
    mask = visible if bias is None else bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    with kernels(mask):
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=by_kernel, scale=scale
        )
    out = out[..., :dim]
    return out if seen is None else out.masked_fill(~seen, 0.0)


def kernels(mask: Tensor | None) -> AbstractContextManager[object]:
    """A `with` block in which torch's attention has a gradient for its mask, in function transforms too.

    By default function transforms choose a kernel that has none.
    """
    if mask is None or not mask.is_floating_point() or not in_transform():
        return nullcontext()
    return sdpa_kernel(SDPBackend.MATH)


def attention_weights(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    *,
    causal: bool = False,
    bias: Float[Tensor, "b H N M"] | None = None,
) -> Float[Tensor, "B H N M"]:
    """softmax(q k^T / sqrt(D) + bias) over the keys a query may see, 0 for one that sees none. Memory O(N M)."""
    scores = q * q.shape[3] ** -0.5 @ k.mT  # in this order: products of halves may be too large before
    scores = scores if bias is None else scores + bias
    visible = visible_keys(q.shape[2], k.shape[2], key_mask, causal=causal, device=q.device)
    if visible is None:
        return scores.softmax(-1)
    seen = visible.any(-1, keepdim=True)
    return scores.masked_fill(~visible & seen, -torch.inf).softmax(-1).masked_fill(~seen, 0.0)


def visible_keys(
    queries: int, keys: int, key_mask: Bool[Tensor, "B M"] | None, *, causal: bool, device: torch.device
) -> Bool[Tensor, "b 1 n M"] | None:
    """Which keys each query sees, the queries being the last of the keys' positions where `causal`; None: all."""
    if causal and queries > 1:  # a single one is the last position
        lower = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        return lower[None, None] if key_mask is None else lower & key_mask[:, None, None, :]
    return None if key_mask is None else key_mask[:, None, None, :]
