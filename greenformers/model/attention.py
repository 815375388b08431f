"""Self-attention and cross-attention: the linear maps around a mechanism of the attention slot. Thesis 3.1.1."""

from collections.abc import Callable
from typing import Any, cast, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from greenformers.attention import Attention, Role, Shape, build
from greenformers.lowrank.linear import LinearMap, decode, encode, linear_map
from greenformers.model.beams import BeamLayer
from greenformers.model.cache import RecentLayer, StateLayer
from greenformers.model.config import GreenformerConfig


class Projected(nn.Module):
    """The projections around a mechanism of the attention slot."""

    def __init__(self, config: GreenformerConfig, layer: int, mechanism: Attention, prefix: str = "") -> None:
        super().__init__()
        d = config.hidden_size
        self.mechanism = mechanism
        self.maps = nn.ModuleDict(
            {name: linear_map(d, d, config.rank_of(layer, prefix + name)) for name in mechanism.projections}
        )
        self.output = linear_map(d, d, config.rank_of(layer, f"{prefix}output"))

    def _codes(self, x: Tensor, *names: str) -> dict[str, Tensor]:
        """First factors of the named maps applied to (B, N, d), all low-rank ones by one product."""
        maps = [cast(LinearMap, self.maps[name]) for name in names]
        return dict(zip(names, encode(maps, x), strict=True))

    def _projected(self, name: str, code: Tensor) -> Tensor:
        return self._heads(decode(cast(LinearMap, self.maps[name]), code))

    def _reduced(self, role: Role, code: Tensor, key_mask: Tensor | None) -> Tensor:
        """Keys or values of a mechanism that shortens them, shortened before the last factor: (B, H, k, D)."""
        ones = code.new_ones(code.shape[0], code.shape[1], 1)
        short = self.mechanism.reduce(code, key_mask, role=role)
        kept = self.mechanism.reduce(ones, key_mask, role=role)
        return self._heads(decode(cast(LinearMap, self.maps[role]), short, kept=kept))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, d) to (B, H, N, D)."""
        return x.unflatten(2, (self.mechanism.shape.heads, -1)).transpose(1, 2)


class SelfAttention(Projected):
    """A sequence to itself.

    Args:
        config: sizes and slots.
        layer: index of the layer in its stack.
        causal: position i sees only positions up to i.
        decoder: the stack is the decoder of an encoder-decoder.
    """

    def __init__(self, config: GreenformerConfig, layer: int, *, causal: bool = False, decoder: bool = False) -> None:
        slot = "decoder_attention" if decoder else "attention"
        mechanism = attention_of(config, slot, layer, causal=causal)
        super().__init__(config, layer + config.num_hidden_layers * decoder, mechanism)
        self.memory_length = config.memory_length
        self.remembers = mechanism.positions == "own" and mechanism.shape.causal

    def mix(
        self,
        x: Float[Tensor, "B N d"],
        key_mask: Bool[Tensor, "B M"] | None,
        cache: Cache | None = None,
        global_mask: Bool[Tensor, "B N"] | None = None,
        choice: dict[str, Tensor] | None = None,
        memory: Float[Tensor, "B m d"] | None = None,
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, ""] | None]:
        """Attention of a sequence to itself (B, N, d), before the output projection, which `output` is.

        Args:
            x: the sequence; with a cache, its last N positions.
            key_mask: True = keep (B, M); M = N without a cache and without memory, m + N with memory.
            cache: keys and values of earlier positions; those of `x` are added to it.
            global_mask: True = a position that all see and that sees all, for mechanisms that take it.
            choice: of mechanisms that choose which keys a query sees, what they chose at an earlier call on the same
                sequence; filled where it is empty.
            memory: what is in front of the sequence, to be attended and to attend nothing.

        Returns:
            The mixtures, and in training the loss of a mechanism that has one.

        Raises:
            ValueError: a global mask for a mechanism that takes none, or memory for one without positions of its own.
        """
        if memory is not None and not self.remembers:
            raise ValueError(f"{type(self.mechanism).__name__} has no memory: its positions are the model's")
        if global_mask is not None and not self.mechanism.takes_global_mask:
            raise ValueError(f"{type(self.mechanism).__name__} takes no global mask")
        layer = self.mechanism.shape.layer
        if memory is None:
            codes = self._codes(x, *self.mechanism.projections)
        else:
            codes = self._codes(x, "q") | self._codes(torch.cat([memory, x], 1), "k", "v")
        if self.mechanism.can_reduce and cache is None:
            k, v = (self._reduced(role, codes[role], key_mask) for role in get_args(Role))
            out = self.mechanism.attend(self._projected("q", codes["q"]), k, v)
            loss = None
        else:
            projected = {name: self._projected(name, code) for name, code in codes.items()}
            if self.mechanism.shares_qk:
                projected["k"] = projected["q"]
            # What a mechanism has no projection for it does not read, except for its length.
            given = {"q": projected["v"], "k": projected["v"]} | projected
            held = None if cache is None else cache.layers[layer] if len(cache.layers) > layer else None
            loss = None
            if isinstance(held, BeamLayer):
                out = held.attend(**projected)
            elif cache is not None and self.mechanism.can_step:
                out = self._step(given, key_mask, cache)
            else:
                if cache is not None and self.remembers and self.memory_length:
                    given["k"], given["v"], key_mask = self._remembered(projected, key_mask, x.shape[1], cache)
                elif cache is not None:
                    given |= self._earlier(projected, cache)
                further = {} if global_mask is None else {"global_mask": global_mask}
                if choice is not None and self.mechanism.chooses:
                    if not choice:
                        choice["choice"] = self.mechanism.choose(**given, key_mask=key_mask)
                    further |= choice
                if self.training and self.mechanism.has_loss:
                    out, loss = self.mechanism.forward_with_loss(**given, key_mask=key_mask, **further)
                else:
                    out = self.mechanism(**given, key_mask=key_mask, **further)
        return out.transpose(1, 2).flatten(2), loss

    def compress(
        self,
        x: Float[Tensor, "B N d"],
        old: Float[Tensor, "B n d"],
        mask: Bool[Tensor, "B n"] | None,
        norm: Callable[[Tensor], Tensor],
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
        """What a compressing mechanism keeps of `old`, detached, its mask, and in training its loss.

        Args:
            x: the inputs that attend it.
            old: inputs of this layer.
            mask: True = keep, of `old`.
            norm: what inputs go through before they are projected.
        """
        mechanism = cast(Any, self.mechanism)
        learns = self.training and torch.is_grad_enabled() and mechanism.function == "convolution"
        usage = None
        with torch.no_grad():
            if learns or mechanism.function == "most_used":
                q, k = (self._heads(self.maps[name](norm(y))) for name, y in (("q", x), ("k", old)))
                usage = mechanism.usage(q, k, mask) if mechanism.function == "most_used" else None
        new, new_mask = mechanism.compress(old, mask, usage)
        if not learns:
            return new.detach(), new_mask, None
        with torch.no_grad():
            v = self._heads(self.maps["v"](norm(old)))
        # The gradient is the convolution's alone: everything else is as if it were a constant.
        normed = norm(new)
        after = [self._heads(constant(self.maps[name], normed)) for name in ("k", "v")]
        loss = mechanism.reconstruction(q, (k, v, mask), (after[0], after[1], new_mask))
        return new.detach(), new_mask, loss

    def _remembered(
        self, projected: dict[str, Tensor], key_mask: Tensor | None, count: int, cache: Cache
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and mask of what the cache keeps and of what is given: perhaps memory, and `count` positions."""
        mechanism = cast(Any, self.mechanism)
        limit = self.memory_length + (mechanism.compressed if mechanism.compresses else 0)
        held = RecentLayer.of(cache, mechanism.shape.layer, limit)
        k, v = projected["k"], projected["v"]
        mask = None if key_mask is None else key_mask[:, -k.shape[2] :]
        return held.add(k, v, mask, count)

    def _step(self, given: dict[str, Tensor], key_mask: Tensor | None, cache: Cache) -> Tensor:
        """On top of the state that the cache holds of the earlier positions."""
        held = StateLayer.of(cache, self.mechanism.shape.layer)
        mask = None if key_mask is None else key_mask[:, -given["v"].shape[2] :]
        out, state = self.mechanism.step(**given, state=held.state, key_mask=mask)
        held.advance(state, given["v"].shape[2])
        return out

    def _earlier(self, projected: dict[str, Tensor], cache: Cache) -> dict[str, Tensor]:
        """Keys and values of earlier positions, from the cache, and those given."""
        v = projected["v"]
        k = projected.get("k", v[..., :1])  # keys that nobody reads; transformers counts positions by them
        k, v = cache.update(k, v, self.mechanism.shape.layer)
        return {"k": k if "k" in projected else v, "v": v}


