"""Parameters shared over layers, against transformers' ALBERT with copied weights; and queries that are keys."""

import pytest
import torch
from transformers import AlbertConfig, AlbertModel

from greenformers.measure.parameters import parameters
from greenformers.model import GreenformerConfig
from greenformers.model.encoder import GreenformerModel
from greenformers.model.heads import GreenformerForCausalLM, GreenformerForMaskedLM
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

SIZES = {"vocab_size": 31, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40,
         "num_hidden_layers": 3, "max_position_embeddings": 17}  # fmt: skip


def make(kind=GreenformerModel, **given):
    torch.manual_seed(0)
    return kind(GreenformerConfig(**SIZES | {"depth": "shared", "hidden_dropout_prob": 0.0} | given))


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    return torch.randint(31, (2, 13)), mask


def test_albert(given):
    """Lan 2019, 3.1: factorised embedding and one set of parameters for all layers."""
    theirs = AlbertModel(AlbertConfig(**SIZES, embedding_size=7, hidden_act="gelu_new", hidden_dropout_prob=0.0,
                                      attention_probs_dropout_prob=0.0), add_pooling_layer=False).eval()  # fmt: skip
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = make(embedding_size=7, hidden_act="gelu_new").eval()
    source, layer = theirs.embeddings, theirs.encoder.albert_layer_groups[0].albert_layers[0]
    types = source.token_type_embeddings.weight[0]
    pairs = {
        "embedding.word": source.word_embeddings, "embedding.norm": source.LayerNorm,
        "embedding.widen": theirs.encoder.embedding_hidden_mapping_in,
        "layers.0.attention.projections.q": layer.attention.query,
        "layers.0.attention.projections.k": layer.attention.key,
        "layers.0.attention.projections.v": layer.attention.value, "layers.0.attention.output": layer.attention.dense,
        "layers.0.attention_norm": layer.attention.LayerNorm, "layers.0.feed_forward.up": layer.ffn,
        "layers.0.feed_forward.down": layer.ffn_output, "layers.0.feed_forward_norm": layer.full_layer_layer_norm,
    }  # fmt: skip
    with torch.no_grad():
        for name, module in pairs.items():
            ours.get_submodule(name).load_state_dict(module.state_dict())
        ours.embedding.position.weight.copy_(source.position_embeddings.weight + types)
    ids, mask = given
    expected = theirs(ids, attention_mask=mask.long()).last_hidden_state
    out = ours(ids, mask).last_hidden_state
    torch.testing.assert_close(out[mask], expected[mask], atol=1e-5, rtol=1e-5)
    assert parameters(ours) == sum(parameter.numel() for parameter in theirs.parameters()) - types.numel() * 2


@pytest.mark.parametrize(("shared", "blocks"), [("all", {"attention", "feed_forward"}), ("attention", {"attention"}),
                                                ("feed_forward", {"feed_forward"})])  # fmt: skip
@pytest.mark.parametrize("attention", ["full", "linformer", "longformer", "synthesizer_random"])
def test_what_is_shared(shared, blocks, attention, given, tmp_path):
    model = make(shared=shared, attention=attention, rank={"q": 3})
    for name, parameter in model.layers[2].named_parameters():
        same = parameter is model.layers[0].get_parameter(name)
        assert same == (name.split(".")[0].removesuffix("_norm") in blocks)
    model.train()(*given).last_hidden_state.square().sum().backward()
    model.eval().save_pretrained(tmp_path)
    again = GreenformerModel.from_pretrained(tmp_path).eval()
    assert parameters(again) == parameters(model)
    assert (
        again.layers[2].attention.output.weight.data_ptr()
        == again.layers[0 if "attention" in blocks else 2].attention.output.weight.data_ptr()
    )
    assert torch.equal(again(*given).last_hidden_state, model(*given).last_hidden_state)


def test_gradients_add_up_over_the_layers(given):
    shared, apart = make().double(), make(depth="stacked").double()
    for layer in apart.layers:
        layer.load_state_dict(shared.layers[0].state_dict())
    apart.embedding.load_state_dict(shared.embedding.state_dict())
    for model in (shared, apart):
        model(*given).last_hidden_state.square().sum().backward()
    for name, parameter in shared.layers[0].named_parameters():
        total = sum(layer.get_parameter(name).grad for layer in apart.layers)
        torch.testing.assert_close(parameter.grad, total, atol=1e-9, rtol=1e-9)


def test_with_reversible_residuals(given):
    model = make(residual="reversible").double().train()
    model(*given).last_hidden_state.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.layers.parameters())
    assert parameters(model) < parameters(make(residual="reversible", depth="stacked"))


def test_both_stacks_of_an_encoder_decoder(given, tmp_path):
    model = make(GreenformerForSeq2SeqLM, decoder_layers=2, pad_token_id=0, decoder_start_token_id=1).eval()
    assert (
        model.decoder.layers[1].cross_attention.output.weight is model.decoder.layers[0].cross_attention.output.weight
    )
    assert model.decoder.layers[0].attention.output.weight is not model.encoder.layers[0].attention.output.weight
    model.save_pretrained(tmp_path)
    again = GreenformerForSeq2SeqLM.from_pretrained(tmp_path).eval()
    ids, mask = given
    assert torch.equal(again(ids, mask, labels=ids).logits, model(ids, mask, labels=ids).logits)


def test_layers_that_are_not_alike():
    with pytest.raises(
        ValueError, match=r"^depth shared needs layers alike, attention of layer 1 is not as layer 0's$"
    ):
        make(attention=["full", "linformer", "full"])
    with pytest.raises(ValueError, match=r"^depth shared needs layers alike, feed_forward of layer 2 is not"):
        make(rank=[None, None, 3], shared="feed_forward")
    make(attention=["full", "linformer", "full"], shared="feed_forward")
    with pytest.raises(ValueError, match=r"^shared must be one of all, attention, feed_forward; got 'none'$"):
        make(shared="none")


def test_queries_that_are_keys(given):
    """Shared QK is full attention with W_k = W_q."""
    shared, untied = make(attention_options={"shared_qk": True}, depth="stacked"), make(depth="stacked")
    state = shared.state_dict()
    assert not [name for name in state if ".projections.k." in name]
    untied.load_state_dict(
        state | {name.replace(".q.", ".k."): value for name, value in state.items() if ".q." in name}
    )
    torch.testing.assert_close(shared(*given).last_hidden_state, untied(*given).last_hidden_state)


def test_queries_that_are_keys_decode_with_a_cache():
    model = make(GreenformerForCausalLM, attention_options={"shared_qk": True}, depth="stacked", pad_token_id=0).eval()
    ids = torch.randint(1, 31, (2, 5))
    texts = [model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=use) for use in (True, False)]
    assert torch.equal(*texts)


def test_masked_modelling_learns_with_shared_layers(given):
    model = make(GreenformerForMaskedLM).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    ids, mask = given
    losses = []
    for _ in range(30):
        loss = model(ids, mask, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
