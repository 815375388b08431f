"""Every script of benchmarks/ has the arguments of the harness, and no parser of its own."""

import ast
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
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
    for said in re.findall(r'"command": ("(?:[^"\\]|\\.)*")', path.read_text())
    for call in re.findall(r"^(?:python )?benchmarks/(\w+)\.py(.*)", json.loads(said))
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
    parsers = {"ArgumentParser", "argv", "argparse", "getopt"}
    # Most scripts have no such word, and take long to parse.
    tree = ast.parse(source if any(word in source for word in parsers) else "")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & parsers
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

        pairs = [(name, seed) for seed in run.seeds for name in ("a", "b")]
        records = run.trainings(pairs, lambda pair: (pair[0], {"seed": pair[1], "steps": 4}), train, str)
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


def test_layers_are_held_to_the_faster_public_dense_one() -> None:
    from greenformers.measure.record import Record

    module = script("layer_speed")
    times = {"transformer": 1.0, module.SDPA: 3.0, module.BY_TORCH: 2.0, "lrt": 0.5}
    records = [Record.of("latency", value, benchmark="a", variant=name) for name, value in times.items()]
    assert module.fastest(records, "latency") == module.BY_TORCH


def test_memory_of_low_rank_beside_linformers_is_of_ranks_up_to_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("thesis_memory")
    monkeypatch.setattr(module, "needed", lambda variant, *_: {"lrt": 2.0, "linformer": 4.0}.get(variant, 8.0))
    half = module.against("training", {(16, 8): -0.7, (16, 32): 0.1, (64, 8): 0.5})
    assert half.printed == {(16, 8): -0.7, (64, 8): 0.5}
    assert half.ours == {kind: dict.fromkeys(half.printed, math.log(0.5)) for kind in module.KINDS}
    assert module.same_side(half.ours["eager"], half.printed) == 0.5
    assert [list(column.cells) for column in module.beside([half]).columns] == [
        ["16", "64"], ["-0.7", "+0.5"], ["-0.7", "-0.7"], ["-0.7", "-0.7"],
    ]  # fmt: skip
    run = parsed(module)
    shares = module.shares_of_dense("linformer", half.mode, half.printed)
    written = module.records(run, "linformer", half.mode, shares)
    assert [record.setting["rank"] for record in written] == [8] * 4
    assert {(record.metric, record.ratio, record.to) for record in written} == {("memory_training", 2.0, "transformer")}


def test_torchs_layer_by_sdpa_is_its_fused_form() -> None:
    import torch

    module = script("layer_speed")
    layer = module.BySdpa().eval()
    x = torch.randn(1, 5, module.D, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), layer.layer(x), atol=1e-5, rtol=1e-4)
    assert torch.backends.mha.get_fastpath_enabled()


def test_relative_contexts_are_of_a_group_of_models() -> None:
    import torch

    module = script("wikitext_characters")

    def losses(*rows: list[float]) -> torch.Tensor:
        """By context; the last goes on."""
        return torch.tensor([rows[min(index, len(rows) - 1)] for index in range(len(module.CONTEXTS))])

    group = {"short": losses([2.0]), "long": losses([2.0], [1.9], [1.8]), "late": losses([3.0], [2.5], [2.0])}
    # What comes late gains nothing on what the others told by the shorter context.
    assert module.relative_contexts(group, 1.0) == {"short": 64, "long": 192, "late": 64}
    assert module.relative_contexts({"late": group["late"]}, 1.0) == {"late": 192}
    rare = {"a": losses([2.0, 2.0, 2.0, 5.0]), "b": losses([2.0, 2.0, 2.0, 5.0], [2.0, 2.0, 2.0, 4.97])}
    assert module.relative_contexts(rare, 1.0) == {"a": 64, "b": 64}
    assert module.relative_contexts(rare, 0.25) == {"a": 64, "b": 128}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_scores_after_a_context_read_all_of_it() -> None:
    import torch

    from greenformers.data import Text, train_tokenizer
    from greenformers.train.causal_lm import CausalLM

    module = script("wikitext_characters")
    text = "the quick brown fox jumps over the lazy dog\n" * 40
    tokenizer = train_tokenizer("bpe", text, max_length=module.LENGTH, vocab_size=270)
    task = CausalLM(Text("a", text, text, text), tokenizer, module.LENGTH, memory=256)
    torch.manual_seed(0)
    model = module.lstm(len(tokenizer), {"d": 8, "cells": 16, "layers": 1})
    ids = torch.randint(5, len(tokenizer), (2, 300))
    with torch.no_grad():
        whole = model(ids).logits[:, -module.SCORED :]
        torch.testing.assert_close(module.last_scores(model, ids, True), whole, atol=1e-5, rtol=1e-4)
        short = model(ids[:, -module.LENGTH :]).logits[:, -module.SCORED :]
        torch.testing.assert_close(module.last_scores(model, ids, False), short)
    assert module.context_losses(model, task, 2, True).shape == (len(module.CONTEXTS), 2 * module.SCORED)
    # Dense attention, whose FLOPs others are held to, has no memory, whatever the task of the other has.
    assert module.built("full", task).config.memory_length == 0
    # Bits a subword are divided by its characters.
    nats = module.mean_loss(model, task, "test", module.BATCH)
    tokens = len(module.encoded(tokenizer, text))
    assert module.bits(model, task) == pytest.approx(nats / 0.6931471805599453 * tokens / len(text), rel=1e-6)


