"""Benchmarks of low rank and of conditional computing: what they choose by, what meets a bar, what is not repeated."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock

from greenformers.data import Pairs, Split, Splits
from greenformers.data._draw import drawn
from greenformers.measure.latency import Timing
from greenformers.measure.record import Record, read
from greenformers.train.settings import Settings

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    """The scripts can be imported by their names, and are forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            sys.modules.pop(name)


def toy(folder: Path) -> Any:
    """A benchmark with the options of the tables, and no more."""
    harness, ways = import_module("_harness"), import_module("_ways")
    return harness.Benchmark(str(folder / "toy.py"), "A toy.", quick="little", options=ways.OPTIONS)


def parsed(benchmark: Any, *words: str) -> Any:
    """A run of a benchmark with these arguments, which has not begun."""
    parser = benchmark.parser()
    return import_module("_harness").Run(benchmark, parser.parse_args([*words]), parser)


# Low rank and its controls.


def test_rates_are_chosen_by_the_first_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways, studies = import_module("_ways"), import_module("_study")
    trained = []

    def ensure(folder: Path, settings: Settings, _: Any) -> dict[str, float]:
        trained.append(folder)
        best = 2e-3 if settings.muon_rate is None else 5e-3
        return {"loss": abs((settings.muon_rate or settings.learning_rate) - best) + settings.seed}

    monkeypatch.setattr(studies, "ensure", ensure)
    words = "--seeds", "2", "--json", str(tmp_path / "records.jsonl")
    run = parsed(toy(tmp_path), *words)
    plan = ways.Plan.asked(run, ways.ways(rank=8))
    judged: list[Any] = []
    base = Settings(learning_rate=1e-3)
    ran = studies.study(
        run, plan, base, tmp_path, "loss", {"data": "toy"}, judge=lambda *each: judged.append((*each, len(trained)))
    )
    networks = ("transformer", "lrt", "narrow", "narrow_flops")
    both = [name for own in networks for name in (own, f"{own} by AdamW")]
    assert [*ran.best] == [*both, "lrt dense first"]
    assert {name: own[0].rate for name, own in ran.best.items()} == pytest.approx(
        {name: 2e-3 if "AdamW" in name else 5e-3 for name in ran.best}
    )
    assert [own.settings.seed for own in ran.best["narrow"]] == [0, 1]
    assert {own.settings.rank for own in ran.best["narrow"]} == {8}
    assert {own.settings.learning_rate for own in ran.best["lrt"]} == {1e-3}
    assert len(trained) == len({*trained}) == 9 * (3 + 1)
    assert len(read(tmp_path / "records.jsonl")) == len(trained)
    assert [(name, own.settings.seed, count) for name, own, count in judged[:4]] == [
        ("transformer", 0, 3), ("transformer", 1, 4), ("transformer by AdamW", 0, 7), ("transformer by AdamW", 1, 8),
    ]  # fmt: skip
    assert [own for _, own, _ in judged] == [own for each in ran.best.values() for own in each]
    # Elsewhere, with the records alone, nothing is trained again, but what is needed for more than its score.
    known = studies.study(parsed(toy(tmp_path), *words), plan, Settings(learning_rate=1e-3), tmp_path, "loss", {})
    assert known == ran
    assert len(trained) == 9 * (3 + 1)
    assert known.best["lrt"][1].at_hand(run) == trained[-1] == known.best["lrt"][1].folder
    del trained[-1]
    other = studies.study(parsed(toy(tmp_path), *words), plan, Settings(learning_rate=1e-3), tmp_path, "loss", {"k": 1})
    assert len(trained) == 2 * 9 * (3 + 1)
    assert other == ran
    chosen = dict(zip(ran.best, ran.table().columns[-1].cells, strict=True))
    assert chosen["narrow"] == "0.005"
    assert chosen["narrow by AdamW"] == "0.002, the highest: try more"


def test_a_training_that_diverged_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways, studies = import_module("_ways"), import_module("_study")
    monkeypatch.setattr(studies, "ensure", lambda _, own, __: {"loss": float("nan") if own.muon_rate > 5e-3 else 1.0})
    run = parsed(toy(tmp_path), "--ways", "lrt")
    plan = ways.Plan.asked(run, ways.ways())
    assert [*plan.ways] == ["transformer", "lrt"]
    ran = studies.study(run, plan, Settings(learning_rate=1e-3), tmp_path, "loss", {})
    assert [own[0].rate for own in ran.best.values()] == [2.5e-3, 2.5e-3]
    assert len(run.known()) == 2 * 2


