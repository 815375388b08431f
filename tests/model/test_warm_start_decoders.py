"""GPT-2, Llama and their kin as ours: the same scores with padding on either side, and the same texts."""

import pytest
import torch
import transformers
from networks import stir

from greenformers.model.warm_start import warm_start
from greenformers.model.warm_start.decoders import GPT2, LLAMA

SIZES = {
    "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
    "max_position_embeddings": 29, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def trained(name, **options):
    kind = name.removesuffix("Model").removesuffix("LMHead").removesuffix("ForCausalLM")
    more = {"intermediate_size": 31, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": None}
    options = SIZES | ({} if kind == "GPT2" else more) | options
    return stir(getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**options))).eval()


@pytest.mark.parametrize("name", GPT2 + LLAMA)
def test_computes_the_same(name):
    theirs = trained(name)
    ours = warm_start(theirs)
    ids, mask = torch.randint(3, 37, (3, 13)), torch.ones(3, 13, dtype=torch.long)
    mask[1, :4], mask[2, 6:] = 0, 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected, out = theirs(ids, attention_mask=mask, position_ids=places)[0], ours(ids, mask)[0]
    torch.testing.assert_close(out[mask.bool()], expected[mask.bool()], rtol=1e-5, atol=1e-5)
    if theirs.base_model is not theirs:
        options = {"max_new_tokens": 7, "do_sample": False, "attention_mask": mask[:2]}
        assert torch.equal(ours.generate(ids[:2], **options), theirs.generate(ids[:2], **options))
        assert (ours.score.weight is ours.decoder.embedding.word.weight) == theirs.config.tie_word_embeddings


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("MistralModel", {"sliding_window": 5}, "sliding_window must be None, .*; got 5"),
        ("LlamaModel", {"head_dim": 8}, "head_dim must be 4, .*; got 8"),
        ("LlamaModel", {"attention_bias": True}, "mlp_bias must be True, .*; got False"),
        ("GPT2Model", {"scale_attn_weights": False}, "scale_attn_weights must be True, .*; got False"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(ValueError, match=message):
        warm_start(trained(name, **options))
