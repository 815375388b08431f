"""Healing: what is learnt, from what, and that nothing else changes."""

import copy
import math
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    T5Config,
    T5EncoderModel,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from greenformers.changes import Given, Heal
from greenformers.changes._distillation import Distillation
from greenformers.changes._losses import hidden, layer_map
from greenformers.changes._student import WEIGHTS, Student
from greenformers.changes._while_learning import draws_apart, in_full
from greenformers.data._reader import Reader
from greenformers.data._tasks import task_of
from greenformers.data._texts import Texts
from greenformers.solve.factorise import factorise
from greenformers.train.checkpoint import newest_finite, write
from greenformers.train.optimizer import muon_and_adamw
from greenformers.train.run import Stopped
from greenformers.train.shard import ASKED

TEXTS = [f"{'a ' * (n % 5)}{word} {n}" for n, word in enumerate(["red", "green", "blue", "pale", "dark"] * 16)]


class Letters:
    """A tokenizer with one id a character."""

    pad_token_id, model_input_names = 0, ("input_ids",)

    def __call__(self, text, truncation=True, max_length=12):
        return {"input_ids": [1 + ord(letter) % 40 for letter in text[:max_length]]}


def network(cls=BertModel, **sizes):
    torch.manual_seed(0)
    usual = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=41, max_position_embeddings=16, initializer_range=0.3, **(usual | sizes))
    return cls(config).eval()


def pair(cls=BertModel):
    original = network(cls)
    small = copy.deepcopy(original)
    factorise(small, 0.4, multiple=1)
    return small, original


def rows(model, texts=TEXTS):
    """Texts as a network reads them."""
    return Reader.of(model, Letters(), 12).rows(Texts("texts", [(text,) for text in texts]))


HEALING = Heal(steps=60, batch_size=16, learning_rate=3e-3)
MUON = replace(HEALING, muon_rate=2e-2)


def given(teacher, folder=None):
    return Given(training=rows(teacher), teacher=teacher, folder=folder)


def test_by_muon_other_weights_are_learnt():
    (small, original), (other, _) = pair(), pair()
    reports = [change.apply(x, given(original)) for change, x in ((HEALING, small), (MUON, other))]
    assert not torch.equal(*(x.encoder.layer[0].intermediate.dense.weight for x in (small, other)))
    assert all(" steps of 16 examples, distance " in report.summary for report in reports)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_computes_in_the_precision_of_healing(monkeypatch, precision):
    asked = []

    def spied(*args, bf16, **given):
        asked.append(bf16)
        return muon_and_adamw(*args, **given)

    monkeypatch.setattr("greenformers.train.trainer.muon_and_adamw", spied)
    small, original = pair()
    replace(MUON, steps=1, precision=precision).apply(small, given(original))
    assert asked == [precision == "bf16"]


@pytest.mark.parametrize("cls", [BertModel, BertForSequenceClassification])
def test_it_comes_nearer_to_the_original_which_stays(cls):
    small, original = pair(cls)
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    student = Student(small, original, WEIGHTS[task_of(original)], 2.0)
    start = Distillation(rows(original)).evaluate(student, "valid", 4)["distance"]
    report = HEALING.apply(small, given(original))
    distances = [entry["eval_distance"] for entry in report.log if "eval_distance" in entry]
    assert distances[-1] < 0.6 * start
    assert report.summary == f"60 steps of 16 examples, distance {distances[0]:.4g} -> {distances[-1]:.4g}"
    assert all(torch.equal(tensor, before[name]) for name, tensor in original.state_dict().items())
    assert not small.training


