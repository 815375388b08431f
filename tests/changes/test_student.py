"""The parts of what a student learns, beside oracles written from the papers, one position at a time."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_heal import network, rows
from torch import Tensor
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)  # fmt: skip

from greenformers.changes import Given, Heal
from greenformers.changes._distillation import Distillation
from greenformers.changes._recorded import noted, recordable
from greenformers.changes._student import Student
from greenformers.changes._while_learning import attending
from greenformers.data._rows import Rows
from greenformers.model._transformers import attention_of


def student(**sizes: int) -> BertModel:
    model = network(**sizes)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch(model: BertModel) -> dict[str, Tensor]:
    ids = [torch.arange(1, n) for n in (5, 9)]
    return rows(model).collate([{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids])


def attended(model: BertModel, given: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Queries, keys and values (B, N, d) of every layer, computed from its states."""
    states = model(**given, output_hidden_states=True).hidden_states
    return [
        {"q": part.query(x), "k": part.key(x), "v": part.value(x)}
        for x, layer in zip(states, model.encoder.layer, strict=False)
        for part in [layer.attention.self]
    ]


def value(small: BertModel, original: BertModel, part: str, given: dict[str, Tensor], **options: object) -> float:
    learner = Student(small, original, {part: 1.0}, 1.0, **options).eval()
    with torch.no_grad(), attending(learner):
        return learner(**given)["loss"].item()


def test_an_encoder_of_half_of_the_layers_learns_no_states() -> None:
    original = network(num_hidden_layers=4)
    for layers, parts in ((4, {"hidden", "embeddings"}), (3, {"hidden", "embeddings"}),
                          (2, {"embeddings", "similarities"}), (1, {"embeddings", "similarities"})):  # fmt: skip
        assert set(Student(student(num_hidden_layers=layers), original, None, 1.0).weights) == parts
    assert Student(student(num_hidden_layers=1), original, {"hidden": 1.0}, 1.0).weights == {"hidden": 1.0}
    # But a map of layers is of states.
    mapped = Student(student(num_hidden_layers=2), original, None, 1.0, layer_map=(0, 2, 4))
    assert set(mapped.weights) == {"hidden", "embeddings"}
    for weights, layers, message in (({}, (0, 9, 9), "layer_map must name a layer"),
                                     ({"embeddings": 1.0}, (0, 2, 4), "a layer map is of hidden states")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Heal(2, batch_size=8, weights=weights, layer_map=layers).check(
                student(num_hidden_layers=2), [], Given(training=rows(original), teacher=original)
            )


@pytest.mark.parametrize(
    "options", [{"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"},
                {"num_labels": 2, "problem_type": "regression"}],
)  # fmt: skip
def test_scores_that_are_no_classes_are_learned_too(options: dict[str, Any]) -> None:
    original = network(BertForSequenceClassification, **options)
    small = copy.deepcopy(original)
    given = batch(original)
    learner = Student(small, original, {"logits": 1.0}, 2.0).eval()
    assert learner(**given)["loss"].item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        small.classifier.bias.add_(1)  # of all labels alike
    loss = learner(**given)["loss"]
    loss.backward()
    assert loss.item() > 1e-3
    assert small.classifier.weight.grad.abs().max() > 1e-4


def test_padding_counts_in_no_states_of_a_classifier_with_a_decoder() -> None:
    config = BartConfig(
        vocab_size=50, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, num_labels=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=40,
    )  # fmt: skip
    torch.manual_seed(0)
    original = BartForSequenceClassification(config).eval()
    small = copy.deepcopy(original)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 4, 2, 1, 1]])
    given = {"input_ids": ids, "attention_mask": (ids != 1).long()}
    longer = {name: F.pad(x, (0, 3), value=int(name == "input_ids")) for name, x in given.items()}
    distances = [value(small, original, "hidden", each) for each in (given, longer)]
    assert distances[0] == pytest.approx(distances[1], rel=1e-5)


