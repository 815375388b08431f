"""Linformer. Wang 2020, arXiv:2006.04768, eq. 7: softmax(Q (E K)^T / sqrt(D)) F V, with E, F (k x M).

The fast form projects all heads at once, those with a smaller k masked, and has windows as one more dimension.
Time O(N k D), memory O(N k). Bidirectional only. Shorter inputs use the first columns of E and F;
the first column is that of the first kept position.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._initial import set_
from greenformers.attention._aligned import finite_queries, left_padding, moved, text_of
from greenformers.attention._contract import Attention, Role, Shape, check_lengths
from greenformers.attention._dense import dense_attention
from greenformers.attention._reference import dot_products, text_by_text, weighted_mean

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
Projection = Literal["linear", "mean", "max", "convolution"]


@text_by_text
def reference(
    mechanism: "Linformer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(q (E k)^T / sqrt(D)) F v of each head, where keys and values are projected from kept positions alone."""
    keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    heads = []
    for head, rows in enumerate(mechanism.k_per_head):
        keys, seen = _projected(mechanism, k[:, head], keep, "E", head, rows)
        values, _ = _projected(mechanism, v[:, head], keep, "F", head, rows)
        heads.append(weighted_mean(dot_products(q[:, head], keys).exp(), values, seen[:, None]))
    return torch.stack(heads, 1)


