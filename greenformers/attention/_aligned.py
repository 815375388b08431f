"""Texts among padding: where each begins, how long it is, and moving it so that positions count from its first one.

A text goes from the first kept position to the last; masked positions between them count as positions too.
No output of a text may depend on how much padding there is before and behind it.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers._torch import in_transform, is_fake


def is_traced(x: Tensor) -> bool:
    """Whether the values of a tensor cannot be read: it is compiled, exported, counted or transformed."""
    return torch.compiler.is_compiling() or in_transform() or is_fake(x) or x.is_meta


def is_counted(x: Tensor) -> bool:
    """Whether a tensor has a shape alone so that work on it can be counted, and nothing is compiled or exported."""
    return is_fake(x) and not torch.compiler.is_compiling() and not in_transform()


def is_compiled() -> bool:
    """Whether torch.compile traces the code: its graphs hold operators of our own, which exported programs may not."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and not in_transform()


def in_one_piece(x: Tensor) -> bool:
    """Whether work on a tensor may not be divided into tiles: it is exported, transformed or on the meta device.

    Where it is only counted, tiles are counted one by one; where it is compiled, all of them are an operator of our
    own.
    """
    return is_traced(x) and not is_counted(x) and not is_compiled()


def in_parts(x: Tensor) -> bool:
    """Whether work on a tensor is done part by part, so that a cache holds each: on a CPU, where nothing is traced."""
    return x.device.type == "cpu" and (not is_traced(x) or is_counted(x))


def text_of(key_mask: Tensor | None, query_mask: Tensor | None, *, cross: bool = False) -> Bool[Tensor, "B M"] | None:
    """Mask of the positions kept as keys or, where queries are the same positions, as queries. None: all are kept."""
    if cross or key_mask is None or query_mask is None or key_mask.shape != query_mask.shape:
        return key_mask
    return key_mask | query_mask


def first_of(text: Bool[Tensor, "B M"]) -> Int[Tensor, " B"]:
    """Index of the first kept position of each example; 0 where none is kept."""
    return text.int().argmax(1)


def length_of(text: Bool[Tensor, "B M"]) -> Int[Tensor, " B"]:
    """Number of positions from the first kept one to the last; M where none is kept."""
    return text.shape[1] - first_of(text) - first_of(text.flip(1))


def left_padding(text: Bool[Tensor, "B M"] | None, period: int = 0) -> Int[Tensor, " B"] | None:
    """Number of positions by which each example is to be moved to the front; None where all are known to be 0.

    Args:
        text: True = keep (B, M).
        period: Period of the pattern in positions: moves are taken modulo it. 0: the pattern has no period.
    """
    if text is None or (not is_traced(text) and bool(text[:, 0].all())):
        return None
    return first_of(text) % period if period else first_of(text)


def taken(x: Tensor, at: Int[Tensor, "B n"]) -> Tensor:
    """Gather the positions `at` of each example of (B, H, N, D), or of a mask (B, N)."""
    if x.dim() == 2:
        return x.gather(1, at)
    batch, heads, length, dim = x.shape
    rows = at + length * torch.arange(batch, device=x.device)[:, None]
    # Rows indexed in one dimension: other look-ups take several times as long, forward or backward.
    gathered = x.transpose(1, 2).reshape(batch * length, heads * dim).index_select(0, rows.flatten())
    return gathered.view(batch, -1, heads, dim).transpose(1, 2)


def moved(x: Tensor, shift: Int[Tensor, " B"]) -> Tensor:
    """Roll each example of (B, H, N, D), or of a mask (B, N), to the front by its shift."""
    length = x.shape[-2] if x.dim() > 2 else x.shape[1]
    return taken(x, (torch.arange(length, device=x.device) + shift[:, None]) % length)


def moved_back(out: Float[Tensor, "B H N D"], shift: Int[Tensor, " B"]) -> Float[Tensor, "B H N D"]:
    """Outputs of texts that were `moved`, back at their positions; 0 for the padding that was rolled behind the end."""
    before = torch.arange(out.shape[2], device=out.device) < shift[:, None]
    return moved(out, -shift).masked_fill(before[:, None, :, None], 0.0)


def finite(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None,
    query_mask: Bool[Tensor, "B N"] | None,
    *,
    cross: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs with 0 at masked positions, which may hold NaN: a weight of 0 times NaN would be NaN.

    With fewer queries than keys, the keys come from a cache or another network's output: they are finite, and are not
    read a second time.
    """
    if q.shape[2] < k.shape[2]:
        return q, k, v
    return finite_queries(q, key_mask, query_mask, cross=cross), zeroed(k, key_mask), zeroed(v, key_mask)


def finite_queries(
    q: Float[Tensor, "B H N D"],
    key_mask: Bool[Tensor, "B M"] | None,
    query_mask: Bool[Tensor, "B N"] | None,
    *,
    cross: bool = False,
) -> Float[Tensor, "B H N D"]:
    """Queries as `finite` returns them, for callers that handle keys and values themselves."""
    if query_mask is None and not cross and key_mask is not None and key_mask.shape[1] == q.shape[2]:
        query_mask = key_mask
    return zeroed(q, query_mask)


def zeroed(x: Float[Tensor, "B H N D"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B H N D"]:
    """`x` with 0 at masked positions; on a CPU only where some entry of it is not finite.

    A traced `x` is returned as it is: with finite inputs, a network computes finite values at padding too.
    """
    # Reading takes a tenth of the time of copying. On a GPU reading the result would make the host wait.
    if mask is None or is_traced(x) or (x.device.type == "cpu" and bool(x.detach().sum().isfinite())):
        return x
    return torch.where(mask[:, None, :, None], x, 0.0)
