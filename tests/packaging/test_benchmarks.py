"""Every script of benchmarks/ has the arguments of the harness, and no parser of its own."""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
COMMAND = r"python\s+benchmarks/(\w+)\.py((?:\s+\[?--[\w-]+(?:(?: |\n(?!\n) *)[\w./][\w./-]*)?\]?)*)"
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "studies").glob("*.md")]
TEXTS = (ROOT / "README.md", *PAGES, *FOLDER.glob("[!_]*.py"))
# The command lines that README, docs, the scripts themselves and the records of results/ name.
CALLS = {call for path in TEXTS for call in re.findall(COMMAND, path.read_text())}
CALLS |= {
    call
    for path in (ROOT / "results").glob("*.jsonl")
    for call in re.findall(r'"command": "(?:python )?benchmarks/(\w+)\.py([^"]*)"', path.read_text())
}


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    """The scripts can be imported, as they import each other, and are forgotten afterwards."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in ("_harness", *(name for name in SCRIPTS if name != "zoo")):  # which is a module of the tests, too
        sys.modules.pop(name, None)


@cache
def script(name: str) -> Any:
    """A script, under a name of its own: a test module may have its plain one."""
    spec = spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 36
    assert {name for name, _ in CALLS} == {*SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_offers_quick_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = script(name)
    with pytest.raises(SystemExit) as exit_:
        module.BENCHMARK.run(module.main, ["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert {"--quick", "--json", "--threads"} <= {word.strip("[],") for word in shown.split()}
    assert module.__doc__.splitlines()[0] in shown


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unknown_option_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = script(name)
    with pytest.raises(SystemExit) as exit_:
        module.BENCHMARK.run(module.main, ["--no-such-option"])
    assert exit_.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_no_parser_of_its_own(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"ArgumentParser", "argv", "argparse", "getopt"}
    assert source.endswith('if __name__ == "__main__":\n    BENCHMARK.run(main)\n')
    assert script(name).BENCHMARK.name == name


@pytest.mark.parametrize(("name", "options"), sorted(CALLS), ids=lambda text: "".join(text.split()) or "plain")
def test_the_command_lines_of_the_documentation_are_understood(name: str, options: str) -> None:
    words = shlex.split(options.replace("[", " ").replace("]", " "))
    script(name).BENCHMARK.parser().parse_args(["1" if word == "N" else word for word in words])


def test_a_command_names_what_was_asked_and_no_path() -> None:
    module = script("learned_speed")
    given = module.BENCHMARK.parser().parse_args(["--quick", "--peers", "/a", "--json", "/b", "--only", "a b"])
    assert module.BENCHMARK.command(given) == "python benchmarks/learned_speed.py --peers PEERS --only 'a b' --quick"

    def command(name: str, *words: str) -> str:
        benchmark = script(name).BENCHMARK
        return benchmark.command(benchmark.parser().parse_args([*words])).removeprefix("python benchmarks/")

    assert command("pattern_speed", "--threads", "2") == "pattern_speed.py"  # which it has by itself
    assert command("pattern_speed", "--threads", "1") == "pattern_speed.py --threads 1"
    assert command("sst2_blocks", "--seed", "0") == "sst2_blocks.py --seed 0"


def run_of(tmp_path: Path, main: Any, *words: str) -> Any:
    """How a benchmark ends that does this; the file of its records is `records.jsonl`."""
    harness = script("_harness")
    benchmark = harness.Benchmark(
        str(tmp_path / "toy.py"), "A toy.", quick="hardly anything", options=(harness.SEED, harness.PEERS)
    )
    with pytest.raises(SystemExit) as exit_:
        benchmark.run(main, ["--json", str(tmp_path / "records.jsonl"), *words])
    return exit_.value.code


@pytest.mark.parametrize(("met", "status"), [(None, 0), (True, 0), (False, 1)])
def test_a_missed_bar_is_exit_status_1(met: bool | None, status: int, tmp_path: Path) -> None:
    assert run_of(tmp_path, lambda _: met) == status


def test_records_have_the_unit_of_the_table_and_the_command(tmp_path: Path) -> None:
    from greenformers.measure.latency import Timing
    from greenformers.measure.record import read

    def main(run: Any) -> None:
        times = run.times({"a": lambda: None}, repeats=9, quick=2)
        assert len(times["a"].samples) == 2
        run.write([run.record("latency", Timing(0.002, 0.001, 0.004, ()), "a", {"length": 3}, seed=7)])

    assert run_of(tmp_path, main, "--quick", "--seed", "5") == 0
    (record,) = read(tmp_path / "records.jsonl")
    assert (record.benchmark, record.value, record.spread, record.unit) == ("toy", 2.0, 3.0, "ms")
    assert record.context["command"] == "python benchmarks/toy.py --seed 5 --quick"
    assert record.context["seed"] == 7


def test_known_trainings_are_not_repeated_and_stopped_ones_go_on(tmp_path: Path) -> None:
    trained = []

    def main(run: Any) -> None:
        def train(training: tuple[str, int]) -> list[Any]:
            if len(trained) == 3:
                raise KeyboardInterrupt
            trained.append(training)
            return [run.record("accuracy", 50.0, training[0], {"seed": training[1], "steps": 4, "batch": 8})]

        wanted = [(name, seed) for seed in run.seeds for name in ("a", "b")]
        records = run.trainings(wanted, lambda one: (one[0], {"seed": one[1], "steps": 4}), train, str)
        assert len(records) == 4

    assert run_of(tmp_path, main) == 1
    assert trained == [("a", 0), ("b", 0), ("a", 1)]
    trained.clear()
    assert run_of(tmp_path, main) == 0
    assert trained == [("b", 1)]


def test_what_is_missing_is_said_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harness = script("_harness")
    benchmark = harness.Benchmark("toy.py", "A toy.", quick="", options=(harness.data("--data", ".", "x", "part"),))

    def ended(*words: str) -> Any:
        with pytest.raises(SystemExit) as exit_:
            benchmark.run(lambda _: pytest.fail("it must not run"), [*words])
        return exit_.value.code, capsys.readouterr().err

    assert ended("--data", str(tmp_path)) == (
        0, f"skipped: {tmp_path / 'part'} is not there; name its folder with --data\n"
    )  # fmt: skip
    (tmp_path / "file").touch()
    status, message = ended("--data", str(tmp_path), "--json", str(tmp_path / "file" / "records.jsonl"))
    assert status == 2
    assert "cannot be written" in message


def test_growth_is_the_exponent() -> None:
    assert script("_harness").growth({8: 64.0, 2: 4.0, 4: 1.0}) == pytest.approx(2)
    assert script("_harness").growth({8: 64.0}) == 0


def test_combine_minilm_is_a_recipe_of_which_options_change_a_part() -> None:
    module = script("combine_minilm")
    recipe = module.recipe(None, steps=None)
    assert [change.name() for change in recipe] == ["low_rank", "heal", "int8"]
    assert (recipe[0].keep, recipe[1].steps, recipe[1].aware) == (0.5, 300, True)
    assert module.variants(recipe) == ["dense", "low rank", "healed", "healed, int8"]
    assert module.variants([recipe[0], recipe[2]]) == ["dense", "low rank", "low rank, int8"]
    assert module.variants(recipe[2:]) == ["dense", "int8"]
    layers, *others = module.recipe(3, steps=7)
    assert (layers.name(), layers.keep) == ("layers", 3)
    assert others == [recipe[1].but(steps=7), recipe[2]]