def test_models_of_subwords_are_not_taken_for_those_of_characters() -> None:
    module = script("wikitext_characters")

    def place(*words: str) -> dict[str, int]:
        harness, parser = script("_harness"), module.BENCHMARK.parser()
        return module.place(harness.Run(module.BENCHMARK, parser.parse_args([*words]), parser), 700, module.CHARACTERS)

    setting = {"length": 256, "steps": 700, "seed": 0, "characters": 6_000_000, "equal_steps": 700}
    assert place().items() <= setting.items()
    assert not place("--tokenizer", "bpe").items() <= setting.items()
    assert not place().items() <= {"seed": 0, **place("--tokenizer", "bpe")}.items()


def test_relative_contexts_come_with_trainings_and_tell_of_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from safetensors.torch import save_file

    from greenformers.measure.record import append, read

    module, trained = script("wikitext_characters"), list[str]()

    def train(run: Any, name: str, seed: int, steps: int, characters: dict[str, int]) -> list[Any]:
        trained.append(name)
        at = module.place(run, steps, characters)
        path = module.losses_file(run, name, seed, at)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"losses": torch.ones(len(module.CONTEXTS), 4)}, path)
        setting = {"length": module.LENGTH, "batch": module.BATCH, "steps": steps, "seed": seed, "memory": 0, **at}
        return [run.record(metric, 3.0, name, setting) for metric in ("bits_per_character", "train_time")]

    def run_with(file: Path, runs: str) -> str:
        words = ["--only", "full", "--seed", "0", "--references", str(tmp_path), "--json", str(file)]
        module.main(parsed(module, "--quick", *words, "--runs", str(tmp_path / runs)))
        return capsys.readouterr().out

    monkeypatch.setattr(module, "trained", train)
    both, relative = tmp_path / "both.jsonl", tmp_path / "relative.jsonl"
    assert "no losses by context" not in run_with(both, "a")
    append(relative, [record for record in read(both) if record.metric == "effective_context"])
    run_with(relative, "a")
    assert trained == ["full", "full"]
    assert "no losses by context are there for full, and so no relative context" in run_with(both, "b")
    assert trained == ["full", "full"]


def test_augmented_recognisers_are_of_every_rank_and_meet_every_bar_or_not() -> None:
    from greenformers.measure.record import Record

    module = script("speech_augment")
    assert [len(module.trainings(seeds, quick)) for seeds, quick in ((2, False), (2, True))] == [30, 6]
    assert module.Training("transformer", "noise", 1).name == "noise"
    # Records of dense layers stay as they were: nothing of the variant is in their settings.
    assert {name: module.VARIANTS[name] for name in module.CER} == {
        "transformer": {}, "lrt r=32": {"variant": "lrt", "rank": 32}, "lrt r=16": {"variant": "lrt", "rank": 16},
    }  # fmt: skip

    def records(gate: dict[str, Any], **changed: float) -> Iterator[Record]:
        """What just meets every bar, but for the last network and the unseen speaker."""
        for variant, limit in module.CER.items():
            for test, most in ((module.TAKES, limit), (module.SPEAKER, module.UNSEEN)):
                figures = {"cer": most, "auc": 90.0, "false_words": 1.0}
                if (variant, test) == ("lrt r=16", module.SPEAKER):
                    figures |= changed
                for seed, (metric, value) in ((seed, figure) for seed in (0, 1) for figure in figures.items()):
                    setting = {"test": test, "seed": seed, "strings": 300, "steps": 2000} | module.VARIANTS[variant]
                    setting |= gate if metric == "cer" else {}
                    name = module.Training(variant).name
                    yield Record.of(metric, value, benchmark="speech_augment", variant=name, setting=setting)

    assert module.met(list(records(module.GATED)))
    for changed in ({"cer": 18.1}, {"auc": 89.9}, {"false_words": 2.0}):
        worse = list(records(module.GATED, **changed))
        assert not module.met(worse)
        assert module.met(worse + list(records(module.GATED)))  # the last of each seed counts
    assert not module.met(list(records({})))  # as written without the gate
    assert not module.met([])


def test_trainings_of_augmented_recognisers_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module, folders = script("speech_augment"), dict[str, Any]()
    monkeypatch.setattr(module, "ensure", lambda folder, settings, _: folders.setdefault(folder.name, settings))
    run = SimpleNamespace(given=SimpleNamespace(data=Path("d"), runs=Path("r")), quick=False, console=None)
    for training in module.trainings(1, False):
        assert training.trained(run).parent == Path("r/full")
    assert len(folders) == 20
    assert {"none-0-", "all-0-", "all-0-theo"} <= folders.keys()
    low = folders["all-lrt-16-0-theo"]
    assert (low.variant, low.rank, low.noise, low.held_out, low.seed) == ("lrt", 16, True, "theo", 0)
    assert (folders["none-lrt-32-0-"].rank, folders["none-lrt-32-0-"].noise) == (32, False)


