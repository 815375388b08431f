"""The decoder: causal layers, with attention to an encoder where there is one. Vaswani 2017, 3.1; Winata 2020."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.utils.output_capturing import capture_outputs

from greenformers.attention import Attention
from greenformers.attention._aligned import is_traced
from greenformers.depth import Running
from greenformers.feed_forward import FeedForward
from greenformers.model.block import layer_of, number, places_of
from greenformers.model.cache import length_of, make_room
from greenformers.model.config import GreenformerConfig
from greenformers.model.decoder_layer import decoder_layer_of
from greenformers.model.embedding import Embedding, without_padding
from greenformers.model.encoder import GreenformerPreTrainedModel, share
from greenformers.model.memory import SegmentMemory
from greenformers.model.norm import norm_of
from greenformers.model.outputs import DecoderOutput
from greenformers.model.packed import Lengths, Packing, is_one_text, packing
from greenformers.model.stack import Ran, kept_by, mean_of, of_keys, rotation_of, run, through


class GreenformerDecoder(GreenformerPreTrainedModel):
    """Decoder without a head; with `decoder_layers` in the configuration, that of an encoder-decoder."""

    stack_is_causal = True

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        if config.vocab_size is None:
            raise ValueError("a decoder needs a vocab_size, got None")
        self.embedding = Embedding(config, causal=True)
        if config.decoder_layers is None:
            stack = [layer_of(config, layer, causal=True) for layer in range(config.num_hidden_layers)]
            self.layers = nn.ModuleList(stack)
        else:
            self.layers = nn.ModuleList(decoder_layer_of(config, layer) for layer in range(config.decoder_layers))
        number(self.layers)
        own, cross = places_of(self.layers)
        self._places_in_cache = len(own), len(cross)
        self.depth = config.make_depth(decoder=config.is_encoder_decoder, causal=True, norm=partial(norm_of, config))
        has_norm = self.layers[0].needs_final_norm and not (self.depth is not None and self.depth.exits)
        self.final_norm = norm_of(config) if has_norm else nn.Identity()
        self._shared = self._tied_weights_keys = share(self.layers, config)
        self.post_init()

    @property
    def keeps_cache(self) -> bool:
        """Whether keys and values can stand for earlier positions; else each pass reads the whole sequence."""
        parts = [module for module in self.layers.modules() if isinstance(module, FeedForward | Attention)]
        return self.config.keeps_cache and all(part.continues for part in parts)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.embedding.word

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the embedding of tokens."""
        self.embedding.word = value

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Float[Tensor, "B M d"] | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        cache_position: Int[Tensor, " N"] | None = None,
        *,
        memory: SegmentMemory | None = None,
        logits_to_keep: int = 0,
        score: Callable[[Tensor], Tensor] | None = None,
        output_hidden_states: bool | None = None,  # read by capture_outputs
        output_attentions: bool | None = None,
        **lengths: Any,
    ) -> DecoderOutput:
        """Decode the last N of P positions; the P - N before them are in the cache.

        Args:
            input_ids: Tokens (B, N).
            attention_mask: 1 = keep (B, P), or a mask of queries and keys, see `of_keys`. Positions count kept tokens
                only, so that padding on the left changes nothing.
            encoder_hidden_states: Encoder output (B, M, d), or (B / W, M, d) for W rows of tokens each; given exactly
                where the network has an encoder.
            encoder_attention_mask: 1 = keep (B, M), for the encoder output.
            past_key_values: Keys and values of the earlier positions.
            use_cache: Whether keys and values are returned for later positions.
            token_type_ids: Index of the text of a pair that each token belongs to, below `type_vocab_size`; by default
                0.
            position_ids: Positions of the tokens, from 0; by default those above. Where they restart with each text of
                one row, texts are packed: each attends itself alone, without a cache.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            cache_position: Positions of the tokens behind those in the cache; they must agree with the cache.
            memory: Segment memory, for attention with positions of its own; read where the cache is empty.
            logits_to_keep: On top of a cache, number of last positions that are scored: the last layer may leave out
                the others. 0: all are computed.
            score: Function from states (..., d) to scores of tokens, for kinds of depth that leave by them.
            output_hidden_states: Whether the input of every layer is returned too.
            output_attentions: Whether attention weights are returned too, (B, H, N, P) a layer, of
                cross-attention too; slow, and quadratic in bytes of memory with any mechanism, see `Attention.weights`.
            **lengths: Lengths of texts packed in one row, see `greenformers.model.packed.Lengths`.

        Returns:
            last_hidden_state (B, N, d) and past_key_values; in training auxiliary_loss of mechanisms and kinds of depth
            that have one; steps (B, N), the number of layers of each position, of kinds of depth that choose it; where
            a segment memory was given and no cache, that of the next segment.

        Raises:
            ValueError: Input, masks and network do not fit each other, or the network cannot return what is asked for.
        """
        attentions, cross_attentions = self.attention_list(output_attentions), self.attention_list(output_attentions)
        crossed, caches, of_texts = self.config.is_encoder_decoder, past_key_values is not None, Lengths.of(lengths)
        tokens = self._given(input_ids, inputs_embeds, encoder_hidden_states, caches)
        packs = None
        if not caches and not crossed and memory is None:
            packs = packing(tokens.shape[:2], attention_mask, position_ids, of_texts)
        elif lengths:
            raise ValueError(f"packed texts have no cache, memory or encoder: {', '.join(lengths)} must be None")
        if packs is not None:
            if output_hidden_states or attentions is not None or use_cache:
                raise ValueError(
                    "output_hidden_states, output_attentions and use_cache must be False where texts are packed"
                )
            input_ids, inputs_embeds, token_type_ids = packs.all_unpacked(input_ids, inputs_embeds, token_type_ids)
            tokens = cast(Tensor, input_ids if inputs_embeds is None else inputs_embeds)
            attention_mask, position_ids = packs.mask(tokens.device), None
        elif not caches and is_one_text(tokens.shape[:2], attention_mask, position_ids):
            position_ids = None  # as an incomplete batch of packed texts has them, for any kind of position
        cache = self._cache(past_key_values, bool(use_cache))
        past = 0 if cache is None else length_of(cache)
        _check_places(cache_position, past, tokens.shape[1])
        attention_mask, pairs = of_keys(attention_mask)
        key_mask, positions = self._places(attention_mask, tokens, past)
        if position_ids is not None:
            positions = self.positions(position_ids, tokens)
        encoder_mask = self._encoder_mask(encoder_attention_mask, encoder_hidden_states)
        if inputs_embeds is not None:
            inputs_embeds = without_padding(inputs_embeds, key_mask)
        x = self.embedding(input_ids, positions=positions, inputs_embeds=inputs_embeds, types=token_type_ids)
        self.check_hidden_states(output_hidden_states)
        last = 0 if self.config.output_hidden_states or output_hidden_states else logits_to_keep
        if memory is not None:
            memory = self._checked(memory, x, past)
        with self.kernels():
            if crossed:
                encoded, lists = (encoder_hidden_states, encoder_mask), (attentions, cross_attentions)
                ran = self._cross(x, encoded, key_mask, cache, positions, pairs, lists, score)
            else:
                ran = run(
                    self.layers, x, key_mask, past_key_values=cache, memory=memory, positions=positions,
                    pairs=pairs, attentions=attentions, last=last, depth=self.depth, score=score,
                )  # fmt: skip
        out = self.finish(ran.x, past_key_values=cache if use_cache else None, loss=ran.loss)
        out.steps, out.exits = ran.steps, ran.exits
        if attentions is not None:
            out.attentions = tuple(attentions)
            out.cross_attentions = tuple(cast(list[Tensor], cross_attentions)) if crossed else None
        if packs is not None:
            _pack(out, packs)
        out.memory = ran.memory if cache is None else None
        return out

    def _given(self, input_ids: Any, inputs_embeds: Any, encoder_output: Tensor | None, caches: bool) -> Tensor:
        """The tokens or their embeddings; ValueError where what is given is not for this network."""
        crossed = self.config.is_encoder_decoder
        if crossed != (encoder_output is not None):
            raise ValueError(f"encoder_hidden_states must {'' if crossed else 'not '}be given to this decoder")
        tokens: Tensor | None = input_ids if inputs_embeds is None else inputs_embeds
        if encoder_output is not None:
            self._check_rows(tokens, encoder_output)
        if caches and not self.config.keeps_cache:
            raise ValueError(f"a network of {self.config.block} keeps no cache: use_cache must be False")
        if tokens is None:
            raise ValueError("input_ids or inputs_embeds must be given, got neither")
        return tokens

    def _cache(self, cache: Any, asked: bool) -> Any:
        """The cache that is given, or a new one where one is asked for, with room for what comes; None without."""
        if cache is None and asked and self.config.keeps_cache:
            cache = DynamicCache()
            cache = EncoderDecoderCache(cache, DynamicCache()) if self.config.is_encoder_decoder else cache
        if cache is None:
            return None
        if not self.keeps_cache:
            raise ValueError(
                "feed_forward or attention reads whole sequences here, as a switch with a capacity and dacs with "
                "look_ahead do, and keeps no cache: use_cache must be False"
            )
        make_room(cache, *self._places_in_cache)
        return cache

    def _cross(
        self,
        x: Tensor,
        encoded: tuple[Any, Tensor | None],
        key_mask: Tensor | None,
        cache: Cache | None,
        positions: Tensor | None,
        pairs: Tensor | None,
        attentions: tuple[list[Tensor] | None, list[Tensor] | None],
        score: Callable[[Tensor], Tensor] | None,
    ) -> Ran:
        """Run the layers that attend an encoder output (B, M, d), which has a mask."""
        rotation = rotation_of(self.layers, x, cache, positions)
        given = {"past_key_values": cache, "rotation": rotation, "pairs": pairs, "attentions": attentions}

        def layer_at(n: int, u: Tensor, running: Running | None) -> Any:
            further = {} if running is None else {"running": running}
            return self.layers[n](u, encoded[0], key_mask, encoded[1], **given, **further)

        if self.depth is not None:
            further = {}
            if self.depth.exits:
                further = {"score": score, "context": mean_of(*encoded)}
            return through(self.depth, x, layer_at, key_mask, cache, positions, **further)
        loss: Tensor | None = None
        for n in range(len(self.layers)):
            decoded = layer_at(n, x, None)
            x, own = decoded if isinstance(decoded, tuple) else (decoded, None)
            loss = own if loss is None else loss if own is None else loss + own
        return Ran(x, loss)

    def finish(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        loss: Tensor | None = None,
    ) -> DecoderOutput:
        """The output after the last norm. The mask, which the pooling of an encoder needs, is not read."""
        return DecoderOutput(self.final_norm(x), past_key_values, auxiliary_loss=loss)

    def _checked(self, memory: SegmentMemory, x: Tensor, past: int) -> SegmentMemory | None:
        """The segment memory, checked; None where the cache holds it already."""
        if not self.config.own_positions or self.config.is_encoder_decoder:
            raise ValueError("memory is for a single stack of attention with positions of its own, transformer_xl say")
        if memory.recent and (len(memory.recent), len(memory.recent[0])) != (len(self.layers), len(x)):
            raise ValueError(
                f"memory must be of {len(self.layers)} layers and {len(x)} sequences, "
                f"got {len(memory.recent)} and {len(memory.recent[0])}"
            )
        return None if past else memory

    @staticmethod
    def _check_rows(tokens: Tensor | None, encoder_output: Tensor) -> None:
        if tokens is not None and len(tokens) % len(encoder_output):
            raise ValueError(
                f"the decoder must have a multiple of the encoder's {len(encoder_output)} sequences, got {len(tokens)}"
            )

    def _encoder_mask(self, mask: Tensor | None, encoder_output: Tensor | None) -> Tensor | None:
        if mask is None or encoder_output is None:
            return None
        if mask.shape != encoder_output.shape[:2]:
            raise ValueError(
                f"encoder_attention_mask must be {tuple(encoder_output.shape[:2])}, got {tuple(mask.shape)}"
            )
        return kept_by("encoder_attention_mask", mask, read=mask.device.type == "cpu")

    def _places(self, mask: Tensor | None, tokens: Tensor, past: int) -> tuple[Tensor | None, Tensor | None]:
        """Key mask (B, P) and positions (B, N) of the tokens, None where they are the default."""
        batch, length = tokens.shape[:2]
        total = past + length
        self.embedding.check_length(total)
        if mask is None:
            here = torch.arange(past, total, device=tokens.device).expand(batch, -1)
            return None, here if past else None
        if mask.shape != (batch, total):
            raise ValueError(f"attention_mask must be {(batch, total)}, got {tuple(mask.shape)}")
        # Without a mask kernels are faster; on a GPU it takes a wait to know, which one further token is not worth.
        read = mask.device.type == "cpu" or length > 1
        key_mask = kept_by("attention_mask", mask, read=read)
        if read and not is_traced(mask) and bool(key_mask.all()):
            return self._places(None, tokens, past)
        return key_mask, (key_mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:]


def _check_places(cache_position: Tensor | None, past: int, length: int) -> None:
    """Raise ValueError where places in the cache do not agree with the cache."""
    if cache_position is not None and cache_position.tolist() != list(range(past, past + length)):
        raise ValueError(
            f"cache_position must be {past} to {past + length - 1}, as the cache says; got {cache_position.tolist()}"
        )


def _pack(out: DecoderOutput, packs: Packing) -> None:
    """Put texts that were computed each in a row of its own into one row again."""
    out.last_hidden_state = packs.packed(cast(Tensor, out.last_hidden_state))
    out.steps = None if out.steps is None else packs.packed(out.steps)
    if out.exits is not None:
        out.exits = out.exits._replace(states=tuple(map(packs.packed, out.exits.states)))
