"""Texts among padding: where each begins and how long it is, and moving it so that positions count from its first one.

A text is what stands from the first kept position to the last; what is masked between them is a position all the same.
No output of a text may depend on how much padding there is before and behind it.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers._torch import in_transform, is_fake


def is_traced(x: Tensor) -> bool:
    """Whether nobody can look at what a tensor holds: it is compiled, exported, counted or transformed."""
    return torch.compiler.is_compiling() or in_transform() or is_fake(x) or x.is_meta


def text_of(key_mask: Tensor | None, query_mask: Tensor | None, *, cross: bool = False) -> Bool[Tensor, "B M"] | None:
    """What is kept of the keys; where queries are the same positions, also what is kept of these. None: all."""
    if cross or key_mask is None or query_mask is None or key_mask.shape != query_mask.shape:
        return key_mask
    return key_mask | query_mask


def first_of(text: Bool[Tensor, "B M"]) -> Int[Tensor, " B"]:
    """The first kept position of each example; 0 where none is kept."""
    return text.int().argmax(1)


def length_of(text: Bool[Tensor, "B M"]) -> Int[Tensor, " B"]:
    """How many positions there are from the first kept one to the last; M where none is kept."""
    return text.shape[1] - first_of(text) - first_of(text.flip(1))


def left_padding(text: Bool[Tensor, "B M"] | None, period: int = 0) -> Int[Tensor, " B"] | None:
    """How far each example is to be moved to the front; None where no example is, so far as can be known.

    Args:
        text: True = kept.
        period: a move by so many positions changes nothing, and is left out. 0: there is no such number.
    """
    if text is None or (not is_traced(text) and bool(text[:, 0].all())):
        return None
    return first_of(text) % period if period else first_of(text)


def taken(x: Tensor, at: Int[Tensor, "B n"]) -> Tensor:
    """Of each example of (B, H, N, D), or of a mask (B, N), the positions `at`."""
    if x.dim() == 2:
        return x.gather(1, at)
    batch, heads, length, dim = x.shape
    rows = at + length * torch.arange(batch, device=x.device)[:, None]
    # Rows in one dimension: other look-ups take several times as long, one way or the other.
    found = x.transpose(1, 2).reshape(batch * length, heads * dim).index_select(0, rows.flatten())
    return found.view(batch, -1, heads, dim).transpose(1, 2)


def moved(x: Tensor, shift: Int[Tensor, " B"]) -> Tensor:
    """Each example of (B, H, N, D), or of a mask (B, N), so many places to the front, what was there behind the end."""
    length = x.shape[-2] if x.dim() > 2 else x.shape[1]
    return taken(x, (torch.arange(length, device=x.device) + shift[:, None]) % length)


def moved_back(out: Float[Tensor, "B H N D"], shift: Int[Tensor, " B"]) -> Float[Tensor, "B H N D"]:
    """Outputs of texts that were `moved`, at their places; 0 for the padding, whose queries stood behind the end."""
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
    """The same with 0 in place of what is masked, where that may be no number: a weight of 0 times NaN would be NaN.

    Fewer queries than keys are on top of a cache or of another network's output, which hold numbers, and which nobody
    wants to read twice.
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
    """Queries as `finite` gives them, for who takes care of the keys."""
    if query_mask is None and not cross and key_mask is not None and key_mask.shape[1] == q.shape[2]:
        query_mask = key_mask
    return zeroed(q, query_mask)


def zeroed(x: Float[Tensor, "B H N D"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B H N D"]:
    """`x` with 0 in place of what is masked; on a CPU only where some number of it is not finite.

    Not where it is traced: a network whose inputs are numbers makes numbers of padding too.
    """
    # Reading is a tenth of the time that copying takes. On a GPU it is the other way round: all would wait.
    if mask is None or is_traced(x) or (x.device.type == "cpu" and bool(x.detach().sum().isfinite())):
        return x
    return torch.where(mask[:, None, :, None], x, 0.0)