def test_a_new_speaker_is_learnt_by_adamw_and_all_are_judged_by_takes_that_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, learnt, said = script("speech_adapt"), list[Any](), set[tuple[str, bool]]()

    def said_by(_: Path, split: str, count: int, *, own: bool, **__: Any) -> Any:
        said.add((split, own))
        return [(None, f"one {split}")] * count

    monkeypatch.setattr(module.Training, "trained", lambda *_: tmp_path)
    monkeypatch.setattr(module, "ensure", lambda _, settings, __: learnt.append(settings))
    monkeypatch.setattr(module, "said_by", said_by)
    monkeypatch.setattr(module, "write", lambda *_: 1.0)
    monkeypatch.setattr(module.Recogniser, "load", lambda _: None)
    monkeypatch.setattr(module, "recognised", lambda _, waves, **__: ["one valid"] * len(waves))
    run = parsed(module, "--quick", "--runs", str(tmp_path))
    module.main(run)
    # Of the others takes 0 to 4 were learnt before; 5 to 7 are those of "valid".
    assert said == {("test", True), ("valid", False), ("train", True)}
    assert {(own.optimizer, own.asked_optimizer, own.held_out) for own in learnt} == {("adamw", "adamw", None)}
    wrong = {(record.setting["test"], record.value > 0) for record in run.known() if record.metric == "cer"}
    assert wrong == {(module.HELD_OUT, True), (module.OTHERS, False)}


def test_times_are_those_of_words_that_are_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from greenformers.speech.transcript import Segment, Word

    pytest.importorskip("jiwer", reason="the speech extra is not installed")
    module = script("speech_times")
    string = module.String(torch.zeros(1), "two one", [(0.0, 0.45), (1.02, 1.4)])
    words = (Word("two", 0.1, 0.4), Word("six", 0.5, 0.9), Word("one", 1.0, 1.5))
    segments = [Segment(0.0, 2.0, "two six one", -1.0, words), Segment(0.0, 2.0, "", -1.0)]
    expected = torch.tensor([[100.0, 50.0], [20.0, 100.0]], dtype=torch.float64)
    torch.testing.assert_close(module.errors(segments, [string, string]), expected)
    assert module.errors([], []).shape == (0, 2)
    with pytest.raises(SystemExit) as exit_:
        module.BENCHMARK.run(module.main, ["--data", str(tmp_path), "--run", str(tmp_path)])
    assert exit_.value.code == 2
    assert "must be a finished run or a model of speech, it has no config.json" in capsys.readouterr().err


