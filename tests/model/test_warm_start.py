"""Networks that start from trained ones of `transformers` compute the same, and go on to longer documents."""

import pytest
import torch
from networks import padding, stir
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BigBirdConfig,
    BigBirdForMaskedLM,
    BigBirdModel,
    LongformerConfig,
    LongformerForMaskedLM,
    LongformerModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
)

from greenformers.model import GreenformerForMaskedLM, GreenformerModel
from greenformers.model.warm_start import extended, warm_start
from greenformers.model.warm_start.bert import BERT as ENCODERS

B, N, PAD = 3, 43, 1
SIZES = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 31,
    "max_position_embeddings": 66,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-6,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
CONFIGS = {"Bert": BertConfig, "Roberta": RobertaConfig, "Longformer": LongformerConfig, "BigBird": BigBirdConfig}
WINDOWS = {"Longformer": {"attention_window": [4, 12]}, "BigBird": {"block_size": 4, "num_random_blocks": 2}}
BASES = [BertModel, RobertaModel, LongformerModel]
HEADS = [BertForMaskedLM, RobertaForMaskedLM, LongformerForMaskedLM]
RANDOM = [BigBirdModel, BigBirdForMaskedLM]


def named(cls):
    return cls.__name__


def trained(cls, **options):
    """A model of transformers with every parameter drawn anew."""
    kind = cls.__name__.removesuffix("Model").removesuffix("ForMaskedLM").removesuffix("ForSequenceClassification")
    return stir(cls(CONFIGS[kind](**SIZES | WINDOWS.get(kind, {}) | options))).eval()


def whole():
    """Tokens (B, N) without padding."""
    return torch.randint(4, 37, (B, N))


def batch(length=N):
    """Tokens (B, N), padded behind, and their mask."""
    mask = padding(B, length)
    return torch.randint(4, 37, (B, length)).masked_fill(~mask, PAD), mask.long()