def test_the_parts_of_the_loss():
    small, original = pair(BertForSequenceClassification)
    small.train()
    ids = [torch.arange(1, n) for n in (5, 9)]
    batch = rows(original).collate([{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids])
    parts = {
        name: Student(small, original, {name: 1.0}, 2.0) for name in ("logits", "hidden", "embeddings", "similarities")
    }
    small.eval()
    losses = {name: student.eval()(**batch)["loss"].item() for name, student in parts.items()}
    mask = batch["attention_mask"].bool()
    output, target = (model(**batch, output_hidden_states=True) for model in (small, original))
    p, q = ((out.logits / 2).softmax(-1) for out in (target, output))
    assert losses["logits"] == pytest.approx(4 * (p * (p / q).log()).sum(-1).mean().item(), rel=1e-4)
    shares = [
        ((x - y)[mask] ** 2).sum() / (y[mask] ** 2).sum()
        for x, y in zip(output.hidden_states, target.hidden_states, strict=True)
    ]
    assert losses["hidden"] == pytest.approx(torch.stack(shares).mean().item(), rel=1e-4)
    means = [
        torch.stack([x[row][tokens].mean(0) for row, tokens in enumerate(mask)])
        for x in (output.hidden_states[-1], target.hidden_states[-1])
    ]
    cosines = torch.cosine_similarity(*means, dim=-1)
    assert losses["embeddings"] == pytest.approx((1 - cosines).mean().item(), abs=1e-5)
    tables = [torch.cosine_similarity(x[:, None], x[None], dim=-1) for x in means]
    assert losses["similarities"] == pytest.approx(((tables[0] - tables[1]) ** 2).mean().item(), abs=1e-6)


def test_with_patience_the_best_weights_are_left_and_said(monkeypatch):
    small, original = pair()
    seen, weights = iter([1.0, 0.5, 1.2, 1.3, 1.4]), []

    def evaluate(_, learner, *__):
        weights.append(copy.deepcopy(learner.model.state_dict()))
        return {"distance": next(seen)}

    monkeypatch.setattr(Distillation, "evaluate", evaluate)
    report = Heal(steps=40, batch_size=8, learning_rate=3e-3, patience=2).apply(small, given(original))
    assert report.summary.endswith("distance 1 -> 0.5")
    assert all(torch.equal(x, weights[1][name]) for name, x in small.state_dict().items())
    assert any(not torch.equal(x, weights[-1][name]) for name, x in small.state_dict().items())


def test_in_bf16_products_are_narrow_and_the_loss_is_not():
    small, original = pair()
    batch = rows(small).collate([rows(small)[at] for at in range(8)])
    narrow, wide = (Student(small, original, None, 2.0, precision=name) for name in ("bf16", "fp32"))
    losses = [student(**batch)["loss"] for student in (narrow, wide)]
    assert all(loss.dtype == torch.float32 for loss in losses)
    assert losses[0] != losses[1]
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)
    outcomes = []
    for precision in ("fp32", "bf16"):
        model = copy.deepcopy(small)
        report = Heal(steps=20, batch_size=8, learning_rate=3e-3, precision=precision).apply(model, given(original))
        assert all(x.dtype == torch.float32 for x in model.parameters())
        outcomes.append([entry["eval_distance"] for entry in report.log if "eval_distance" in entry])
    assert outcomes[1][-1] < 0.9 * outcomes[1][0]
    assert outcomes[1][-1] == pytest.approx(outcomes[0][-1], rel=0.05)


def test_an_encoder_teaches_with_all_its_numbers_in_bf16_and_stays_as_it_is():
    small, original = pair()
    batch = rows(small).collate([rows(small)[at] for at in range(8)])
    before = copy.deepcopy(original.state_dict())
    learner = Student(small, original, None, 2.0, precision="bf16")
    with torch.no_grad():
        theirs, plain = learner.given(original, batch), original(**batch).last_hidden_state
    states = theirs.stacks[0][0][-1]
    assert states.dtype == torch.float32
    assert torch.equal(states, states.bfloat16().float()), "no number has more digits"
    torch.testing.assert_close(states, plain, rtol=0.05, atol=0.05)
    torch.testing.assert_close(original.state_dict(), before, rtol=0, atol=0)
    assert learner.state_dict().keys() == {f"model.{name}" for name in small.state_dict()}


def test_of_fewer_layers_each_is_compared_at_its_share_of_the_depth():
    states = [torch.full((1, 1, 3), float(n + 1)) for n in range(5)]
    mask, layers = torch.ones(1, 1, dtype=torch.bool), layer_map(2, 4)
    assert hidden([states[0], states[2], states[4]], states, mask, layers) == 0
    assert hidden([states[0], states[1], states[4]], states, mask, layers) > 0
    assert hidden([states[1], states[1], states[3]], states, mask, layer_map(2, 4, (-1, 1, 3))) == 0
    assert hidden([states[1], states[1], states[3]], states, mask, layer_map(2, 4, (0, 1, 3))) > 0
    for wrong in [(0, 1), (0, 1, 5), (0, 1, -2), (-1, -1, -1)]:
        with pytest.raises(ValueError, match=r"layer_map must name a layer of the teacher in 0\.\.4, or -1 for none"):
            layer_map(2, 4, wrong)


