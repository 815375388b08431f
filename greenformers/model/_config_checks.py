"""What a configuration must keep to: names that it knows, sizes, and entries of slots that fit each other."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

import torch
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from greenformers import blocks
from greenformers import depth as depths
from greenformers import position as positions
from greenformers._registry import fits, said
from greenformers.attention import attention_class
from greenformers.model.slots import PROJECTIONS, SHARED, SLOTS, choices

PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
"""Kinds of problems of classification heads, see `greenformers.model.classification`."""

FOREIGN = {
    **dict.fromkeys(("n_embd", "d_model", "dim", "n_embed", "hidden_dim"), "hidden_size"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "encoder_layers", "num_encoder_layers"), "num_hidden_layers"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "encoder_attention_heads"), "num_attention_heads"),
    **dict.fromkeys(("n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim", "ffn_hidden_size"), "intermediate_size"),
    **dict.fromkeys(("n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), "max_position_embeddings"),
    **dict.fromkeys(("dropout", "dropout_rate", "resid_pdrop", "embd_pdrop", "hidden_dropout"), "hidden_dropout_prob"),
    **dict.fromkeys(("attention_probs_dropout_prob", "attn_pdrop", "attn_dropout"), "attention_dropout"),
    **dict.fromkeys(("activation_function", "activation", "hidden_activation"), "hidden_act"),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "norm_eps"), "layer_norm_eps"),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias"), "bias"),
    **dict.fromkeys(("position_embedding_type", "rope_theta", "rope_scaling", "rope_parameters"), "position"),
    **dict.fromkeys(("n_kv_heads", "num_kv_heads"), "num_key_value_heads"),
    **dict.fromkeys(("init_std", "initializer_std"), "initializer_range"),
}
"""Names that other models of transformers use for options of ours, which would have no effect here."""


def check_names(given: Iterable[str], options: Iterable[str]) -> None:
    """Raise TypeError for misspelt names and those of other models; transformers stores all others."""
    for name in set(given) - {f"{mark}_token_id" for mark in ("sep", "cls", "mask", "unk")}:
        if name in FOREIGN:
            raise TypeError(f"GreenformerConfig takes no option {name!r}; here it is {FOREIGN[name]!r}")
        if close := get_close_matches(name, options, n=1, cutoff=0.8):
            raise TypeError(f"GreenformerConfig takes no option {name!r}; did you mean {close[0]!r}?")


def check_types(config: PreTrainedConfig, hints: Mapping[str, Any]) -> None:
    """Raise TypeError for a number, a flag or options of another type than the annotation says.

    Names are checked with their slots; several tokens may end a text.
    """
    for name, hint in hints.items():
        if str in (hint, *get_args(hint)) or name == "eos_token_id":
            continue
        if not fits(getattr(config, name), hint):
            raise TypeError(f"{name} must be {said(hint)}, got {getattr(config, name)!r}")


def check_sizes(config: PreTrainedConfig) -> None:
    """Raise ValueError for sizes that are out of range, or do not divide each other."""
    for name in (
        "max_position_embeddings",
        "hidden_size",
        "embedding_size",
        "num_hidden_layers",
        "decoder_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "input_features",
        "image_size",
        "patch_size",
        "num_channels",
    ):
        size = getattr(config, name)
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"num_attention_heads must divide hidden_size {config.hidden_size}, got {config.num_attention_heads}"
        )
    if config.num_attention_heads % (config.num_key_value_heads or 1):
        raise ValueError(
            f"num_key_value_heads must divide num_attention_heads {config.num_attention_heads}, "
            f"got {config.num_key_value_heads}"
        )
    for name in ("layer_norm_eps", "initializer_range"):
        if (number := getattr(config, name)) is not None and not 0 <= number < float("inf"):
            raise ValueError(f"{name} must be at least 0 and finite, got {number}")
    if not 0 <= config.hidden_dropout_prob <= 1:
        raise ValueError(f"hidden_dropout_prob must be in 0..1, got {config.hidden_dropout_prob}")
    if config.vocab_size and not 0 <= (config.pad_token_id or 0) < config.vocab_size:
        raise ValueError(f"pad_token_id must be in 0..{config.vocab_size - 1}, got {config.pad_token_id}")
    if config.type_vocab_size < 0:
        raise ValueError(f"type_vocab_size must be at least 0, got {config.type_vocab_size}")
    if config.type_vocab_size and config.vocab_size is None:
        raise ValueError(f"type_vocab_size must be 0 without tokens, got {config.type_vocab_size}")
    if (config.vocab_size is None) == (config.input_features is None):
        raise ValueError(
            "exactly one of vocab_size (tokens) and input_features (values) must be set, "
            f"got {config.vocab_size} and {config.input_features}"
        )
    _check_image(config)
    if config.hidden_act not in (None, *ACT2FN):
        raise ValueError(f"hidden_act must be one of {', '.join(sorted(ACT2FN))}; got {config.hidden_act!r}")


def _check_image(config: PreTrainedConfig) -> None:
    if config.image_size is None and config.patch_size is None:
        return
    if config.image_size is None or config.patch_size is None:
        raise ValueError(
            f"image_size and patch_size must be set together, got {config.image_size}, {config.patch_size}"
        )
    if config.image_size % config.patch_size:
        raise ValueError(f"patch_size must divide image_size {config.image_size}, got {config.patch_size}")
    numbers = config.num_channels * config.patch_size**2
    if config.input_features != numbers:
        raise ValueError(f"input_features must be num_channels * patch_size^2 = {numbers}, got {config.input_features}")


def check_slots(config: PreTrainedConfig) -> None:
    """Raise ValueError for entries of slots, and options of theirs, that there are not or that do not fit."""
    for slot in SLOTS:
        if getattr(config, slot) is not None or slot not in ("position", "residual"):
            _check_choice(slot, getattr(config, slot))
    for slot in ("decoder_attention", "cross_attention") if config.decoder_layers is None else ():
        for name in (slot, f"{slot}_options"):
            if (getattr(config, name) or None) != getattr(type(config), name):
                raise ValueError(f"{name} needs decoder_layers, which is None; got {getattr(config, name)!r}")
    if config.memory_length < 0:
        raise ValueError(f"memory_length must be at least 0, got {config.memory_length}")
    if config.memory_length and not (config.own_positions and config.decoder_layers is None):
        raise ValueError(
            "memory_length is for a single stack of attention with positions of its own, transformer_xl say; "
            f"got {config.memory_length} with {config.attention!r}"
        )
    if config.shared not in SHARED:
        raise ValueError(f"shared must be one of {', '.join(SHARED)}; got {config.shared!r}")
    if config.residual == "reversible" and config.decoder_layers is not None:
        raise ValueError("residual reversible is for a single stack, without decoder_layers")
    if config.block != "standard":
        _check_block(config)
    elif config.block_options:
        raise ValueError(f"block_options need a block, which is standard; got {', '.join(config.block_options)}")
    if config.shared != "all" and not config.shares_layers:
        raise ValueError(f"shared needs layers that share, as with depth shared; got {config.shared!r}")
    _check_depth(config)
    for slot in ("attention", "decoder_attention", "cross_attention", "feed_forward"):
        for name in dict.fromkeys(config.per_layer(slot)):
            if name is not None or slot != "feed_forward":
                _check_choice(slot, name)
        config.per_layer(f"{slot}_options")
    if config.position is not None:
        _check_position(config)
    elif config.position_options:
        raise ValueError("position_options need a position, which is None")
    if config.rank_per_head and all(config.rank_of(layer, "q") is None for layer in range(config.num_hidden_layers)):
        raise ValueError(f"rank_per_head needs ranks of q, k and v, rank is {config.rank!r}")
    for rank in config.per_layer("rank"):
        if isinstance(rank, dict) and not set(rank) <= set(PROJECTIONS):
            raise ValueError(f"rank must name projections of {', '.join(PROJECTIONS)}; got {', '.join(rank)}")


def _check_block(config: PreTrainedConfig) -> None:
    """Raise ValueError for slots that a block of its own kind does not use."""
    kind = blocks.block_class(config.block)
    required: dict[str, Any] = {"residual": "post"}
    if not kind.attends:
        required |= {"attention": "full", "attention_options": None}
    if not kind.attends and config.decoder_layers is None:  # whose layers are standard ones
        required |= {"attention_dropout": 0.0, "qk_norm": False, "num_key_value_heads": None,
                     "rank_per_head": False}  # fmt: skip
    if not kind.has_feed_forward and config.decoder_layers is None:
        required |= {"feed_forward": "dense", "feed_forward_options": None}
    if config.memory_length:
        raise ValueError(f"memory_length must be 0 where block is {config.block}, got {config.memory_length}")
    for slot, value in required.items():
        given = getattr(config, slot)
        says_nothing = value is None and not (any(given) if isinstance(given, list) else given)
        if not says_nothing and given not in (None, value):
            raise ValueError(f"{slot} must be {value} where block is {config.block}, got {given!r}")
    if config.depth == "shared" and config.shared != "all":
        raise ValueError(f"shared must be all where block is {config.block}, got {config.shared!r}")


def _check_depth(config: PreTrainedConfig) -> None:
    """Raise ValueError for slots that a kind of depth does not use, and where its options are out of range."""
    if config.depth in SLOTS["depth"]:
        if config.depth_options:
            raise ValueError(f"depth {config.depth} takes no options, got {', '.join(config.depth_options)}")
        return
    required = {"block": "standard", "memory_length": 0}
    required |= {"shared": "all"} if depths.depth_class(config.depth).shares else {}
    for name, value in required.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name} must be {value} where depth is {config.depth}, got {getattr(config, name)!r}")
    if config.residual == "reversible":
        raise ValueError(f"residual must be post or pre where depth is {config.depth}, got 'reversible'")
    with torch.device("meta"):
        config.make_depth(decoder=config.is_encoder_decoder, causal=True)  # raises for its options


def _check_position(config: PreTrainedConfig) -> None:
    """Raise ValueError where the kind of position does not fit the attention, or its options are out of range."""
    if config.position == "none":
        if config.position_options:
            raise ValueError("position none takes no options")
        return
    kind = positions.position_class(str(config.position))
    if kind.acts != "embedding" and config.block != "standard":
        raise ValueError(f"position {config.position} is for attention layers, block is {config.block}")
    if kind.acts == "rotation":
        for name in config.self_attention():
            if attention_class(name).positions == "model" and not attention_class(name).takes_rotation:
                raise ValueError(
                    f"position {config.position} does not fit {name}, which reads more of queries and keys than "
                    "their products"
                )
    with torch.device("meta"):
        config.make_position("embedding" if kind.acts == "embedding" else "layers")  # raises for its options


def _check_choice(slot: str, name: str) -> None:
    if name not in choices(slot):
        raise ValueError(f"{slot} must be one of {', '.join(choices(slot))}; got {name!r}")