@torch.no_grad()
def same(model, other, ids, mask=None, **given):
    """Scores and vectors of every layer agree wherever there is a token."""
    outs = [model(ids, mask, output_hidden_states=True, **given), other(ids, mask, output_hidden_states=True, **given)]
    keep = slice(None) if mask is None else mask.bool()
    firsts, seconds = ([out[0], *out.hidden_states] for out in outs)
    assert len(firsts) == len(seconds) == 4
    for first, second in zip(firsts, seconds, strict=True):
        first = first[:, : ids.shape[1]]  # BigBird leaves the layers' outputs padded to whole blocks
        torch.testing.assert_close(first[keep], second[keep], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", BASES + HEADS, ids=named)
def test_computes_the_same(cls):
    model, (ids, mask) = trained(cls), batch()
    ours = warm_start(model)
    assert type(ours) is (GreenformerForMaskedLM if cls in HEADS else GreenformerModel)
    same(model, ours, whole())
    same(model, ours, ids, mask)
    assert warm_start(model.train()).training
    assert not ours.training


@pytest.mark.parametrize("cls", [LongformerModel, LongformerForMaskedLM], ids=named)
def test_longformer_with_global_positions(cls):
    model, (ids, mask) = trained(cls), batch()
    ours = warm_start(model)
    assert ours.config.attention_options == [
        {"dropout": 0.0, "window": 2, "globals": 0},
        {"dropout": 0.0, "window": 6, "globals": 0},
    ]
    where = torch.zeros_like(ids)
    where[0, [0, 7, 40]], where[1, 3] = 1, 1
    same(model, ours, whole(), global_attention_mask=where)
    where *= mask
    same(model, ours, ids, mask, global_attention_mask=where)


def test_longformer_of_one_window():
    model = trained(LongformerModel, attention_window=8)
    model.config.attention_window = 8
    ours = warm_start(model)
    assert ours.config.attention_options == {"dropout": 0.0, "window": 4, "globals": 0}
    same(model, ours, *batch())


def take_over_plans(model, ours):
    """Let our mechanisms use the random blocks that each layer of a BigBird draws."""
    for source, layer in zip(model.base_model.encoder.layer, ours.base_model.layers, strict=True):
        theirs, mechanism = source.attention.self, layer.attention.mechanism
        draw = theirs._bigbird_block_rand_mask_with_head

        def drawn(draw=draw, mechanism=mechanism, **options):
            plan = draw(**options)
            # Theirs are counted from the first block, ours from the one behind it.
            table = torch.stack([torch.as_tensor(head) for head in plan]).long() - 1
            mechanism.extra_blocks = lambda *_: table
            return plan

        theirs._bigbird_block_rand_mask_with_head = drawn


@pytest.mark.parametrize("cls", RANDOM, ids=named)
def test_bigbird_with_its_random_blocks(cls):
    # Blocks are random only in training, and sparse only beyond (5 + 2 * 2) * 4 tokens.
    model, (ids, mask) = trained(cls).train(), batch()
    ours = warm_start(model)
    assert ours.config.attention_options == {"dropout": 0.0, "block": 4, "random": 2, "padding": "batch"}
    take_over_plans(model, ours)
    same(model, ours, whole())
    same(model, ours, ids, mask)
    assert model.base_model.attention_type == "block_sparse"
    tables = [layer.attention.mechanism.extra_blocks(9, ids.device) for layer in ours.base_model.layers]
    assert tables[0].shape == (3, 9, 2)
    assert not torch.equal(*tables)
    with pytest.raises(AssertionError, match="not close"):
        same(model, warm_start(model), whole())


@pytest.mark.parametrize("cls", RANDOM, ids=named)
def test_bigbird_of_full_attention(cls):
    model = trained(cls, attention_type="original_full")
    ours = warm_start(model)
    assert ours.config.attention == "full"
    same(model, ours, *batch())


@pytest.mark.parametrize("act", ["gelu_new", "relu"])
@pytest.mark.parametrize("cls", [BertForMaskedLM, RobertaModel], ids=named)
def test_activation(cls, act):
    model = trained(cls, hidden_act=act)
    same(model, warm_start(model), *batch())


@pytest.mark.parametrize("cls", [BertForMaskedLM, LongformerForMaskedLM], ids=named)
def test_output_embedding_of_its_own(cls):
    model = trained(cls, tie_word_embeddings=False)
    ours = warm_start(model)
    assert not torch.equal(ours.decoder.weight, ours.encoder.embedding.word.weight)
    same(model, ours, *batch())
    tied = warm_start(trained(cls))
    assert tied.decoder.weight is tied.encoder.embedding.word.weight


def test_configuration_carries_over():
    model = trained(RobertaModel, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3, initializer_range=0.1)
    config = warm_start(model).config
    for name in ("hidden_dropout_prob", "initializer_range", "layer_norm_eps", "pad_token_id", "bos_token_id"):
        assert getattr(config, name) == getattr(model.config, name)
    assert config.attention_options == {"dropout": 0.3}
    assert config.max_position_embeddings == 66 - (PAD + 1)
    sparse = trained(BigBirdModel, attention_probs_dropout_prob=0.3)
    assert warm_start(sparse).config.attention_options["dropout"] == 0.0
    assert warm_start(sparse, attention_options={"dropout": 0.1}).config.attention_options["dropout"] == 0.1
    assert warm_start(sparse, attention="full").config.attention_options == {"dropout": 0.3}


def test_type_carries_over():
    ours = warm_start(trained(BertForMaskedLM).to(torch.bfloat16))
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    model = trained(BertForMaskedLM).double()
    ours = warm_start(model)
    assert ours.dtype == torch.float64
    same(model, ours, *batch())


def test_the_models_are_apart():
    model, (ids, mask) = trained(BertForMaskedLM), batch()
    ours = warm_start(model)
    before = ours(ids, mask).logits
    stir(model)
    assert torch.equal(ours(ids, mask).logits, before)


def test_extended_positions_are_copies():
    x = torch.randn(5, 3)
    assert torch.equal(extended(x, 13), torch.cat([x, x, x[:3]]))
    assert torch.equal(extended(x, 2), x[:2])
    assert extended(x, 5).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("cls", BASES + RANDOM, ids=named)
def test_longer_documents(cls):
    model = trained(cls)
    ours = warm_start(model, length=150)
    table = model.base_model.embeddings.position_embeddings.weight
    first = PAD + 1 if cls in (RobertaModel, LongformerModel) else 0
    vectors = table[first:]
    torch.testing.assert_close(ours.base_model.embedding.position.weight, vectors.repeat(3, 1)[:150])
    ids, mask = batch(150)
    out = ours(ids, mask)[0]
    assert out.shape[:2] == (B, 150)
    assert out[mask.bool()].isfinite().all()
    with pytest.raises(ValueError, match=r"length must be in 1\.\.150, got 151"):
        ours(torch.randint(4, 37, (1, 151)))


def test_global_maps_start_as_copies():
    model = trained(RobertaForMaskedLM)
    options = {"window": 64, "globals": 2}
    ours = warm_start(model, length=300, attention="longformer", attention_options=options)
    for layer in ours.encoder.layers:
        projections = layer.attention.projections
        for name in "qkv":
            assert torch.equal(projections[f"{name}_global"].weight, projections[name].weight)
            assert torch.equal(projections[f"{name}_global"].bias, projections[name].bias)
            assert projections[f"{name}_global"].weight is not projections[name].weight
    # No document of the original is longer than the window.
    same(model, ours, *batch())


@pytest.mark.parametrize("attention", ["bigbird", "linformer", "synthesizer_dense", ["full", "longformer"]])
def test_other_mechanisms(attention):
    ours = warm_start(trained(BertForMaskedLM), length=150, attention=attention)
    ids, mask = batch(150)
    assert ours(ids, mask).logits.isfinite().all()


def test_own_windows_and_others():
    ours = warm_start(trained(LongformerModel), attention_options=[{"window": 3}, None])
    assert [options["window"] for options in ours.config.attention_options] == [3, 6]
    ours = warm_start(trained(LongformerModel), attention=["full", "longformer"])
    assert ours.config.attention_options == [{"dropout": 0.0}, {"dropout": 0.0, "window": 6, "globals": 0}]


@pytest.mark.parametrize("cls", BASES + HEADS + RANDOM, ids=named)
def test_saved_and_loaded_again(cls, tmp_path):
    ours, (ids, mask) = warm_start(trained(cls), length=150), batch(97)
    ours.save_pretrained(tmp_path)
    loaded, report = type(ours).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert torch.equal(ours(ids, mask)[0], loaded(ids, mask)[0])


def test_every_weight_learns():
    ours, (ids, mask) = warm_start(trained(LongformerForMaskedLM)), batch()
    where = torch.zeros_like(ids)
    where[:, 0] = 1
    ours.train()(ids, mask, labels=ids, global_attention_mask=where).loss.backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (BertForSequenceClassification, {}, "model must be one of BertModel, .*; got BertForSequenceClassification"),
        (BertModel, {"is_decoder": True}, "is_decoder must be False, .*; got True"),
        (BertModel, {"position_embedding_type": "relative_key"}, "must be 'absolute', .*; got 'relative_key'"),
        (BigBirdModel, {"use_bias": False}, "use_bias must be True, .*; got False"),
        (BigBirdForMaskedLM, {"rescale_embeddings": True}, "rescale_embeddings must be False, .*; got True"),
        (RobertaForMaskedLM, {"hidden_act": "relu"}, "hidden_act must be 'gelu', .*; got 'relu'"),
    ],
)
def test_refusals(cls, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        warm_start(trained(cls, **options))
    assert "\n" not in str(caught.value)


def test_refuses_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="max_position_embeddings must be at least 1, got 0"):
        warm_start(trained(BertModel), length=0)
    with pytest.raises(ValueError, match=r"attention must be one of .*; got 'longfromer'"):
        warm_start(trained(BertModel), attention="longfromer")
    with pytest.raises(ValueError, match="attention_options must have one entry a layer, 2, got 1"):
        warm_start(trained(BertModel), attention_options=[{}])


def test_models_are_named_as_in_transformers():
    assert set(ENCODERS) == {cls.__name__ for cls in BASES + HEADS + RANDOM}