def test_in_bf16_texts_are_as_long_as_a_multiple_of_eight_and_no_longer_than_the_longest() -> None:
    ids = [torch.arange(1, n) for n in (4, 6, 12, 22)]
    vector = torch.ones(1, 2)
    items = [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x, "vector": vector} for x in ids]
    all_rows = Rows(items, lengths=[len(x) for x in ids])
    assert [all_rows.collate(items[:k], 8)["input_ids"].shape[1] for k in (2, 3, 4)] == [8, 16, 21]
    assert all_rows.collate(items[:3])["input_ids"].shape[1] == 11
    given = all_rows.collate(items[:3], 8)
    assert given["attention_mask"].sum(1).tolist() == [3, 5, 11]
    assert given["labels"].shape == (3, 16)
    assert (given["labels"][:, 11:] == -100).all()
    assert given["vector"].shape == (3, 1, 2)
    original, small = network(), student()
    learner = Student(small, original, {"hidden": 1.0, "embeddings": 1.0}, 1.0).eval()
    text = [{name: row[name] for name in ("input_ids", "attention_mask")} for row in items[:3]]
    with torch.no_grad():
        losses = [learner(**all_rows.collate(text, multiple))["loss"] for multiple in (1, 8)]
    torch.testing.assert_close(*losses)


