"""A network of ours as the model of `transformers` that computes the same: BERT, GPT-2 or Llama."""

from copy import deepcopy
from typing import Any, cast

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedModel,
)

from greenformers.model.config import GreenformerConfig
from greenformers.model.warm_start._pairs import copy
from greenformers.model.warm_start.bert import bert_pairs, head_pairs
from greenformers.model.warm_start.decoders import gpt2_pairs, llama_pairs

MODELS = ("GreenformerModel", "GreenformerForMaskedLM", "GreenformerDecoder", "GreenformerForCausalLM")
"""Classes of ours that have a counterpart."""

_COMMON: dict[str, Any] = {
    "rank": None, "depth": "stacked", "block": "standard", "decoder_layers": None, "input_features": None,
    "qk_norm": False, "memory_length": 0, "feed_forward_options": None, "attention": "full",
}  # fmt: skip
_REQUIRED: dict[str, dict[str, Any]] = {
    "bert": {
        "residual": "post", "position": "learned", "norm": "layer", "feed_forward": "dense", "bias": True,
        "embedding_norm": True, "pooling": "cls", "num_key_value_heads": None,
    },
    "gpt2": {
        "residual": "pre", "position": "learned", "norm": "layer", "feed_forward": "dense", "bias": True,
        "embedding_norm": False, "num_key_value_heads": None, "type_vocab_size": 0,
    },
    "llama": {
        "residual": "pre", "position": "rotary", "norm": "rms", "feed_forward": "gated", "embedding_norm": False,
        "type_vocab_size": 0, "hidden_dropout_prob": 0.0,
    },
}  # fmt: skip
"""Entries of our configuration with which the model of that name computes the same."""

_SAME = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "pad_token_id",
    "bos_token_id", "eos_token_id", "tie_word_embeddings",
)  # fmt: skip


@torch.no_grad()
def to_transformers(model: PreTrainedModel) -> PreTrainedModel:
    """The model of `transformers` with the weights of ours, in its mode, dtype and device: the inverse of `warm_start`.

    It computes the same, and once saved it loads with `transformers` alone. An encoder becomes a
    BERT, a decoder with rotary positions a Llama, and one with learned positions a GPT-2.

    >>> to_transformers(network).save_pretrained("folder")

    Args:
        model: A model of a class in `MODELS`, with full attention and the layers of BERT, GPT-2 or Llama; see
            `GreenformerConfig.shaped`.

    Raises:
        ValueError: The model is of another class, or computes something that the model of `transformers` cannot.
    """
    name, ours = type(model).__name__, cast(Any, model)
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}; got {name}")
    causal = name in MODELS[2:]
    config: GreenformerConfig = ours.config
    kind = "bert" if not causal else "llama" if config.position_of(causal=True) == "rotary" else "gpt2"
    _check(config, kind, causal=causal)
    stack, has_head = ours.base_model, ours.base_model is not ours
    theirs = cast(Any, {"bert": _bert, "gpt2": _gpt2, "llama": _llama}[kind](config, _dropout(stack), has_head))
    theirs.to(model.device, model.dtype)
    base = theirs.base_model
    if kind == "bert":
        if not config.type_vocab_size:
            base.embeddings.token_type_embeddings.weight.zero_()
        copy(bert_pairs(base, stack), back=True)
        base.embeddings.position_embeddings.weight.copy_(stack.embedding.position.weight)
    else:
        copy((llama_pairs if kind == "llama" else gpt2_pairs)(base, stack), back=True)
    if kind == "gpt2":
        base.wpe.weight.copy_(stack.embedding.position.weight)
    if has_head and kind == "bert":
        copy(head_pairs(theirs, ours), back=True)
    elif has_head:
        copy([(theirs.lm_head.weight, ours.score.weight)], back=True)
        theirs.generation_config = deepcopy(ours.generation_config)
    return cast(PreTrainedModel, theirs.train(model.training))


