"""The contract of a change, held by every two of them one after the other."""

from collections.abc import Iterator
from typing import Any

import pytest
from changes.rows import ROWS
from contract import BY_NAME, SHARED, apply, changed_model, check_inverse, check_same, check_shown, snapshot
from fresh import chosen, read_again
from transformers import PreTrainedModel
from zoo import network

from greenformers.changes import Change, kind
from greenformers.checkpoint.structure import structure

PAIRS = [(a.name, b.name) for a in ROWS for b in ROWS]
# Two changes in one order on an encoder, in the other on a decoder; a decoder is healed as an encoder is, and has no
# early exits.
CASES = [("bert" if {"heal", "exits"} & set(pair) or pair[0] <= pair[1] else "gpt2", *pair) for pair in PAIRS]


def fitting(name: str, again: bool = False) -> list[Change]:
    change = BY_NAME[name].change
    if name == "narrow" and again:
        return [change.but(hidden=16, heads=4)]
    if name == "layers":
        return [change.but(keep=1 if again else 2)]
    if name in SHARED:  # so that there are several heads left
        return [change.but(keep=0.8)]
    if name == "low_rank":
        return [change.but(select=("embedding",) if again else ("linear",), multiple=1)]
    if name == "product":
        return [change.but(select=("linear",) if again else ("embedding",))]
    return [change]


def refused(first: str, second: str) -> bool:
    before, after = kind(first), kind(second)
    return (
        (before.freezes and after.reads_weights)
        or (before.factorises and after.reads_dense)
        or (before.sparsifies and (after.reads_dense or after.factorises or second == "bits"))  # by gptq, as in its row
        or (before.fixes_heads and after.removes_heads)
        or (after.builds_anew and not before.built_by_the_class)
        or before.by_input
    )


@pytest.fixture(scope="module")
def reloaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one fresh process reads of every two rows, one after the other."""

    def models() -> Iterator[tuple[str, str, PreTrainedModel]]:
        for case in chosen(request, "test_two_by_two"):
            name, first, second = case["name"], case["first"], case["second"]
            if not refused(first, second):
                changes = [*fitting(first), *fitting(second, again=first == second)]
                yield f"{name}-{first}-{second}", name, changed_model(name, changes)

    return read_again(tmp_path_factory.mktemp("changed"), models())


@pytest.mark.parametrize(("name", "first", "second"), CASES)
def test_two_by_two(reloaded: dict[str, dict[str, Any]], name: str, first: str, second: str) -> None:
    if refused(first, second):
        model = network(name)
        before = snapshot(model)
        with pytest.raises(ValueError, match=f"^{second}.* cannot follow {first}"):
            apply(model, [*fitting(first), *fitting(second)], name)
        check_same(before, snapshot(model))
        return
    read = reloaded[f"{name}-{first}-{second}"]
    assert read["after"]["difference"] == 0
    assert read["after"]["keys"] == {}
    visible = [name for name in BY_NAME[first].described if name not in BY_NAME[second].hides]
    shown = list(dict.fromkeys([*visible, *BY_NAME[second].described]))
    described = structure(read["model"])
    check_shown(described.order, shown, (first, second))
    if shown:
        check_inverse(described, read["model"])
    if "cached" in read["after"] and not {"attention"} & {first, second}:
        assert read["after"]["cached"] == read["after"]["uncached"]
