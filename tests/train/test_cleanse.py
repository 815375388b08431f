"""Watching a classifier learn: what is observed is what the network gives, and held out is held out."""

import copy

import pytest
import torch
from tiny import SIZES, characters
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from greenformers.data import Examples, Labelled
from greenformers.lowrank.linear import LED
from greenformers.measure.label_errors import precision_at, suspicion
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification, GreenformerModel
from greenformers.train.classification import TextClassification
from greenformers.train.cleanse import classifier_from, watch, watch_held_out
from greenformers.train.schedule import Schedule

BERT = BertConfig(
    vocab_size=13, hidden_size=24, num_hidden_layers=1, intermediate_size=20, num_attention_heads=2
)  # fmt: skip
SENTENCES = [("to be to be",), ("the mind",), ("to be",), ("the mind the",)] * 6


def data(wrong: int = 0, valid: int = 0) -> Labelled:
    labels = [place % 2 for place in range(len(SENTENCES))]
    labels[:wrong] = [1 - label for label in labels[:wrong]]
    train = Examples(SENTENCES, labels)
    return Labelled("written", ("a", "b"), train, Examples(SENTENCES, labels).at(range(24 - valid, 24)), Examples())


def network(written: Labelled) -> GreenformerForSequenceClassification:
    torch.manual_seed(0)
    objective = TextClassification(written, characters(), 16)
    return objective.build(objective.config(**SIZES))


def test_parts_of_a_batch_are_one_batch_for_a_classifier_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    zero = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    plain = BertForSequenceClassification(BertConfig(vocab_size=len(characters()), num_labels=2, **sizes, **zero))
    norms = []
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda *given, **more: norms.append(clip(*given, **more)) or norms[-1]
    )
    for parts in (1, 3):
        model = copy.deepcopy(plain)
        watch(model, data(), characters(), Schedule(steps=1, batch_size=6, accumulate=parts, warmup=0.0), length=16)
    assert float(norms[0]) == pytest.approx(float(norms[1]), rel=1e-3)


def test_what_is_observed_is_what_the_network_gives() -> None:
    written = data(valid=5)
    model = network(written)
    schedule = Schedule(epochs=3, batch_size=6, learning_rate=3e-3, warmup=0.5)
    seen, right = watch(model, written, characters(), schedule, length=16)
    assert right is not None
    assert (seen.logits.shape, seen.features.shape) == ((3, 24, 2), (3, 24, 12))
    assert (right.logits.shape, right.features.shape) == ((3, 5, 2), (3, 5, 12))
    assert seen.labels.tolist() == written.train.labels
    # At the last moment the network is what training leaves behind.
    objective = TextClassification(written, characters(), 16)
    for place in range(24):
        batch = objective.collate([objective.example("train", place, torch.Generator())])
        with torch.no_grad():
            out = model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        assert_close(seen.logits[-1, place], out.logits[0])
    # The logits are those of the last layer on the features.
    assert_close(model.classifier(seen.features[-1]).detach(), seen.logits[-1])
    assert_close(model.classifier(right.features[-1]).detach(), right.logits[-1])
    # Six of twelve steps are warm-up, then the cosine.
    assert len(seen.rates) == 3
    assert seen.rates[1] > seen.rates[0] > 0
    assert seen.rates.sum() < 12 * 3e-3


def test_of_a_decoder_the_position_of_the_logits_is_observed() -> None:
    """Batches of texts of other lengths could not be put together."""
    sizes = {"n_embd": 12, "n_layer": 1, "n_head": 2, "n_positions": 16, "num_labels": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    marks = {"bos_token_id": 1, "eos_token_id": 1}
    model = GPT2ForSequenceClassification(GPT2Config(vocab_size=len(characters()), **sizes, **marks))
    seen, _ = watch(model, data(), characters(), Schedule(steps=1, batch_size=2), length=16)
    assert seen.features.shape == (1, 24, 12)
    assert_close(model.score(seen.features[-1]).detach(), seen.logits[-1])


def test_no_network_is_trained_on_what_it_observes() -> None:
    """An example's own label does not reach the network of its fold: with any label its logits are the same."""
    first, second = (
        watch_held_out(network(data()), data(wrong), characters(), Schedule(epochs=1, batch_size=6), folds=2, length=16)
        for wrong in (0, 1)
    )
    assert first.logits.shape == (1, 24, 2)
    assert_close(first.logits[:, 0], second.logits[:, 0])
    # The network of the other fold is trained on it: that half of the logits differs.
    differs = (first.logits != second.logits).any(-1).any(0)
    assert differs.sum() == 12
    assert (first.labels != second.labels).nonzero().flatten().tolist() == [0]


def test_flipped_labels_are_the_most_suspicious() -> None:
    written = data(wrong=2)
    model = network(written)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    schedule = Schedule(epochs=6, batch_size=8, learning_rate=3e-2)
    seen = watch_held_out(model, written, characters(), schedule, folds=3, length=16)
    wrong = torch.arange(24) < 2
    assert precision_at(suspicion("margin", seen), wrong, 2) == 100
    for name, value in model.state_dict().items():
        assert_close(value, before[name], atol=0, rtol=0)


@pytest.mark.parametrize("folds", [0, 1, 25])
def test_folds_out_of_range(folds: int) -> None:
    with pytest.raises(ValueError, match=rf"^folds must be in 2\.\.24, got {folds}$"):
        watch_held_out(network(data()), data(), characters(), Schedule(), folds)


@pytest.mark.parametrize("how", ["factors", "a narrower layer"])
def test_no_layer_of_an_encoder_that_was_changed_is_drawn_anew(how: str) -> None:
    encoder = BertModel(BERT)
    inner = encoder.encoder.layer[0].intermediate
    inner.dense = LED(24, 20, 4) if how == "factors" else torch.nn.Linear(24, 12)
    with pytest.raises(ValueError, match=r"as its class builds it, and encoder\.layer\.0\.intermediate\.dense"):
        classifier_from(encoder, 3)


def test_classifiers_from_encoders() -> None:
    ours = GreenformerConfig(**SIZES, vocab_size=13, max_position_embeddings=16)
    for encoder in (BertModel(BERT), BertModel(BERT, add_pooling_layer=False), GreenformerModel(ours)):
        model = classifier_from(encoder, 3)
        assert model.config.num_labels == 3
        assert type(model).__name__.endswith("ForSequenceClassification")
        weights = model.base_model.state_dict()
        for name, value in encoder.state_dict().items():
            assert_close(weights[name], value, atol=0, rtol=0)
        assert classifier_from(model, 2) is model
        with pytest.raises(ValueError, match=r"^the labels must be in 0\.\.2, the classes of the model, got 3$"):
            classifier_from(model, 4)
