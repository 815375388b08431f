"""GPT-2 (Radford 2019) and Llama (Touvron 2023, arXiv:2302.13971) as decoders of ours: options and weights.

Mistral and Qwen3 have Llama's layers; Qwen3 (arXiv:2505.09388) normalises queries and keys.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from greenformers.model.config import GreenformerConfig
from greenformers.model.warm_start._pairs import dropping, of_modules, only

GPT2 = ("GPT2Model", "GPT2LMHeadModel")
LLAMA = ("LlamaModel", "LlamaForCausalLM", "MistralModel", "MistralForCausalLM", "Qwen3Model", "Qwen3ForCausalLM")

_SAME = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range", "pad_token_id",
    "bos_token_id", "eos_token_id", "tie_word_embeddings",
)  # fmt: skip
_GPT2_LAYER = {
    "ln_1": "attention_norm", "attn.c_proj": "attention.output", "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.up", "mlp.c_proj": "feed_forward.down",
}  # fmt: skip
_LLAMA_LAYER = {
    "input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm",
    "self_attn.q_proj": "attention.projections.q", "self_attn.k_proj": "attention.projections.k",
    "self_attn.v_proj": "attention.projections.v", "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "feed_forward.gate", "mlp.up_proj": "feed_forward.up", "mlp.down_proj": "feed_forward.down",
}  # fmt: skip
_QK_NORM = {"self_attn.q_norm": "attention.normalised.q", "self_attn.k_norm": "attention.normalised.k"}


def ours_of(theirs: Any, **slots: Any) -> GreenformerConfig:
    """Our configuration for a model of `GPT2` or `LLAMA`, with given slots in place of its own.

    Raises:
        ValueError: The model computes something that ours cannot.
    """
    gpt2 = theirs.model_type == "gpt2"
    options = (_gpt2_options if gpt2 else _llama_options)(theirs)
    options |= {name: getattr(theirs, name) for name in _SAME}
    options["max_position_embeddings"] = theirs.max_position_embeddings
    dropout = options.pop("attention_dropout")
    config = GreenformerConfig.shaped("gpt2" if gpt2 else "llama", **options | slots)
    if "attention" in slots:
        dropping(config, dropout)
    else:
        config.attention_dropout = dropout
    return config


def _gpt2_options(theirs: Any) -> dict[str, Any]:
    only(theirs, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    only(theirs, embd_pdrop=theirs.resid_pdrop)
    return {
        "intermediate_size": theirs.n_inner or 4 * theirs.n_embd, "hidden_act": theirs.activation_function,
        "hidden_dropout_prob": theirs.resid_pdrop, "attention_dropout": theirs.attn_pdrop,
        "layer_norm_eps": theirs.layer_norm_epsilon,
    }  # fmt: skip


def _llama_options(theirs: Any) -> dict[str, Any]:
    bias = getattr(theirs, "attention_bias", False)
    only(theirs, sliding_window=None, mlp_bias=bias, head_dim=theirs.hidden_size // theirs.num_attention_heads)
    if theirs.model_type == "qwen3":
        only(theirs, attention_bias=False)  # its feed-forward block has no bias
    rope = theirs.rope_parameters
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"rope_parameters must be of rope_type 'default' over whole heads, got {rope}")
    return {
        "intermediate_size": theirs.intermediate_size, "hidden_act": theirs.hidden_act, "bias": bias,
        "num_key_value_heads": theirs.num_key_value_heads, "attention_dropout": theirs.attention_dropout,
        "layer_norm_eps": theirs.rms_norm_eps, "qk_norm": theirs.model_type == "qwen3",
        "position_options": {"base": float(rope["rope_theta"])},
    }  # fmt: skip


def gpt2_pairs(theirs: Any, ours: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of parameters of a GPT2Model and a decoder, without positions."""
    yield theirs.wte.weight, ours.embedding.word.weight
    yield from of_modules(theirs.ln_f, ours.final_norm)
    for source, layer in zip(theirs.h, ours.layers, strict=True):
        # Conv1D has weights (in, out), and those of queries, keys and values side by side.
        both = source.attn.c_attn.weight.mT.chunk(3), source.attn.c_attn.bias.chunk(3)
        for name, weight, bias in zip("qkv", *both, strict=True):
            if name in layer.attention.projections:
                yield weight, layer.attention.projections[name].weight
                yield bias, layer.attention.projections[name].bias
        for name, own in _GPT2_LAYER.items():
            for parameter, our_parameter in of_modules(source.get_submodule(name), layer.get_submodule(own)):
                yield (parameter if parameter.dim() == 1 else parameter.mT), our_parameter


def llama_pairs(theirs: Any, ours: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of parameters of a LlamaModel, or a similar model, and a decoder."""
    yield theirs.embed_tokens.weight, ours.embedding.word.weight
    yield from of_modules(theirs.norm, ours.final_norm)
    names = _LLAMA_LAYER | (_QK_NORM if ours.config.qk_norm else {})
    for source, layer in zip(theirs.layers, ours.layers, strict=True):
        for name, own in names.items():
            if own[-1] in "qkv" and own[-1] not in layer.attention.projections:  # the mechanism does not read them
                continue
            yield from of_modules(source.get_submodule(name), layer.get_submodule(own))