class CrossAttention(Projected):
    """A decoder's sequence to the encoder's."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        mechanism = attention_of(config, "cross_attention", layer, cross=True)
        super().__init__(config, layer + config.num_hidden_layers, mechanism, prefix="cross_")

    def mix(
        self,
        x: Float[Tensor, "B N d"],
        memory: Float[Tensor, "B M d"],
        key_mask: Bool[Tensor, "B M"] | None,
        cache: EncoderDecoderCache | None = None,
    ) -> Float[Tensor, "B N d"]:
        """Attention of `x` to `memory` (B, N, d), before the output projection.

        Args:
            x: the decoder's sequence; or W for each memory, one after the other, (B W, N, d).
            memory: the encoder's output.
            key_mask: True = keep, of the memory.
            cache: keeps the keys and values of the memory after their first use.
        """
        rows = x.shape[0]
        if self.mechanism.queries_apart:
            # Several sequences are so many queries: the keys and values of the memory are there once.
            x = x.reshape(memory.shape[0], -1, x.shape[2])
        elif rows != memory.shape[0]:
            memory = memory.repeat_interleave(rows // memory.shape[0], 0)
            key_mask = None if key_mask is None else key_mask.repeat_interleave(rows // key_mask.shape[0], 0)
        q = self._projected("q", self._codes(x, "q")["q"])
        k, v = self._keys_values(memory, key_mask, cache)
        out = self.mechanism.attend(q, k, v) if self.mechanism.can_reduce else self.mechanism(q, k, v, key_mask)
        return out.transpose(1, 2).flatten(2).reshape(rows, -1, x.shape[2])

    def _keys_values(
        self, memory: Tensor, key_mask: Tensor | None, cache: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        layer = self.mechanism.shape.layer
        if cache is not None and cache.is_updated.get(layer):
            stored = cast(Any, cache.cross_attention_cache.layers[layer])
            return stored.keys, stored.values
        codes = self._codes(memory, "k", "v")
        if self.mechanism.can_reduce:
            k, v = (self._reduced(role, codes[role], key_mask) for role in get_args(Role))
        else:
            k, v = (self._projected(name, code) for name, code in codes.items())
        if cache is not None:
            cache.is_updated[layer] = True
            k, v = cache.cross_attention_cache.update(k, v, layer)
        return k, v


def attention_of(
    config: GreenformerConfig, slot: str, layer: int, *, causal: bool = False, cross: bool = False
) -> Attention:
    """The mechanism in an attention slot of one layer.

    Raises:
        ValueError: it has no causal or no cross form, or needs more than queries, keys and values for one.
    """
    layers = config.per_layer(slot)
    shape = Shape(
        config.num_attention_heads,
        config.hidden_size // config.num_attention_heads,
        config.max_position_embeddings,
        causal=causal,
        cross=cross,
        layer=layer,
        layers=len(layers),
    )
    mechanism = build(layers[layer], shape, **(config.per_layer(f"{slot}_options")[layer] or {}))
    if cross and mechanism.projections != ("q", "k", "v"):
        used = ", ".join(mechanism.projections)
        raise ValueError(f"cross-attention needs a mechanism of q, k and v, got {layers[layer]!r}, which uses {used}")
    return mechanism


def constant(module: nn.Module, x: Tensor) -> Tensor:
    """A module of `x`, without a gradient for its parameters."""
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    found: Tensor = torch.func.functional_call(module, parameters, (x,))
    return found
