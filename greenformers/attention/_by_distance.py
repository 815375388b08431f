"""Attention whose scores have a part by distance, computed in tiles (`_relative_tiles.py`): with its gradient, and as
an operator in what torch.compile makes.
"""  # noqa: D205

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers.attention._aligned import is_compiled
from greenformers.attention._base2 import LN2
from greenformers.attention._contract import exact, full_precision
from greenformers.attention._dropout import new_seed
from greenformers.attention._relative_tiles import HIDDEN, How, backward, forward


def by_distance(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None,
    *,
    vectors: Float[Tensor, "h t D"] | None,
    bias: Float[Tensor, "H t"] | None,
    causal: bool,
    dropout: float = 0.0,
    window: int | Tensor | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(D^-1/2 q_i (k_j + vectors_r) + bias_r) v, r = N - 1 - i + j for query i of the last N of M positions.

    The bias is one more column of the vectors. Outputs of queries without keys mean nothing, and are finite.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        key_mask: True = keep.
        vectors: Vectors of distances, in falling order, of each head or for all.
        bias: Biases of distances, in falling order; finite.
        causal: Whether a query sees no later key.
        dropout: Probability of dropping a weight.
        window: Distance of the farthest key that a query reads, see `tiled`; None: it reads all.
    """
    with full_precision(q):
        given, H = exact(q) * (q.shape[3] ** -0.5 / LN2), q.shape[1]
        columns = [] if vectors is None else [(given, vectors.to(given.dtype).expand(H, -1, -1))]
        columns += [] if bias is None else [(torch.full_like(given[..., :1], 1 / LN2), bias.to(given.dtype)[..., None])]
        short = -sum(F.shape[2] for _, F in columns) % 8  # other widths are slow
        qv, F = (torch.nn.functional.pad(torch.cat(parts, -1), (0, short)) for parts in zip(*columns, strict=True))
        of_keys = None
        if key_mask is not None:
            of_keys = torch.zeros_like(key_mask, dtype=given.dtype).masked_fill_(~key_mask, HIDDEN)
        out = tiled(given, qv, exact(k), exact(v), F, of_keys, causal=causal, dropout=dropout, window=window)
    return out.to(v.dtype)


def without_keys(key_mask: Bool[Tensor, "B M"], queries: int, *, causal: bool) -> Bool[Tensor, "B 1 n 1"]:
    """Whether a query, of the last positions, sees no key of a mask; n is 1 where all see the same."""
    seen = key_mask.cumsum(1)[:, key_mask.shape[1] - queries :] if causal else key_mask.sum(1, keepdim=True)
    return (seen == 0)[:, None, :, None]


def tiled(
    qu: Float[Tensor, "B H N D"],
    qv: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    F: Float[Tensor, "H t E"],
    bias: Float[Tensor, "B M"] | None,
    *,
    causal: bool,
    dropout: float = 0.0,
    window: int | Tensor | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax2(qu k + qv F_{i-j} + bias) v, with queries scaled for the base 2; the others are as `How` says.

    Compiled, it is one operator: traced, a long sequence would be thousands. A window that depends on values is then a
    tensor, which is read as the operator runs.
    """
    out: Tensor
    if is_compiled():
        seed = torch.randint(2**31, ()) if dropout else None
        reach = None if window is None else torch.as_tensor(window)
        out, _ = torch.ops.greenformers.by_distance(qu, qv, k, v, F, bias, seed, reach, causal, dropout)
    else:
        how = How(causal, dropout, new_seed(dropout), None if window is None else int(window))
        out = _Tiled.apply(qu, qv, k, v, F, bias, how)
    return out


def plain(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, how: How
) -> Float[Tensor, "B H N D"]:
    """The same in operations that torch differentiates, over all pairs."""
    N, M = qu.shape[2], k.shape[2]
    i, j = torch.arange(N, device=k.device)[:, None], torch.arange(M, device=k.device)
    at = (N - 1 - i + j).clamp(max=F.shape[1] - 1)
    far = (qv @ F.mT).gather(3, at.expand(*qv.shape[:3], M))
    scores = (qu @ k.mT + far) * LN2
    if bias is not None:
        scores = scores + bias[:, None, None] * LN2
    if how.causal:
        scores = scores.masked_fill(j > i + M - N, -1e30)
    return torch.nn.functional.dropout(scores.softmax(-1), how.dropout) @ v


def _again(ctx: Any, *given: Tensor) -> Tensor:
    if ctx.how.dropout:
        raise RuntimeError(f"relative attention has no second derivative with dropout: got {ctx.how.dropout}")
    qu, qv, k, v, F = given
    return plain(qu, qv, k, v, F, ctx.bias, ctx.how)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, how: How
    ) -> Tensor:
        out, lse = forward(qu, qv, k, v, F, bias, how)
        ctx.how, ctx.bias = how, bias
        ctx.save_for_backward(qu, qv, k, v, F, out, lse)
        return out

    @staticmethod
    @by_hand(5, lambda ctx, *given: _again(ctx, *given))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        qu, qv, k, v, F, out, lse = ctx.saved_tensors
        return *backward(qu, qv, k, v, F, ctx.bias, ctx.how, out, lse, dout), None, None


# An operator takes tensors and numbers only; what a graph does not know when it is made is a tensor.


def _how(seed: Tensor | None, window: Tensor | None, causal: bool, dropout: float) -> How:
    return How(causal, dropout, 0 if seed is None else int(seed), None if window is None else int(window))


@torch.library.custom_op("greenformers::by_distance", mutates_args=())
def _operator(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, seed: Tensor | None,
    window: Tensor | None, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with full_precision(qu):
        return forward(qu, qv, k, v, F, bias, _how(seed, window, causal, dropout))


@_operator.register_fake
def _(qu: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    heads = qu.flatten(0, 1)
    return torch.empty_like(heads).view(qu.shape), qu.new_empty(heads.shape[:2])


@torch.library.custom_op("greenformers::by_distance_backward", mutates_args=())
def _operator_backward(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, seed: Tensor | None,
    window: Tensor | None, causal: bool, dropout: float, out: Tensor, lse: Tensor, dout: Tensor,
) -> list[Tensor]:  # fmt: skip
    with full_precision(qu):
        *grads, dF = backward(qu, qv, k, v, F, bias, _how(seed, window, causal, dropout), out, lse, dout)
    return [*grads, dF.contiguous()]


@_operator_backward.register_fake
def _(qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, *_: Any) -> list[Tensor]:
    return [*(torch.empty_like(x.flatten(0, 1)).view(x.shape) for x in (qu, qv, k, v)), F.new_empty(F.shape)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.numbers = inputs[8:]
    ctx.save_for_backward(*inputs[:8], *output)


def _differentiate(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Any, ...]:
    *tensors, out, lse = ctx.saved_tensors
    grads = torch.ops.greenformers.by_distance_backward(*tensors, *ctx.numbers, out, lse, dout)
    return *grads, *[None] * 5


_operator.register_autograd(_differentiate, setup_context=_save)