def test_a_training_that_diverged_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways, studies, trained = import_module("_ways"), import_module("_study"), list[str]()

    def ensure(folder: Path, settings: Settings, _: Any) -> dict[str, float]:
        trained.append(folder.name)
        if (settings.muon_rate or 0.0) > 5e-3:
            raise studies.DivergedError("training diverged")
        return {"loss": 1.0}

    monkeypatch.setattr(studies, "ensure", ensure)
    for _ in range(2):
        run = parsed(toy(tmp_path), "--ways", "lrt", "--json", str(tmp_path / "records.jsonl"))
        ran = studies.study(run, ways.Plan.asked(run, ways.ways()), Settings(learning_rate=1e-3), tmp_path, "loss", {})
    assert len(trained) == len({*trained}) == 2 * 3
    assert [math.isnan(own.score) for own in ran.tried["lrt"]] == [False, False, True]


def test_one_process_of_a_study_alone_times_its_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies, timed = import_module("_study"), import_module("_train_times")
    run = parsed(toy(tmp_path))
    ran = studies.Study("accuracy", {}, {"transformer": [studies.Trained(Settings(), tmp_path / "runs", 1.0)]})
    with FileLock(tmp_path / "times.lock"), pytest.raises(SystemExit) as ended:
        timed.train_times(run, ran, {})
    assert ended.value.code == 0
    assert "another process" in capsys.readouterr().out


