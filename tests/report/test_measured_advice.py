"""Advice for a trained model: what is chosen, and how it is said."""

from dataclasses import replace
from typing import Any

from greenformers.changes import Attention, Int8, LowRank
from greenformers.measure.record import Record
from greenformers.report.advice import measured_table, words
from greenformers.search.advice import Advice, Measured
from greenformers.search.bound import Bound
from greenformers.search.recipes import Recipe, Setting, command, healed

DENSE: Recipe = ()
INT8: Recipe = (Int8(),)
HALF: Recipe = (LowRank(keep=0.5),)
WINDOW: Recipe = (Attention("sliding_window", options={"window": 8}),)
ALL: Recipe = (*WINDOW, *HALF, *INT8)
SETTING, LONG = Setting(16, 2), "--length 16 --lengths 16"


def row(recipe: Recipe, speed: float, share: float, **more: Any) -> Measured:
    times = {"milliseconds": 100 / speed, "mib": 50.0, "smaller": 2.0, "quality": 80 * share, "co2": 0.3}
    return Measured(recipe, speed=speed, quality_share=share, **{**times, **more})


def advice_of(*rows: Measured, metric: str = "spearman") -> Advice:
    energy = Record("advice", "as it is", {}, "energy_inference", 1.0, "mWh", source="estimated")
    return Advice([*rows], metric, SETTING, [energy])


KEPT = row(DENSE, 1.0, 1.0)
LOST = Measured(WINDOW, refused="it has none")


def lose(share: float) -> Bound:
    return Bound(lose=share)


def test_the_fastest_that_keeps_enough_is_chosen() -> None:
    advice = advice_of(row(ALL, 4, 0.9), row(HALF, 3, 0.96), row(INT8, 2, 1.0), KEPT, LOST)
    for loss, recipe in ((0.0, INT8), (0.03, INT8), (0.04, HALF), (0.09, HALF), (0.2, ALL)):
        assert advice.chosen(lose(loss)).recipe == recipe
    assert advice_of(row(HALF, 1.2, 0.5), KEPT, row(INT8, 0.9, 1.1), LOST).chosen(lose(0.03)).recipe == DENSE
    for speed, recipe in ((1.049, DENSE), (1.05, INT8)):
        assert advice_of(row(INT8, speed, 1.0), KEPT).chosen(lose(0.0)).recipe == recipe
    assert advice_of(row(INT8, 3, float("nan")), KEPT).chosen(lose(0.5)).recipe == DENSE
    for speed, recipe in ((1.5, INT8), (2.5, HALF), (3.5, ALL), (9, ALL)):
        assert advice.chosen(Bound(faster=speed)).recipe == recipe
    assert advice_of(row(INT8, 1.04, 1.0), KEPT, LOST).chosen(Bound(faster=1.01)).recipe == DENSE


def test_advice_in_words() -> None:
    advice = advice_of(row(HALF, 3, 0.912), row(INT8, 2.04, 0.9999, smaller=3.9), KEPT, LOST)
    said = ["Advice: int8, 2x as fast, 3.9x smaller, keeps 100.0% (Spearman's correlation)."]
    said += [f"  greenformers compress 'a model' --int8 {LONG} --out small"]
    told = "low rank 0.5, 3x as fast, 2x smaller, keeps 91.2% (Spearman's correlation)"
    line = command(healed(HALF, SETTING.rows), "a model", "t.txt", SETTING)
    further = [f"Faster still, but it needs healing (further training): {told}.", f"  {line}"]
    search = ["A search with healing finds better ones, in half an hour:"]
    search += [f"  greenformers compress 'a model' --texts t.txt {LONG} --lose 3% --out small"]
    assert words(advice, lose(0.03), "a model", "t.txt").splitlines() == [*said, *further, *search]
    assert words(advice_of(*advice.rows[1:]), lose(0.03), "a model", "t.txt").splitlines() == [*said, *search]
    none = "No recipe that keeps 97 % of the quality is faster than the model as it is."
    assert words(advice_of(KEPT, row(INT8, 0.5, 1), LOST), lose(0.03), "a model", "t.txt").splitlines()[:-2] == [none]
    nothing = words(advice_of(advice.rows[0], KEPT), lose(0.03), "a model", "t.txt").splitlines()
    assert nothing == [none, *further, *search]
    near = row(HALF, 1.04, 0.998)
    assert words(advice_of(near, KEPT), lose(0.03), "a model", "t.txt").startswith(none)  # hardly faster
    assert "99.5 %" in words(advice_of(KEPT), lose(0.005), "a model", "t.txt")
    both = words(advice_of(row(ALL, 2, 1), KEPT, metric="cosine"), lose(0.03), "m", "t.txt").splitlines()
    assert both[0].endswith("keeps 100.0% (Cosine to dense).")
    assert both[1:-2] == [f"  {command(ALL, 'm', 't.txt', SETTING)}"]


