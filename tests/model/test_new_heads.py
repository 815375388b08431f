"""Question answering, multiple choice, pairs, pre-training, images, recordings: losses and inputs, by hand."""

import pytest
import torch
import torch.nn.functional as F
from networks import VOCABULARY, config, d, padding, stir

import greenformers.model as ours
from greenformers.model import (
    GreenformerForAudioClassification,
    GreenformerForImageClassification,
    GreenformerForMultipleChoice,
    GreenformerForPreTraining,
    GreenformerForQuestionAnswering,
    GreenformerForSentenceEmbedding,
    GreenformerForSequenceClassification,
    GreenformerForTokenClassification,
)

B, N, CHOICES = 3, 13, 4
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
IMAGES = {"image_size": 6, "patch_size": 2, "num_channels": 3, "input_features": 12}


def make(kind, **options):
    return stir(kind(config(**options)).double()).eval()


def tokens(*shape):
    return torch.randint(1, VOCABULARY, shape or (B, N))


def test_question_answering():
    network, ids, mask = make(GreenformerForQuestionAnswering), tokens(), padding(B, N)
    first, last = torch.tensor([0, 2, N]), torch.tensor([[3], [3], [1]])  # of the third the answer was cut off
    out = network(ids, mask, start_positions=first, end_positions=last)
    scores = network.qa_outputs(network.encoder(ids, mask).last_hidden_state)
    scores = scores.masked_fill(~mask.bool()[..., None], torch.finfo(scores.dtype).min)
    torch.testing.assert_close((out.start_logits, out.end_logits), scores.unbind(-1), **CLOSE)
    begins = -scores[..., 0].log_softmax(-1)[[0, 1], [0, 2]].mean()
    ends = -scores[..., 1].log_softmax(-1)[[0, 1, 2], [3, 3, 1]].mean()
    torch.testing.assert_close(out.loss, (begins + ends) / 2, **CLOSE)
    assert network(ids, mask).loss is None
    with pytest.raises(ValueError, match="must be given together, end_positions is None"):
        network(ids, mask, start_positions=first)


def test_multiple_choice_reads_every_choice_by_itself():
    network, ids = make(GreenformerForMultipleChoice), tokens(B, CHOICES, N)
    mask, labels = padding(B * CHOICES, N).view(B, CHOICES, N), torch.tensor([1, 3, 0])
    out = network(ids, mask, labels=labels)
    for row in range(B):
        alone = network.score(network.encoder(ids[row], mask[row]).pooler_output)[:, 0]
        torch.testing.assert_close(out.logits[row], alone, **CLOSE)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, labels), **CLOSE)
    vectors = network.get_input_embeddings()(ids)
    torch.testing.assert_close(network(inputs_embeds=vectors, attention_mask=mask).logits, out.logits, **CLOSE)
    with pytest.raises(ValueError, match=r"input_ids must be \(B, choices, N\), got two dimensions"):
        network(ids[:, 0])
    with pytest.raises(ValueError, match="input_ids or inputs_embeds must be given, got neither"):
        network()


def test_sentences_find_their_own_among_all_others():
    network, ids, mask = make(GreenformerForSentenceEmbedding, pooling="mean"), tokens(B, 2, N), padding(2 * B, N)
    out = network(ids, mask.view(B, 2, N))
    alone = network(ids.flatten(0, 1), mask)
    assert alone.loss is None
    torch.testing.assert_close(out.embeddings.flatten(0, 1), alone.embeddings, **CLOSE)
    torch.testing.assert_close(alone.embeddings.norm(dim=-1), torch.ones(2 * B).double(), **CLOSE)
    cosine = F.cosine_similarity(out.embeddings[:, None, 0], out.embeddings[None, :, 1], dim=-1)
    expected = -(cosine / 0.05).log_softmax(1).diagonal().mean()
    torch.testing.assert_close(out.loss, expected, **CLOSE)
    assert network(ids, return_loss=False).loss is None
    with pytest.raises(ValueError, match=r"or \(B, 2, N\) of pairs; got 3 texts an example"):
        network(tokens(B, 3, N))
    with pytest.raises(ValueError, match="contrastive_temperature must be above 0, got 0"):
        config(contrastive_temperature=0)