def test_times_are_recorded_when_all_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from greenformers.speech.transcript import Segment, Word

    pytest.importorskip("jiwer", reason="the speech extra is not installed")
    module = script("speech_times")
    string = module.String(torch.linspace(-1, 1, 800), "two", [(0.0, 0.1)])
    heard = [Segment(0.0, 0.1, "two", -1.0, (Word("two", 0.0, 0.1),))]
    answers = iter([heard, None, heard, heard, heard])

    def written(*_: Any) -> Any:
        if (segments := next(answers)) is None:
            raise KeyboardInterrupt
        return segments

    monkeypatch.setattr(module, "listener", lambda *_: None)
    monkeypatch.setattr(module, "test_strings", lambda *_: [string])
    monkeypatch.setattr(module, "synthetic_strings", lambda _: [string])
    monkeypatch.setattr(module, "written", written)
    monkeypatch.setattr(module.shutil, "which", lambda _: "espeak-ng")
    run = parsed(module, "--quick", "--run", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        module.main(run)
    assert run.known() == []
    assert module.main(run)
    assert len(run.known()) == 3 * 2 * 2


def test_the_default_of_the_search_is_judged_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from greenformers.speech.search_options import Search

    module = script("speech_beam")
    # Fewer corpora are drawn: no interval is near a bar.
    monkeypatch.setattr(module, "bootstrap_difference", partial(module.bootstrap_difference, draws=200))
    assert module.SEARCHES[0] == Search()
    assert len({module.name_of(search) for search in module.SEARCHES}) == 2**4
    lengths = torch.full((40,), 5)
    wrong = {module.SEARCHES[place]: torch.ones(40, dtype=torch.long) for place in (0, 3, 5)}
    assert module.met(wrong, lengths)
    wrong[module.SEARCHES[3]][0] = 0
    assert module.met(wrong, lengths)
    wrong[module.SEARCHES[3]].zero_()
    assert not module.met(wrong, lengths)
    # The best one is within noise, as all that it has wrong is in two strings; another one is not.
    wrong[module.SEARCHES[3]][:2] = 12
    assert module.met(wrong, lengths)
    wrong[module.SEARCHES[5]][:12] = 0
    assert not module.met(wrong, lengths)


def parsed(module: Any, *words: str) -> Any:
    """A run of a benchmark with these arguments, which has not begun."""
    parser = module.BENCHMARK.parser()
    return script("_harness").Run(module.BENCHMARK, parser.parse_args([*words]), parser)


@pytest.mark.parametrize(("words", "tried"), [(("--longest", "32000"), [1000, 2000, 4000, 8000]),
                                              (("--longest", "1500"), [1000, 1500])])  # fmt: skip
def test_steps_of_lengths_are_doubled_until_all_have_left_the_plateau(
    words: tuple[str, ...], tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, seen = script("linformer_pretraining"), []

    def measure(run: Any, _: Any, panels: dict[str, list[Any]]) -> list[Any]:
        seen.append(panels["length"][0][-1])
        records = []
        for training in dict.fromkeys(training for panel in panels.values() for training in panel):
            variant, k, sharing, length, steps = training
            setting = {"k": k, "sharing": sharing, "length": length, "steps": steps, "step": steps}
            value = 5.0 if steps >= 10 * length else 19.0
            records.append(run.record("perplexity", value, variant, setting))
            records.append(run.record("train_loss", math.log(value), variant, setting))
        return records

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "plateau", lambda _: 20.0)
    module.main(parsed(module, "--steps", "1000", *words))
    assert seen == tried
    assert module.left_at([(100, 2.99), (200, 2.5)], 20.0) == "200"
    assert module.left_at([(100, 2.99)], 20.0) == "not left"


def test_means_over_tasks_have_intervals_by_examples_and_by_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    module, other = script("linformer_tasks"), "k 32, headwise"
    monkeypatch.setattr(module, "DRAWINGS", 60)
    right, numbers = torch.arange(40) % 4 > 0, torch.arange(20, dtype=torch.float64).expand(2, 20)
    answers = {
        (name, task): numbers if task == "stsb" else right for name in (module.DENSE, other) for task in module.TASKS
    }
    assert (module.drawn(answers, other) == module.drawn(answers, module.DENSE)).all()  # the same examples
    answers[other, "sst2"] = torch.zeros(40, dtype=torch.bool)
    means = {name: module.drawn(answers, name) for name in (module.DENSE, other)}
    low, high = module.interval_of(means[module.DENSE])
    assert module.mean_score(answers, module.DENSE) == pytest.approx((3 * 75 + 100) / 4)
    assert low < module.mean_score(answers, module.DENSE) < high

    records = [
        record
        for seed in ("0", "1")
        for record in module.records_of(parsed(module, "--seed", seed), answers, means, 6000)
    ]
    (mean, *_) = (record for record in records if record.metric == "mean_score" and record.variant == other)
    assert mean.to == module.DENSE
    assert mean.interval[0] < -75 / 4 < mean.interval[1] < 0
    assert module.over_seeds(records[: len(records) // 2], 6000) is None
    table = module.over_seeds(records, 6000)
    assert [*table.columns[1].cells] == ["0, 1", "0, 1"]
    assert module.over_seeds(records, 4) is None


def test_a_contest_is_won_at_every_length_and_on_average() -> None:
    from greenformers.measure.record import Record

    module = script("attention_speed")

    def contest(*ratios: float, memory: float = 2.0) -> list[Record]:
        """Of peers that take so many times as long at lengths 512, 1,024, ...; a second peer is slower still."""
        records = []
        for index, ratio in enumerate(ratios):
            setting = {"mode": "training" if index % 2 else "inference", "length": 512 * 2**index}
            figures = {"greenformers": (10.0, 4.0), "a": (10 * ratio, 4 * memory), "b": (100.0, 400.0), "sdpa": (1, 1)}
            for variant, (time, peak) in figures.items():
                metrics = {"latency": time, f"peak_memory_{setting['mode']}": peak}
                records += [
                    Record.of(metric, value, benchmark="a", variant=variant, setting=setting)
                    for metric, value in metrics.items()
                ]
        return records

    words, met = module.verdict(contest(1.0, 4.0))
    assert met
    assert words.startswith("geometric mean of 2 settings 2.00x (bar 1.5x), least 1.00x in inference at N 512 (bar 1x)")
    assert not module.verdict(contest(0.99, 4.0))[1]
    assert not module.verdict(contest(1.0, 2.0))[1]  # 1.41x on average
    assert not module.verdict(contest(2.0, 2.0, memory=0.9))[1]
    assert module.verdict([record for record in contest(2.0) if record.variant in ("greenformers", "sdpa")])[1]
    assert [str(entry) for entry in script("learned_speed").contests(512)].count("routing, every query") == 1
    assert (script("learned_speed").LENGTHS[0], script("learned_speed").LENGTHS[-1]) == (512, 16_384)


def test_names_of_training_are_told_where_they_stand_again() -> None:
    from greenformers.data import Sentences, Tagged
    from greenformers.measure.entities import scores_of

    module = script("tagging")
    tags = ("O", "B-person", "I-person", "B-place", "I-place")
    words = [["new", "york", "is", "new"], ["ann", "new", "york"], ["york"], ["york"]]
    train = Sentences(words, [[3, 4, 0, 0], [1, 3, 4], [1], [3]])
    judged = Sentences([["in", "new", "york", "new", "ann"], ["bo"]], [[0, 3, 4, 0, 1], [1]])
    posts = Tagged("wnut17", tags, train, judged, Sentences())
    names = module.names_of(posts)
    assert names == {("new", "york"): "place", ("ann",): "person", ("york",): "person"}
    assert module.by_list(names, judged.words[0]) == ["O", "B-place", "I-place", "O", "B-person"]
    assert module.by_list({}, ["a"]) == ["O"]
    counts = module.baselines(posts)
    assert scores_of(counts[module.LISTED, None]) == {"f1": pytest.approx(80), "precision": 100, "recall": 200 / 3}
    assert scores_of(counts[module.OUTSIDE, None])["f1"] == 0


def test_intervals_of_f1_are_of_the_same_posts() -> None:
    module = script("tagging")
    better, worse = [(1, 1, 2)] * 30 + [(2, 2, 2)] * 30, [(0, 1, 2)] * 30 + [(2, 2, 2)] * 30
    drawings = {(module.FULL, 0): module.drawn(worse), ("star", 0): module.drawn(better)}
    low, high = module.interval_of(drawings["star", 0])
    assert low < 200 * 90 / 210 < high
    assert module.interval_of(module.drawn(better) - drawings["star", 0]) == [0, 0]
    counts = {(module.FULL, 0): worse, ("star", 0): better}
    run = parsed(module)
    records = module.records_of(run, module.SETTINGS, counts, drawings, {"star": 7, module.FULL: 8})
    (f1,) = (record for record in records if (record.variant, record.metric) == ("star", "f1"))
    assert f1.to == module.FULL
    assert 0 < f1.interval[0] < 200 * 30 / 210 < f1.interval[1]
    assert [record.value for record in records if record.metric == "parameters"] == [8, 7]
    assert module.shown(counts, drawings, {}).row_count == 2


def test_block_by_block_is_judged_by_the_best_of_its_ways() -> None:
    module = script("block_by_block")
    low_rank = module.LOW_RANK
    assert list(module.recipes(True)) == [
        ("low rank 0.5", module.WHOLE, low_rank), ("low rank 0.5", "block by block", [*low_rank, "--from-disk"]),
    ]  # fmt: skip
    assert len(list(module.recipes(False))) == 3 * 2 + 2 * 4
    values = {"a, whole": 10.0, "a, block by block": 11.0, "a, two at once": 10.05, "b, c, whole": 2.0}
    values["b, c, block by block"] = 1.0
    shares = module.beside(parsed(module), dict.fromkeys(values, 1.0), values, "perplexity")
    assert shares == {"a": pytest.approx([1.1, 1.005]), "b, c": [0.5]}


def test_blocks_and_the_whole_model_learn_from_the_same_texts() -> None:
    module, texts = script("block_by_block"), Path("texts.txt")
    own = ["--calibrate", "texts.txt", "--limit", "2000"]
    for _, how, words in module.recipes(False):
        learns = how == module.WHOLE and "--heal" in words
        assert module.texts_for(words, texts) == [*own, *(["--heal-texts", "texts.txt"] if learns else [])]


def test_a_quick_run_by_block_has_a_narrower_model_in_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = script("compress_7b")
    sizes: dict[Path, tuple[int, int, int]] = {}

    def write(folder: Path, described: Any) -> int:
        sizes[folder] = described.num_hidden_layers, described.hidden_size, described.vocab_size
        return 0

    monkeypatch.setattr(module, "write", write)
    monkeypatch.setattr(module, "write_texts", lambda _, file, __, size: file.with_suffix(f".{size}"))
    for words in ((), ("--quick",)):
        run = parsed(module, "--solver", "gptq", "--folder", str(tmp_path), *words)
        _, options, small = module.prepared(run, 3)
        assert small.parent == tmp_path.joinpath(*["quick"][: len(words)])
        assert options[5].endswith(f".{[*sizes.values()][-1][-1]}")
    assert sizes == {tmp_path / "dense-3": (3, 4096, 32_000), tmp_path / "quick" / "dense-3": (3, 1024, 8000)}


def test_large_models_are_foreseen_by_what_a_block_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, written = script("compress_7b"), list[Any]()
    took = {"2": (100.0, 3.0), "4": (160.0, 5.0)}
    monkeypatch.setattr(module, "prepared", lambda _, blocks: (tmp_path, [], tmp_path / str(blocks)))
    monkeypatch.setattr(module, "compress", lambda *given: took[given[-1].name])
    run = parsed(module, "--solver", "gptq")
    monkeypatch.setattr(run, "write", written.extend)
    assert module.main(run)
    values = {(record.variant, record.metric, record.setting.get("blocks")): record.value for record in written}
    assert values["gptq, a block", "compression_time", None] == 30
    assert values["gptq, foreseen", "compression_time", 32] == 160 + 28 * 30
    assert [values["gptq, block by block", "peak_memory_compression", blocks] for blocks in (2, 4)] == [3072, 5120]
    took["2"] = (100.0, 6.5)
    assert not module.main(run)


def test_what_was_stopped_is_held_to_the_bits_of_what_went_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, whole = script("compress_7b"), tmp_path / "small"
    code = (
        "import pathlib, sys, time; here = pathlib.Path(sys.argv[1]); here.mkdir()\n"
        "[(here / f'block-{number}.json').touch() for number in range(2)]; time.sleep(60)"
    )

    def compress(_: Path, __: list[str], small: Path) -> None:
        small.mkdir()
        (small / "model-1.safetensors").write_text("the same")

    monkeypatch.setattr(module, "prepared", lambda *_: (tmp_path, [], whole))
    monkeypatch.setattr(module, "command", lambda *given: [sys.executable, "-c", code, f"{given[-1]}.unfinished-1"])
    monkeypatch.setattr(module, "compress", compress)
    words = ("--solver", "gptq", "--stopped")
    assert module.main(parsed(module, *words))
    (whole / "model-1.safetensors").write_text("another")
    assert not module.main(parsed(module, *words))
    for refused in (("--stopped",), ("--solver", "gptq", "--blocks", "2")):
        with pytest.raises(SystemExit):
            module.main(parsed(module, *refused))


def test_recipes_by_hand_are_those_in_torch_each_with_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    module = script("search_minilm")
    by_hand = module.recipes_by_hand(ROOT / "results")
    assert {recipe.file for recipe in by_hand} == {*module.BY_HAND}
    speeds: dict[tuple[str, str], set[float]] = {}
    for recipe in by_hand:
        speeds.setdefault((recipe.file, recipe.name), set()).add(round(recipe.speed, 2))
    assert speeds["students", "3 layers of 192"] == {6.07}  # judged in another run
    assert speeds["combine_minilm", "healed, int8"] == {4.77, 2.81, 2.54}  # two of them timed before healing
    assert not [name for _, name in speeds if "OpenVINO" in name or "ONNX" in name or name in ("dense", "torch")]
    assert module.recipes_by_hand(ROOT / "no such folder") == []
    drawn = Figure()
    drawn.subplots()
    monkeypatch.setattr(module, "figure", lambda *_: drawn)
    legend = module.picture(None, "torch", by_hand).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["by hand"]


def test_a_recipe_by_hand_is_above_the_front_where_all_that_lose_no_more_are_slower() -> None:
    from greenformers.search.trials import Trial

    module = script("search_minilm")
    trials = [Trial((1,), speed=2.0, lost=-0.001), Trial((2,), speed=3.0, lost=0.02)]
    figures = [(1.9, 0.0), (2.1, -0.01), (2.9, 0.02), (3.1, 0.03), (2.5, 0.01)]
    rows = [module.ByHand("a recipe", "a study", "a machine", *each) for each in figures]
    assert module.above_front(trials, rows) == [(rows[3], 3.0), (rows[4], 2.0), (rows[1], 2.0)]
    assert module.above_front([], rows[:1]) == [(rows[0], 1.0)]
    assert module.above_table(module.above_front(trials, rows)).row_count == 3


def test_predicted_times_are_judged_by_draw_and_by_change_whatever_one_recipe_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("search_minilm")
    rows = [(a, b) for a in range(4) for b in range(4)][1:]
    too_high = {"by": 1.0}

    def recipe(genes: tuple[int, int]) -> tuple[SimpleNamespace]:
        return (SimpleNamespace(label=f"recipe {genes}", genes=genes),)

    def speed(model: tuple[SimpleNamespace]) -> float:
        if model[0].genes == rows[0]:
            raise RuntimeError("out of\nmemory")
        return 1.0 + sum(model[0].genes)

    def predictions(*_: Any) -> SimpleNamespace:
        def of(rows: list[tuple[int, int]]) -> list[SimpleNamespace]:
            return [SimpleNamespace(speed=(1 + sum(row)) * (too_high["by"] if row[1] else 1)) for row in rows]

        return SimpleNamespace(of=of)

    monkeypatch.setattr(module, "Predictions", predictions)
    slots = tuple((SimpleNamespace(name=lambda name=name: name),) for name in ("first", "second"))
    space = SimpleNamespace(slots=slots, recipe=recipe, drawn=lambda draw: draw.choice(rows))
    lab = SimpleNamespace(made=lambda recipe: recipe, speed=speed)
    search = SimpleNamespace(space=space, lab=lab, trials=SimpleNamespace(seen=[]))
    run = parsed(module, "--never", str(len(rows)), "--json", str(tmp_path / "records.jsonl"))
    assert module.predicted(run, search, {})
    assert f"recipe {rows[0]}: not made: out of memory" in capsys.readouterr().out
    assert [record.source for record in run.known()] == ["estimated", "measured"] * (len(rows) - 1)
    too_high["by"] = 1.2
    assert not module.predicted(run, search, {})
    seen = {row: 1.0 + sum(row) for row in rows}
    guesses = {row: value * (1.2 if row[1] else 1) for row, value in seen.items()}
    assert module.biases(search, guesses, seen) == dict.fromkeys(["first", "second"], (12, pytest.approx(0.2)))
    assert module.first_choices(seen, seen) == module.in_order(seen, seen) == 1
    backwards = {row: 1 / value for row, value in seen.items()}
    assert module.first_choices(backwards, seen) == module.in_order(backwards, seen) == 0


def test_trials_of_a_search_are_kept_for_predictions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from greenformers.search.trials import Trial, Trials

    module, trials, path = script("search_minilm"), Trials(tmp_path / "own.jsonl"), tmp_path / "kept.jsonl"
    for speed in (2.0, 3.0):
        trials.add(Trial((1, 0), int(speed), speed=speed, lost=0.1, smaller=1.5))
    trials.add(Trial((0, 2), refused="why"))
    path.write_text("of an earlier run\n")
    module.keep(trials, path)

    def prepared(*given: Any) -> Any:
        slots = ((1,), (1, 2)) if given[0] == "MODEL" else ((1,),)
        return SimpleNamespace(space=SimpleNamespace(slots=slots), trials=Trials(tmp_path / "again.jsonl")), {}, 0

    monkeypatch.setattr(module, "_prepared", prepared)
    run = parsed(module, "--trials", str(path))
    again = module.of_trials(run, "MODEL", None, tmp_path, path).trials
    assert [str(trial) for trial in again.seen] == [str(trial) for trial in trials.seen]
    with pytest.raises(SystemExit):
        module.of_trials(run, "another", None, tmp_path, path)
    assert "got [1, 0]: of another model" in capsys.readouterr().err
    for words in (("--trials", str(tmp_path / "missing")), ("--trials", str(path), "--never", "0")):
        with pytest.raises(SystemExit):
            module.main(parsed(module, *words))
        assert "--trials must be a file" in capsys.readouterr().err


def test_the_auc_has_its_peak_by_differences_of_the_same_draws() -> None:
    module = script("genome_studies")
    draws = {0: [50.0, 61.0, 72.0], module.PEAK: [52.0, 63.0, 75.0], 10_000: [52.0, 62.5, 75.5]}
    assert module.has_its_peak(draws)  # however far apart the draws are
    assert not module.has_its_peak(draws | {10_000: [53.0, 64.0, 76.1]})
    assert not module.has_its_peak(draws | {0: [52.0, 61.0, 76.0]})


def test_losses_of_other_settings_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    from greenformers.measure.record import Record

    def record(variant: str, value: float, **setting: Any) -> Record:
        setting = {"task": "causal_lm", "seed": 0, "step": 9, "steps": 9, "characters": 1000, "options": {}} | setting
        return Record.of("loss", value, benchmark="language_models", variant=variant, setting=setting)

    records = [record("full", 2.0), record("performer", 2.5, options={"features": 8})]
    quick = {"step": 4, "steps": 4, "characters": 10}
    losses = script("known_losses").losses([*records, record("performer", 9.0, **quick)])
    assert losses == {"causal": {"performer": (0.5, 0.5, 0.5, 1)}, "masked": {}}
    assert capsys.readouterr().out == "causal: 1 of 3 trainings are left out, of other settings\n"


def test_what_a_shape_takes_is_foreseen_by_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    module, fits = script("compress_costs"), []
    fitted = module.fitted
    monkeypatch.setattr(module, "fitted", lambda work, seconds: fits.append(len(seconds)) or fitted(work, seconds))
    work = np.array([shape.work(count) for shape in module.SHAPES[:3] for count in (4, 16)])
    seconds = work @ np.array([2e-6, 3e-9]) * np.array([1, 1, 1, 1, 2, 2])
    records = module.foreseen(parsed(module), "gptq", work, seconds, {"float32": 1.0, "float64": 1.0}, 2)
    assert fits == [6, 4, 4, 4]
    assert records[0].value > 0.1


def test_blocks_of_the_file_are_not_compressed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, blocks, foreseen = script("compress_costs"), list[Any](), list[Any]()

    def a_block(*block: Any) -> float:
        if len(blocks) == 3:
            raise KeyboardInterrupt
        blocks.append(block)
        return float(len(blocks))

    monkeypatch.setattr(module, "a_block", a_block)
    monkeypatch.setattr(module, "rate", lambda _: 1.0)
    monkeypatch.setattr(module, "foreseen", lambda _, __, ___, seconds, *____: foreseen.append([*seconds]) or [])
    words = ("--quick", "--json", str(tmp_path / "records.jsonl"))
    with pytest.raises(KeyboardInterrupt):
        module.main(parsed(module, *words))
    del blocks[:1]  # so that one more is allowed
    module.main(parsed(module, *words))
    assert blocks[-1] == (module.SHAPES[1], "gptq", 2)
    assert foreseen == [[1.0, 2.0, 3.0, 3.0]]


def test_what_was_healed_is_not_healed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, made = script("healed_for_short"), list[Any]()
    texts = SimpleNamespace(lines=["a"])
    monkeypatch.setattr(module, "minilm", lambda _: ({}, None))
    monkeypatch.setattr(module, "judged_by", lambda _: (texts, None))
    monkeypatch.setattr(module, "as_ranked_by", lambda *_: texts)
    monkeypatch.setattr(module.Reader, "of", lambda *_: None)
    monkeypatch.setattr(module, "corpus", lambda *_: ["a", "b"])
    monkeypatch.setattr(module, "compress", lambda *_, **given: made.append(given["texts"]))
    monkeypatch.setattr(module, "judge", lambda *_: {"small": {"spearman": (90.0, None)}})
    for _ in range(2):
        assert module.main(parsed(module, "--quick", "--json", str(tmp_path / "records.jsonl")))
    assert made == [["b"]] * 4


def test_what_a_command_made_is_not_made_again_and_has_no_time_where_it_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, commands = script("block_by_block"), list[Path]()

    def duration(*given: Any) -> float:
        commands.append(given[-1])
        if len(commands) == 2:
            raise KeyboardInterrupt
        return 3.0

    monkeypatch.setattr(module, "duration", duration)
    first, second = (module.place(tmp_path, variant) for variant in ("low rank 0.5, whole", "low rank 0.5, block"))

    def made(out: Path) -> float:
        return float(module.made("model", tmp_path, 8, [], out))

    assert [made(first), made(first)] == [3.0, 3.0]
    with pytest.raises(KeyboardInterrupt):
        made(second)
    assert math.isnan(made(second))
    assert math.isnan(made(second))
    assert commands == [first, second, second]


def test_what_was_deployed_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    module, folder = script("search_minilm"), Path("folder")
    monkeypatch.setattr(module, "pretrained", lambda _: ("model", "tokenizer"))
    monkeypatch.setattr(module, "RuntimeModel", lambda *given: given)
    assert module.result("torch", folder) == "model"
    assert module.result("openvino", folder) == ("openvino", folder / "deployed", "model", "tokenizer")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("attention_speed", "--only nothing"), ("learned_speed", "--only nothing"), ("pattern_speed", "--only nothing"),
        ("students", "--only nothing"), ("device", "--quick --only nothing"),
        ("device", "--quick --part speed --device cuda --lengths 0"), ("few_shot", "--orders 3"),
        ("few_shot", "--shots one"), ("deploy", "--markdown"), ("imdb_bytes", "--seeds 0"),
        ("compress_character_lm", "--seeds 0"), ("timed_beside", "--turns 0"),
    ],
)  # fmt: skip
def test_options_that_leave_nothing_to_do_are_refused(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, option = script(name), [word for word in words.split() if word.startswith("--")][-1]
    if name == "device":
        monkeypatch.setattr(module.torch.cuda, "is_available", lambda: "cuda" in words)
    with pytest.raises(SystemExit) as exit_:
        module.main(parsed(module, *words.split()))
    assert exit_.value.code == 2
    assert option in capsys.readouterr().err


def test_a_vector_for_each_token_has_no_bar_of_time() -> None:
    from greenformers.measure.record import Record

    module = script("students")
    static = f"{module.STATIC}, {module.DIMS[0]}"

    def record(metric: str, value: float, variant: str, ratio: float | None = None) -> Record:
        setting = {"texts": "stsb valid"} if metric == "spearman" else {}
        return Record.of(metric, value, benchmark="students", variant=variant, setting=setting, ratio=ratio)

    quality = [record("spearman", 80.0, name, least) for name, least in module.KEPT.items()]
    speed = [record("latency", 0.1, static, module.FASTER)]
    times = [record("compression_time", 3600.0, name) for name in module.KEPT if name != static]
    assert module.bars([*quality, *speed, *times])
    assert not module.bars([*quality, *speed, *times[1:]])
    assert not module.bars([*quality, *speed, times[0], record("compression_time", 3601.0, times[1].variant)])
    assert not module.bars([*quality[:-1], record("spearman", 80.0, static, 0.84), *speed, *times])


def test_recipes_of_which_none_is_fast_miss_their_bars(capsys: pytest.CaptureFixture[str]) -> None:
    from greenformers.measure.record import Record

    module = script("prune_minilm")
    figures = {"compression_time": {}, "latency": {}, "spearman": {"texts": "stsb train, valid"}}
    records = [
        Record.of(
            metric, 1.0, benchmark="prune_minilm", variant=recipe.label, ratio=1.0,
            setting=setting | ({"kind": recipe.kind} if metric == "compression_time" else {}),
        )
        for recipe in (*module.ALONE, *module.JOINT, *module.INT8, *module.HEALING)
        for metric, setting in figures.items()
    ]  # fmt: skip
    assert not module.bars(records)
    assert capsys.readouterr().out.count("no, no recipe is as fast") == 2