def test_advice_for_a_speed_in_words() -> None:
    advice = advice_of(row(HALF, 3, 0.912), row(INT8, 2, 1.0), KEPT, LOST)
    search = f"  greenformers compress m --texts t.txt {LONG} --faster {{}}x --out small"
    assert words(advice, Bound(faster=1.5), "m", "t.txt").splitlines() == [
        "Advice: int8, 2x as fast, 2x smaller, keeps 100.0% (Spearman's correlation).",
        f"  {command(INT8, 'm', 't.txt', SETTING)}",
        "A search with healing finds better ones, in half an hour:", search.format("1.5"),
    ]  # fmt: skip
    far = words(advice, Bound(faster=4), "m", "t.txt").splitlines()
    assert far[:2] == [
        "Nothing that was tried is 4x as fast.",
        "The fastest: low rank 0.5, 3x as fast, 2x smaller, keeps 91.2% (Spearman's correlation).",
    ]
    assert far[-1] == search.format("4")
    nothing = words(advice_of(KEPT, LOST), Bound(faster=4), "m", "t.txt").splitlines()
    assert nothing[0] == "Nothing that was tried is 4x as fast."
    assert len(nothing) == 3


def test_in_another_runtime_the_commands_write_the_recipe_for_it() -> None:
    advice = advice_of(row(ALL, 4, 0.9), row(INT8, 2, 1.0), KEPT)
    there = replace(advice, records=[replace(advice.records[0], setting={"length": 16, "runtime": "openvino"})])
    export = f"greenformers export small --formats openvino --texts t.txt {LONG} --out small-openvino"
    lines = words(there, lose(0.03), "m", "t.txt").splitlines()
    assert lines[1] == f"  {command(INT8, 'm', 't.txt', SETTING)} && {export}"
    assert lines[3] == f"  {command(healed(ALL, SETTING.rows), 'm', 't.txt', SETTING)} && {export}"
    search = f"  greenformers compress m --texts t.txt {LONG} --lose 3% --runtime openvino --out small"
    assert lines[-1] == search


def test_what_has_no_length_is_searched_without() -> None:
    advice = replace(advice_of(row(INT8, 2, 1.0), KEPT), setting=Setting(None, 2))
    last = words(advice, lose(0.03), "m", "images").splitlines()[-1]
    assert last == "  greenformers compress m --texts images --lose 3% --out small"


def test_the_table_of_changes() -> None:
    whole = advice_of(row(INT8, 4, 0.975, milliseconds=12345.6, interval=[-2.5, 0.125]), KEPT, LOST)
    shown = measured_table(whole, "my-model")
    assert shown.title == "my-model: 2 x 16 tokens"
    assert {str(column.header): list(column.cells) for column in shown.columns} == {
        "": ["1", "2", "-"],
        "change": ["int8", "as it is", "sliding_window"],
        "time, ms": ["12,346 (4x)", "100 (1x)", ""],
        "size, MiB": ["50 (2x)", "50 (2x)", ""],
        "Spearman's correlation, %": ["78 (-2.50 to +0.12)", "80", ""],
        "kept": ["97.5%", "100.0%", ""],
        "CO2, kg a million texts": ["0.3", "0.3", ""],
        "why not": ["", "", "it has none"],
    }
    assert "the 95 % interval of the difference" in str(shown.caption)
    assert "energy that is estimated" in str(shown.caption)
    bare = measured_table(advice_of(row(INT8, 4, 0.9, milliseconds=1.2345), KEPT, metric="perplexity"), "m[/x]")
    assert [str(column.header) for column in bare.columns][4:] == ["Perplexity", "kept", "CO2, kg a million texts"]
    assert next(iter(bare.columns[2].cells)) == "1.23 (4x)"
    assert str(bare.title).startswith(r"m\[/x]")  # no markup
    assert "interval" not in str(bare.caption)