def _check(config: GreenformerConfig, kind: str, *, causal: bool) -> None:
    """Raise ValueError for a network that is not of this kind."""
    resolved: dict[str, Any] = {
        **{name: config.resolved(name, causal=causal) for name in ("residual", "bias", "embedding_norm")},
        "position": config.position_of(causal=causal),
        "feed_forward": _single(config.feed_forward_names(causal=causal)),
        "attention": _single(config.per_layer("attention")),
    }
    required = _COMMON | _REQUIRED[kind]
    for name, value in required.items():
        given = resolved[name] if name in resolved else getattr(config, name)
        if given != value:
            raise ValueError(f"{name} must be {value!r}, or no {kind} computes the same; got {given!r}")
    if config.embedding_size not in (None, config.hidden_size):
        raise ValueError(f"embedding_size must be {config.hidden_size}, the hidden size; got {config.embedding_size}")
    options = [set(entry or {}) - {"dropout"} for entry in config.per_layer("attention_options")]
    if any(options):
        raise ValueError(f"attention_options must be of dropout alone, got {', '.join(sorted(set.union(*options)))}")
    given = set(config.position_options or {}) - ({"base"} if kind == "llama" else set())
    if given:
        raise ValueError(f"position_options must not have {', '.join(sorted(given))}: no {kind} has them")


def _single(names: list[str]) -> str:
    return names[0] if len(set(names)) == 1 else ", ".join(names)


def _dropout(stack: Any) -> float:
    """The dropout of attention weights, which must be the same in all layers."""
    rates = {layer.attention.mechanism.dropout for layer in stack.layers}
    if len(rates) > 1:
        raise ValueError(f"dropout of attention must be the same in all layers, got {sorted(rates)}")
    return float(rates.pop())


def _options(config: GreenformerConfig, *, causal: bool) -> dict[str, Any]:
    shared = {name: getattr(config, name) for name in _SAME}
    return shared | {"initializer_range": config.initial_std(causal=causal)}


def _bert(config: GreenformerConfig, dropout: float, has_head: bool) -> PreTrainedModel:
    theirs = BertConfig(
        **_options(config, causal=False), intermediate_size=config.intermediate_size,
        hidden_act=config.activation_of("dense"),
        hidden_dropout_prob=config.hidden_dropout_prob, attention_probs_dropout_prob=dropout,
        max_position_embeddings=config.max_position_embeddings, type_vocab_size=config.type_vocab_size or 1,
        layer_norm_eps=config.layer_norm_eps,
    )  # fmt: skip
    return BertForMaskedLM(theirs) if has_head else BertModel(theirs, add_pooling_layer=False)


def _gpt2(config: GreenformerConfig, dropout: float, has_head: bool) -> PreTrainedModel:
    theirs = GPT2Config(
        **_options(config, causal=True), n_inner=config.intermediate_size, n_positions=config.max_position_embeddings,
        activation_function=config.activation_of("dense"), layer_norm_epsilon=config.layer_norm_eps,
        resid_pdrop=config.hidden_dropout_prob, embd_pdrop=config.hidden_dropout_prob, attn_pdrop=dropout,
    )  # fmt: skip
    return (GPT2LMHeadModel if has_head else GPT2Model)(theirs)


def _llama(config: GreenformerConfig, dropout: float, has_head: bool) -> PreTrainedModel:
    base = (config.position_options or {}).get("base", 10000.0)
    bias = config.resolved("bias", causal=True)
    theirs = LlamaConfig(
        **_options(config, causal=True), intermediate_size=config.intermediate_size,
        hidden_act=config.activation_of("gated"),
        num_key_value_heads=config.num_key_value_heads or config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings, rms_norm_eps=config.layer_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": base}, attention_bias=bias, mlp_bias=bias,
        attention_dropout=dropout,
    )  # fmt: skip
    return (LlamaForCausalLM if has_head else LlamaModel)(theirs)
