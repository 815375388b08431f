"""One encoder layer: attention, then feed-forward, each with its residual. Vaswani 2017; thesis 3.1.1."""

from itertools import repeat
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from greenformers.attention import Role, Shape, build
from greenformers.lowrank.feed_forward import low_rank_feed_forward, slice_length
from greenformers.lowrank.linear import LED, LinearMap, decode, encode, linear_map
from greenformers.model.config import GreenformerConfig


class SelfAttention(nn.Module):
    """The projections around a mechanism of the attention slot."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        super().__init__()
        d, heads = config.hidden_size, config.num_attention_heads
        shape = Shape(heads, d // heads, config.max_position_embeddings, layer=layer, layers=config.num_hidden_layers)
        options = config.per_layer("attention_options")[layer] or {}
        self.mechanism = build(config.per_layer("attention")[layer], shape, **options)
        self.maps = nn.ModuleDict(
            {name: linear_map(d, d, config.rank_of(layer, name)) for name in self.mechanism.projections}
        )
        self.output = linear_map(d, d, config.rank_of(layer, "output"))

    def mix(self, x: Float[Tensor, "B N d"], key_mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B N d"]:
        """Attention of a sequence to itself (B, N, d), before the output projection, which `output` is."""
        maps = cast(dict[str, LinearMap], dict(self.maps.items()))
        codes = dict(zip(maps, encode(list(maps.values()), x), strict=True))
        if self.mechanism.can_reduce:
            q = self._heads(decode(maps["q"], codes["q"]))
            k = self._heads(self._reduced(maps["k"], codes["k"], key_mask, "k"))
            v = self._heads(self._reduced(maps["v"], codes["v"], key_mask, "v"))
            out = self.mechanism.attend(q, k, v)
        else:
            projected = {name: self._heads(decode(maps[name], code)) for name, code in codes.items()}
            out = self.mechanism(**projected, key_mask=key_mask)
        return out.transpose(1, 2).flatten(2)

    def _reduced(self, item: LinearMap, code: Tensor, key_mask: Tensor | None, role: Role) -> Tensor:
        """Keys or values of a mechanism that shortens them, shortened before the last factor: (B, k, d)."""
        ones = code.new_ones(code.shape[0], code.shape[1], 1)
        short = self.mechanism.reduce(code, key_mask, role=role)
        return decode(item, short, kept=self.mechanism.reduce(ones, key_mask, role=role))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, d) to (B, H, N, D)."""
        return x.unflatten(2, (self.mechanism.shape.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """down(act(up(x))), dense or low-rank."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        super().__init__()
        d, f = config.hidden_size, config.intermediate_size
        self.up = linear_map(d, f, config.rank_of(layer, "up"))
        self.activation = ACT2FN[config.hidden_act]
        self.down = linear_map(f, d, config.rank_of(layer, "down"))
        # A recomputation gives no gradient to what an activation itself learns (prelu, xielu).
        self.recomputable = not list(self.activation.parameters())

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Position by position (..., d)."""
        sliced = self.recomputable and not _otherwise_handled(x)
        if sliced and isinstance(self.up, LED) and isinstance(self.down, LED):
            # The activation's forward, not the module: hooks on it cannot follow a recomputation.
            return low_rank_feed_forward(x, self.up, self.down, self.activation.forward)
        return self.down(self.activation(self.up(x)))


class EncoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward with residual and layer norm, after ("post") or before ("pre") each block."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, layer)
        self.feed_forward = FeedForward(config, layer)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.pre_norm = config.residual == "pre"

    def forward(self, x: Float[Tensor, "B N d"], key_mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B N d"]:
        """One layer (B, N, d); in inference on the CPU, in slices that stay in its cache."""
        # With gradients every intermediate tensor is kept anyway; an accelerator would rather run wide.
        if torch.is_grad_enabled() or x.device.type != "cpu" or _otherwise_handled(x):
            return self._after(x, self.attention.mix(self._before(x), key_mask))
        tokens = slice_length(self.feed_forward.up.out_features)
        rows = max(1, tokens // x.shape[1])
        masks = repeat(None) if key_mask is None else key_mask.split(rows)
        parts = [self._in_slices(*part, tokens) for part in zip(x.split(rows), masks, strict=False)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _in_slices(self, x: Tensor, key_mask: Tensor | None, tokens: int) -> Tensor:
        """The layer for a few sequences, its position-wise part in slices that overwrite what they were made from."""
        mixed = self.attention.mix(self._before(x), key_mask).contiguous()
        for x_slice, slice_ in zip(*(y.flatten(0, 1).split(tokens) for y in (x, mixed)), strict=True):
            slice_.copy_(self._after(x_slice, slice_))
        return mixed

    def _before(self, x: Tensor) -> Tensor:
        return self.attention_norm(x) if self.pre_norm else x

    def _after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """All that follows once positions are mixed, each position by itself."""
        x = x + self.dropout(self.attention.output(mixed))
        if self.pre_norm:
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x)
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


def _otherwise_handled(x: Tensor) -> bool:
    """Compiled code fuses by itself and cannot see into slices; autocast chooses the types of single operators."""
    return torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)
