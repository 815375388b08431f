"""What a teacher gives, kept on disk: the same to learn from, asked for once, and gone on with after a kill."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_heal import network, pair, rows
from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel, PreTrainedModel

import greenformers
from greenformers.changes import Bits, Given, Heal, Narrow, _distillation, _teacher_cache
from greenformers.changes._distillation import Distillation
from greenformers.changes._student import Student
from greenformers.changes._teacher_cache import INDEX
from greenformers.data._pooling import SentencePooling, attach
from greenformers.data._rows import Rows

Patch = pytest.MonkeyPatch
HEALING = Heal(steps=10, batch_size=16, learning_rate=3e-3)


def heal(small: PreTrainedModel, original: PreTrainedModel, cache: Path | None, **options: Any) -> list[float]:
    report = HEALING.but(**options).apply(small, Given(training=rows(original), teacher=original, teacher_cache=cache))
    return [entry["eval_distance"] for entry in report.log if "eval_distance" in entry]


def counted(model: PreTrainedModel) -> list[int]:
    """The sizes of the batches that a model is asked for from now on."""
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True)
    return sizes


@pytest.mark.parametrize("cls", [BertModel, BertForSequenceClassification, BertForMaskedLM])
def test_the_same_is_learned_and_the_teacher_is_asked_once(cls: type[PreTrainedModel], tmp_path: Path) -> None:
    small, original = pair(cls)
    student, again = copy.deepcopy(small), copy.deepcopy(small)
    asked = heal(small, original, None)
    sizes = counted(original)
    from_disk = heal(student, original, tmp_path / "cache")
    # 80 texts, and those by which it is seen how wide it is and what is needed.
    assert sum(sizes) == 80 + 16 + 1
    torch.testing.assert_close(from_disk, asked, rtol=1e-4, atol=0)
    sizes.clear()
    assert heal(again, original, tmp_path / "cache") == from_disk
    assert sum(sizes) == 16 + 1
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), again.parameters(), strict=True))


VECTORS = {"embeddings": 1.0, "similarities": 1.0}


def test_a_vector_of_each_text_is_asked_for_once_in_all_trainings() -> None:
    small, original = pair(BertModel)
    given = Given(training=rows(original), teacher=original, taught={})
    heals = [HEALING.but(weights=VECTORS, steps=steps) for steps in (2, 10, 10)]
    alone = [copy.deepcopy(small) for _ in heals]
    for change, model in zip(heals, alone, strict=True):
        change.apply(model, replace(given, taught=None))
    sizes, asked = counted(original), []
    for change, expected in zip(heals, alone, strict=True):
        model = copy.deepcopy(small)
        change.apply(model, given)
        asked.append(sum(sizes))
        sizes.clear()
        for a, b in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    once = 16 + 1 + 1  # by which it is seen how wide it is, what is needed and what that takes
    # Two batches and the four texts that are held out, which are asked for with the twelve of no whole batch; the rest.
    assert asked == [once + 2 * 16 + 16, once + 2 * 16, once]


def test_what_is_learned_does_not_depend_on_what_was_asked_before() -> None:
    small, original = pair(BertModel)
    heal = HEALING.but(weights=VECTORS, steps=9)  # more than an epoch, of four steps
    taught: dict[Any, Any] = {}
    models = [copy.deepcopy(small) for _ in range(2)]
    HEALING.but(weights=VECTORS, steps=3).apply(
        copy.deepcopy(small), Given(training=rows(original), teacher=original, taught=taught)
    )
    for model, cache in zip(models, (taught, None), strict=True):
        heal.apply(model, Given(training=rows(original), teacher=original, taught=cache))
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_what_has_no_room_is_asked_for_each_time(monkeypatch: Patch) -> None:
    small, original = pair(BertModel)
    monkeypatch.setattr(_distillation, "HELD_BYTES", 80 * 16 * 4 - 1)
    taught: dict[Any, Any] = {}
    given = Given(training=rows(original), teacher=original, taught=taught)
    HEALING.but(weights=VECTORS).apply(small, given)
    assert not taught


def test_a_narrower_student_and_other_parts_need_what_is_not_there_yet(tmp_path: Path) -> None:
    original = network()
    small = copy.deepcopy(original)
    calibration = [rows(original).collate([rows(original)[at] for at in range(20)])]
    greenformers.compress(small, Narrow(hidden=8, layers=1), calibration=calibration)
    weights = {"embeddings": 1.0, "similarities": 1.0}
    heal(copy.deepcopy(small), original, tmp_path / "cache", weights=weights)
    assert sorted(path.name for path in (tmp_path / "cache").glob("*.npy")) == ["vector.npy"]
    sizes = counted(original)
    log = heal(small, original, tmp_path / "cache", weights=weights | {"hidden": 1.0})
    assert sorted(path.stem for path in (tmp_path / "cache").glob("*.npy")) == ["encoder.0", "encoder.2", "vector"]
    assert sum(sizes) == 81 + 76  # and the examples by which its matrices are made
    assert log[-1] < log[0]


@pytest.mark.parametrize(("every", "noted"), [(1, 3), (50, None)])
def test_what_was_stopped_goes_on(tmp_path: Path, monkeypatch: Patch, every: int, noted: int | None) -> None:
    small, original = pair()
    monkeypatch.setattr(_teacher_cache, "EVERY", every)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    examples = Distillation(rows(original))
    student = Student(small, original, None, 2.0)
    examples.remember(student, whole, lambda _: None)

    def stop(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examples.remember(student, parts, stop)
    done = json.loads((parts / INDEX).read_text())["done"]
    assert set(done.values()) == (set() if noted is None else {noted})
    sizes = counted(original)
    examples.remember(student, parts, lambda _: None)
    assert sum(sizes) == 1 + (2 if noted else 5) * 16
    for file in whole.iterdir():
        assert file.read_bytes() == (parts / file.name).read_bytes(), file.name


def other_teacher(original: PreTrainedModel, _: Path) -> None:
    with torch.no_grad():
        next(original.parameters())[5].add_(1)


def other_files(_: PreTrainedModel, cache: Path) -> None:
    (cache / INDEX).unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_teacher, "what another teacher gave, or what it gave to other examples"),
        (other_files, "other files than"),
    ],
)
def test_another_teacher_is_refused(spoil: Callable[[PreTrainedModel, Path], None], said: str, tmp_path: Path) -> None:
    small, original = pair()
    heal(copy.deepcopy(small), original, tmp_path / "cache")
    spoil(original, tmp_path / "cache")
    with pytest.raises(ValueError, match=said):
        heal(small, original, tmp_path / "cache")


def test_vectors_of_another_pooling_are_refused(tmp_path: Path) -> None:
    """They are made by the pooling of the student, of which the folder said nothing."""
    small, original = pair()
    heal(copy.deepcopy(small), original, tmp_path / "cache", steps=1)
    attach(small, SentencePooling(("cls",)))
    with pytest.raises(ValueError, match="name another folder"):
        heal(small, original, tmp_path / "cache", steps=1)


def test_what_cannot_be_kept_is_refused_before_work(tmp_path: Path) -> None:
    small, original = pair()
    given = Given(training=rows(original), teacher=original, teacher_cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="what a teacher attends with is not kept: relations must ask it each time"):
        HEALING.but(weights={"relations": 1.0}).check(small, [], given)
    sounds = Rows([{"input_values": torch.randn(9)}] * 40)
    with pytest.raises(ValueError, match="recordings of a batch are cut to the shortest"):
        Distillation(sounds).check_kept(Student(small, original, None, 2.0))
    with pytest.raises(ValueError, match="no change of the recipe learns from one: leave it out"):
        greenformers.compress(small, Bits(4, by="rounding"), teacher_cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
