"""One configuration for every variant: the sizes of the network and the entry of each of its slots."""

import copy
from collections.abc import Callable
from typing import Any, Literal, Self

from torch import nn
from transformers import PreTrainedConfig

from greenformers import blocks
from greenformers import depth as depths
from greenformers import position as positions
from greenformers.attention import attention_class
from greenformers.model._config_checks import PROBLEMS, check_names, check_sizes, check_slots, check_types
from greenformers.model.slots import DEFAULTS, SHAPES, SLOTS

Rank = int | dict[str, int | None] | None


class GreenformerConfig(PreTrainedConfig):
    """Sizes and slots of a Greenformers network; the defaults are those of BERT-base.

    Args:
        vocab_size: Size of the vocabulary; None for networks of values.
        input_features: Numbers per position for networks of values (`input_values`, with a learned [CLS] in front);
            None for tokens.
        image_size: Height and width of images, in pixels, for networks of image patches; then `input_features` is
            num_channels * patch_size^2. Dosovitskiy 2020, arXiv:2010.11929.
        patch_size: Height and width of a patch, a divisor of `image_size`.
        num_channels: Number of channels of a pixel.
        max_position_embeddings: Length of the longest sequence, [CLS] included.
        hidden_size: Width d of the network.
        type_vocab_size: Number of token types (`token_type_ids`), each with a learned vector added to the embeddings of
            its tokens, for the first and second text of a pair. Devlin 2018, arXiv:1810.04805, 3. 0: none.
        embedding_size: Width e of word and position embeddings, with a linear layer from e to d; None: d.
            Lan 2019, arXiv:1909.11942, 3.1.
        num_hidden_layers: Number of layers, of the encoder where there is a decoder too.
        decoder_layers: Number of layers of the decoder of an encoder-decoder; None for a single stack.
        num_attention_heads: Number H of heads, a divisor of d.
        num_key_value_heads: Number of heads of keys and values, a divisor of H; query heads share them. None: H.
            Ainslie 2023, arXiv:2305.13245.
        intermediate_size: Inner width f of the feed-forward block.
        hidden_act: Activation of the feed-forward block, a name in ACT2FN of transformers. None: "silu" in gated
            blocks, "gelu" in others.
        attention_dropout: Probability of dropping an attention weight in training, in all layers whose options do not
            set another; for mechanisms with attention weights.
        hidden_dropout_prob: Probability of dropout after the embedding and each block.
        initializer_range: Standard deviation of initial weights; None: d^-1/2, which keeps variance at any width; in a
            causal stack 0.02, and 0.02 / sqrt(2 layers) for the last linear layers of attention and feed-forward, which
            keeps the size of their sum over layers (Radford 2019, 2.3). With sinusoidal positions embeddings always
            start at e^-1/2, as large as these positions.
        norm: Slot; "layer", or "rms": without mean and bias (Zhang 2019, arXiv:1910.07467).
        layer_norm_eps: Epsilon of either norm.
        embedding_norm: Whether a norm follows the embedding. None: not in a causal stack.
        bias: Whether the linear layers of attention and feed-forward have a bias. None: not in a causal stack.
        qk_norm: Whether queries and keys of each head go through an RMS norm before their product. Henry 2020,
            arXiv:2010.04245.
        attention: Slot; a name, or one per layer. Causal in models with a decoder only.
        attention_options: Options of the mechanism; a dictionary, or one per layer.
        decoder_attention: Slot; as `attention`, for the causal self-attention of an encoder-decoder's decoder.
        decoder_attention_options: Options of that mechanism.
        cross_attention: Slot; as `attention`, from the decoder to the encoder.
        cross_attention_options: Options of that mechanism.
        rank: Slot "linear layers"; None (dense), an LED rank for all, a dictionary from `PROJECTIONS` to ranks
            (others stay dense), or a list of these, one per layer, the encoder's first.
        rank_per_head: Whether the ranks of q, k and v are those of each head, with two factors of its own and no bias:
            LRMHA as printed in the Greenformers thesis (Cahyawijaya 2021), eq. 3.2. They must have ranks.
        feed_forward: Slot; a name, or one per layer, the encoder's first. "dense", "gated" (SwiGLU where hidden_act is
            "silu"), "chunked": computed in slices of positions, again in the backward pass; or "switch": a mixture of
            experts. None: "gated" in a causal stack, else "dense".
        feed_forward_options: Options of that feed-forward block; a dictionary, or one per layer.
        residual: Slot; "post" or "pre" norm, or "reversible": pre-norm, with activations computed back from the output,
            so that the memory they take does not grow with the layers; for a single stack. None: "pre" in a causal
            stack, else "post".
        depth: Slot; "stacked", "shared": all layers have the first one's parameters (Lan 2019, 3.1), or a file of
            `greenformers.depth` ("universal", "adaptive"): a number of layers for each position, at most all of them.
        depth_options: Options of that kind of depth.
        shared: Parameters that depth "shared" shares: "all", "attention" or "feed_forward", each with its layer norm.
        position: Slot; a file of `greenformers.position` ("learned", "sinusoidal", "rotary"; "alibi", "t5", "shaw" and
            "huang", which add to scores), or "none". None: "rotary" in a causal stack whose attention takes it, else
            "learned"; with depth "universal", sinusoids before every step. Attention with positions of its own uses
            those instead.
        position_options: Options of that kind of position.
        memory_length: Number of positions of earlier segments that each layer attends, see `SegmentMemory`; for causal
            attention with positions of its own. `generate` keeps as many; 0: all.
        block: Slot; "standard", or a layer that is more than attention and then feed-forward ("bp", "evolved",
            "independent", "isab", "lite", "star"): a file of `greenformers.blocks`. It has residuals of its own, and
            uses `attention` only where it is made of one. In an encoder-decoder it is also the decoder's layer, where
            it has a form that attends the encoder output ("evolved", "lite").
        block_options: Options of that layer.
        pooling: Slot; "cls", "mean", or a block that does not keep the length ("pma": attention of a learned seed).
        contrastive_temperature: Divisor of similarities of sentences in their loss. Chen 2020,
            arXiv:2002.05709.
        sparse_prediction: Whether language model heads, given labels, score only the positions that have one, and
            return their logits (n, vocabulary).

    Raises:
        ValueError: A value is out of range, or a slot does not take it.
        TypeError: The name of an option is misspelt, or that of another model; or a value is of another type.
    """

    model_type = "greenformer"

    vocab_size: int | None = 30522
    input_features: int | None = None
    image_size: int | None = None
    patch_size: int | None = None
    num_channels: int = 3
    max_position_embeddings: int = 512
    hidden_size: int = 768
    type_vocab_size: int = 0
    embedding_size: int | None = None
    num_hidden_layers: int = 12
    decoder_layers: int | None = None
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    intermediate_size: int = 3072
    hidden_act: str | None = None
    attention_dropout: float = 0.0
    hidden_dropout_prob: float = 0.0
    initializer_range: float | None = None
    norm: str = "layer"
    layer_norm_eps: float = 1e-12
    embedding_norm: bool | None = None
    bias: bool | None = None
    qk_norm: bool = False
    attention: str | list[str] = "full"
    attention_options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    decoder_attention: str | list[str] = "full"
    decoder_attention_options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    cross_attention: str | list[str] = "full"
    cross_attention_options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    rank: Rank | list[Rank] = None
    rank_per_head: bool = False
    feed_forward: str | list[str] | None = None
    feed_forward_options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    residual: str | None = None
    depth: str = "stacked"
    depth_options: dict[str, Any] | None = None
    shared: str = "all"
    position: str | None = None
    position_options: dict[str, Any] | None = None
    memory_length: int = 0
    block: str = "standard"
    block_options: dict[str, Any] | None = None
    pooling: str = "cls"
    contrastive_temperature: float = 0.05
    sparse_prediction: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = True

    @classmethod
    def shaped(cls, name: str, **options: Any) -> "GreenformerConfig":
        """The configuration of a network with the layers of a well-known one.

        >>> config = GreenformerConfig.shaped("llama", hidden_size=512, num_attention_heads=8, num_key_value_heads=2)

        Args:
            name: "bert" (Devlin 2018), "gpt2" (Radford 2019) or "llama" (Touvron 2023).
            **options: Sizes, and slots that differ.

        Raises:
            ValueError: There is no such shape, or an option is out of range.
        """
        if name not in SHAPES:
            raise ValueError(f"name must be one of {', '.join(SHAPES)}; got {name!r}")
        return cls(**SHAPES[name] | options)

    def __post_init__(self, **kwargs: Any) -> None:
        # Saved configurations load with any further entries that a user stored in them.
        if self.transformers_version is None:
            check_names(kwargs, type(self).__annotations__)
        super().__post_init__(**kwargs)
        check_types(self, GreenformerConfig.__annotations__)
        if self.num_labels is None or self.num_labels < 1:
            raise ValueError(f"num_labels must be at least 1, got {self.num_labels}")
        if self.problem_type not in (None, *PROBLEMS):
            raise ValueError(f"problem_type must be one of {', '.join(PROBLEMS)}; got {self.problem_type!r}")
        if not self.contrastive_temperature > 0:
            raise ValueError(f"contrastive_temperature must be above 0, got {self.contrastive_temperature}")
        if not 0 <= self.attention_dropout < 1:
            raise ValueError(f"attention_dropout must be in [0, 1), got {self.attention_dropout}")
        self.is_encoder_decoder = self.decoder_layers is not None
        check_sizes(self)
        check_slots(self)

    def make_depth(
        self, *, decoder: bool = False, causal: bool = False, norm: Callable[[], nn.Module] | None = None
    ) -> depths.Depth | None:
        """The kind of depth of a stack; None where it goes through its layers one after the other.

        Args:
            decoder: Whether the stack is the decoder of an encoder-decoder.
            causal: Whether it is a decoder.
            norm: Function that makes a norm over d channels.

        Raises:
            ValueError: The kind is for decoders, and there is none.
        """
        if self.depth in SLOTS["depth"]:
            return None
        if depths.depth_class(self.depth).exits and not causal:
            if self.is_encoder_decoder:
                return None
            raise ValueError(f"depth {self.depth} is for decoders: its exits score the next token")
        layers = (self.decoder_layers or 0) if decoder else self.num_hidden_layers
        size = depths.Size(self.hidden_size, layers, positions=self.placed_in_depth, make_norm=norm)
        return depths.build(self.depth, size, **self.depth_options or {})

    def make_position(
        self, where: Literal["embedding", "layers"], *, causal: bool = False, decoder: bool = False
    ) -> positions.Position | None:
        """The positions of a stack at its embedding or in its layers; None where they act elsewhere or not at all.

        Args:
            where: Place to build positions for, "embedding" or "layers".
            causal: Whether the stack is causal; alone, None stands for rotary positions where attention takes them.
            decoder: Whether the stack is the decoder of an encoder-decoder.
        """
        name = self.position_of(causal=causal and not decoder, decoder=causal and self.decoder_layers is not None)
        if name == "none" or (positions.position_class(name).acts == "embedding") != (where == "embedding"):
            return None
        place = positions.Place(
            self.embedding_size or self.hidden_size,
            self.num_attention_heads,
            self.hidden_size // self.num_attention_heads,
            self.max_position_embeddings,
            causal=causal,
        )
        return positions.build(name, place, **self.position_options or {})

    def position_of(self, *, causal: bool = False, decoder: bool = False) -> str:
        """Name of the kind of position of a stack, with None resolved, see `make_position`."""
        apart = decoder and self.block != "standard" and not self.crosses_by_block
        own = self._own_positions(["decoder_attention"]) if apart else self.own_positions
        if own or self.placed_in_depth:
            return "none"
        if self.position is not None:
            return self.position
        if self._alone(causal) and all(attention_class(name).takes_rotation for name in self.self_attention()):
            return "rotary"
        return "learned"

    def resolved(self, name: str, *, causal: bool = False) -> Any:
        """The value of an option of `DEFAULTS` in a stack, with None resolved."""
        value = getattr(self, name)
        return DEFAULTS[name][self._alone(causal)] if value is None else value

    def feed_forward_names(self, *, causal: bool = False) -> list[str]:
        """Name of the feed-forward block of each layer of a stack, with None resolved."""
        default = DEFAULTS["feed_forward"][self._alone(causal)]
        return [name or default for name in self.per_layer("feed_forward")]

    def initial_std(self, *, causal: bool = False, into_residual: bool = False) -> float:
        """The standard deviation of initial weights in a stack, with None resolved.

        Args:
            causal: Whether the stack is causal.
            into_residual: Whether it is that of linear layers whose outputs are added to the residual stream.
        """
        if self.initializer_range is not None:
            return self.initializer_range
        if not self._alone(causal):
            return float(self.hidden_size**-0.5)
        return 0.02 / (2 * self.num_hidden_layers) ** 0.5 if into_residual else 0.02

    def activation_of(self, feed_forward: str) -> str:
        """The activation of a kind of feed-forward block, with None resolved."""
        return self.hidden_act or ("silu" if feed_forward == "gated" else "gelu")

    def _alone(self, causal: bool) -> bool:
        """Whether a stack is causal without an encoder: None then stands for the choice of current language models."""
        return causal and self.decoder_layers is None and self.block == "standard"

    def _self_slots(self) -> list[str]:
        return ["attention"] if self.decoder_layers is None else ["attention", "decoder_attention"]

    def self_attention(self) -> set[str]:
        """Names of the self-attention of all layers."""
        return {name for slot in self._self_slots() for name in self.per_layer(slot)}

    @property
    def own_positions(self) -> bool:
        """Whether the attention of all layers, or the block, has positions of its own."""
        if self.block != "standard" and not blocks.block_class(self.block).attends:
            return blocks.block_class(self.block).positions == "own"
        return self._own_positions(self._self_slots())

    def _own_positions(self, slots: list[str]) -> bool:
        return all(
            attention_class(name).positions_with(**options or {}) == "own"
            for slot in slots
            for name, options in zip(self.per_layer(slot), self.per_layer(f"{slot}_options"), strict=True)
        )

    @property
    def placed_in_depth(self) -> bool:
        """Whether positions are encoded by the kind of depth, and nowhere else."""
        kind = None if self.depth in SLOTS["depth"] else depths.depth_class(self.depth)
        return kind is not None and kind.positions == "own" and self.position is None and not self.own_positions

    @property
    def coded_by_depth(self) -> bool:
        """Whether the kind of depth adds codes of positions and steps before each step."""
        if self.depth in SLOTS["depth"] or depths.depth_class(self.depth).positions != "own":
            return False
        return (self.depth_options or {}).get("codes") != "none"

    @property
    def shares_layers(self) -> bool:
        """Whether layers share parameters, see `shared`."""
        return self.depth == "shared" or (self.depth not in SLOTS["depth"] and depths.depth_class(self.depth).shares)

    @property
    def crosses_by_block(self) -> bool:
        """Whether the decoder of an encoder-decoder has layers of the kind in the slot `block`."""
        return self.block != "standard" and self.is_encoder_decoder and blocks.block_class(self.block).crosses

    @property
    def keeps_cache(self) -> bool:
        """Whether a decoder can read on from a cache of earlier positions."""
        if self.block == "standard" or (self.is_encoder_decoder and not self.crosses_by_block):
            return True
        return blocks.block_class(self.block).keeps_cache

    def per_layer(self, slot: str) -> list[Any]:
        """The value of an attention or feed-forward slot, its options or `rank` in each of its layers."""
        value = getattr(self, slot)
        layers = 0 if slot.startswith(("decoder_", "cross_")) else self.num_hidden_layers
        if slot.startswith(("decoder_", "cross_", "rank", "feed_forward")):
            layers += self.decoder_layers or 0
        if not isinstance(value, list):
            return [value] * layers
        if len(value) != layers:
            raise ValueError(f"{slot} must have one entry a layer, {layers}, got {len(value)}")
        return value

    def rank_of(self, layer: int, projection: str) -> int | None:
        """The LED rank of a linear layer; None where it is dense. Layers of a decoder count on from the encoder."""
        rank = self.per_layer("rank")[layer]
        return rank.get(projection) if isinstance(rank, dict) else rank

    def without_ranks(self) -> Self:
        """A copy of the configuration whose network has dense linear layers alone."""
        dense = copy.deepcopy(self)
        dense.rank, dense.rank_per_head = None, False
        return dense
