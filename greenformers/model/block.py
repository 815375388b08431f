"""Feed-forward block, and the layer of attention and feed-forward with residuals. Vaswani 2017; thesis 3.1.1."""

from functools import partial
from itertools import repeat

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from greenformers.blocks import Size, build
from greenformers.lowrank.feed_forward import slice_length, sliced_feed_forward
from greenformers.lowrank.linear import LED, LinearMap, linear_map
from greenformers.model.attention import SelfAttention
from greenformers.model.config import GreenformerConfig
from greenformers.model.projected import constant


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
        self.chunked, self.chunk = config.feed_forward == "chunked", config.feed_forward_chunk
        if self.chunked and not self.recomputable:
            raise ValueError(
                f"hidden_act must have no parameters where feed_forward is chunked, got {config.hidden_act!r}"
            )

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Position by position (..., d)."""
        sliced = self.recomputable and not _otherwise_handled(x)
        low_rank = isinstance(self.up, LED) and isinstance(self.down, LED)
        known = isinstance(self.up, LinearMap) and isinstance(self.down, LinearMap)
        if sliced and known and (low_rank or self.chunked):
            # The activation's forward, not the module: hooks on it cannot follow a recomputation.
            return sliced_feed_forward(x, self.up, self.down, self.activation.forward, self.chunk)
        if self.chunked and not torch.compiler.is_compiling():
            length = self.chunk or slice_length(self.up.out_features)
            pieces = x.flatten(0, -2).split(length)
            again = [checkpoint(self._whole, piece, use_reentrant=False) for piece in pieces]
            return torch.cat(again).view(*x.shape[:-1], -1)
        return self._whole(x)

    def _whole(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class EncoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward with residual and layer norm, after ("post") or before ("pre") each block.

    With `causal` it is also the layer of a decoder without an encoder. A "reversible" one is run by `stack.run`.
    """

    def __init__(self, config: GreenformerConfig, layer: int, *, causal: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(config, layer, causal=causal)
        self.feed_forward = FeedForward(config, layer)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.pre_norm = config.residual == "pre"
        self.reversible = config.residual == "reversible"

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        past_key_values: Cache | None = None,
        global_mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B m d"] | None = None,
    ) -> Float[Tensor, "B N d"] | tuple[Float[Tensor, "B N d"], Float[Tensor, ""]]:
        """One layer (B, N, d); in inference on the CPU, in slices that stay in its cache.

        In training, of a mechanism that has a loss of its own, that loss too.
        """
        if self.reversible:
            raise ValueError("a reversible layer has two streams: it is run by its stack, not by itself")
        # With gradients every intermediate tensor is kept anyway; an accelerator would rather run wide; and keys
        # and values that are kept for later belong to the whole batch.
        kept = past_key_values is not None or memory is not None
        if torch.is_grad_enabled() or x.device.type != "cpu" or kept or _otherwise_handled(x):
            earlier = None if memory is None else self._before(memory)
            mixed, loss = self.attention.mix(self._before(x), key_mask, past_key_values, global_mask, memory=earlier)
            out = self._after(x, mixed)
            return out if loss is None else (out, loss)
        tokens = slice_length(self.feed_forward.up.out_features)
        rows = max(1, tokens // x.shape[1])
        masks = (repeat(None) if mask is None else mask.split(rows) for mask in (key_mask, global_mask))
        parts = [self._in_slices(y, key, wide, tokens) for y, key, wide in zip(x.split(rows), *masks, strict=False)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _in_slices(self, x: Tensor, key_mask: Tensor | None, global_mask: Tensor | None, tokens: int) -> Tensor:
        """The layer for a few sequences, its position-wise part in slices that overwrite what they were made from."""
        mixed = self.attention.mix(self._before(x), key_mask, global_mask=global_mask)[0].contiguous()
        for x_slice, slice_ in zip(*(y.flatten(0, 1).split(tokens) for y in (x, mixed)), strict=True):
            slice_.copy_(self._after(x_slice, slice_))
        return mixed

    def compress(
        self, x: Float[Tensor, "B N d"], old: Float[Tensor, "B n d"], mask: Bool[Tensor, "B n"] | None
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
        """See `SelfAttention.compress`; `x` and `old` are inputs of the layer."""
        norm = partial(constant, self.attention_norm) if self.pre_norm else nn.Identity()
        return self.attention.compress(x, old, mask, norm)

    def _before(self, x: Tensor) -> Tensor:
        return self.attention_norm(x) if self.pre_norm else x

    def _after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """All that follows once positions are mixed, each position by itself."""
        x = x + self.dropout(self.attention.output(mixed))
        if self.pre_norm:
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x)
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class BlockLayer(GradientCheckpointingLayer):
    """A layer of its own kind, see `greenformers.blocks`."""

    reversible = False

    def __init__(self, config: GreenformerConfig, layer: int, *, causal: bool = False) -> None:
        super().__init__()
        self.block = build(config.block, size_of(config, layer, causal=causal), **config.block_options or {})

    def forward(
        self, x: Float[Tensor, "B N d"], mask: Bool[Tensor, "B N"] | None, memory: Float[Tensor, "B S d"] | None
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, "B S d"] | None]:
        """See `Block.forward`."""
        found: tuple[Tensor, Tensor | None] = self.block(x, mask, memory)
        return found


def layer_of(config: GreenformerConfig, layer: int, *, causal: bool = False) -> EncoderLayer | BlockLayer:
    """A layer of a single stack, of the kind in the slot `block`."""
    kind = EncoderLayer if config.block == "standard" else BlockLayer
    return kind(config, layer, causal=causal)


def size_of(config: GreenformerConfig, layer: int, *, causal: bool = False) -> Size:
    """What a block is told of the network."""
    return Size(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
        causal=causal,
        layer=layer,
        layers=config.num_hidden_layers,
        dropout=config.hidden_dropout_prob,
        eps=config.layer_norm_eps,
        ranks={name: config.rank_of(layer, name) for name in ("q", "k", "v", "output", "up", "down")},
        feed_forward=lambda: FeedForward(config, layer),
    )


def _otherwise_handled(x: Tensor) -> bool:
    """Compiled code fuses by itself and cannot see into slices; autocast chooses the types of single operators."""
    # There is no autocast for the meta device, on which operations are counted.
    return torch.compiler.is_compiling() or (not x.is_meta and torch.is_autocast_enabled(x.device.type))