def test_pretraining_is_both_tasks():
    network, ids, mask = make(GreenformerForPreTraining, type_vocab_size=2), tokens(), padding(B, N)
    types, labels, follows = (ids > 9).long(), ids.masked_fill(ids % 3 > 0, -100), torch.tensor([0, 1, 1])
    out = network(ids, mask, labels=labels, next_sentence_label=follows, token_type_ids=types)
    parts = [
        F.cross_entropy(out.prediction_logits.flatten(0, 1), labels.flatten()),
        F.cross_entropy(out.seq_relationship_logits, follows),
    ]
    torch.testing.assert_close(out.loss, sum(parts), **CLOSE)
    for given, expected in zip(({"labels": labels}, {"next_sentence_label": follows}), parts, strict=True):
        torch.testing.assert_close(network(ids, mask, token_type_ids=types, **given).loss, expected, **CLOSE)
    filling = ours.GreenformerForMaskedLM(network.config).double().eval()
    missing = filling.load_state_dict(network.state_dict(), strict=False)
    assert (missing.missing_keys, {key.split(".")[0] for key in missing.unexpected_keys}) == ([], {"next_sentence"})
    torch.testing.assert_close(filling(ids, mask, token_type_ids=types).logits, out.prediction_logits, **CLOSE)


def test_patches_are_those_of_a_convolution():
    """Of the vision transformer's, whose kernel is as large as its stride."""
    network, images = make(GreenformerForImageClassification, **IMAGES), torch.randn(B, 3, 6, 6).double()
    weight = torch.randn(d, 3, 2, 2).double()
    convolved = F.conv2d(images, weight, stride=2).flatten(2).mT
    torch.testing.assert_close(network.patches(images) @ weight.flatten(1).mT, convolved, **CLOSE)
    out, labels = network(images, labels=torch.tensor([1, 0, 1])), torch.tensor([1, 0, 1])
    scores = network.classifier(network.encoder(input_values=network.patches(images)).pooler_output)
    torch.testing.assert_close(out.logits, scores, **CLOSE)
    torch.testing.assert_close(out.loss, F.cross_entropy(scores, labels), **CLOSE)
    with pytest.raises(ValueError, match=r"pixel_values must be \(B, 3, 6, 6\), got \(3, 3, 6, 4\)"):
        network(images[..., :4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 6}, "image_size and patch_size must be set together, got 6, None"),
        ({"image_size": 6, "patch_size": 4, "input_features": 48}, "patch_size must divide image_size 6, got 4"),
        (IMAGES | {"input_features": 11}, r"must be num_channels \* patch_size\^2 = 12, got 11"),
        ({"problem_type": "ranking"}, "problem_type must be one of regression, single_label.*; got 'ranking'"),
    ],
)
def test_configurations_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_networks_need_what_they_read():
    with pytest.raises(ValueError, match="needs image_size and patch_size, got None"):
        GreenformerForImageClassification(config(input_features=12))
    with pytest.raises(ValueError, match="needs input_features, got None"):
        GreenformerForAudioClassification(config())


def test_recordings_of_several_lengths():
    network, frames = make(GreenformerForAudioClassification, input_features=5), torch.randn(B, N, 5).double()
    mask = padding(B, N)
    out = network(frames, mask, labels=torch.tensor([0, 1, 1]))
    for row, length in enumerate(mask.sum(1).tolist()):
        torch.testing.assert_close(out.logits[row], network(frames[row : row + 1, :length]).logits[0], **CLOSE)
    torch.testing.assert_close(out.loss, F.cross_entropy(out.logits, torch.tensor([0, 1, 1])), **CLOSE)
    with pytest.raises(ValueError, match=r"input_values must be \(B, T, 5\), got \(3, 13, 4\)"):
        network(frames[..., :4])


PROBLEMS = {
    "regression": (2, lambda shape: torch.randn(*shape, 2), lambda x, y: F.mse_loss(x, y)),
    "single_label_classification": (2, lambda shape: torch.randint(2, shape), lambda x, y: F.cross_entropy(x, y)),
    "multi_label_classification": (
        2,
        lambda shape: torch.randint(2, (*shape, 2)).float(),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
    ),
}


