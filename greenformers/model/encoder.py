"""The encoder: embedding, layers, and the pooled vector that heads read; and the base class of all models."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel
from transformers.utils.output_capturing import capture_outputs

from greenformers import blocks
from greenformers.attention import Attention
from greenformers.attention._aligned import first_of
from greenformers.depth import Depth
from greenformers.feed_forward import FeedForward
from greenformers.lowrank.experts import ExpertsLED, ExpertsLinear
from greenformers.lowrank.linear import LED, HeadLED, draw
from greenformers.model._transformers import attention_of
from greenformers.model.block import Layer, layer_of, size_of
from greenformers.model.config import GreenformerConfig
from greenformers.model.embedding import Embedding, checked, counted, draw_embeddings, without_padding
from greenformers.model.norm import norm_of
from greenformers.model.outputs import EncoderOutput
from greenformers.model.packed import Lengths, is_one_text, packing
from greenformers.model.slots import SHARED
from greenformers.model.stack import kept_by, mean_of, of_keys, run
from greenformers.position import Position


def share(layers: nn.ModuleList, config: GreenformerConfig) -> dict[str, str]:
    """Share parameters of layer 0 with other layers, and return the tied names of a checkpoint.

    Mechanisms may share parameters of their own over layers; with depth "shared" and kinds like it whole blocks do.

    Raises:
        ValueError: Layers that share have parameters of different names or sizes.
    """
    tied = _tied_mechanisms(layers) | _tied_positions(layers)
    shared = ("block",) if hasattr(layers[0], "block") else SHARED[config.shared]
    for block in shared if config.shares_layers else ():
        for part in (block, f"{block}_norm"):
            if not hasattr(layers[0], part):
                continue
            first = dict(layers[0].get_submodule(part).named_parameters(remove_duplicate=False))
            for index, layer in enumerate(layers):
                own = dict(layer.get_submodule(part).named_parameters(remove_duplicate=False))
                sizes = [{name: tuple(x.shape) for name, x in parameters.items()} for parameters in (first, own)]
                if sizes[0] != sizes[1]:
                    raise ValueError(
                        f"depth {config.depth} needs layers alike, {part} of layer {index} is not as layer 0's"
                    )
                for name, parameter in first.items() if index else ():
                    owner, _, leaf = name.rpartition(".")
                    setattr(layer.get_submodule(f"{part}.{owner}" if owner else part), leaf, parameter)
                    tied[f"layers.{index}.{part}.{name}"] = f"layers.0.{part}.{name}"
    return tied


def _tied_mechanisms(layers: nn.ModuleList) -> dict[str, str]:
    tied: dict[str, str] = {}
    firsts: dict[tuple[str, type[Attention], int, int], tuple[int, Attention]] = {}
    for index, layer in enumerate(layers):
        for place, mechanism in layer.named_modules():
            if not isinstance(mechanism, Attention):
                continue
            alike = (place, type(mechanism), mechanism.shape.heads, mechanism.shape.head_dim)
            owner, first = firsts.setdefault(alike, (index, mechanism))
            if mechanism is not first:
                mechanism.shared(first)
            for name in mechanism.shared_parameters:
                tied[f"layers.{index}.{place}.{name}"] = f"layers.{owner}.{place}.{name}"
    return tied


def _tied_positions(layers: nn.ModuleList) -> dict[str, str]:
    """Share parameters of positions: those of the first layer that has them."""
    own = [(index, getattr(getattr(layer, "attention", None), "position", None)) for index, layer in enumerate(layers)]
    holders = [(index, position) for index, position in own if position is not None]
    tied = {}
    for index, position in holders[1:]:
        position.shared(holders[0][1])
        for name in position.shared_parameters:
            tied[f"layers.{index}.attention.position.{name}"] = f"layers.{holders[0][0]}.attention.position.{name}"
    return tied


class GreenformerPreTrainedModel(PreTrainedModel):
    """Base of every Greenformers model: configuration, initialisation, saving and loading."""

    config: GreenformerConfig
    config_class = GreenformerConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer", "BlockLayer", "BlockDecoderLayer"]  # noqa: RUF012 - the name and type transformers wants
    _can_record_outputs = {"hidden_states": Layer}  # noqa: RUF012 - as above
    _supports_sdpa = True
    # Every head divides its loss by `num_items_in_batch`, so that losses of parts of a batch add up.
    accepts_loss_kwargs = True
    stack_is_causal = False  # the meaning of None in a configuration depends on it
    _shared: dict[str, str] = {}  # noqa: RUF012 - replaced, never changed

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The tied weights, with those that layers share, whether or not embeddings are tied."""
        return super().get_expanded_tied_weights_keys(all_submodels) | ({} if all_submodels else self._shared)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """The mask of tokens unchanged, as all mechanisms take it; `generate` calls this for a static cache."""
        return attention_mask

    def kernels(self) -> AbstractContextManager[object]:
        """A `with` block of torch's plain products where `attn_implementation` is "eager", else of its kernels.

        Raises:
            ValueError: Layers are computed again in the backward pass, outside of the block.
        """
        if attention_of(self.config) != "eager":
            return nullcontext()
        if self.training and torch.is_grad_enabled() and any(layer.gradient_checkpointing for layer in self._layers()):
            raise ValueError(
                "attn_implementation must be sdpa with activation checkpointing, whose layers choose kernels twice"
            )
        return sdpa_kernel(SDPBackend.MATH)

    def check_hidden_states(self, output_hidden_states: bool | None) -> None:
        """Raise ValueError where the inputs of layers are asked for that a network does not have in full."""
        if not (self.config.output_hidden_states if output_hidden_states is None else output_hidden_states):
            return
        if self.config.residual == "reversible":
            raise ValueError("output_hidden_states must be False: a reversible stack keeps none")
        if self.depth is not None and getattr(self.depth, "halts", True):
            raise ValueError(
                f"output_hidden_states must be False: with depth {self.config.depth} layers see some positions only"
            )

    def attention_list(self, output_attentions: bool | None) -> list[Tensor] | None:
        """An empty list for attention weights, where a call or the configuration asks for them, else None."""
        wants = self.config.output_attentions if output_attentions is None else output_attentions
        return [] if wants else None

    def positions(
        self, position_ids: Int[Tensor, "b N"], given: Tensor | None, *, has_cls: bool = False
    ) -> Int[Tensor, "b N"]:
        """Check positions given by a user, of the input and of a [CLS] before it, and return them.

        Raises:
            ValueError: The network has no positions of tokens, or not these.
        """
        own = [
            cast(Any, self.embedding).position,
            *(getattr(layer.attention, "position", None) for layer in self._layers()),
        ]
        kinds = [position for position in own if position is not None and position.acts != "scores"]
        if self.config.placed_in_depth and given is not None:
            return checked(position_ids, given.shape[1] + has_cls, None)
        if not kinds or given is None:
            raise ValueError("position_ids must be None: this network goes by distances, or by no positions at all")
        longest = self.config.max_position_embeddings if kinds[0].bounded else None
        return checked(position_ids, given.shape[1] + has_cls, longest)

    def _layers(self) -> list[Any]:
        return [layer for layer in cast(nn.ModuleList, self.layers) if hasattr(layer, "attention")]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Called for every module with parameters of its own, also after loading: transformers makes torch.nn.init skip
        # loaded weights.
        into_residual = getattr(module, "into_residual", False)
        std = self.config.initial_std(causal=self.stack_is_causal, into_residual=into_residual)
        if isinstance(module, Position):
            module.reset_parameters(std)
        elif isinstance(module, HeadLED):
            module.draw_decoder(std)
        elif isinstance(module, LED | ExpertsLED) and module.bias is not None:
            nn.init.zeros_(module.bias)
        elif isinstance(module, Attention | blocks.Block | blocks.Convolution | FeedForward | Depth | ExpertsLinear):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            draw(module, std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            # With deviation s scaled embeddings would have s sqrt(e), 0.2 for 0.02 and e 128, beside 0.7 of sinusoids.
            draw_embeddings(module, module.embedding_dim**-0.5 if getattr(module, "is_scaled", False) else std)
        elif isinstance(module, Embedding) and hasattr(module, "cls"):
            nn.init.normal_(module.cls, std=std)
        else:
            super()._init_weights(module)


class GreenformerModel(GreenformerPreTrainedModel):
    """Encoder without a head. Its slots are those of the configuration.

    >>> config = GreenformerConfig(attention="linformer", attention_options={"k": 128}, rank=64)
    >>> hidden = GreenformerModel(config)(input_ids, attention_mask).last_hidden_state  # (B, N, d)
    """

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.embedding = self.embed(config)
        self.layers = nn.ModuleList(layer_of(config, layer) for layer in range(config.num_hidden_layers))
        self.pool = blocks.build(config.pooling, size_of(config, 0)) if config.pooling in blocks.names() else None
        self.final_norm = norm_of(config) if self.layers[0].needs_final_norm else nn.Identity()
        self.depth = config.make_depth()
        self._shared = self._tied_weights_keys = share(self.layers, config)
        self.post_init()

    def embed(self, config: GreenformerConfig) -> Any:
        """The embedding of the input."""
        return Embedding(config)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens, or the linear layer of values."""
        return self.embedding.word if self.config.vocab_size is not None else self.embedding.value

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the embedding of tokens, or the linear layer of values."""
        if self.config.vocab_size is not None:
            self.embedding.word = value
        else:
            self.embedding.value = value

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        input_values: Float[Tensor, "B n C"] | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        *,
        global_attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,  # read by capture_outputs
        output_attentions: bool | None = None,
        **lengths: Any,
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            input_ids: Tokens (B, N), for networks with a vocabulary.
            attention_mask: 1 or True = keep, (B, N) for tokens, (B, n) for values (the [CLS] is always kept); or a mask
                of queries and keys, see `of_keys`. Positions are counted from the first kept one: padding changes
                nothing, on either side of tokens, and behind values.
            input_values: Values (B, n, C), for networks with `input_features`; a learned [CLS] goes in front.
            token_type_ids: Index of the text of a pair that each token belongs to, below `type_vocab_size`; by default
                0.
            position_ids: Positions of the tokens, or of the [CLS] and the values behind it, from 0; by default counted
                from the first kept one. Where they restart with each text of one row, texts are packed: each attends
                itself alone.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 or True = global, shaped as `attention_mask`: the position sees all and is seen by
                all; for mechanisms that take it (`longformer`). A [CLS] before values is then global too.
            output_hidden_states: Whether the input of every layer is returned too; `return_dict=False` gives a tuple.
            output_attentions: Whether attention weights are returned too, (B, H, N, N) a layer; slow, and
                quadratic in bytes of memory with any mechanism, see `Attention.weights`.
            **lengths: Lengths of texts packed in one row, see `greenformers.model.packed.Lengths`.

        Returns:
            last_hidden_state (B, N, d) and pooler_output (B, d), one for each packed text, with pooling "cls" that of
            the first kept position; in training auxiliary_loss of mechanisms and kinds of depth that have one; steps
            (B, N), the number of layers of each position, of kinds of depth that choose it.

        Raises:
            ValueError: The input or the mask does not fit the network, or it cannot return what is asked for.
        """
        attentions = self.attention_list(output_attentions)
        packs, of_texts = None, Lengths.of(lengths)
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is not None and input_values is None:
            packs = packing(tokens.shape[:2], attention_mask, position_ids, of_texts)
        if packs is not None:
            if output_hidden_states or attentions is not None:
                raise ValueError("output_hidden_states and output_attentions must be False where texts are packed")
            input_ids, inputs_embeds, token_type_ids, global_attention_mask = packs.all_unpacked(
                input_ids, inputs_embeds, token_type_ids, global_attention_mask
            )
            attention_mask, position_ids = packs.mask(self.device), None
        elif tokens is not None and is_one_text(tokens.shape[:2], attention_mask, position_ids):
            position_ids = None  # as an incomplete batch of packed texts has them, for any kind of position
        given = next((x for x in (input_values, inputs_embeds, input_ids) if x is not None), None)
        attention_mask, pairs = of_keys(attention_mask)
        key_mask = self.key_mask("attention_mask", attention_mask, given, has_cls=input_values is not None)
        if input_values is not None and key_mask is not None:  # padding may be NaN
            input_values = input_values.masked_fill(~key_mask[:, 1:, None], 0.0)
        if inputs_embeds is not None:
            inputs_embeds = without_padding(inputs_embeds, key_mask)
        positions = counted(key_mask)
        if position_ids is not None:
            positions = self.positions(position_ids, given, has_cls=input_values is not None)
        x = self.embedding(input_ids, input_values, positions, inputs_embeds=inputs_embeds, types=token_type_ids)
        global_mask = self.key_mask("global_attention_mask", global_attention_mask, given, input_values is not None)
        self.check_hidden_states(output_hidden_states)
        with self.kernels():
            ran = run(
                self.layers, x, key_mask, global_mask=global_mask, positions=positions, pairs=pairs,
                attentions=attentions, depth=self.depth,
            )  # fmt: skip
        out = self.finish(ran.x, key_mask, ran.loss)
        out.steps = ran.steps
        out.attentions = None if attentions is None else tuple(attentions)
        if packs is not None:
            out.last_hidden_state = packs.packed(cast(Tensor, out.last_hidden_state))
            out.steps = None if out.steps is None else packs.packed(out.steps)
        return out

    def finish(self, x: Tensor, key_mask: Tensor | None, loss: Tensor | None = None) -> EncoderOutput:
        """The output after the last norm, and the pooled vector of each sequence."""
        x = self.final_norm(x)
        return EncoderOutput(last_hidden_state=x, pooler_output=self._pool(x, key_mask), auxiliary_loss=loss)

    def key_mask(
        self, name: str, mask: Tensor | None, given: Tensor | None, has_cls: bool
    ) -> Bool[Tensor, "B N"] | None:
        """The bool mask of the given tokens or values for the layers, with the [CLS] where there is one."""
        if mask is None or given is None:
            return None
        if mask.shape != given.shape[:2]:
            raise ValueError(f"{name} must be {tuple(given.shape[:2])}, got {tuple(mask.shape)}")
        mask = kept_by(name, mask)
        return F.pad(mask, (1, 0), value=True) if has_cls else mask

    def _pool(self, x: Tensor, key_mask: Tensor | None) -> Float[Tensor, "B d"]:
        if self.pool is not None:
            seed: Tensor = self.pool(x, key_mask)[0]
            return seed[:, 0]
        if self.config.pooling == "cls":
            return x[:, 0] if key_mask is None else x[torch.arange(x.shape[0], device=x.device), first_of(key_mask)]
        return mean_of(x, key_mask)
