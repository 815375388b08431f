"""What a lab judges recipes by: pairs with scores by how they are ranked, beside the model as it is."""

import copy
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import sentences, tokenizer
from scipy.stats import spearmanr
from transformers import PreTrainedModel
from zoo import network

from greenformers.changes import Bfloat16, Change, Given, Heal, Int8, Layers, Prune
from greenformers.compress.apply import apply
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts
from greenformers.search import lab as searching
from greenformers.search.lab import Lab, Ready, share_kept
from greenformers.search.trials import Trial


def encoder() -> PreTrainedModel:
    model = network("bert", "BertModel")
    with torch.no_grad():
        for parameter in model.parameters():  # so that texts are told apart
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    return model


def cosines(model: PreTrainedModel, pairs: Texts) -> np.ndarray:
    rows = []
    for text in pairs.lines:
        batch = tokenizer("bert")(text, return_tensors="pt")
        with torch.no_grad():
            rows.append(F.normalize(model(**batch).last_hidden_state[0].mean(0), dim=0))
    return np.array([float(a @ b) for a, b in zip(rows[::2], rows[1::2], strict=True)])


def test_pairs_judge_by_their_order_and_scores_only_whether_they_can(tmp_path: Path) -> None:
    model = encoder()
    segments = list(zip(sentences(24), sentences(24, 1), strict=True))
    noise = np.random.default_rng(0).normal(size=24)
    own = cosines(model, Texts("pairs", segments))
    scores = Texts("pairs", segments, labels=(own + own.std() * noise).tolist(), label_kind="score")
    reader = Reader.of(model, tokenizer("bert"), 16)
    lab = Lab(model, reader, scores, Given(), tmp_path, faster=lambda *_: 2.0)
    assert lab.own_quality == ("spearman", pytest.approx(judge({"own": model}, scores, reader)["own"]["spearman"][0]))
    assert lab.ranks
    assert lab.trial((0,), 0, lambda: copy.deepcopy(model)).lost == pytest.approx(0, abs=1e-9)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
    trial = lab.trial((1,), 0, lambda: other)
    assert trial.lost == pytest.approx(1 - spearmanr(cosines(other, scores), own)[0], abs=1e-4)
    assert trial.interval is not None
    assert 0 < trial.interval[0] < trial.lost < trial.interval[1] < 1
    assert Trial.of(json.loads(json.dumps(asdict(trial)))) == trial
    turned = Texts("pairs", segments, labels=(-own).tolist(), label_kind="score")
    with pytest.raises(ValueError, match=r"pairs cannot judge changes: the model as it is has a spearman of -100 on"):
        Lab(model, reader, turned, Given(), tmp_path).own_quality  # noqa: B018


@pytest.mark.parametrize("rounding", [Int8(), Bfloat16()])
def test_what_rounds_is_timed_beside_the_model_rounded_alike(rounding: Change, tmp_path: Path) -> None:
    model = encoder()
    reader = Reader.of(model, tokenizer("bert"), 16)
    batches = [tokenizer("bert")(sentences(8), padding=True, return_tensors="pt")]
    own_speeds = iter([2.0, 4.0, 3.0])
    asked: list[str] = []

    def faster(slow: Ready, quick: Ready) -> float:
        asked.append(f"{names.get(id(slow), 'another')}")
        if slow is lab.own and quick.model is not small:
            return next(own_speeds)
        return 1.5

    lab = Lab(
        model,
        reader,
        Texts("texts", [(text,) for text in sentences(8)]),
        Given(calibration=batches),
        tmp_path,
        faster=faster,
    )
    names = {id(lab.own): "the model as it is"}
    small = lab.made((Layers(1),))
    assert lab.speed(small) == 1.5
    assert asked == ["the model as it is"]
    asked.clear()
    rounded = [lab.speed(lab.made((Layers(1), rounding))) for _ in range(4)]
    assert rounded == [1.5 * 2, 1.5 * 3, 1.5 * 3, 1.5 * 3], "of 2; 2 and 4; 2, 4 and 3 the median"
    assert asked == ["the model as it is", "another"] * 2 + ["another", "the model as it is", "another"]


