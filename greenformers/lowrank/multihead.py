"""nn.MultiheadAttention with its four linear layers apart, so that each can be an LED. Vaswani 2017, arXiv:1706.03762.

torch packs the projections of queries, keys and values into one weight; and its fast path (eval mode, no gradients)
reads all weights of an nn.TransformerEncoderLayer, which multiplies out the factors of every LED in it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._torch import has_forward_hooks
from greenformers.lowrank.computed import computed
from greenformers.lowrank.linear import LED, LinearLayer, decode, encode

Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]


class LowRankMultihead(nn.Module):
    """Attention of H heads, in place of nn.MultiheadAttention: the same call, the same results.

    Dense as built: assign an LED to any of q_proj, k_proj, v_proj and out_proj. LEDs that read the same tensor share
    one product. Inside an nn.TransformerEncoder, call `refuse_fast_path` on that.

    Args:
        attention: Dense attention; its options, dtype and device are taken, its weights copied.

    Raises:
        TypeError: `attention` is no nn.MultiheadAttention, or overrides its forward.
    """

    _qkv_same_embed_dim = False
    """nn.TransformerEncoderLayer reads this flag: False keeps it from its fast path."""

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
        """The weights of queries, keys and values, packed; see `computed`. Code that initialises networks looks for it.

        So does nn.TransformerEncoder, once built: its fast path takes plain tensors alone.
        """
        layers = (self.q_proj, self.k_proj, self.v_proj)
        shape = 3 * self.embed_dim, self.embed_dim
        return computed(lambda: torch.cat([layer.weight + 0 for layer in layers]), shape, self.out_proj.weight)

    @property
    def in_proj_bias(self) -> Tensor | None:
        """The biases of queries, keys and values, packed; None where there are none."""
        biases: list[Tensor] = [x.bias for x in (self.q_proj, self.k_proj, self.v_proj) if x.bias is not None]
        whole = (3 * self.embed_dim,)
        return computed(lambda: torch.cat(biases), whole, biases[0]) if len(biases) == 3 else None

    def to_dense(self) -> nn.MultiheadAttention:
        """The same attention with dense weights, packed where keys and values are as wide as queries."""
        layers = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        biased = any(layer.bias is not None for layer in layers)
        options = {name: getattr(self, name) for name in ("add_zero_attn", "kdim", "vdim", "batch_first")}
        dense = nn.MultiheadAttention(self.embed_dim, self.num_heads, self.dropout, biased, device="meta", **options)
        with torch.enable_grad():  # under which a product is trainable if a factor is
            *weights, out = (layer.weight for layer in layers)
            biases = [out.new_zeros(len(out)) if layer.bias is None else layer.bias for layer in layers]
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
        """Attend. In boolean masks True leaves a key out; float masks are added to the scores.

        Args:
            query: Queries (B, L, d) if batch_first, else (L, B, d); or (L, d). Nested for self-attention without masks.
            key: Keys, shaped as `query`, of S positions.
            value: Values, shaped as `key`.
            key_padding_mask: Mask of the keys (B, S) or (S).
            need_weights: Whether attention weights are returned too, which takes B H L S numbers.
            attn_mask: Mask of pairs (L, S) or (B H, L, S).
            average_attn_weights: Whether the weights returned are the mean over heads.
            is_causal: Whether `attn_mask`, which must be given, is the causal mask; it is then not read unless
                `key_padding_mask` or `need_weights` is given.

        Returns:
            Outputs, shaped as `query`; weights ([B,] L, S), or ([B,] H, L, S) of each head, or None.

        Raises:
            ValueError: The shapes of inputs and masks do not fit each other.
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
        layers = [self.q_proj, self.k_proj, self.v_proj]
        if query is key is value:
            return _apply(layers, query)
        rest = _apply(layers[1:], key) if key is value else [self.k_proj(key), self.v_proj(value)]
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
        """Both masks as one tensor to add to the scores, (B or 1, H or 1, L or 1, S and appended keys)."""
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


def _apply(layers: list[LinearLayer], x: Tensor) -> list[Tensor]:
    """The output of each layer for x. LEDs share a product, unless forward hooks need a call of each layer."""
    if any(has_forward_hooks(layer) for layer in layers):
        return [layer(x) for layer in layers]
    return [decode(f, code) if isinstance(f, LED) else f(x) for f, code in zip(layers, encode(layers, x), strict=True)]


def _additive(name: str, mask: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if mask.shape != shape or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"{name} must be bool or float of shape {shape}, got {mask.dtype} {tuple(mask.shape)}")
    return mask.to(dtype) if mask.dtype != torch.bool else mask.to(dtype).masked_fill_(mask, float("-inf"))


def _copy(x: Tensor | None) -> Any:
    return None if x is None else nn.Parameter(x.detach().clone(), x.requires_grad)


def _linear(weight: Tensor, bias: Tensor | None) -> LinearLayer:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = _copy(weight), _copy(bias)
    return layer


def refuse_fast_path(module: nn.Module) -> None:
    """Keep torch's encoders and encoder layers, in a module or itself one, from their fast path.

    The fast path reads `LED.weight` instead of calling the LED. Where it is refused on a layer only, results are right,
    but an encoder around the layer still reads the weights of its first layer to choose a path, where
    src_key_padding_mask is given. Without the fast path an encoder does not zero the outputs at padded positions.
    """
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0
        elif isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False