def _projected(
    mechanism: "Linformer", x: Float[Tensor, "B M D"], keep: Bool[Tensor, "B M"], name: str, head: int, rows: int
) -> tuple[Float[Tensor, "B k D"], Bool[Tensor, "B k"]]:
    """E x or F x of a head, or its mean, maximum or convolution over windows; and which rows have a kept position."""
    if mechanism.projection in ("linear", "convolution"):
        matrices = getattr(mechanism, "E" if mechanism.sharing in ("key_value", "layerwise") else name)
        matrix = matrices[head if mechanism.sharing == "none" else 0]
    if mechanism.projection == "linear":
        return matrix[:rows, : x.shape[1]] * keep[:, None] @ x, torch.ones(len(x), rows, dtype=torch.bool)
    width, at = math.ceil(mechanism.shape.max_len / rows), torch.arange(x.shape[1])
    window = (torch.arange(rows)[:, None] == at // width) & keep[:, None]  # (B, k, M)
    seen, member = window.any(2), window.to(x.dtype)
    if mechanism.projection == "max":
        largest = torch.where(window[..., None], x[:, None], -torch.inf).amax(2)
        return torch.where(seen[..., None], largest, 0.0), seen
    if mechanism.projection == "mean":
        return member @ x / member.sum(2, keepdim=True).clamp(min=1), seen
    return torch.einsum("bkm,dm,bmd->bkd", member, matrix[:, at % width], x), seen


class Linformer(Attention):
    """Attention over k projected keys and values instead of M.

    Args:
        shape: Heads, width and the length M that E and F are made for.
        k: Projected length k: one number, one per layer, or one per layer and head (section 4: higher layers
            need less). At most `max_len`. By default 128, or `max_len` where that is shorter.
        sharing: How E and F are shared (section 4). "none": each head has its own E and F. "headwise": one E and
            one F a layer. "key_value": one E = F a layer. "layerwise": one E = F for the whole network.
        projection: "linear" (the paper's E and F), or one step per window of ceil(max_len / k) positions:
            "mean", "max", or "convolution" (depthwise, kernel = stride = the window).
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is causal, or an option is out of range.
    """

    queries_apart = True
    bounded = True
    rank_option = "k"

    def __init__(
        self,
        shape: Shape,
        *,
        k: int | Sequence[int | Sequence[int]] | None = None,
        sharing: Sharing = "headwise",
        projection: Projection = "linear",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        if shape.causal:
            raise ValueError("linformer has no causal form: E and F mix all positions")
        if sharing not in get_args(Sharing):
            raise ValueError(f"sharing must be one of {', '.join(get_args(Sharing))}; got {sharing!r}")
        if projection not in get_args(Projection):
            raise ValueError(f"projection must be one of {', '.join(get_args(Projection))}; got {projection!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.sharing, self.projection, self.dropout = sharing, projection, dropout
        k = min(128, shape.max_len) if k is None else k
        per_layer: list[int | Sequence[int]] = [k] * shape.layers if isinstance(k, int) else list(k)
        if len(per_layer) != shape.layers:
            raise ValueError(f"k must have one entry a layer, {shape.layers}, got {len(per_layer)}")
        grid = [_per_head(entry, shape) for entry in per_layer]
        self.k_per_head = grid[shape.layer]
        self.k = max(self.k_per_head)
        # One matrix for all layers must have rows enough for the layer that uses most.
        rows = max(map(max, grid)) if sharing == "layerwise" else self.k
        if len(set(self.k_per_head)) > 1 and projection != "linear":
            raise ValueError(f"k per head needs projection 'linear', got {projection!r}")
        self._make_parameters(rows)

    def weights(self, *given: Any, **further: Any) -> tuple[dict[str, Tensor], Tensor]:
        """See `Attention.weights`; raises for "max", no sum of values, and "convolution", whose channels differ."""
        if self.projection in ("max", "convolution"):
            raise ValueError(f"output_attentions must be False with projection {self.projection!r}: it has no weights")
        return super().weights(*given, **further)

    def _make_parameters(self, rows: int) -> None:
        shape = self.shape
        heads = shape.heads if self.sharing == "none" else 1
        if self.projection == "linear":
            size: tuple[int, ...] = (heads, rows, shape.max_len)
        elif self.projection == "convolution":
            size = (heads, shape.head_dim, self.window)
        else:
            return
        self.E = nn.Parameter(torch.empty(size))
        if self.sharing in ("none", "headwise"):
            self.F = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    @property
    def window(self) -> int:
        """Number of positions of a window of the mean, max and convolution projections."""
        return -(-self.shape.max_len // self.k)

    def reset_parameters(self) -> None:
        """Set E and F to means over windows, as the mean projection; convolutions near the mean.

        The paper gives no initial E and F. Random ones hide the positions of keys from a query, and a network that
        needs positions has to learn them first: masked language modelling of bytes, 64 positions, k = 32, is at 1.86
        nats after 2,500 steps from these windows and at 2.86, the frequencies of bytes, from N(0, 1 / max_len).
        """
        for parameter in self.parameters(recurse=False):
            if self.projection == "linear":
                set_(parameter, _windows(parameter.shape[1], self.shape.max_len))
            else:
                nn.init.normal_(parameter, 1.0 / self.window, 0.1 / self.window)

    def shared(self, first: Attention) -> None:
        """Layerwise sharing: use the E of layer 0.

        Raises:
            ValueError: Layer 0 has no E of that shape.
        """
        if self.sharing == "layerwise" and isinstance(getattr(self, "E", None), nn.Parameter):
            E = cast(nn.Parameter | None, getattr(first, "E", None))
            if E is None or E.shape != self.E.shape:
                size = "none" if E is None else tuple(E.shape)
                raise ValueError(f"layerwise sharing needs an E {tuple(self.E.shape)} in layer 0, got {size}")
            self.E = E
            self.shared_parameters = ("E",)

    @property
    def can_reduce(self) -> bool:
        """Whether one matrix serves all heads and channels, and no window is hidden by padding."""
        return self.projection == "linear" and self.sharing != "none"

    def reduce(  # noqa: D102
        self,
        x: Float[Tensor, "B M C"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        role: Role,
    ) -> Float[Tensor, "B L C"]:
        if not self.can_reduce:
            return super().reduce(x, key_mask, role=role)
        if not 1 <= x.shape[1] <= self.shape.max_len:
            raise ValueError(f"the number of keys must be in 1..{self.shape.max_len}, got {x.shape[1]}")
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, :, None], 0.0)
        if (shift := left_padding(key_mask)) is not None:
            x = moved(x[:, None], shift)[:, 0]
        # (k, M) (B, M, C) -> (B, k, C). A plain product of these shapes would copy x, transposed, and save the copy.
        return torch.bmm(self._matrix(role, x.shape[1]).expand(x.shape[0], -1, -1), x)

    def attend(  # noqa: D102
        self, q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H L D"], v: Float[Tensor, "B H L D"]
    ) -> Float[Tensor, "B H N D"]:
        return self._softmax(q, k, v, self._used(q))

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_lengths(q, k, v, key_mask, self.shape, query_mask)
        q = finite_queries(q, key_mask, query_mask, cross=self.shape.cross)
        shift = left_padding(text_of(key_mask, query_mask, cross=self.shape.cross))
        if key_mask is not None and shift is not None:
            k, v, key_mask = (moved(x, shift) for x in (k, v, key_mask))
        if self.projection != "linear":
            return self._attend_windows(q, k, v, key_mask)
        if key_mask is not None:
            # Padding must be 0 before the projection: E mixes it into every projected key.
            padding = ~key_mask[:, None, :, None]
            k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
        return self._softmax(q, self._project("k", k), self._project("v", v), self._used(q))

    def _project(self, role: Role, x: Tensor) -> Tensor:
        """E x or F x of each head, (B, H, k, D)."""
        matrix, (batch, heads, _, dim) = self._matrix(role, x.shape[2]), x.shape
        side_by_side = x.transpose(1, 2)
        if len(matrix) > 1 or not side_by_side.is_contiguous():
            return matrix @ x
        # Heads lie side by side as projections give them: one product for all, and none is copied.
        projected = torch.bmm(matrix.expand(batch, -1, -1), side_by_side.flatten(2))
        return projected.unflatten(2, (heads, dim)).transpose(1, 2)

    def _matrix(self, role: Role, length: int) -> Tensor:
        """E or F for this layer's k and this input's length: (H or 1, k, length)."""
        matrix = self.F if role == "v" and self.sharing in ("none", "headwise") else self.E
        return matrix[:, : self.k, :length]

    def _used(self, q: Tensor) -> Tensor | None:
        """Mask (1, H, 1, k) that hides the last projected positions from heads with a smaller k; None: k is equal."""
        if len(set(self.k_per_head)) == 1:
            return None
        per_head = torch.tensor(self.k_per_head, device=q.device)
        return (torch.arange(self.k, device=q.device) < per_head[:, None])[None, :, None, :]

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)

    def _attend_windows(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Mean, max or convolution over windows; a window without any kept position is not seen."""
        keep = q.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        short = -k.shape[2] % self.window
        keep = F.pad(keep, (0, short)).unflatten(1, (-1, self.window))  # (B, k, window)
        k, v = (F.pad(x, (0, 0, 0, short)).unflatten(2, (-1, self.window)) for x in (k, v))
        dropout = self.dropout if self.training else 0.0
        return dense_attention(q, self._pool(k, keep, "k"), self._pool(v, keep, "v"), keep.any(-1), dropout=dropout)

    def _pool(self, x: Tensor, keep: Tensor, role: Role) -> Tensor:
        """(B, H, k, window, D) to (B, H, k, D) over the kept positions."""
        keep = keep[:, None, :, :, None]
        if self.projection == "max":
            return x.masked_fill(~keep, -torch.inf).amax(-2).masked_fill(~keep.any(-2), 0.0)
        x = x.masked_fill(~keep, 0.0)
        if self.projection == "mean":
            return x.sum(-2) / keep.sum(-2).clamp(min=1)
        kernel = self.F if role == "v" and self.sharing in ("none", "headwise") else self.E  # (H or 1, D, window)
        return torch.einsum("bhkwd,hdw->bhkd", x, kernel.expand(x.shape[1], -1, -1))


def _windows(rows: int, length: int) -> Tensor:
    """A matrix (rows, length) of means over windows, which together cover the length.

    The first rows, all that a layer or head with a smaller k uses, are spread over the whole length: row j is the
    window at j with its binary digits reversed.
    """
    window = torch.arange(length) * rows // length
    digits = max(rows - 1, 1).bit_length()
    order = sorted(range(rows), key=lambda j: int(f"{j:0{digits}b}"[::-1], 2))
    member = torch.tensor(order)[:, None] == window
    return member / member.sum(-1, keepdim=True)


def _per_head(entry: int | Sequence[int], shape: Shape) -> list[int]:
    per_head = [entry] * shape.heads if isinstance(entry, int) else list(entry)
    if len(per_head) != shape.heads:
        raise ValueError(f"k of a layer must have one entry a head, {shape.heads}, got {len(per_head)}")
    for k in per_head:
        if not 1 <= k <= shape.max_len:
            raise ValueError(f"k must be in 1..{shape.max_len} (the longest sequence), got {k}")
    return per_head
