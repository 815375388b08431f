"""nn.MultiheadAttention with its four linear maps apart, so that each can be an LED. Vaswani 2017, arXiv:1706.03762.

torch packs the maps of queries, keys and values into one weight; and its fast path (eval mode, no gradients) reads
all weights of an nn.TransformerEncoderLayer, which multiplies out the factors of every LED in it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._torch import has_forward_hooks
from greenformers.lowrank.computed import computed
from greenformers.lowrank.linear import LED, LinearMap, decode, encode

Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]


class LowRankMultihead(nn.Module):
    """Attention of H heads, in place of nn.MultiheadAttention: the same call, the same results.

    Dense as built: assign an LED to any of q_proj, k_proj, v_proj and out_proj. LEDs that read the same tensor share
    one product. Inside an nn.TransformerEncoder, call `refuse_fast_path` on that.

    Args:
        attention: its options, dtype and device are taken, its weights copied.

    Raises:
        TypeError: attention is no nn.MultiheadAttention, or computes something else.
    """

    _qkv_same_embed_dim = False
    """What keeps nn.TransformerEncoderLayer from its fast path."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        if getattr(type(attention), "forward", None) is not nn.MultiheadAttention.forward:
            raise TypeError(f"attention must be an nn.MultiheadAttention, got {type(attention).__name__}")
        self.embed_dim, self.kdim, self.vdim = attention.embed_dim, attention.kdim, attention.vdim
        self.num_heads, self.head_dim, self.dropout = attention.num_heads, attention.head_dim, attention.dropout
        self.batch_first, self.add_zero_attn = attention.batch_first, attention.add_zero_attn
        apart = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
        weights = apart if attention.in_proj_weight is None else attention.in_proj_weight.chunk(3)
        biases = (None,) * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.out_proj = _linear(attention.out_proj.weight, attention.out_proj.bias)
        self.bias_k, self.bias_v = _copy(attention.bias_k), _copy(attention.bias_v)
        self.train(attention.training)

    @classmethod
    def like(cls, attention: nn.MultiheadAttention) -> "LowRankMultihead":
        """The same attention, still dense: the constructor, by the name it has in other low-rank units."""
        return cls(attention)

    @property
    def in_proj_weight(self) -> Tensor:
        """The weights of queries, keys and values, packed; see `computed`. Who draws a network's weights looks for it.

        So does nn.TransformerEncoder, once built: its fast path takes plain tensors alone.
        """
        maps = (self.q_proj, self.k_proj, self.v_proj)
        shape = 3 * self.embed_dim, self.embed_dim
        return computed(lambda: torch.cat([item.weight + 0 for item in maps]), shape, self.out_proj.weight)

    @property
    def in_proj_bias(self) -> Tensor | None:
        """Their biases, packed."""
        biases: list[Tensor] = [x.bias for x in (self.q_proj, self.k_proj, self.v_proj) if x.bias is not None]
        whole = (3 * self.embed_dim,)
        return computed(lambda: torch.cat(biases), whole, biases[0]) if len(biases) == 3 else None

    def to_dense(self) -> nn.MultiheadAttention:
        """The same attention with dense weights, packed where keys and values are as wide as queries."""
        maps = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        biased = any(item.bias is not None for item in maps)
        options = {name: getattr(self, name) for name in ("add_zero_attn", "kdim", "vdim", "batch_first")}
        dense = nn.MultiheadAttention(self.embed_dim, self.num_heads, self.dropout, biased, device="meta", **options)
        with torch.enable_grad():  # under which a product is trainable if a factor is
            *weights, out = (item.weight for item in maps)
            biases = [out.new_zeros(len(out)) if item.bias is None else item.bias for item in maps]
            if dense.in_proj_weight is None:
                dense.q_proj_weight, dense.k_proj_weight, dense.v_proj_weight = map(_copy, weights)
            else:
                dense.in_proj_weight = _copy(torch.cat(weights))
            packed, last = (torch.cat(biases[:3]), biases[3]) if biased else (None, None)
        dense.in_proj_bias, dense.out_proj.bias = _copy(packed), _copy(last)
        dense.out_proj.weight, dense.bias_k, dense.bias_v = _copy(out), _copy(self.bias_k), _copy(self.bias_v)
        return dense.train(self.training)

    def forward(
        self,
        query: Float[Tensor, "... d"],
        key: Float[Tensor, "... kdim"],
        value: Float[Tensor, "... vdim"],
        key_padding_mask: Mask | None = None,
        need_weights: bool = True,
        attn_mask: Mask | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "... d"], Float[Tensor, "..."] | None]:
        """Attend. In masks, True is left out, and numbers are added to the scores.

        Args:
            query: (B, L, d) if batch_first, else (L, B, d); or (L, d). Nested for self-attention without masks.
            key: as query, of S positions.
            value: as key.
            key_padding_mask: (B, S) or (S).
            need_weights: return attention weights too, at B H L S numbers.
            attn_mask: (L, S) or (B H, L, S).
            average_attn_weights: over heads.
            is_causal: attn_mask, which is needed, is the causal one, and is not read where nothing else is asked for.

        Returns:
            Outputs as query; weights ([B,] L, S), or ([B,] H, L, S) of each head, or None.

        Raises:
            ValueError: inputs and masks that do not fit each other.
        """
        if query.is_nested:
            masked = is_causal or key_padding_mask is not None or attn_mask is not None
            if masked or need_weights or query is not key or key is not value:
                raise ValueError("nested inputs must be one tensor, without masks and with need_weights=False")
            rows = [self.forward(row, row, row, need_weights=False)[0] for row in query.unbind()]
            return torch.nested.as_nested_tensor(rows, layout=query.layout), None
        if is_causal and attn_mask is None:
            raise ValueError("attn_mask must be the causal mask where is_causal=True, got None")
        q, k, v = (self._heads(x) for x in self._project(query, key, value))  # (B, H, L or S, D)
        if q.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0]:
            shapes = [tuple(x.shape) for x in (query, key, value)]
            raise ValueError(f"query, key and value must share the batch, key and value the length, got {shapes}")
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = None if causal else self._mask(attn_mask, key_padding_mask, q, k)
        k, v = self._append(k, self.bias_k), self._append(v, self.bias_v)
        p, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.mT  # (B, H, L, S)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), p)
            out, weights = weights @ v, weights.mean(1) if average_attn_weights else weights
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
        out = out.transpose(1, 2)  # (B, L, H, D)
        if query.dim() == 2:
            return self.out_proj(out[0].flatten(-2)), None if weights is None else weights[0]
        return self.out_proj((out if self.batch_first else out.transpose(0, 1)).flatten(-2)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        maps = [self.q_proj, self.k_proj, self.v_proj]
        if query is key is value:
            return _apply(maps, query)
        rest = _apply(maps[1:], key) if key is value else [self.k_proj(key), self.v_proj(value)]
        return [self.q_proj(query), *rest]

    def _heads(self, x: Tensor) -> Float[Tensor, "B H N D"]:
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        x = x[None] if x.dim() == 3 else x if self.batch_first else x.transpose(0, 1)
        return x.transpose(1, 2)

    def _append(self, x: Float[Tensor, "B H S D"], bias: Tensor | None) -> Float[Tensor, "B H more D"]:
        B, H, _, D = x.shape
        rows = [] if bias is None else [bias.view(1, H, 1, D).expand(B, H, 1, D)]
        rows += [x.new_zeros(B, H, 1, D)] * self.add_zero_attn
        return torch.cat([x, *rows], 2) if rows else x

    def _mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """Both masks as one to add to the scores, (B or 1, H or 1, L or 1, S and appended keys)."""
        (B, H, L, _), S, masks = q.shape, k.shape[2], []
        if attn_mask is not None:
            lead = () if attn_mask.dim() == 2 else (B * H,)
            mask = _additive("attn_mask", attn_mask, (*lead, L, S), q.dtype)
            masks.append(mask.unflatten(0, (B, H)) if lead else mask)
        if key_padding_mask is not None:
            mask = key_padding_mask if key_padding_mask.dim() == 2 else key_padding_mask[None]
            masks.append(_additive("key_padding_mask", mask, (B, S), q.dtype)[:, None, None])
        merged: Tensor | None = sum(masks[1:], masks[0]) if masks else None
        appended = (self.bias_k is not None) + self.add_zero_attn
        return F.pad(merged, (0, appended)) if merged is not None and appended else merged


def _apply(maps: list[LinearMap], x: Tensor) -> list[Tensor]:
    """Each map of x. LEDs share a product, unless a hook waits for a call of its map."""
    if any(has_forward_hooks(item) for item in maps):
        return [item(x) for item in maps]
    return [decode(f, code) if isinstance(f, LED) else f(x) for f, code in zip(maps, encode(maps, x), strict=True)]


def _additive(name: str, mask: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if mask.shape != shape or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"{name} must be bool or float of shape {shape}, got {mask.dtype} {tuple(mask.shape)}")
    return mask.to(dtype) if mask.dtype != torch.bool else mask.to(dtype).masked_fill_(mask, float("-inf"))


def _copy(x: Tensor | None) -> Any:
    return None if x is None else nn.Parameter(x.detach().clone(), x.requires_grad)


def _linear(weight: Tensor, bias: Tensor | None) -> LinearMap:
    item = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    item.weight, item.bias = _copy(weight), _copy(bias)
    return item


def refuse_fast_path(module: nn.Module) -> None:
    """Keep torch's encoders and encoder layers, in a module or itself one, from their fast path.

    That reads `LED.weight` instead of calling the LED. Refused on a layer only, results are right, but an encoder
    around it still reads the weights of its first layer, to look at them, where src_key_padding_mask is given. A
    refused encoder does not zero the outputs at padded positions, as the fast path does.
    """
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0
        elif isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False