def test_attention_is_learned_by_scores() -> None:
    original, small = network(), student()
    given = batch(original)
    differences = []
    for ours, theirs in zip(attended(small, given), attended(original, given), strict=True):
        for b, n in enumerate(given["attention_mask"].sum(1)):
            for head in range(2):
                at = slice(8 * head, 8 * head + 8)
                x, y = ((side["q"][b, :n, at] @ side["k"][b, :n, at].T / math.sqrt(8)) for side in (ours, theirs))
                differences.append((x - y).square().flatten())
    of_layers = (
        torch.cat(differences[: len(differences) // 2]).mean(),
        torch.cat(differences[len(differences) // 2 :]).mean(),
    )
    assert value(small, original, "attention", given) == pytest.approx(torch.stack(of_layers).mean().item(), rel=1e-5)
    with pytest.raises(ValueError, match="the student has 4 heads, the teacher 2; relations need not be as many"):
        value(student(num_attention_heads=4), original, "attention", given)


@pytest.mark.parametrize(("heads", "width"), [(2, 16), (4, 12)])
def test_relations_of_the_last_layer(heads: int, width: int) -> None:
    """Of as many parts as the teacher has heads, where both widths allow it."""
    original, small = network(), student(num_attention_heads=heads, hidden_size=width)
    given = batch(original)
    ours, theirs = attended(small, given)[-1], attended(original, given)[-1]
    distances = []
    for name in "qkv":
        rows_ = []
        for b, n in enumerate(given["attention_mask"].sum(1)):
            for part in range(2):
                x, y = (side[name][b, :n].unflatten(-1, (2, -1))[:, part] for side in (ours, theirs))
                p, q = ((z @ z.T / math.sqrt(z.shape[-1])).softmax(-1) for z in (y, x))
                rows_.append((p * (p / q).log()).sum(-1))
        distances.append(torch.cat(rows_).mean())
    assert value(small, original, "relations", given) == pytest.approx(torch.stack(distances).mean().item(), rel=1e-4)


@pytest.mark.parametrize("part", ["attention", "relations", "hidden", "embeddings"])
def test_padding_changes_nothing(part: str) -> None:
    original, small = network(), student()
    given = batch(original)
    longer = {name: torch.nn.functional.pad(x, (0, 3)) for name, x in given.items()}
    assert value(small, original, part, longer) == pytest.approx(value(small, original, part, given), rel=1e-5)


@pytest.mark.parametrize("part", ["attention", "relations"])
def test_a_decoder_learns_what_it_sees(part: str) -> None:
    """With grouped keys; what comes later has no part in it."""
    config = LlamaConfig(
        vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    original, small = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    ids = torch.arange(1, 9)[None]
    with torch.no_grad(), recordable(original, small):
        learner = Student(small, original, {part: 1.0}, 1.0).eval()
        with noted() as theirs:
            original(ids)
        with noted() as ours:
            small(ids)
        total = []
        for x, y in zip(ours[0][:3], theirs[0][:3], strict=True):
            # 4 parts: the width of keys and values, 8, is divided by the heads of the teacher.
            x, y = (z.transpose(1, 2).flatten(2)[0].unflatten(-1, (4, -1)) for z in (x, y))
            for part_ in range(4):
                for n in range(8):
                    p, q = ((z[: n + 1, part_] @ z[n, part_] / math.sqrt(z.shape[-1])).softmax(0) for z in (y, x))
                    total.append((p * (p / q).log()).sum())
        scores = [given.scaling * given.q[0] @ given.k[0].repeat_interleave(2, 0).mT for given in (ours[0], theirs[0])]
        expected = {
            "relations": torch.stack(total).mean().item(),
            "attention": (scores[0] - scores[1])[:, torch.ones(8, 8).tril().bool()].square().mean().item(),
        }
        assert learner(input_ids=ids)["loss"].item() == pytest.approx(expected[part], rel=1e-3)


def test_a_narrower_student_begins_with_the_best_matrix() -> None:
    """By least squares over all layers: any other is farther from the teacher."""
    original = network()
    given = batch(original)
    small = copy.deepcopy(original)
    learner = Student(small, original, {"hidden": 1.0}, 1.0, seen=[given])
    assert not learner.widening
    narrow = network(hidden_size=12, num_attention_heads=4)
    fewer = Student(
        network(hidden_size=12, num_attention_heads=4, num_hidden_layers=1), original, None, 1.0, seen=[given]
    )
    assert fewer.weights == {"embeddings": 1.0, "similarities": 1.0}
    assert list(fewer.widening) == ["embeddings"]
    learner = Student(narrow, original, None, 1.0, seen=[given])
    assert learner.weights == {"hidden": 1.0, "embeddings": 1.0, "similarities": 1.0}
    assert {name: tuple(x.weight.shape) for name, x in learner.widening.items()} == {
        "encoder": (16, 12), "embeddings": (16, 12),
    }  # fmt: skip
    hidden = Student(narrow, original, {"hidden": 1.0}, 1.0, seen=[given])
    assert list(hidden.widening) == ["encoder"]
    at_first = hidden.eval()(**given)["loss"].item()
    for _ in range(4):
        with torch.no_grad():
            hidden.widening["encoder"].weight.add_(0.02 * torch.randn(16, 12))
        assert hidden(**given)["loss"].item() > at_first


def test_the_attention_is_put_back_and_learned() -> None:
    original, small = network(), student()
    before = attention_of(small.config), attention_of(original.config)
    weights = {"relations": 1.0, "attention": 0.1, "similarities": 1.0}
    report = Heal(40, batch_size=8, learning_rate=3e-3, weights=weights, layer_map=(0, 1, 2)).apply(
        small, Given(training=rows(original), teacher=original)
    )
    log = [entry["eval_distance"] for entry in report.log if "eval_distance" in entry]
    assert log[-1] < 0.7 * log[0]
    assert (attention_of(small.config), attention_of(original.config)) == before
    assert Distillation(rows(original)).size("valid") == 4


def test_a_teacher_stays_in_the_mode_that_it_is_in() -> None:
    """Its answers are those in evaluation all the same."""
    teacher = network(hidden_dropout_prob=0.5).train()
    given = batch(teacher)
    said = Student(student(), teacher, None, 1.0).given(teacher, given)
    assert all(module.training for module in teacher.modules())
    assert said.stacks[0][0][-1].equal(teacher.eval()(**given).last_hidden_state)
