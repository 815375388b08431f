"""Replaced token detection: two networks, one embedding, and a loss made by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from tiny import TEXT, batches, build, by_hand, characters

from greenformers.train.masked_lm import MaskedLM
from greenformers.train.replaced_token_detection import GeneratorAndDiscriminator, ReplacedTokenDetection
from greenformers.train.stream import generator


def detection(length: int = 16) -> ReplacedTokenDetection:
    return ReplacedTokenDetection(TEXT, characters(), length)


def test_the_generator_is_a_quarter_and_shares_the_embedding() -> None:
    objective = detection()
    model = build(objective, rank=3)
    small, large = model.generator.config, model.discriminator.config
    assert (large.hidden_size, large.num_attention_heads, large.intermediate_size, large.rank) == (12, 4, 20, 3)
    assert (small.hidden_size, small.num_attention_heads, small.intermediate_size, small.rank) == (3, 1, 5, None)
    assert (small.embedding_size, small.num_hidden_layers, large.num_labels) == (12, 1, 2)
    shared = model.discriminator.encoder.embedding.word.weight
    assert shared.shape == (len(objective.tokenizer), 12)
    assert model.generator.encoder.embedding.word.weight is shared
    assert model.generator.decoder.weight is shared
    assert sum(parameter is shared for parameter in model.parameters()) == 1
    # All that is hidden is [MASK]: what the discriminator reads is up to the generator.
    examples = [objective.example("train", 0, generator(n)) for n in range(50)]
    for example in examples:
        asked = example["labels"] != -100
        assert (example["input_ids"][asked] == objective.tokenizer.mask_token_id).all()


def test_draws_follow_the_generator() -> None:
    model = build(detection())
    torch.manual_seed(1)
    scores = torch.tensor([0.0, 1.0, -1.0, 2.0, -3.0, 0.5, 1.5])
    labels = torch.full((100, 200), 3)
    drawn, truth = model.replace(torch.zeros_like(labels), labels, scores.expand(20000, 7))
    counts = drawn.flatten().bincount(minlength=7)
    assert chisquare(counts, 20000 * scores.double().softmax(0)).pvalue > 1e-3
    # A token that happens to be the original is one.
    assert torch.equal(truth, (drawn != 3).long())
    assert 0.3 < truth.double().mean() < 0.7


def test_only_masks_are_filled() -> None:
    model = build(detection())
    ids = torch.arange(8, 20).view(2, 6)
    labels = torch.full((2, 6), -100)
    labels[0, 2], labels[1, 0], labels[1, 5] = 4, 5, 6
    for tokens, replaced in (([4, 5, 6], [0, 0, 0]), ([7, 5, 4], [1, 0, 1])):
        scores = 1e4 * F.one_hot(torch.tensor(tokens), 8).float()
        whole = torch.zeros(2, 6, 8)
        whole[labels != -100] = scores
        for given in (scores, whole):  # sparse, and of all positions
            drawn, truth = model.replace(ids, labels, given)
            expected, right = ids.clone(), torch.zeros_like(ids)
            expected[labels != -100], right[labels != -100] = torch.tensor(tokens), torch.tensor(replaced)
            assert torch.equal(drawn, expected)
            assert torch.equal(truth, right)


def losses_by_hand(model: GeneratorAndDiscriminator, batch, drawn, truth):
    """Of the generator a mask, and of the discriminator a token, in their textbook form."""
    asked = batch["labels"] != -100
    model.generator.config.sparse_prediction = False
    filled = model.generator(batch["input_ids"]).logits.log_softmax(-1)
    model.generator.config.sparse_prediction = True
    masked = -filled[asked].gather(-1, batch["labels"][asked][:, None]).mean()
    logits = model.discriminator(drawn).logits
    judged = F.binary_cross_entropy_with_logits(logits[..., 1] - logits[..., 0], truth.float())
    return masked, judged


def joint(model, batch, **options):
    """The output of the model, and what it drew."""
    seen = []
    plain = model.replace
    model.replace = lambda *given: seen.append(plain(*given)) or seen[-1]
    torch.manual_seed(5)
    out = model(**batch, **options)
    del model.replace
    return out, *seen[0]


def test_the_joint_loss_and_where_its_gradient_goes() -> None:
    objective = detection()
    model = build(objective)
    (batch,) = batches(objective, "valid", 100)
    out, drawn, truth = joint(model, batch)
    assert torch.equal(out.truth, truth)
    assert 0 < truth.sum() < (batch["labels"] != -100).sum()
    masked, judged = losses_by_hand(model, batch, drawn, truth)
    torch.testing.assert_close(out.loss, masked + 50 * judged)

    shared = model.discriminator.encoder.embedding.word.weight
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = torch.autograd.grad(out.loss, parameters, allow_unused=True)
    of_masked, of_judged = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (masked, judged))
    for name, parameter, all_, masked_grad, judged_grad in zip(
        names, parameters, grads, of_masked, of_judged, strict=True
    ):
        if parameter is shared:
            assert masked_grad.abs().max() > 0
            assert judged_grad.abs().max() > 0
            torch.testing.assert_close(all_, masked_grad + 50 * judged_grad)
        elif name.startswith("generator"):
            assert judged_grad is None  # draws pass no gradient
            torch.testing.assert_close(all_, masked_grad)
        else:
            assert masked_grad is None
            torch.testing.assert_close(all_, 50 * judged_grad)


def test_parts_of_a_batch_sum_to_the_whole() -> None:
    objective = detection()
    model = build(objective)
    batch = batches(objective, "train", 60)[0]
    counts = (batch["labels"] != -100).sum(1)
    batch = {name: value[counts == 2][:8] for name, value in batch.items()}
    assert len(batch["labels"]) == 8
    # No chance in the draws, so that parts and whole draw alike.
    with torch.no_grad():
        model.generator.decoder.bias.copy_(1e5 * F.one_hot(torch.tensor(9), len(objective.tokenizer)))
    whole, *_ = joint(model, batch)
    total = 0.0
    for part in (slice(0, 5), slice(5, 8)):
        out, *_ = joint(model, {name: value[part] for name, value in batch.items()}, num_items_in_batch=16)
        total = total + out.loss
    torch.testing.assert_close(total, whole.loss)


def test_detection_is_the_mean_over_both_kinds_and_the_same_every_time() -> None:
    objective = detection()
    model = build(objective)
    assert objective.evaluate(model, "valid", 4) == objective.evaluate(model, "valid", 4)
    before = torch.get_rng_state()
    objective.evaluate(model, "valid", 4)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        model.discriminator.classifier.weight.zero_()
        for answer in (0, 1):
            model.discriminator.classifier.bias.copy_(F.one_hot(torch.tensor(answer), 2))
            assert objective.evaluate(model, "valid", 4)["detection"] == pytest.approx(50)
        # An even answer costs log 2 a token; the generator's part is that of masked language modelling.
        model.discriminator.classifier.bias.zero_()
        alone = MaskedLM(TEXT, objective.tokenizer, 16, replaced=(1.0, 0.0))
        model.generator.eval()
        masked = by_hand_of_generator(model, alone)
        assert objective.evaluate(model, "valid", 4)["loss"] == pytest.approx(masked + 50 * math.log(2), rel=1e-5)


def by_hand_of_generator(model, objective: MaskedLM) -> float:
    model.generator.config.sparse_prediction = False
    loss = by_hand(model.generator, objective, "valid")
    model.generator.config.sparse_prediction = True
    return loss
