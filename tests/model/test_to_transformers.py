"""Weights there and back: theirs as ours as theirs, to the bit, with the same outputs."""

from copy import deepcopy

import pytest
import torch
import transformers
from networks import stir
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from greenformers.model import (
    GreenformerConfig,
    GreenformerDecoder,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)
from greenformers.model.warm_start import to_transformers, warm_start

SIZES = {
    "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 31,
    "max_position_embeddings": 29, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
THEIRS = {
    "BertModel": {}, "BertForMaskedLM": {"type_vocab_size": 3, "hidden_act": "relu"}, "GPT2Model": {},
    "GPT2LMHeadModel": {"tie_word_embeddings": False}, "LlamaModel": {"num_key_value_heads": 2},
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True, "rope_parameters": {
        "rope_type": "default", "rope_theta": 500.0}},
}  # fmt: skip
OURS = {
    "bert": (GreenformerModel, GreenformerForMaskedLM), "gpt2": (GreenformerDecoder, GreenformerForCausalLM),
    "llama": (GreenformerDecoder, GreenformerForCausalLM),
}  # fmt: skip


def theirs_of(name):
    config = getattr(transformers, f"{name.removesuffix('Model').removesuffix('LMHead').split('For')[0]}Config")
    sizes = dict(SIZES)
    if name.startswith("GPT2"):
        sizes["n_inner"] = sizes.pop("intermediate_size")
    return stir(getattr(transformers, name)(config(**sizes | THEIRS[name]))).eval()


def batch(causal):
    """Texts padded on either side; an encoder's behind, with types."""
    ids, mask = torch.randint(3, 37, (3, 13)), torch.ones(3, 13, dtype=torch.long)
    mask[2, 6:] = 0
    if not causal:
        return mask, {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids > 20).long()}
    mask[1, :4] = 0
    return mask, {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def equal(first, second, skip=("pooler",)):
    first, second = (
        {name: x for name, x in model.state_dict().items() if not any(part in name for part in skip)}
        for model in (first, second)
    )
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.equal(second[name]), name


@pytest.mark.parametrize("name", THEIRS)
def test_there_and_back(name):
    theirs = theirs_of(name)
    ours = warm_start(theirs)
    back = to_transformers(ours)
    assert type(back) is type(theirs)
    equal(back, theirs)
    mask, given = batch(not name.startswith("Bert"))
    with torch.no_grad():
        outs = [model(**given)[0][mask.bool()] for model in (theirs, ours, back)]
    torch.testing.assert_close(outs[1], outs[0], **CLOSE)
    assert outs[2].equal(outs[0])
    if hasattr(theirs, "lm_head"):
        assert (back.lm_head.weight is back.base_model.get_input_embeddings().weight) == bool(
            theirs.config.tie_word_embeddings
        )


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("shape", OURS)
def test_ours_there_and_back(shape, head, tmp_path):
    options = {"num_key_value_heads": 2} if shape == "llama" else {"hidden_dropout_prob": 0.2}
    if shape == "bert":
        options["type_vocab_size"] = 2
    config = GreenformerConfig.shaped(shape, **SIZES | options, attention_dropout=0.3)
    ours = stir(OURS[shape][head](config)).train()
    theirs = to_transformers(ours)
    assert theirs.training
    assert type(theirs).__module__.startswith("transformers.")
    again = warm_start(theirs)
    assert again.training
    equal(again, ours)
    assert [layer.attention.mechanism.dropout for layer in again.base_model.layers] == [0.3, 0.3]
    mask, given = batch(shape != "bert")
    with torch.no_grad():
        outs = [model.eval()(**given)[0][mask.bool()] for model in (ours, theirs, again)]
    torch.testing.assert_close(outs[1], outs[0], **CLOSE)
    assert outs[2].equal(outs[0])
    theirs.save_pretrained(tmp_path)
    auto = (AutoModelForMaskedLM if shape == "bert" else AutoModelForCausalLM) if head else AutoModel
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is type(theirs)
    equal(loaded, theirs)


def test_no_types_are_one_that_adds_nothing():
    ours = stir(GreenformerModel(GreenformerConfig.shaped("bert", **SIZES))).eval()
    theirs = to_transformers(ours)
    assert not theirs.embeddings.token_type_embeddings.weight.any()
    mask, given = batch(causal=False)
    del given["token_type_ids"]
    torch.testing.assert_close(theirs(**given)[0][mask.bool()], ours(**given)[0][mask.bool()], **CLOSE)


def test_what_is_written_goes_on_alike():
    ours = stir(GreenformerForCausalLM(GreenformerConfig.shaped("llama", **SIZES))).eval()
    ours.generation_config.max_new_tokens = 5
    ids = torch.randint(3, 37, (2, 4))
    given = {"do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert to_transformers(ours).generate(ids, **given).equal(ours.generate(ids, **given))
    half = to_transformers(deepcopy(ours).to(torch.bfloat16))
    assert {x.dtype for x in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("kind", "shape", "options", "message"),
    [
        (GreenformerModel, "bert", {"attention": "performer"}, "attention must be 'full', or no .*; got 'performer'"),
        (GreenformerModel, "bert", {"rank": 4}, "rank must be None, or no bert computes the same; got 4"),
        (GreenformerModel, "bert", {"residual": "pre"}, "residual must be 'post', or no bert .*; got 'pre'"),
        (GreenformerModel, "bert", {"embedding_size": 6}, "embedding_size must be 24, the hidden size; got 6"),
        (GreenformerDecoder, "llama", {"qk_norm": True}, "qk_norm must be False, or no llama .*; got True"),
        (GreenformerDecoder, "llama", {"position_options": {"share": 0.5}}, "must not have share: no llama has them"),
        (GreenformerDecoder, "gpt2", {"type_vocab_size": 2}, "type_vocab_size must be 0, or no gpt2 .*; got 2"),
        (GreenformerDecoder, "gpt2", {"feed_forward": ["dense", "gated"]}, "must be 'dense', .*; got 'dense, gated'"),
        (GreenformerForSequenceClassification, "bert", {}, "model must be one of GreenformerModel, .*; got Green"),
    ],
)  # fmt: skip
def test_what_transformers_does_not_have_is_refused(kind, shape, options, message):
    network = kind(GreenformerConfig.shaped(shape, **SIZES | options))
    with pytest.raises(ValueError, match=message):
        to_transformers(network)
