"""What today's decoders are made of: with a Llama's weights our network computes what it does, in every form."""

import pytest
import torch
from text_networks import tokens
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from greenformers.model import GreenformerConfig, GreenformerForCausalLM

SIZES = {
    "vocab_size": 37, "hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 23,
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attention.projections.q",
    "self_attn.k_proj": "attention.projections.k",
    "self_attn.v_proj": "attention.projections.v",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
}
NORMS = {"self_attn.q_norm": "attention.normalised.q", "self_attn.k_norm": "attention.normalised.k"}


def copies(theirs, ours, names):
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5 + (parameter.ndim == 1))
        ours.decoder.embedding.word.weight.copy_(theirs.model.embed_tokens.weight)
        ours.score.weight.copy_(theirs.lm_head.weight)
        ours.decoder.final_norm.weight.copy_(theirs.model.norm.weight)
        for source, target in zip(theirs.model.layers, ours.decoder.layers, strict=True):
            for theirs_name, name in names.items():
                target.get_submodule(name).load_state_dict(source.get_submodule(theirs_name).state_dict())
    return theirs, ours


def llama():
    theirs = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)).double().eval()
    ours = GreenformerForCausalLM(GreenformerConfig.shaped("llama", **SIZES)).double().eval()
    return copies(theirs, ours, NAMES)


def qwen3():
    theirs = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=4, tie_word_embeddings=False)).double().eval()
    shape = {"qk_norm": True, "position_options": {"base": 10000.0}}
    ours = GreenformerForCausalLM(GreenformerConfig.shaped("llama", **SIZES, **shape)).double().eval()
    return copies(theirs, ours, NAMES | NORMS)


@pytest.mark.parametrize("make", [llama, qwen3])
def test_equals_the_decoders_of_transformers(make):
    theirs, ours = make()
    assert sum(x.numel() for x in ours.parameters()) == sum(x.numel() for x in theirs.parameters())
    ids = tokens(3, 13)
    mask = torch.ones_like(ids)
    mask[1, :4], mask[2, :7] = 0, 0
    for given in ({}, {"attention_mask": mask}):
        positions = given.get("attention_mask", torch.ones_like(ids)).bool()
        expected, logits = theirs(ids, **given).logits, ours(ids, **given).logits
        torch.testing.assert_close(logits[positions], expected[positions], rtol=1e-6, atol=1e-6)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    torch.testing.assert_close(ours.generate(ids, **options), theirs.generate(ids, **options))