def recordings():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    convolutions = {"conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (4,), "num_conv_pos_embeddings": 2}
    small = {"num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "mask_time_length": 2}
    return Wav2Vec2Model(Wav2Vec2Config(**sizes, **convolutions, **small, layerdrop=0.5, mask_time_prob=0.5))


def relative():
    return T5EncoderModel(T5Config(vocab_size=41, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2))


@pytest.mark.parametrize("make", [network, recordings, relative])
def test_nothing_is_left_out_in_training(make):
    model = make().train()
    x = torch.randn(2, 80) if make is recordings else torch.arange(1, 21).view(2, 10)
    options = copy.deepcopy([vars(module.config) for module in model.modules() if hasattr(module, "config")])

    def twice():
        first, second = (model(x).last_hidden_state for _ in range(2))
        return torch.equal(first, second)

    assert not twice()
    with in_full(model):
        assert twice()
    assert not twice(), "afterwards it leaves out as before"
    assert [vars(module.config) for module in model.modules() if hasattr(module, "config")] == options


def test_a_healing_that_was_stopped_goes_on(tmp_path):
    whole, original = pair()
    parts = copy.deepcopy(whole)
    again = copy.deepcopy(whole)
    healing = HEALING.but(steps=12)
    healing.apply(whole, given(original))
    healing.apply(parts, given(original, tmp_path))
    newest = max(tmp_path.glob("step-*"), key=lambda path: int(path.name[5:]))
    newest.rename(tmp_path / "gone")  # as if it had been killed before
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.add_(1.0)  # nothing but the checkpoint leads to the same weights
    healing.apply(again, given(original, tmp_path))
    for weight, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(weight, other)


def test_a_healing_that_a_signal_ends_leaves_the_network_as_it_was():
    """Half of the training was left in it, with which the same call then compared the end of it."""
    small, original = pair()
    before = {name: x.clone() for name, x in small.state_dict().items()}

    def told(_, share):
        if share == 0.25:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        HEALING.but(steps=4).apply(small, replace(given(original), progress=told))
    assert all(x.equal(before[name]) for name, x in small.state_dict().items())
    assert not any(part.training for part in small.modules())


def test_random_numbers_go_on_as_if_nothing_was_healed():
    """After each training of one seed the same were drawn."""

    def drawn():
        return torch.rand(()).item(), np.random.rand(), random.random()

    def seed():
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    small, original = pair()
    with draws_apart():
        seed()
        expected = drawn()
        seed()
        HEALING.but(steps=1).apply(small, given(original))
        assert drawn() == expected


def test_a_copy_that_is_sharded_leaves_out_nothing_either(monkeypatch):
    """Dropout was off in the network, and not in its copy, which is what learns."""
    shares, forward = [], Student.forward

    def spied(self, **batch):
        shares.extend(part.p for part in self.model.modules() if isinstance(part, torch.nn.Dropout))
        return forward(self, **batch)

    monkeypatch.setattr(Student, "forward", spied)
    small, original = pair()
    HEALING.but(steps=1, shard=True).apply(small, given(original))
    assert shares
    assert not any(shares)


def test_a_healing_that_ends_in_no_number_leaves_the_network_as_it_was(monkeypatch):
    """NaN is not above any distance, and was saved as a success."""
    small, original = pair()
    before = {name: x.clone() for name, x in small.state_dict().items()}
    judged = iter([1.0, math.nan])
    monkeypatch.setattr(Distillation, "evaluate", lambda *_: {"distance": next(judged)})
    report = HEALING.but(steps=1).apply(small, given(original))
    assert "distance 1 -> nan: farther than before, so all weights are as they were before" in report.summary
    assert all(x.equal(before[name]) for name, x in small.state_dict().items())


def test_a_healing_that_leads_away_leaves_the_network_as_it_was():
    """What hardly differs from its teacher loses by large steps, which was saved as a success."""
    original = network()
    near = copy.deepcopy(original)
    with torch.no_grad():
        next(near.parameters()).mul_(1.0001)
    before = {name: x.clone() for name, x in near.state_dict().items()}
    report = Heal(steps=4, batch_size=16, learning_rate=1e-2).apply(near, given(original))
    assert "farther than before, so all weights are as they were before; try a lower learning rate" in report.summary
    assert all(torch.equal(x, before[name]) for name, x in near.state_dict().items())


def test_a_healing_that_diverges_is_refused(tmp_path):
    """It was saved as a success."""
    small, original = pair()
    before = {name: x.clone() for name, x in small.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"healing diverged at a learning rate of 1e\+25: the loss is nan; try a lower one$"
    ):
        HEALING.but(steps=20, learning_rate=1e25).apply(small, given(original))
    assert all(x.equal(before[name]) for name, x in small.state_dict().items())
    fine = HEALING.but(steps=20)
    fine.apply(copy.deepcopy(small), given(original, tmp_path))
    (tmp_path / "step-20").rename(tmp_path / "later")
    with torch.no_grad():
        original.encoder.layer[1].output.dense.bias.fill_(math.inf)
    with pytest.raises(ValueError, match=rf"; the last good checkpoint is {tmp_path}/step-10$"):
        fine.apply(small, given(original, tmp_path))


def test_checkpoints_with_numbers_that_are_not_finite_are_removed(tmp_path):
    small, original = pair()
    HEALING.but(steps=20).apply(small, given(original, tmp_path))
    newest = tmp_path / "step-20"
    weights = load_file(newest / "model.safetensors")
    next(x for x in weights.values() if x.is_floating_point())[:] = math.nan
    write(tmp_path, 20, lambda folder: save_file(weights, folder / "model.safetensors"), keep=9)
    assert newest_finite(tmp_path) == tmp_path / "step-10"
    assert not newest.exists()


def test_one_text_in_twenty_is_not_learnt_from():
    texts = Distillation(rows(network()))
    assert (texts.size("train"), texts.size("valid")) == (76, 4)
    with pytest.raises(ValueError, match="healing needs at least 2 examples, got 1"):
        Distillation(rows(network(), ["one"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, r"learning_rate must be above 0 and finite, got 0\.0"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0 and finite, got nan"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got 0.0"),
        ({"learning_rate": math.inf}, "learning_rate must be above 0 and finite, got inf"),
        (
            {"weights": {"hiden": 1.0}},
            "weights must be of logits, hidden, embeddings, similarities, attention, relations; got 'hiden'",
        ),
        ({"shard": True, "aware": True}, "shard and aware exclude each other"),
        ({"shard": True, "movement": 0.5}, "shard and movement exclude each other"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16; got 'fp16'"),
        ({"weights": {"hidden": -1.0}}, "weights must be at least 0, got hidden -1.0"),
        ({"weights": {"hidden": math.nan}}, "weights must be at least 0, got hidden nan"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Heal(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": None}, r"healed 60 needs examples to learn from \(--texts or --heal-texts\)"),
        ({"training": []}, "healed 60 needs examples to learn from"),
        ({"teacher": None}, "healed 60 needs a teacher"),
        ({"training": rows(network(), TEXTS[:10])}, "batch must be at most 9, the training examples, got 16"),
    ],
)
def test_what_it_needs_is_asked_for_before_any_work(change, message):
    small, original = pair()
    with pytest.raises(ValueError, match=message):
        HEALING.check(small, [], replace(given(original), **change))


def test_weights_that_are_all_frozen_are_not_healed():
    small, original = pair()
    with pytest.raises(ValueError, match="healing needs weights that learn, and all are frozen"):
        HEALING.check(small.requires_grad_(False), [], given(original))


def test_processes_are_counted_before_any_work(monkeypatch):
    small, original = pair()
    with pytest.raises(ValueError, match="shard needs several processes: start the command with torchrun"):
        Heal(2, batch_size=4, shard=True).check(small, [], given(original))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="batch must be a multiple of 3, processes x accumulate, got 4"):
        Heal(2, batch_size=4).check(small, [], given(original))


@pytest.mark.parametrize("option", [{"movement": 0.5}, {"aware": True}, {"muon_rate": 0.1}])
def test_what_cannot_be_sharded_is_refused_where_accelerate_shards(monkeypatch, option):
    """Of movement the copy that learns was never pruned, and the network in the end at once."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(ASKED, "true")
    small, original = pair()
    with pytest.raises(ValueError, match=r"shard (and \w+ )?exclude each other"):
        Heal(2, batch_size=4, **option).check(small, [], given(original))


def test_logits_of_a_network_without():
    small, original = pair()
    with pytest.raises(ValueError, match="BertModel has no logits to learn from"):
        Heal(2, batch_size=4, weights={"logits": 1.0}).apply(small, given(original))