@pytest.mark.parametrize("given", [False, True], ids=["inferred", "given"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_kinds_of_problems(problem, given):
    labels, draw, loss = PROBLEMS[problem]
    if problem == "regression" and not given:  # as transformers takes it: one number
        labels, draw = 1, lambda shape: torch.randn(shape)
    options = {"num_labels": labels, "problem_type": problem if given else None}
    for kind, shape in ((GreenformerForSequenceClassification, (B,)), (GreenformerForTokenClassification, (B, N))):
        network, ids, target = make(kind, **options), tokens(), draw(shape)
        out = network(ids, labels=target)
        logits = out.logits if labels > 1 or problem != "regression" else out.logits[..., 0]
        target = target.to(logits.dtype) if target.is_floating_point() else target
        flat = (logits.flatten(0, len(shape) - 1), target.flatten(0, len(shape) - 1))
        torch.testing.assert_close(out.loss, loss(*flat), **CLOSE)
        assert network.config.problem_type == options["problem_type"]  # and no call has set it


@pytest.mark.parametrize(
    ("problem", "labels", "message"),
    [
        ("single_label_classification", torch.zeros(B), "labels must be integers where problem_type is single_label"),
        ("single_label_classification", torch.zeros(B, 2).long(), r"labels must be \(3,\) .* got \(3, 2\)"),
        ("multi_label_classification", torch.zeros(B), r"labels must be \(3, 2\) .* got \(3,\)"),
        ("regression", torch.zeros(B, 1), r"labels must be \(3, 2\) .* got \(3, 1\)"),
    ],
)
def test_labels_that_do_not_fit_the_problem(problem, labels, message):
    network = make(GreenformerForSequenceClassification, num_labels=2, problem_type=problem)
    with pytest.raises(ValueError, match=message):
        network(tokens(), labels=labels)


def cases():
    """Every new head: keyword arguments for a batch, labels among them, and what the loss of parts is divided by."""
    labels = torch.tensor([1, 0, 1, 1])
    texts, frames = tokens(4, N), torch.randn(4, N, 5).double()
    return {
        "question answering": (GreenformerForQuestionAnswering, {}, {
            "input_ids": texts, "start_positions": labels, "end_positions": labels}),
        "multiple choice": (GreenformerForMultipleChoice, {}, {"input_ids": tokens(4, 2, N), "labels": labels}),
        "pre-training": (GreenformerForPreTraining, {}, {
            "input_ids": texts, "labels": texts.masked_fill(torch.arange(N) % 3 > 0, -100)}),
        "images": (GreenformerForImageClassification, IMAGES, {
            "pixel_values": torch.randn(4, 3, 6, 6).double(), "labels": labels}),
        "recordings": (GreenformerForAudioClassification, {"input_features": 5}, {
            "input_values": frames, "labels": labels}),
        "several labels": (GreenformerForSequenceClassification, {"problem_type": "multi_label_classification"}, {
            "input_ids": texts, "labels": torch.rand(4, 2).round().double()}),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_a_batch_in_parts_has_the_loss_of_the_whole(name):
    torch.manual_seed(0)
    kind, options, given = cases()[name]
    network = make(kind, **options)
    whole = network(**given).loss
    labels = given.get("labels", given.get("start_positions"))
    items = labels.numel() if labels.is_floating_point() else (labels != -100).sum()
    parts = [network(**{key: x[at] for key, x in given.items()}, num_items_in_batch=items).loss
             for at in (slice(0, 1), slice(1, 4))]  # fmt: skip
    torch.testing.assert_close(sum(parts), whole, **CLOSE)


@pytest.mark.parametrize("name", cases())
def test_every_head_gives_what_is_asked_for(name):
    kind, options, given = cases()[name]
    network = make(kind, **options).train()
    network.activation_checkpointing_enable()
    out = network(**given, output_hidden_states=True, output_attentions=True)
    assert (len(out.hidden_states), len(out.attentions)) == (3, 2)
    assert isinstance(network(**given, return_dict=False), tuple)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in network.encoder.layers.parameters())


def test_labels_that_are_shifted_already():
    network, ids = make(ours.GreenformerForCausalLM), tokens()
    following = F.pad(ids, (0, 1), value=-100)[:, 1:]
    out = network(ids, labels=ids * 0, shift_labels=following)  # in place of the others
    torch.testing.assert_close(out.loss, network(ids, labels=ids).loss, atol=0, rtol=0)


def test_no_answer_lies_in_padding():
    network, ids = make(GreenformerForQuestionAnswering), tokens(1, 9)
    given = {"start_positions": torch.tensor([2]), "end_positions": torch.tensor([4])}
    longer, mask = F.pad(ids, (0, 6), value=3), F.pad(torch.ones_like(ids), (0, 6))
    out = network(longer, mask, **given)
    torch.testing.assert_close(out.loss, network(ids, **given).loss, **CLOSE)
    assert out.start_logits[0, 9:].max() < out.start_logits[0, :9].min()
