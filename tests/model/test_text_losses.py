"""Losses of the language models, by hand: which labels count, what they are divided by, and sparse scores."""

import pytest
import torch
from networks import VOCABULARY, config, padding, stir
from text_networks import causal, pair, tokens

from greenformers.model import GreenformerForMaskedLM, GreenformerForTokenClassification
from greenformers.model.loss import token_loss

B, N = 3, 13
CLOSE = {"atol": 1e-12, "rtol": 1e-12}


def masked(**options):
    return stir(GreenformerForMaskedLM(config("lrt", **options)).double()).eval()


def tagger(**options):
    return stir(GreenformerForTokenClassification(config("lrt", num_labels=19, **options)).double()).eval()


SCORERS = {
    "masked": masked,
    "causal": lambda **options: causal("narrow lrt", **options),
    "pair": lambda **options: pair("narrow lrt", **options),
}
HEADS = SCORERS | {"tags": tagger}


def some_labels(name, ids):
    """A label at some places, at the first and the last among them; a whole row without."""
    labels = (ids * 5 + 3) % (19 if name == "tags" else VOCABULARY)
    mask = torch.rand(ids.shape) < 0.4
    mask[0, 0] = mask[0, -1] = True
    mask[1] = False
    return labels.masked_fill(~mask, -100)


def asked(name, labels):
    """What stands at every position's score: the next label for the causal model."""
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1) if name == "causal" else labels


def by_hand(logits, labels):
    """Sum of the losses and number of the labels."""
    mask = labels != -100
    chosen = logits.softmax(-1).log()[mask].gather(1, labels[mask][:, None])
    return -chosen.sum(), mask.sum()


def gradients(network, loss):
    return torch.autograd.grad(loss, list(network.parameters()))


@pytest.mark.parametrize("name", HEADS)
def test_by_hand(name):
    network, ids, mask = HEADS[name](), tokens(B, N), padding(B, N)
    labels = some_labels(name, ids)
    out = network(ids, mask, labels=labels)
    total, count = by_hand(out.logits, asked(name, labels))
    assert 3 < count < B * N
    torch.testing.assert_close(out.loss, total / count, **CLOSE)
    divided = network(ids, mask, labels=labels, num_items_in_batch=torch.tensor(17)).loss
    torch.testing.assert_close(divided, total / 17, **CLOSE)
    torch.testing.assert_close(network(ids, mask, labels=labels, return_dict=False)[0], out.loss, atol=0, rtol=0)


@pytest.mark.parametrize("kind", [int, torch.tensor])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_parts_of_a_batch_add_up_to_the_whole(name, sparse, kind):
    network, ids, mask = HEADS[name](sparse_prediction=sparse), tokens(5, N), padding(5, N)
    labels = some_labels(name, ids)
    count = kind(asked(name, labels).ne(-100).sum().item())
    whole = network(ids, mask, labels=labels).loss
    rows = [slice(0, 1), slice(1, 2), slice(2, 5)]
    parts = [network(ids[i], mask[i], labels=labels[i], num_items_in_batch=count).loss for i in rows]
    assert parts[1] == 0  # a row without labels
    torch.testing.assert_close(sum(parts), whole, **CLOSE)
    torch.testing.assert_close(gradients(network, sum(parts)), gradients(network, whole), atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", SCORERS)
def test_sparse_scores_are_those_of_the_labelled_positions(name):
    ids, mask = tokens(B, N), padding(B, N)
    labels = some_labels(name, ids)
    dense, sparse = SCORERS[name](), SCORERS[name](sparse_prediction=True)
    sparse.load_state_dict(dense.state_dict())
    expected, out = (network(ids, mask, labels=labels) for network in (dense, sparse))
    positions = asked(name, labels) != -100
    assert out.logits.shape == (positions.sum(), VOCABULARY)
    torch.testing.assert_close(out.logits, expected.logits[positions], **CLOSE)
    torch.testing.assert_close(out.loss, expected.loss, **CLOSE)
    torch.testing.assert_close(gradients(sparse, out.loss), gradients(dense, expected.loss), atol=1e-11, rtol=1e-11)
    given = {"decoder_input_ids": ids} if name == "pair" else {}
    torch.testing.assert_close(sparse(ids, mask, **given).logits, dense(ids, mask, **given).logits, **CLOSE)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_no_label_is_no_loss(name, sparse):
    network, ids = HEADS[name](sparse_prediction=sparse), tokens(B, N)
    loss = network(ids, labels=torch.full_like(ids, -100)).loss
    assert loss == 0
    loss.backward()
    assert all(p.grad is None or p.grad.eq(0).all() for p in network.parameters())


def test_the_causal_loss_is_about_the_next_token():
    network, ids = causal(), tokens(B, N)
    torch.testing.assert_close(
        network(ids, labels=ids).loss,
        torch.stack([token_loss(network(ids[:, :n]).logits[:, -1], ids[:, n], B * (N - 1)) for n in range(1, N)]).sum(),
        **CLOSE,
    )
    # The first label is nobody's next token.
    other = ids.clone()
    other[:, 0] = 3
    torch.testing.assert_close(network(ids, labels=other).loss, network(ids, labels=ids).loss, atol=0, rtol=0)


def test_a_single_token_has_no_causal_loss():
    network, ids = causal(), tokens(B, 1)
    assert network(ids, labels=ids).loss == 0


def test_tags_are_scored_from_the_encoder():
    network, ids, mask = tagger(), tokens(B, N), padding(B, N)
    hidden = network.encoder(ids, mask).last_hidden_state
    expected = hidden @ network.classifier.weight.T + network.classifier.bias
    out = network(ids, mask, output_hidden_states=True)
    torch.testing.assert_close(out.logits, expected, **CLOSE)
    assert out.loss is None
    torch.testing.assert_close(out.hidden_states[-1], hidden, atol=0, rtol=0)
    network.dropout.p = 1.0
    torch.testing.assert_close(network.train()(ids, mask).logits, network.classifier.bias.expand(B, N, -1))


def test_tags_of_values():
    network = tagger(input_features=2)
    x, labels = torch.randn(B, N, 2, dtype=torch.float64), torch.randint(19, (B, N + 1))
    labels[:, 0] = -100  # the [CLS]
    out = network(input_values=x, attention_mask=padding(B, N), labels=labels)
    total, count = by_hand(out.logits, labels)
    assert count == B * N
    torch.testing.assert_close(out.loss, total / count, **CLOSE)


def test_a_label_out_of_range():
    logits = torch.zeros(2, 3, 7)
    for other in (7, -1):
        labels = torch.tensor([[0, 6, -100], [1, other, -100]])
        with pytest.raises(ValueError, match=rf"^labels must be in 0\.\.6 or -100, got {other}$"):
            token_loss(logits, labels, None)
