"""`greenformers.compress`: what a recipe may be, what is checked before any work, and what is reported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from mixed import chain, mixed, rows
from models import sentences, tokenizer
from torch import nn
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Attention, Change, Heal, Int8, Layers, LowRank, build, kind, names
from greenformers.changes._options import as_flags, checked, typed
from greenformers.changes._recipe import parse, read_recipe, recipe_text
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.structure import structure
from greenformers.compress.parts import parts_of, split
from greenformers.data._texts import Texts
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.solve.factorise import factorise

TEXTS = sentences(60)


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    after = model.state_dict()
    return after.keys() == before.keys() and all(value.equal(before[name]) for name, value in after.items())


def test_a_number_a_change_a_list_and_a_file_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('[[change]]\nname = "low_rank"\nkeep = 0.6\n')
    expected = chain(48, 48, 40)
    factorise(expected, 0.6)
    for recipe in (0.6, LowRank(keep=0.6), [LowRank(keep=0.6)], file, str(file)):
        model = chain(48, 48, 40)
        report = greenformers.compress(model, recipe)
        assert same(model, state(expected))
        assert [step.report.change for step in report.steps] == [{"name": "low_rank", "keep": 0.6}]
    model = chain(48, 48, 40)
    assert greenformers.compress(model).steps[0].report.change == {"name": "low_rank", "keep": 0.5}


def test_what_is_no_recipe_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "the recipe holds no change"),
        (["low_rank"], {}, r"a recipe is a list of changes such as LowRank\(keep=0\.5\), got 'low_rank' in it"),
        ([LowRank], {}, "a recipe is a list of changes"),
        (0, {}, r"the share to keep must be in \(0, 1\], got 0"),
        (1.5, {}, r"the share to keep must be in \(0, 1\], got 1\.5"),
        (0.5, {"texts": TEXTS}, "texts need a tokenizer"),
        (0.5, {"texts": "one text", "tokenizer": object()}, "texts must be a list of texts, got a single one"),
        (0.5, {"length": 0}, "length must be at least 1, got 0"),
        (
            0.5,
            {"texts": TEXTS, "tokenizer": object()},
            "Sequential is not a model of transformers: give batches as calibration",
        ),
        (
            0.5,
            {"calibration": torch.randn(3, 24)},
            "calibration must be batches, got a Tensor: put one batch in a list",
        ),
        (0.5, {"calibration": {"x": 1}}, "calibration must be batches, got a dict"),
        ([Heal(2), Int8()], {}, r"healed 2 needs examples to learn from"),
        (LowRank(solver="loss"), {}, "low rank 0.5 needs examples to calibrate with"),
        (LowRank(of="flops"), {}, "low rank 0.5 needs an example batch"),
        (LowRank(only_if_faster=True), {}, "low rank 0.5 needs an example batch"),
        (1.0, {}, "no weight became low rank: within the budget, or to be faster, all of them stay dense"),
        (LowRank(select=("*.nothing",)), {}, r"'\*\.nothing' matches none of the 2 weights"),
        (LowRank(keep=0.01), {}, r"the budget must be at least 0\.\d+ of the dense layers'"),
    ]
    for recipe, given, message in cases:
        model = chain(24, 30, 20)
        before = state(model)
        with pytest.raises(ValueError, match=message):
            greenformers.compress(model, recipe, **given)
        assert same(model, before), message
        assert structure(model).empty
    with pytest.raises(FileNotFoundError):
        greenformers.compress(chain(24, 30), tmp_path / "nowhere.toml")


def test_a_recipe_is_checked_as_a_whole_before_any_work() -> None:
    for recipe, message in [
        ([LowRank(keep=0.5), Int8(), LowRank(keep=0.4)], "low_rank cannot follow int8, .*: put low_rank before it"),
        ([LowRank(keep=0.5), Int8(), Int8()], "int8 cannot follow int8"),
        ([LowRank(keep=0.5), Int8(), Heal(2, batch_size=2)], "heal cannot follow int8"),
        ([LowRank(keep=0.5), Heal(2, batch_size=500)], "batch must be at most"),
        ([LowRank(keep=0.5), Layers(2)], r"layers to keep must be in 1\.\.1, of 2; got 2"),
        ([LowRank(keep=0.5), Heal(2, batch_size=2, aware=True)], "aware healing needs a later change"),
    ]:
        model = network("bert", "BertModel")
        before = state(model)
        with pytest.raises(ValueError, match=message):
            greenformers.compress(model, recipe, texts=TEXTS, tokenizer=tokenizer("bert"), length=12)
        assert same(model, before)
        assert structure(model).empty
    # What was done to a network before counts too.
    model = network("bert")
    greenformers.compress(model, Int8())
    with pytest.raises(ValueError, match="low_rank cannot follow int8"):
        greenformers.compress(model, 0.5)


def test_the_solver_follows_from_what_is_given() -> None:
    batches = rows(48)
    for given, solver in [({}, "svd"), ({"calibration": batches}, "loss")]:
        model, expected = chain(48, 48, 40), chain(48, 48, 40)
        report = greenformers.compress(model, 0.6, **given)
        factorise(expected, 0.6, solver=solver, **given)
        assert report.steps[0].report.summary.partition(";")[0].endswith(f"solver {solver}")
        assert same(model, state(expected))
    model = network("bert", "BertModel")
    report = greenformers.compress(model, 0.6, texts=TEXTS, tokenizer=tokenizer("bert"))
    assert report.steps[0].report.summary.partition(";")[0].endswith("solver loss")


def test_a_recipe_with_one_list_of_texts() -> None:
    """By default the teacher is the network as it was, and what calibrates does not teach."""
    model, teacher = network("bert", "BertModel"), network("bert", "BertModel")
    recipe = [LowRank(keep=0.5), Heal(2, batch_size=8), Int8()]
    given = {"texts": TEXTS, "tokenizer": tokenizer("bert"), "length": 12}
    report = greenformers.compress(model, recipe, **given)
    assert structure(model).order == ["low_rank", "int8"]
    again = network("bert", "BertModel")
    greenformers.compress(again, recipe, teacher=teacher, **given)
    assert outputs(model, inputs("bert"))[0].equal(outputs(again, inputs("bert"))[0])
    other = network("bert", "BertModel")
    greenformers.compress(other, recipe, seed=1, **given)
    assert not outputs(other, inputs("bert"))[0].equal(outputs(model, inputs("bert"))[0])
    assert [step.report.change["name"] for step in report.steps] == ["low_rank", "heal", "int8"]
    assert report.steps[1].report.log
    assert same(teacher, state(network("bert", "BertModel")))


def test_what_is_reported() -> None:
    dense, model = mixed(), mixed()
    report = greenformers.compress(model, [LowRank(keep=0.6, select=("*",), multiple=1), Int8()])
    assert (report.parameters, report.size) == (parameters(dense), bytes_of(dense))
    assert (report.steps[-1].parameters, report.steps[-1].size) == (parameters(model), bytes_of(model))
    assert report.size_share == bytes_of(model) / bytes_of(dense)
    assert [unit.path for unit in report.units] == [unit.path for unit in report.steps[0].report.units]
    assert len(report.units) == 10
    for unit in report.units:
        part = dense.get_submodule(unit.path) if "self_attn" not in unit.path else None
        assert part is None or unit.before == 4 * part.weight.numel()
        assert unit.predicted == pytest.approx(unit.lost, abs=1e-5)
        assert (unit.form == "dense") == (unit.before == unit.after)
    low, int8 = report.summary()
    assert low.startswith("low_rank: ")
    assert " weights in 10 layers, " in low
    assert int8.startswith("int8: ")
    shown = str(report)
    for text in (
        f"{100 * report.size_share:.1f} %",
        f"1. {low}",
        f"2. {int8}",
        "### low_rank",
        "### int8",
        "| `head` | ",
    ):
        assert text in shown, text
    stored = json.loads(json.dumps(report.as_dict()))
    assert json.loads(json.dumps(CompressionReport.of(stored).as_dict())) == stored


def test_texts_are_split_into_disjoint_parts() -> None:
    for count in (8, 60, 1001, 20_000):
        for part_names in (
            ["calibration", "training", "judging"],
            ["calibration", "judging"],
            ["calibration", "training"],
        ):
            parts = parts_of(range(count), part_names, seed=3)
            assert set(parts) == set(part_names)
            places = [place for part in parts.values() for place in part]
            assert len(set(places)) == len(places) <= count
            assert all(part and part == sorted(part) for part in parts.values())
            assert len(parts.get("judging", [])) <= 2000
            assert len(parts["calibration"]) <= 1000
            assert "training" not in part_names or len(places) == count
            assert parts_of(range(count), part_names, seed=3) == parts
            assert count == 8 or parts_of(range(count), part_names, seed=4) != parts
    sizes = {name: len(part) for name, part in parts_of(range(60), ["calibration", "training", "judging"], 0).items()}
    assert sizes == {"judging": 12, "calibration": 12, "training": 36}
    assert len(parts_of(range(60), ["calibration", "judging"], 0, limit=5)["calibration"]) == 5
    assert parts_of("abc", ["judging"], 0) == {"judging": ["a", "b", "c"]}
    with pytest.raises(ValueError, match="7 examples cannot be split into parts for calibration, judging: at least 8"):
        parts_of(range(7), ["calibration", "judging"], 0)
    labelled = Texts("t.tsv", [(f"text {n}",) for n in range(20)], [float(n) for n in range(20)])
    for part in split(labelled, ["calibration", "judging"], 0).values():
        assert part.labels == [float(text.removeprefix("text ")) for (text,) in part.segments]


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("int8", Int8()),
        ("low_rank 0.25", LowRank(keep=0.25)),
        ("low_rank keep=1", LowRank(keep=1.0)),
        (
            "low_rank rank=8 select=*.query,linear solver=svd",
            LowRank(rank=8, select=("*.query", "linear"), solver="svd"),
        ),
        ("attention linformer k=8 layers=0-2,5", Attention("linformer", layers=(0, 1, 2, 5), options={"k": 8})),
        ("layers 3", Layers(3)),
        ("heal 20 aware=true weights='{\"hidden\": 2}'", Heal(20, aware=True, weights={"hidden": 2})),
    ],
)
def test_changes_as_words(words: str, change: Change, tmp_path: Path) -> None:
    assert parse(words) == change
    assert parse(typed(change)) == change
    (tmp_path / "recipe.toml").write_text(recipe_text([change, Int8()]))
    assert read_recipe(tmp_path / "recipe.toml") == [change, Int8()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "a change is a name and options, name=value; got ''"),
        ("'int8", 'a change is a name and options, name=value; got "\'int8"'),
        ("quantise", "a change must be one of .*int8, .*; got 'quantise'"),
        ("_contract", "a change must be one of .*; got '_contract'"),
        ("int8 4", "int8: '4' is not an option; options are name=value"),
        ("low_rank kep=0.5", "low_rank has no option 'kep', it has keep, of, .*; did you mean keep?"),
        ("low_rank keep=half", "low_rank: keep must be a number, got 'half'"),
        ("low_rank rank=2.5", "low_rank: rank must be a whole number, got 2.5"),
        ("low_rank uniform=1", "low_rank: uniform must be true or false, got 1"),
        ("low_rank keep=2", r"the share to keep must be in \(0, 1\], got 2"),
        ("attention layers=a", "attention: layers must be a whole number, got 'a'"),
        ("heal steps=0", "steps must be at least 1, got 0"),
        ("heal weights=3", "heal: weights must be a table, got 3"),
        ("layers true", "layers: keep must be a whole number, got True"),
    ],
)
def test_words_that_are_no_change_are_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("did you mean keep?", r"did you mean keep\?")):
        parse(words)


def test_the_folder_is_the_registry() -> None:
    assert "low_rank" in names()
    assert not any(name.startswith("_") for name in names())
    assert build("low_rank", keep=0.5) == LowRank(keep=0.5)
    assert kind("low_rank") is LowRank
    assert checked(LowRank, {"select": ["a", "b"], "keep": 1}) == {"select": ("a", "b"), "keep": 1.0}
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        greenformers.changes.Nothing  # noqa: B018


def test_labels() -> None:
    labels = {
        "low rank 0.5": LowRank(), "low rank 0.25": LowRank(keep=0.25, uniform=True), "low rank r=64": LowRank(rank=64),
        "low rank energy 0.9": LowRank(energy=0.9), "low rank stable rank 2": LowRank(stable_rank=2.0),
        "linformer": Attention("linformer"), "half the layers": Layers(), "3 layers": Layers(3),
        "healed 300": Heal(), "int8": Int8(),
    }  # fmt: skip
    assert {change.label: change for change in labels.values()} == labels


def test_short_forms_where_all_have_one_and_they_are_in_order() -> None:
    assert as_flags([LowRank(keep=0.5), Heal(300), Int8()]) == ["--keep", "0.5", "--heal", "300", "--int8"]
    assert as_flags([Int8(), LowRank(keep=0.5)]) == ["--change", "int8", "--change", "low_rank keep=0.5"]
    assert as_flags([Heal(temperature=3.0)]) == ["--change", "heal temperature=3"]
    assert as_flags([LowRank()]) == ["--of", "parameters"]
    assert as_flags([LowRank(keep=0.5), LowRank(keep=0.25)])[::2] == ["--change", "--change"]


def test_batches_that_are_given_calibrate_also_where_there_are_texts() -> None:
    seen, model, ids = [], network("bert", "BertModel"), torch.randint(3, 50, (2, 9))
    model.register_forward_pre_hook(lambda _, __, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True)
    greenformers.compress(
        model, LowRank(keep=0.5, solver="activation"), texts=sentences(40), tokenizer=tokenizer("bert"),
        calibration=[{"input_ids": ids}],
    )  # fmt: skip
    assert set(seen) == {(2, 9)}