def test_what_another_process_is_at_work_on_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways, studies = import_module("_ways"), import_module("_study")
    other = FileLock(tmp_path / "transformer-0.0025-0.lock")
    trained, waits = [], []

    def ensure(folder: Path, settings: Settings, _: Any) -> dict[str, float]:
        trained.append(folder.name)
        return {"loss": settings.muon_rate or 0.0}

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        other.release()

    monkeypatch.setattr(studies, "ensure", ensure)
    monkeypatch.setattr(studies.time, "sleep", sleep)
    other.acquire()
    run = parsed(toy(tmp_path), "--ways", "lrt", "--rates", "0.5,1")
    ran = studies.study(run, ways.Plan.asked(run, ways.ways()), Settings(learning_rate=1e-3), tmp_path, "loss", {})
    assert trained == ["transformer-0.005-0", "lrt-0.0025-0", "lrt-0.005-0", "transformer-0.0025-0"]
    assert waits == [studies.WAIT]
    assert [own[0].rate for own in ran.best.values()] == [2.5e-3, 2.5e-3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "0"), "argument --seeds: must be a whole number of at least 1, got '0'"),
        (("--ways", "lrt,lstm"), "--ways must be of transformer, transformer by AdamW, lrt, "),
        (("--rates", "1,,2"), "--rates must be numbers above 0 with commas between, got '1,,2'"),
        (("--rates", "0"), "--rates must be numbers above 0 with commas between, got '0'"),
        (("--rates", "nan"), "--rates must be numbers above 0 with commas between, got 'nan'"),
    ],
)
def test_plans_that_cannot_be(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = import_module("_ways")
    with pytest.raises(SystemExit) as exit_:
        ways.Plan.asked(parsed(toy(tmp_path), *words), ways.ways())
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_differences_are_paired_by_seed_and_noise_is_said_to_be_so(tmp_path: Path) -> None:
    studies = import_module("_study")
    values = {"transformer": [90.0, 80.0], "lrt": [89.0, 79.2], "narrow": [91.0, 79.5]}
    assert studies.beside(values, "transformer") == ""
    assert studies.beside(values, "lrt") == "-0.90 (-2.17 to +0.37, within noise)"
    assert studies.beside({name: own[:1] for name, own in values.items()}, "narrow") == "+1.00"
    dense, low, _ = studies.means(parsed(toy(tmp_path)), "accuracy", values, {"data": "mnist"})
    assert (dense.value, dense.interval, dense.setting) == (85.0, None, {"data": "mnist", "seeds": 2})
    assert (low.value, low.to) == (pytest.approx(84.1), "transformer")
    assert low.interval == pytest.approx([-2.17, 0.37], abs=0.01)


@pytest.mark.parametrize(
    ("accuracy", "seconds", "met"), [(89.8, 10.0, True), (89.6, 10.0, False), (89.8, 10.1, False), (91.0, 1.0, True)]
)
def test_low_rank_is_held_to_the_better_dense_network(
    accuracy: float, seconds: float, met: bool, tmp_path: Path
) -> None:
    studies, timed = import_module("_study"), import_module("_train_times")
    run = parsed(toy(tmp_path))

    def trained(score: float) -> list[Any]:
        return [studies.Trained(Settings(), tmp_path, score)]

    scores = {"transformer by AdamW": 60.0, "transformer": 70.0, "lrt by AdamW": 50.0, "lrt": 65.0}
    ran = studies.Study("accuracy", {}, {name: trained(score) for name, score in scores.items()})
    values = {"transformer by AdamW": [80.0], "transformer": [90.0], "lrt by AdamW": [99.0], "lrt": [accuracy]}
    spent = {"transformer by AdamW": 1.0, "transformer": 10.0, "lrt by AdamW": 1.0, "lrt": seconds}
    times = {name: run.record("train_time", value, name, ratio=1 / value) for name, value in spent.items()}
    assert timed.bar(ran, "accuracy", values, times, "lrt", 0.3) == met
    # Of error rates more is worse.
    errors = {name: [100.0 - value for value in own] for name, own in values.items()}
    assert timed.bar(ran, "cer", errors, times, "lrt", 0.3) == met
    assert timed.bar(ran, "accuracy", values, times, "lrt r=32", 0.3)


def test_a_quick_run_trains_and_times_a_few_ways(tmp_path: Path) -> None:
    ways, studies, timed = import_module("_ways"), import_module("_study"), import_module("_train_times")
    benchmark = toy(tmp_path)
    base = Settings(hidden=16, layers=1, heads=2, feed_forward=32, rank=2, steps=2, limit=40, batch=20, pool=4)

    def main(run: Any) -> None:
        plan = ways.Plan.asked(run, ways.ways())
        assert [*plan.ways] == ["transformer", "lrt by AdamW", "narrow", "narrow_flops"]
        ran = studies.study(run, plan, base, tmp_path / "runs", "accuracy", {})
        times = timed.train_times(run, ran, {"data": "digits"})
        assert times["transformer"].ratio == 1
        run.write(times.values())

    with pytest.raises(SystemExit) as exit_:
        benchmark.run(main, ["--quick", "--json", str(tmp_path / "records.jsonl")])
    assert exit_.value.code == 0
    records = read(tmp_path / "records.jsonl")
    assert [record.metric for record in records] == ["accuracy"] * 4 + ["train_time"] * 4
    assert all(record.value > 0 and record.to == "transformer" for record in records[4:])


def test_steps_with_dense_layers_take_the_time_of_the_dense_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways, studies, timed = import_module("_ways"), import_module("_study"), import_module("_train_times")
    base = Settings(hidden=16, layers=1, heads=2, feed_forward=32, rank=2, steps=2, limit=40, batch=20, pool=4)
    plan = ways.Plan.asked(run := parsed(toy(tmp_path), "--ways", "lrt,lrt dense first"), ways.ways())
    best = {name: [studies.Trained(way.grid(base, (1.0,))[0], tmp_path, 1.0)] for name, way in plan.ways.items()}
    seconds = {"transformer": 8.0, "lrt": 4.0, "lrt dense first": 4.0}
    monkeypatch.setattr(
        timed,
        "interleaved",
        lambda calls, **_: {name: Timing(*3 * (seconds[name],), (seconds[name],)) for name in calls},
    )
    times = timed.train_times(run, studies.Study("accuracy", {}, best), {"data": "digits"})
    assert [times[name].ratio for name in ("transformer", "lrt", "lrt dense first")] == [1.0, 2.0, 1.6]


def test_rates_of_mnist_are_chosen_by_images_that_are_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("table3_1_mnist")
    numbers = torch.arange(60)
    split = Split(numbers[:, None].expand(-1, 4).to(torch.uint8), numbers % 3, 255)
    images = Splits("mnist", 3, split, split)
    monkeypatch.setattr(module, "load_images", lambda _, __, limit, ___, seed: drawn(images, limit, seed))
    for seed in (0, 1):
        held = module.held_out(Settings(limit=20, seed=seed))
        learnt = drawn(images, 20, seed).train
        assert (len(held), len(learnt)) == (20, 20)
        assert not {*held.pixels[:, 0].tolist()} & {*learnt.pixels[:, 0].tolist()}
        assert torch.equal(held.pixels[:, 0].long() % 3, held.labels)


# Conditional computing.


@pytest.mark.parametrize(("loss", "slower", "met"), [(2.0, 1.2, True), (2.01, 1.2, False), (2.0, 1.22, False)])
def test_experts_have_half_of_the_steps_and_a_schedule_for_it(
    loss: float, slower: float, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenformers.measure.latency import Timing

    module = import_module("switch")
    ends = {("dense", 8): (2.0, 100.0), ("switch", 8): (1.5, 130.0), ("switch", 4): (loss, 60.0)}

    def trained(run: Any, own: Any, _: Any) -> list[Record]:
        figures = zip(("loss", "train_time"), ends[own.kind, own.steps], strict=True)
        return [run.record(metric, value, own.kind, own.setting(own.steps), seed=own.seed) for metric, value in figures]

    monkeypatch.setattr(module, "trained", trained)
    monkeypatch.setattr(module, "objective", lambda *_: None)
    monkeypatch.setattr(module, "stepped", lambda *_: None)
    run = parsed(module.BENCHMARK, "--steps", "8", "--seeds", "2")
    seconds = {module.DENSE: 1.0, module.SWITCH: slower}
    monkeypatch.setattr(run, "times", lambda calls, **_: {name: Timing(seconds[name], 1.0, 1.0, ()) for name in calls})
    assert module.trainings(run) == met
    assert len(run.known()) == 2 * 3 * 2 + 2


def test_a_layer_of_experts_drops_no_token_and_has_its_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, timed, slower = import_module("switch"), [], 1.2
    file = tmp_path / "records.jsonl"

    def times(calls: Any, **_: Any) -> Any:
        from greenformers.measure.latency import Timing

        seconds = {module.DENSE: 1.0, module.SWITCH: slower}
        return {name: Timing(seconds[name], 1.0, 1.0, (1.0,)) for name in calls}

    def passes(block: Any, _: Any) -> Any:
        timed.append(block)
        return block

    monkeypatch.setattr(import_module("_harness").Run, "times", lambda _, calls, **more: times(calls, **more))
    monkeypatch.setattr(module, "inference", passes)
    monkeypatch.setattr(module, "training", passes)
    monkeypatch.setattr(module, "SIZES", {"16 x 32": (16, 32)})
    assert module.layer(parsed(module.BENCHMARK, "--json", str(file)))
    assert [block.capacity for block in timed if hasattr(block, "router")] == [None, None]
    ratios = {record.variant: record.ratio for record in read(file)}
    assert ratios == {module.DENSE: 1.0, module.SWITCH: pytest.approx(1 / slower)}
    slower = 1.4
    assert not module.layer(parsed(module.BENCHMARK))
    assert module.layer(parsed(module.BENCHMARK, "--quick"))


def translations(seed: int, bleu: float) -> list[Record]:
    """Records of one seed: a fixed exit as good as all layers, and haltings of which one is chosen."""
    module = import_module("depth_adaptive")
    rows = dict.fromkeys((module.FULL, *module.HALTING), (6.0, 30.0, 6.0, 30.0))  # layers and BLEU, valid and test
    rows |= {"aligned, geometric": (3.0, 29.5, 3.0, bleu), "mixed, confidence": (2.0, 29.0, 2.0, 31.0)}
    rows["aligned, exit 2"] = (2.0, 30.0, 2.0, 30.0)
    records = []
    for name, figures in rows.items():
        for metric, split, value in zip(("layers", "bleu") * 2, ("valid",) * 2 + ("test",) * 2, figures, strict=True):
            setting = {"split": split, "seed": seed}
            records.append(Record.of(metric, value, benchmark="depth_adaptive", variant=name, setting=setting))
        for metric in ("parameters", "speed"):
            setting = {"split": "test", "seed": seed}
            records.append(Record.of(metric, 1.0, benchmark="depth_adaptive", variant=name, setting=setting))
    return records


@pytest.mark.parametrize(("bleu", "met"), [((29.9, 29.6), True), ((29.9, 29.3), False)])
def test_a_halting_is_chosen_on_the_validation_set_and_fixed_exits_do_not_count(
    bleu: tuple[float, float], met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("depth_adaptive")
    monkeypatch.setattr(module, "load_data", lambda *_: Pairs("multi30k", "en", "de", [], [], []))
    monkeypatch.setattr(module, "of_seed", lambda _, base, *__: translations(base.seed, bleu[base.seed]))
    assert module.chosen(translations(0, 0.0)) == "aligned, geometric"
    run = parsed(module.BENCHMARK)
    assert module.main(run) == met
    assert module.table(translations(0, 29.9) + translations(1, 29.9)).row_count == 7


def test_layers_behind_the_end_of_a_text_do_not_count() -> None:
    module, counts = import_module("depth_adaptive"), [0, 0]
    count = module.counter(counts, (0, 3))
    for tokens, layers in (([2, 2, 2], [4, 5, 6]), ([7, 7, 3], [1, 2, 6]), ([0, 3, 0], [6, 6, 6])):
        count(None, (torch.tensor(tokens)[:, None],), SimpleNamespace(steps=torch.tensor(layers)[:, None]))
    assert counts == [4 + 5 + 6 + 1 + 2, 5]


# Accelerators.


def test_what_the_file_has_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = import_module("device"), []

    def checked(form: Any, _: Any) -> tuple[list[str], bool]:
        calls.append(str(form))
        return ["1e-6"], len(calls) > 1

    monkeypatch.setattr(module, "checked", checked)
    words = ["--quick", "--part", "checks", "--only", "linformer", "--json", str(tmp_path / "records.jsonl")]
    for status in (1, 0, 0):  # what failed is looked at again
        with pytest.raises(SystemExit) as exit_:
            module.BENCHMARK.run(module.main, words)
        assert exit_.value.code == status
    assert calls == ["linformer", "linformer"]


@pytest.mark.parametrize(("accuracy", "met"), [(95.8, True), (95.0, False)])
def test_a_bar_that_was_missed_is_missed_by_the_records_of_the_file_too(
    accuracy: float, met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, table = import_module("device"), import_module("table3_1_mnist")
    (tmp_path / "mnist").mkdir()
    run = parsed(module.BENCHMARK, "--data", str(tmp_path), "--json", str(tmp_path / "records.jsonl"))
    at, values = table.place(replace(table.SETTINGS, **table.FULL)), {"lrt": accuracy, "lrt by AdamW": 99.0}
    monkeypatch.setattr(table, "measure", lambda *_: "measured")
    for name in module.MNIST:
        assert module.mnist(run, torch.device("cpu")) == "measured"
        figures = {
            "accuracy": (90.0 if name == "lrt" else 80.0, {"split": "valid", "seed": 0}),
            "test_accuracy": (values.get(name, 96.0), {"seeds": 1}), "train_time": (10.0, {"timed_steps": 4}),
        }  # fmt: skip
        run.write([run.record(metric, value, name, at | more) for metric, (value, more) in figures.items()])
    assert module.mnist(run, torch.device("cpu")) == met


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_only_a_quick_run_takes_the_cpu_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module("device")
    for words, status, message in (
        (["--part", "checks"], 0, "skipped: there is no CUDA device"),
        (["--quick", "--part", "speed"], 2, "--part speed is for --device cuda"),
        (["--device", "cpu", "--part", "mnist"], 2, "--part mnist is for --device cuda, or for --quick"),
        (["--quick", "--part", "mnist", "--only", "full"], 2, "which are no part of mnist"),
    ):
        with pytest.raises(SystemExit) as exit_:
            module.BENCHMARK.run(module.main, words)
        assert exit_.value.code == status
        assert message in capsys.readouterr().err


def test_cells_of_one_part_are_not_taken_for_those_of_another() -> None:
    module = import_module("_device_thesis")
    network, how = module.Network(), module.How(tokens=32_768, device="cpu")

    def part(**setting: Any) -> bool:
        at = {"length": 512, "batch": 64, "hidden": 768, "device": "cpu"} | setting
        return module.of_part(Record.of("latency", 1.0, benchmark="bench", variant="lrt", setting=at), network, how)

    assert part()
    assert not part(batch=128)
    assert not part(hidden=32)
    assert not part(device="cuda")
