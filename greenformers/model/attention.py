"""Self-attention and cross-attention: a mechanism of the attention slot between its projections. Vaswani 2017, 3.2."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache, StaticLayer

from greenformers.attention import Attention, Role
from greenformers.depth import Running
from greenformers.model.attending import Extras, cached, of_some, plain, remembering, with_cache, without_cache
from greenformers.model.beams import BeamLayer
from greenformers.model.cache import Past, RecentLayer, check_place, length_of
from greenformers.model.config import GreenformerConfig
from greenformers.model.memory import without_gap
from greenformers.model.projected import Projected, attention_of, constant
from greenformers.position import Position, Rotation


class SelfAttention(Projected):
    """Attention of a sequence to itself.

    Args:
        config: Sizes and slots of the network.
        layer: Index of the layer in its stack, from 0.
        causal: Whether position i sees only positions up to i.
        decoder: Whether the stack is the decoder of an encoder-decoder.

    Attributes:
        remembers: Whether it can attend a segment memory.
        asks_apart: Whether, on top of a cache, outputs of fewer queries than new keys can be computed.
        picks: Whether outputs of any positions can be computed by themselves, see `mix_some`.
        without_cache: Strategy that calls the mechanism on a sequence alone, see `greenformers.model.attending`.
        with_cache: Strategy that calls it on top of a cache.
    """

    def __init__(self, config: GreenformerConfig, layer: int, *, causal: bool = False, decoder: bool = False) -> None:
        slot = "decoder_attention" if decoder else "attention"
        mechanism = attention_of(config, slot, layer, causal=causal)
        bias = config.resolved("bias", causal=causal)
        super().__init__(config, layer + config.num_hidden_layers * decoder, mechanism, bias=bias)
        self.remembers = mechanism.positions == "own" and mechanism.shape.causal
        self.position = None
        if mechanism.positions == "model":
            self.position = config.make_position("layers", causal=causal, decoder=decoder)
            _check_takes(mechanism, self.position)
        self.asks_apart = mechanism.projections == ("q", "k", "v")
        self.without_cache = without_cache(self)
        self.with_cache = with_cache(mechanism, config.memory_length if self.remembers else 0)
        adds = self.position is not None and self.position.acts == "scores"
        self.picks = self.asks_apart and mechanism.takes_pairs and self.with_cache is cached and not adds

    def forward(
        self, x: Float[Tensor, "B N d"], key_mask: Bool[Tensor, "B M"] | None = None, past: Past | None = None
    ) -> Float[Tensor, "B N d"]:
        """Attention of a sequence to itself and to its past, projected, for blocks; see `mix`."""
        y: Tensor = self.output(self.mix(x, key_mask, None if past is None else past.own)[0])
        return y

    def mix(
        self,
        x: Float[Tensor, "B N d"],
        key_mask: Bool[Tensor, "B M"] | None,
        cache: Cache | None = None,
        global_mask: Bool[Tensor, "B N"] | None = None,
        choice: dict[str, Tensor] | None = None,
        memory: Float[Tensor, "B m d"] | None = None,
        rotation: Rotation | None = None,
        pairs: Tensor | None = None,
        attentions: list[Tensor] | None = None,
        last: int = 0,
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, ""] | None]:
        """Attention of a sequence to itself (B, N, d), before the projection `output`.

        Args:
            x: The sequence (B, N, d); with a cache, its last N positions.
            key_mask: True = keep (B, M); M = N without a cache and segment memory, m + N with segment memory.
            cache: Keys and values of earlier positions; those of `x` are added to it.
            global_mask: True = global (B, N): the position sees all and is seen by all, for mechanisms that take it.
            choice: Choice of keys that a mechanism with `choose` made at an earlier call on the same sequence; an empty
                dictionary is filled.
            memory: Segment memory (B, m, d) in front of the sequence, which is attended and attends nothing.
            rotation: The angles of the positions of `x`, where they are rotary.
            pairs: Which keys each query sees, or a bias of their scores, for mechanisms that take it.
            attentions: List that attention weights (B, H, N, M) are appended to; None: they are not computed; see
                `Attention.weights`.
            last: On top of a cache, number of positions at the end to compute outputs of; 0: all.

        Returns:
            The outputs, of `last` positions or of all, and in training the loss of a mechanism that has one.

        Raises:
            ValueError: The mechanism takes no global mask, or no segment memory as it has no positions of its own.
        """
        mechanism, position = self.mechanism, self.position  # attribute look-ups cost much for a single token
        if memory is not None and not self.remembers:
            raise ValueError(f"{type(mechanism).__name__} has no memory: its positions are the model's")
        if global_mask is not None and not mechanism.takes_global_mask:
            raise ValueError(f"{type(mechanism).__name__} takes no global mask")
        if pairs is not None and not mechanism.takes_pairs:
            raise ValueError(
                f"{type(mechanism).__name__} takes no mask of queries and keys: it must be (B, M), of keys alone"
            )
        asks = None if key_mask is None or memory is None else key_mask[:, -x.shape[1] :]
        if memory is None and last and cache is not None and self.asks_apart and attentions is None:
            codes = self.codes(x[:, -last:], "q") | self.codes(x, "k", "v")
        elif memory is None:
            codes = self.codes(x, *mechanism.projections)
        else:
            if mechanism.reach is not None and memory.shape[1] > mechanism.reach:  # no query sees more
                memory = memory[:, memory.shape[1] - mechanism.reach :]
                key_mask = None if key_mask is None else key_mask[:, -memory.shape[1] - x.shape[1] :]
            whole = torch.cat([memory, x], 1)
            if key_mask is not None:
                whole, key_mask = without_gap(whole, key_mask, memory.shape[1])
            codes = self.codes(x, "q") | self.codes(whole, "k", "v")
        turns = position is not None and position.acts == "rotation"
        if turns and rotation is None:
            raise ValueError("rotation must be given to a layer whose positions are rotary")
        turn = (position, rotation) if turns and position is not None and rotation is not None else None
        queries = x[:, -last:] if "q" in codes and codes["q"].shape[1] < x.shape[1] else x
        extras = Extras(
            global_mask, choice, turn, None if turns else position, pairs, attentions, queries, x.shape[1], asks
        )
        if cache is None:
            without_cache = self.without_cache if attentions is None else plain
            out, loss = without_cache(self, codes, key_mask, extras)
        else:
            attend = self.with_cache
            if attend is cached and (memory is not None or RecentLayer.at(cache, self.place)):
                attend = partial(remembering, limit=sys.maxsize)  # all positions, those of the memory before them
            out, loss = attend(self, codes, key_mask, extras, cache)
        return out.transpose(1, 2).flatten(2), loss

    def mix_some(
        self,
        x: Float[Tensor, "B N d"],
        running: Running,
        key_mask: Bool[Tensor, "B M"] | None = None,
        cache: Cache | None = None,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "b S d"]:
        """What `mix` gives at some positions: the others are keys and values, and no queries.

        Args:
            x: The sequence (B, N, d); with a cache, its last N positions.
            running: The positions.
            key_mask: True = keep (B, M).
            cache: Keys and values of earlier positions; those of all N are added to it.
            rotation: The angles of the positions of `x`, where they are rotary.
        """
        codes = self.codes(running.take(x), "q") | self.codes(x, "k", "v")
        turn = None
        if self.position is not None and rotation is not None:
            whole = Rotation(*(part.expand(len(x), -1, -1, -1) for part in rotation))
            of_queries = Rotation(*(running.take(part[:, 0])[:, None] for part in whole))
            turn = self.position, of_queries, rotation
        past = 0 if cache is None else length_of(cache, self.place)
        keys = past + x.shape[1]
        seen = running.columns.new_ones(len(running.rows), 1, keys, dtype=torch.bool)
        if self.mechanism.shape.causal:
            seen = torch.arange(keys, device=x.device) <= past + running.columns[..., None]
        if key_mask is not None:
            seen = seen & key_mask[running.rows, None]
        seen = seen.expand(-1, running.columns.shape[1], -1)[:, None]
        out = of_some(self, codes, seen, running.rows, turn, cache)
        return out.transpose(1, 2).flatten(2)

    def picks_from(self, cache: Cache | None) -> bool:
        """Whether `mix_some` can be called on top of a cache: beams that share keys select these by a mask."""
        layers = [] if cache is None else cache.layers[self.place : self.place + 1]
        return self.picks and not any(isinstance(layer, BeamLayer) for layer in layers)

    def compress(
        self,
        x: Float[Tensor, "B N d"],
        old: Float[Tensor, "B n d"],
        mask: Bool[Tensor, "B n"] | None,
        query_mask: Bool[Tensor, "B N"] | None,
        norm: Callable[[Tensor], Tensor],
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
        """Compress the positions `old` that leave the segment memory, see `Attention.compress`.

        Args:
            x: Inputs (B, N, d) that attend the memory.
            old: Earlier inputs (B, n, d) of this layer.
            mask: True = keep (B, n), for `old`.
            query_mask: True = keep (B, N), for `x`.
            norm: Norm of inputs before their projection.
        """

        def project(y: Tensor, names: Sequence[str]) -> list[Tensor]:
            y = norm(y)
            return [heads_of(y, name) for name in names]

        def heads_of(y: Tensor, name: str) -> Tensor:
            x = self.split_heads(constant(self.projections[name], y))
            if self.normalised is not None and name in self.normalised:
                x = constant(self.normalised[name], x)
            return self.for_every_head(x)

        return self.mechanism.compress(x, old, mask, project, query_mask=query_mask)


def _check_takes(mechanism: Attention, position: Position | None) -> None:
    """Raise ValueError where a mechanism cannot apply a kind of position."""
    if position is None:
        return
    fits = mechanism.takes_rotation
    if position.acts == "scores":
        fits = mechanism.adds_to_scores == "all" or (
            mechanism.adds_to_scores == "distances" and not position.asks_query and not position.has_values
        )
    if not fits:
        kinds = (type(part).__module__.rpartition(".")[2] for part in (position, mechanism))
        raise ValueError(
            "position {} does not fit {}: it has no scores of queries and keys to put it in".format(*kinds)
        )


class CrossAttention(Projected):
    """Attention of the sequence of a decoder to the encoder output."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        mechanism = attention_of(config, "cross_attention", layer, cross=True)
        if mechanism.mixes_queries:
            raise ValueError(
                f"cross_attention of a decoder cannot be {type(mechanism).__name__}: what a position is given would "
                "depend on later ones"
            )
        bias = config.resolved("bias")
        super().__init__(config, layer + config.num_hidden_layers, mechanism, bias=bias, prefix="cross_")

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        encoder_output: Float[Tensor, "b M d"],
        key_mask: Bool[Tensor, "b M"] | None = None,
        past: Past | None = None,
        query_mask: Bool[Tensor, "B P"] | None = None,
    ) -> Float[Tensor, "B N d"]:
        """Attention to the encoder output, projected, for blocks; see `mix`."""
        cache = None if past is None else cast(EncoderDecoderCache, past.cache)
        y: Tensor = self.output(self.mix(x, encoder_output, key_mask, cache, query_mask=query_mask))
        return y

    def mix(
        self,
        x: Float[Tensor, "B N d"],
        encoder_output: Float[Tensor, "B M d"],
        key_mask: Bool[Tensor, "B M"] | None,
        cache: EncoderDecoderCache | None = None,
        attentions: list[Tensor] | None = None,
        sources: Int[Tensor, " b"] | None = None,
        query_mask: Bool[Tensor, "B P"] | None = None,
    ) -> Float[Tensor, "B N d"]:
        """Attention of `x` to the encoder output (B, N, d), before the projection `output`.

        Args:
            x: Sequence of the decoder (B, N, d), or W sequences for each encoder output, in order, (B W, N, d).
            encoder_output: Output of the encoder (B, M, d).
            key_mask: True = keep (B, M), for the encoder output.
            cache: Cache that keeps keys and values of the encoder output after their first use.
            attentions: List that attention weights (B, H, N, M) are appended to; None: they are not computed.
            sources: For some sequences of a batch, (b, N, d), the encoder output that each attends; None: as above.
            query_mask: True = keep (B, P), whose last N columns are those of `x`; read where a query depends on others.

        Raises:
            ValueError: Attention weights are asked of a mechanism that caches shortened keys and values.
        """
        rows = x.shape[0]
        if sources is not None:
            return self._mix_some(x, encoder_output, key_mask, cache, sources)
        reduces = self.can_reduce and (attentions is None or cache is not None)
        if reduces and attentions is not None:
            raise ValueError("output_attentions must be False where shortened keys and values are kept: use no cache")
        if self.mechanism.queries_apart:
            # Queries of several sequences in one: keys and values of the encoder output exist once.
            x = x.reshape(encoder_output.shape[0], -1, x.shape[2])
        elif rows != encoder_output.shape[0]:
            encoder_output = encoder_output.repeat_interleave(rows // encoder_output.shape[0], 0)
            key_mask = None if key_mask is None else key_mask.repeat_interleave(rows // key_mask.shape[0], 0)
        # Positions of queries are counted from the first kept one.
        apart = query_mask is None or self.mechanism.queries_apart
        asks = {} if apart else {"query_mask": cast(Tensor, query_mask)[:, -x.shape[1] :]}
        q = self.project("q", self.codes(x, "q")["q"])
        k, v = self._keys_values(encoder_output, key_mask, cache, reduces=reduces)
        k, v = self.for_every_head(k), self.for_every_head(v)
        if attentions is not None:
            of_values, added = self.mechanism.weights(q, k, key_mask, **asks)
            weights = of_values["v"]
            copies = rows // len(weights)  # sequences for each encoder output
            by_row = weights.unflatten(2, (copies, -1)).transpose(1, 2).flatten(0, 1) if copies > 1 else weights
            attentions.append(by_row)
            out = F.dropout(weights, getattr(self.mechanism, "dropout", 0.0), self.training) @ v + added
        else:
            out = self.mechanism.attend(q, k, v) if reduces else self.mechanism(q, k, v, key_mask, **asks)
        return out.transpose(1, 2).flatten(2).reshape(rows, -1, x.shape[2])

    def _mix_some(
        self,
        x: Tensor,
        encoder_output: Tensor,
        key_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
        sources: Tensor,
    ) -> Float[Tensor, "b N d"]:
        q = self.project("q", self.codes(x, "q")["q"])
        reduces = self.can_reduce
        both = self._keys_values(encoder_output, key_mask, cache, reduces=reduces)
        k, v = (self.for_every_head(part[sources]) for part in both)
        mask = None if key_mask is None else key_mask[sources]
        out = self.mechanism.attend(q, k, v) if reduces else self.mechanism(q, k, v, mask)
        return out.transpose(1, 2).flatten(2)

    def _keys_values(
        self, encoder_output: Tensor, key_mask: Tensor | None, cache: EncoderDecoderCache | None, *, reduces: bool
    ) -> tuple[Tensor, Tensor]:
        layer = self.place
        if cache is not None and cache.is_updated.get(layer):
            stored = cast(Any, cache.cross_attention_cache.layers[layer])
            length = stored.keys.shape[2] if reduces else encoder_output.shape[1]  # a static cache may have more room
            return stored.keys[:, :, :length], stored.values[:, :, :length]
        codes = self.codes(encoder_output, "k", "v")
        if reduces:
            k, v = (self.reduce(role, codes[role], key_mask) for role in get_args(Role))
        else:
            k, v = (self.project(name, code) for name, code in codes.items())
        if cache is not None:
            check_place(cache.cross_attention_cache, layer)
            cache.is_updated[layer] = True
            layers = cache.cross_attention_cache.layers
            if reduces and layer < len(layers) and isinstance(layers[layer], StaticLayer):
                layers[layer] = DynamicLayer()  # of their own number, whatever room was made for the source
            length = k.shape[2]
            k, v = (part[:, :, :length] for part in cache.cross_attention_cache.update(k, v, layer))
        return k, v