def test_what_a_run_before_has_timed_is_not_timed_again(tmp_path: Path) -> None:
    model = encoder()
    reader, texts = Reader.of(model, tokenizer("bert"), 16), Texts("texts", [(text,) for text in sentences(8)])
    batch = tokenizer("bert")(sentences(8), padding=True, return_tensors="pt")
    speeds: list[float] = []

    def faster(*_: Ready) -> float:
        speeds.append(1.5 + len(speeds))
        return speeds[-1]

    def at_work() -> Lab:
        return Lab(model, reader, texts, Given(calibration=[batch]), tmp_path, faster=faster)

    def tried(lab: Lab, *rows: tuple[tuple[int, ...], int]) -> list[Trial]:
        recipes = {1: (Layers(1), Int8()), 2: (Int8(),)}
        return [lab.trial(genes, steps, lambda g=genes: lab.made(recipes[g[0]])) for genes, steps in rows]

    first, rest = [((1,), 0), ((2,), 0)], [((1,), 100), ((2, 1), 0)]
    whole = tried(at_work(), *first, *rest)
    count = len(speeds)
    assert count == 2 + 2 + 0 + 1
    goes_on = at_work()
    for trial in whole[:2]:
        goes_on.know(trial)
    del speeds[4:]
    again = tried(goes_on, *rest)
    assert len(speeds) == count
    assert [(t.speed, t.rounded) for t in again] == [pytest.approx((t.speed, t.rounded)) for t in whole[2:]]


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    model = encoder()
    texts = Texts("texts", [(text,) for text in sentences(8)])
    lab = Lab(model, Reader.of(model, tokenizer("bert"), 16), texts, Given(), tmp_path, faster=lambda *_: 2.0)
    bad = copy.deepcopy(model)
    next(bad.parameters()).data.fill_(float("nan"))
    trial = lab.trial((1,), 0, lambda: bad)
    assert trial.refused is not None
    assert "finite" in trial.refused
    assert lab.trial((0,), 0, lambda: copy.deepcopy(model)).refused is None


def test_recipes_that_begin_alike_are_made_from_where_they_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, applied = encoder(), []
    batch = dict(tokenizer("bert")(sentences(4), return_tensors="pt", padding=True))
    reader = Reader.of(model, tokenizer("bert"), 16)
    lab = Lab(model, reader, Texts("texts", [(text,) for text in sentences(2)]), Given([batch]), tmp_path)

    def counted(network: Any, recipe: tuple[Change, ...], given: Given, *, done: Any = None) -> Any:
        applied.extend(recipe[len(done.steps) if done else 0 :])
        return apply(network, recipe, given, done=done)

    monkeypatch.setattr(searching, "apply", counted)
    first, second = Layers(1), Prune(0.5)
    for recipe in ((first, second), (first, Prune(0.8)), (first, second, Int8()), (first,)):
        whole = copy.deepcopy(model)
        apply(whole, recipe, Given([batch]))
        assert all(x.equal(y) for x, y in zip(lab.made(recipe).parameters(), whole.parameters(), strict=True)), recipe
    assert applied == [first, second, Prune(0.8), Int8()]
    assert len(model.encoder.layer) > 1, "the model itself stays"


def test_what_is_healed_serves_what_only_rounds_it_in_addition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, trained = encoder(), []
    reader = Reader.of(model, tokenizer("bert"), 16)
    texts = Texts("texts", [(text,) for text in sentences(24)])
    given = Given(reader.batches(texts), training=reader.rows(texts), teacher=model)
    lab = Lab(model, reader, texts, given, tmp_path, faster=lambda *_: 2.0)

    def counted(network: Any, recipe: tuple[Change, ...], given: Given, *, done: Any = None) -> Any:
        trained.extend(change for change in recipe[len(done.steps) if done else 0 :] if change.trains)
        return apply(network, recipe, given, done=done)

    monkeypatch.setattr(searching, "apply", counted)
    first, heal = Layers(1), Heal(2, batch_size=8)
    trials = [lab.trial((at,), 2, lambda: lab.made((first, heal, *late))) for at, late in enumerate([(), (Int8(),)])]  # noqa: B023
    assert trained == [heal]
    assert trials[0].refused is None
    assert trials[1].training == trials[0].training > 0
    whole = copy.deepcopy(model)
    apply(whole, (first, heal, Int8()), given)
    again = lab.made((first, heal, Int8()))
    assert all(x.equal(y) for x, y in zip(again.state_dict().values(), whole.state_dict().values(), strict=True))


def test_of_no_errors_all_is_kept_or_nothing() -> None:
    assert share_kept("wer", 0.0, 0.0) == 1.0
    assert share_kept("wer", 0.0, 2.0) == 0.0
    assert share_kept("wer", 2.0, 0.0) > 1.0
    assert math.isnan(share_kept("spearman", 0.0, 50.0))
