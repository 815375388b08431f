"""Flags made of the fields of dataclasses, and dataclasses made of flags."""

import inspect
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from greenformers.advise.cost_options import Options
from greenformers.cli._options import filled, flags, from_fields, given
from greenformers.measure.bench_options import How, Network


class Colour(Enum):
    RED = "red"
    GREEN = "green"


def option(default: Any, about: str, **more: str) -> Any:
    return field(default=default, metadata={"help": about} | more)


@dataclass(frozen=True)
class Change:
    """Of every type that a flag has."""

    keep: float = option(0.5, "Share to keep.")
    rank: int | None = option(None, "One rank.")
    solver: Literal["svd", "loss"] = option("svd", "Which solver.")
    colour: Colour = option(Colour.RED, "Which colour.")  # noqa: RUF009
    aware: bool = option(False, "Only on.", flag="--int8-aware")
    full: bool = option(True, "On and off.")
    home: Path | None = option(None, "Where.")  # noqa: RUF009
    k: int = option(16, "Projected length.", flag="--length-k")
    lengths: tuple[int, ...] = option((1, 2), "Lengths.")
    bounds: tuple[int, float] | None = option(None, "Two numbers.")
    names: "tuple[str, ...]" = option((), "Names.")  # noqa: RUF009
    select: list[str] | None = option(None, "Patterns.")  # noqa: RUF009
    paths: list[Path] = field(default_factory=list, metadata={"help": "Paths."})
    slots: dict[str, Any] = field(default_factory=lambda: {"residual": "pre"}, metadata={"help": "Slots."})
    silent: int = 7


TYPED = {
    "--keep 0.25": {"keep": 0.25}, "--rank 3": {"rank": 3}, "--solver loss": {"solver": "loss"},
    "--colour green": {"colour": Colour.GREEN}, "--int8-aware": {"aware": True}, "--no-full": {"full": False},
    "--full": {"full": True}, "--home a/b": {"home": Path("a/b")}, "--length-k 2": {"k": 2},
    "--lengths 4,0,-9": {"lengths": (4, 0, -9)}, "--lengths 5": {"lengths": (5,)},
    "--bounds 1,2.5": {"bounds": (1, 2.5)},
    "--names a,b": {"names": ("a", "b")}, "--select a --select b": {"select": ["a", "b"]},
    "--paths a": {"paths": [Path("a")]}, "--slots a=1 --slots b=x": {"slots": {"a": 1, "b": "x"}},
}  # fmt: skip


def ran(command: Any, words: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, words.split(), env={"COLUMNS": "300"})


def built(words: str, default: Change | None = None) -> Change:
    """What a command is given for a command line."""
    seen: list[Change] = []
    if default is None:

        @from_fields
        def command(*, change: Change) -> None:
            seen.append(change)
    else:

        @from_fields
        def command(*, change: Change = default) -> None:
            seen.append(change)

    result = ran(command, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return seen[0]


@pytest.mark.parametrize("words", TYPED)
def test_what_is_typed_is_in_the_fields(words: str) -> None:
    assert built(words) == Change(**TYPED[words])
    assert built(words, Change(silent=1)) == Change(**TYPED[words], silent=1)


def test_nothing_typed_is_the_default() -> None:
    assert built("") == Change()
    default = Change(keep=0.1, rank=4, full=False, lengths=(3,), slots={}, select=["x"], solver="loss")
    assert built("", default) == default
    assert built("--keep 1", default) == replace(default, keep=1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lengths 1,x", "lengths must be whole numbers with commas between; got '1,x'"),
        ("--lengths 1,,2", "lengths must be whole numbers with commas between; got '1,,2'"),
        ("--bounds 1", "bounds must be 2 values with commas between; got '1'"),
        ("--slots x", "slots must be name=value, got 'x'"),
    ],
)
def test_what_a_field_does_not_take_is_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        built(words)


def command_of_change() -> Any:
    @from_fields
    def command(*, change: Change) -> None:
        raise AssertionError(change)

    return command


@pytest.mark.parametrize("words", ["--keep x", "--solver x", "--colour blue", "--silent 3", "--k 3", "--aware"])
def test_what_no_flag_takes_is_refused(words: str) -> None:
    assert ran(command_of_change(), words).exit_code == 2


@pytest.mark.parametrize("unset", [False, True])
def test_help_has_every_field_and_its_default(unset: bool) -> None:
    def command(**_: Any) -> None:
        raise AssertionError

    command.__signature__ = inspect.Signature(flags(Change, unset=unset))  # type: ignore[attr-defined]
    shown = ran(command, "--help").output
    lines = {line.split()[1]: line for line in shown.splitlines() if line.startswith("│ --")}
    assert "[default: 0.5]" in lines["--keep"]
    assert "Share to keep." in lines["--keep"]
    assert "[default: 1,2]" in lines["--lengths"]
    assert "[default: residual=pre]" in lines["--slots"]
    assert "[default" not in lines["--rank"]
    assert "--no-int8-aware" not in shown
    assert "--no-full" in lines["--full"]
    assert "--silent" not in shown


def test_unset_flags_tell_what_was_typed() -> None:
    assert all(flag.default is None for flag in flags(Change, unset=True))
    assert given(Change, {"keep": None, "rank": 3, "select": [], "int8_aware": False}) == {"rank": 3, "aware": False}
    assert filled(Change, {"rank": 3}) == Change(rank=3)


def test_a_field_without_a_default_must_be_typed() -> None:
    @dataclass
    class Must:
        size: int = field(metadata={"help": "Of it."})

    seen: list[Any] = []

    @from_fields
    def command(*, must: Must) -> None:
        seen.append(must)

    assert ran(command, "").exit_code == 2
    assert ran(command, "--size 3").exit_code == 0
    assert seen == [Must(3)]


def test_two_flags_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="duplicate parameter name: 'keep'"):

        @from_fields
        def command(*, keep: int, change: Change) -> None:
            raise AssertionError(keep, change)


def test_a_type_that_no_flag_has_is_refused() -> None:
    @dataclass
    class Odd:
        either: int | str = option(1, "One of two.")

    with pytest.raises(TypeError, match=r"Odd\.either has the type int \| str, which flags cannot have"):
        flags(Odd)


@pytest.mark.parametrize("kind", [Options, Network, How])
def test_our_own_have_flags(kind: type) -> None:
    assert flags(kind)
    assert filled(kind, {}) == kind()


def test_modes_of_nothing_are_refused() -> None:
    for modes in ("", "inference,", "training,x"):
        with pytest.raises(ValueError, match="mode must be of inference, training; got"):
            filled(How, {"modes": modes})
