"""Losses that mechanisms have of their own: added once, in training, to that of the task."""

import pytest
import torch

from greenformers.model import GreenformerConfig
from greenformers.model.encoder import GreenformerModel
from greenformers.model.heads import (
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerForTokenClassification,
)
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

SIZES = {"vocab_size": 31, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40,
         "num_hidden_layers": 2, "max_position_embeddings": 17, "hidden_dropout_prob": 0.0}  # fmt: skip
SPAN = {"attention": "adaptive_span", "attention_options": {"penalty": 0.5, "init": 0.25}}
HEADS = (GreenformerForMaskedLM, GreenformerForCausalLM, GreenformerForTokenClassification)


def make(kind, **given):
    torch.manual_seed(0)
    return kind(GreenformerConfig(**SIZES | SPAN | given))


IDS = torch.randint(2, (2, 13), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("residual", ["post", "pre", "reversible"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_sum_over_the_layers(residual, recompute):
    model = make(GreenformerModel, residual=residual).train()
    if recompute and residual != "reversible":
        model.activation_checkpointing_enable()
    loss = model(IDS).auxiliary_loss
    assert loss.item() == pytest.approx(2 * 0.5 * 17 * 0.25)
    loss.backward()
    for layer in model.layers:
        assert layer.attention.mechanism.z.grad.tolist() == pytest.approx([0.5 * 17 / 3] * 3)
    assert model.eval()(IDS).auxiliary_loss is None


@pytest.mark.parametrize("kind", HEADS)
def test_it_is_added_once_in_training_alone(kind):
    model = make(kind)
    task = model.eval()(IDS, labels=IDS).loss
    assert model.train()(IDS, labels=IDS).loss.item() == pytest.approx(task.item() + 4.25)


def test_of_a_sequence_and_of_an_encoder_before_a_decoder():
    model = make(GreenformerForSequenceClassification)
    task = model.eval()(IDS, labels=IDS[:, 0]).loss
    assert model.train()(IDS, labels=IDS[:, 0]).loss.item() == pytest.approx(task.item() + 4.25)
    model = make(GreenformerForSeq2SeqLM, decoder_layers=1, decoder_start_token_id=1, pad_token_id=0)
    task = model.eval()(IDS, labels=IDS).loss
    assert model.train()(IDS, labels=IDS).loss.item() == pytest.approx(task.item() + 4.25)
    with pytest.raises(
        ValueError, match=r"^decoder_attention must have no loss of its own beside an encoder, adaptive"
    ):
        make(GreenformerForSeq2SeqLM, decoder_layers=1, pad_token_id=0, decoder_start_token_id=1,
             decoder_attention="adaptive_span")  # fmt: skip


@pytest.mark.parametrize("kind", HEADS)
def test_parts_of_a_batch_have_the_loss_of_the_whole(kind):
    model = make(kind).train()
    labels = IDS.clone()
    labels[0, 3:] = -100
    asked = labels[:, 1:] if kind is GreenformerForCausalLM else labels
    items = int((asked != -100).sum())
    whole = model(IDS, labels=labels).loss
    parts = [model(IDS[at : at + 1], labels=labels[at : at + 1], num_items_in_batch=items).loss for at in (0, 1)]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.parametrize("residual", ["pre", "reversible"])
@pytest.mark.parametrize("attention", ["routing", "reformer", "sinkhorn"])
def test_networks_of_learned_patterns_learn(attention, residual):
    options = {"routing": {"clusters": 3}, "reformer": {"chunk": 4}, "sinkhorn": {"block": 4}}[attention]
    model = make(GreenformerForMaskedLM, attention=attention, attention_options=options, residual=residual).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = model(IDS, labels=IDS).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for layer in model.encoder.layers:
            layer.attention.mechanism.update_()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
