"""The bench: a record of every figure of every cell, once, whatever happens to the others."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch

from greenformers.measure import bench as module
from greenformers.measure import limit
from greenformers.measure.bench import NAMES, How, bench, call, largest_batch, setting
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.energy_of import Spent, energy_of
from greenformers.measure.flops import flops
from greenformers.measure.grid import BASELINE, MODES, Cell, Network, Stack, cells
from greenformers.measure.latency import Timing
from greenformers.measure.limit import OutOfMemory
from greenformers.measure.memory import peak_memory
from greenformers.measure.record import METRICS, Record

D, F, LAYERS, RANK = 16, 32, 2, 4
NETWORK = Network(D, 2, F, LAYERS)
HOW = How(tokens=32, repeats=3)
CELLS = cells(["lrt", "linformer"], [8, 16], [RANK], NETWORK)
MIB = 2**20


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return measured()


def measured(chosen: list[Cell] = CELLS, network: Network = NETWORK, how: How = HOW, **more: object) -> list[Record]:
    return [record for group in bench(chosen, network, how, {"seed": 0}, **more) for record in group]


def keys(records: list[Record]) -> list[tuple[str, str, str]]:
    return sorted((record.variant, json.dumps(record.setting), record.metric) for record in records)


def of(cell: Cell, records: list[Record]) -> dict[str, Record]:
    return {
        record.metric: record
        for record in records
        if (record.variant, record.setting["length"], record.setting["rank"]) == (cell.variant, cell.length, cell.rank)
    }


def test_every_cell_has_every_figure_once(records: list[Record]) -> None:
    metrics = {"parameters", *(name for mode in MODES for name in NAMES[mode] if "energy" not in name)}
    for cell in CELLS:
        assert set(of(cell, records)) == metrics
    assert len(records) == len(CELLS) * len(metrics)
    for record in records:
        assert record.benchmark == "bench"
        assert record.value > 0
        assert record.unit == METRICS[record.metric].unit
        assert record.context == {"seed": 0}
        timed = record.metric in ("latency", "train_step")
        assert (record.spread is not None) == timed
        counted = record.metric in ("parameters", "flops", "flops_training")
        assert record.source == ("counted" if counted else "measured")


def test_parameters_are_those_of_the_formula(records: list[Record]) -> None:
    norms = 2 * 2 * D
    dense = 4 * D * (D + 1) + 2 * D * F + F + D + norms
    low = 4 * (2 * D * RANK + D) + 2 * RANK * (D + F) + F + D + norms
    for cell in CELLS:
        layer = {"lrt": low, "linformer": dense + 2 * RANK * cell.length}.get(cell.variant, dense)
        assert of(cell, records)["parameters"].value == LAYERS * layer


def test_flops_and_memory_are_those_of_the_call(records: list[Record]) -> None:
    for cell in CELLS[:4]:
        stack, x = Stack(NETWORK, cell).eval(), torch.randn(32 // cell.length, cell.length, D)
        real = call(stack, x, "inference")
        assert of(cell, records)["flops"].value == flops(real) / 1e9
        assert of(cell, records)["peak_memory_inference"].value == peak_memory(real) / MIB
        training = of(cell, records)["peak_memory_training"].value
        assert training == pytest.approx(peak_memory(call(stack.train(), x, "training")) / MIB, rel=0.05)


def test_ratios_are_to_the_dense_network_of_the_same_run(records: list[Record]) -> None:
    for cell in CELLS:
        baseline = of(Cell(BASELINE, None, cell.length), records)
        for metric, record in of(cell, records).items():
            assert record.to == BASELINE
            if metric not in ("latency", "train_step"):
                assert record.ratio == pytest.approx(baseline[metric].value / record.value)
            if cell.variant == BASELINE:
                assert record.ratio == 1.0


def test_times_have_their_range_and_a_ratio_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {BASELINE: (2.0, 9.0, 4.0), f"lrt {RANK}": (1.0, 3.0, 8.0)}  # the machine slowed down in between

    def timed(_: dict[str, object], **__: object) -> dict[str, Timing]:
        return {name: Timing(sorted(own)[1], 0.0, 0.0, own) for name, own in samples.items()}

    monkeypatch.setattr(module, "interleaved", timed)
    record = of(Cell("lrt", RANK, 8), measured([Cell(BASELINE, None, 8), Cell("lrt", RANK, 8)]))["latency"]
    assert (record.value, record.spread, record.ratio) == (3000.0, 7000.0, 2.0)


def test_a_setting_is_json_and_tells_cells_apart(records: list[Record]) -> None:
    for record in records:
        again = Record(**json.loads(json.dumps(asdict(record))))
        assert again == record
        assert str(again.setting) == str(record.setting)
    assert len({(cell.variant, str(setting(cell, NETWORK, HOW))) for cell in CELLS}) == len(CELLS)
    assert records[0].setting == {
        "length": 8, "batch": 4, "rank": None, "hidden": D, "heads": 2, "feed_forward": F, "layers": LAYERS,
        "device": "cpu",
    }  # fmt: skip
    other = setting(CELLS[0], replace(NETWORK, causal=True, slots={"residual": "pre"}), How(tokens=1, compiled=True))
    assert other == records[0].setting | {
        "batch": 1, "causal": True, "slots": {"residual": "pre"}, "compiled": True
    }  # fmt: skip


def test_what_is_known_is_not_measured_again(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [Record(**json.loads(json.dumps(asdict(record)))) for record in records]

    def refuse(*_: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(module, "_group", refuse)
    assert measured(records=stored) == []
    # Another machine, size or number of tokens is another grid.
    with pytest.raises(AssertionError, match="measured"):
        measured(how=replace(HOW, tokens=64), records=stored)


def test_only_what_is_missing_is_measured(records: list[Record]) -> None:
    lost = of(Cell("lrt", RANK, 16), records)
    missing = [lost[metric] for metric in ("train_step", "peak_memory_training", "flops_training")]
    again = measured(records=[record for record in records if record not in missing])
    assert keys(again) == keys(missing)
    # The dense network ran beside it: the ratio is within that run.
    assert all(record.to == BASELINE and record.ratio for record in again)


def test_what_an_earlier_run_did_not_ask_for_is_measured(records: list[Record]) -> None:
    again = measured(CELLS[:3], how=replace(HOW, memory=2.0**17, modes=("inference",)), records=records)
    assert {record.metric for record in again} == {"largest_batch_inference"}


def test_another_limit_is_another_batch_and_another_country_other_co2(monkeypatch: pytest.MonkeyPatch) -> None:
    how = replace(HOW, memory=2.0**17, modes=("inference",))
    first = measured(CELLS[:3], how=how)
    assert not measured(CELLS[:3], how=how, records=first)
    more = measured(CELLS[:3], how=replace(how, memory=2.0**20), records=first)
    assert {record.metric for record in more} == {"largest_batch_inference"}

    def energy_of(calls, _, country, **__):
        return dict.fromkeys(calls, Spent(2.0, {"USA": 3.0, "FRA": 1.0}[country], "estimated", "guess"))

    monkeypatch.setattr(module, "energy_of", energy_of)
    american = measured(CELLS[:1], how=replace(HOW, country="USA", modes=("inference",)))
    how = replace(HOW, country="FRA", modes=("inference",))
    assert [(r.metric, r.value) for r in measured(CELLS[:1], how=how, records=american)] == [("co2_inference", 1.0)]


def test_a_country_is_known_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="3-letter ISO code"):
        How(country="DE")


def test_each_length_is_compiled_for_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    symbolic: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> Callable[..., object]:
        symbolic.append(any(isinstance(x, torch.SymInt) for x in inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for length in (8, 16):
        stack = Stack(NETWORK, Cell(BASELINE, None, length)).eval()
        call(stack, torch.randn(32 // length, length, D), "inference", compiled=True)()
    assert symbolic
    assert not any(symbolic)


def test_what_compiling_takes_is_no_part_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    class First(torch.nn.Module):
        """It takes 64 MiB more in its first call, as one does that is compiled in it."""

        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__()
            self.network, self.fresh = network, True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fresh:
                self.fresh = False
                torch.zeros(64 * MIB, dtype=torch.uint8)
            out: torch.Tensor = self.network(x)
            return out

    monkeypatch.setattr(module, "Compiled", First)
    records = measured(CELLS[:1], how=replace(HOW, modes=("inference",), compiled=True, memory=4.0 * MIB))
    assert of(CELLS[0], records)["peak_memory_inference"].value < 1
    assert of(CELLS[0], records)["largest_batch_inference"].value > 1


def test_one_mode_alone_and_progress_to_the_end() -> None:
    seen: list[float] = []
    records = measured(CELLS[:3], how=replace(HOW, modes=("training",)), progress=lambda _, share: seen.append(share))
    assert {record.metric for record in records} == {name for name in NAMES["training"] if "energy" not in name}
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == 1


def test_energy_where_a_country_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def energy_of(calls, milliseconds, country, *, training, **_):
        assert country == "ISL"
        assert all(milliseconds[name] > 0 for name in calls)
        return dict.fromkeys(calls, Spent(2.0 + training, 20.0 + training, "estimated", "guess"))

    monkeypatch.setattr(module, "energy_of", energy_of)
    records = measured(CELLS[:2], how=replace(HOW, country="ISL"))
    spent = {record.metric: record for record in of(CELLS[1], records).values() if record.by is not None}
    assert {metric: record.value for metric, record in spent.items()} == {
        "energy_inference": 2, "energy_training": 3, "co2_inference": 20, "co2_training": 21,
    }  # fmt: skip
    assert {(record.source, record.by) for record in spent.values()} == {("estimated", "guess")}


def test_co2_is_that_of_the_energy() -> None:
    (spent,) = energy_of(
        {"call": lambda: torch.ones(100) @ torch.ones(100)}, {"call": 1.0}, "FRA", turns=1, seconds=0.05
    ).values()
    assert spent.co2_mg == pytest.approx(spent.mwh * grid_intensity("FRA") / 1000)


def refused(monkeypatch: pytest.MonkeyPatch, which: Callable[[int], bool]) -> None:
    """Of the attempts, those that have no room."""
    attempts = iter(range(1000))

    def attempt(run: Callable[[], object], device: torch.device) -> object:
        if which(next(attempts)):
            raise OutOfMemory(3 * MIB)
        return limit.attempt(run, device)

    monkeypatch.setattr(module, "attempt", attempt)


@pytest.mark.parametrize("at", [0, 2])
def test_a_cell_without_room_is_a_record_and_the_others_go_on(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, lambda number: number == at)
    chosen = CELLS[:3]
    records = measured(chosen)
    first = of(chosen[at], records)
    assert set(first) == {"out_of_memory_inference", "train_step", "peak_memory_training", "flops_training"}
    assert first["out_of_memory_inference"].value == 3
    assert first["out_of_memory_inference"].ratio is None
    for cell in chosen:
        assert "train_step" in of(cell, records)
        assert cell == chosen[at] or "latency" in of(cell, records)
    # Without the dense network there is nothing to compare with.
    assert (of(chosen[at - 1], records)["latency"].ratio is None) == (at == 0)
    assert measured(chosen, records=records) == []


def test_no_cell_may_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, lambda _: True)
    records = measured(CELLS[:3], how=replace(HOW, country="ISL"))
    assert {record.metric for record in records} == {"out_of_memory_inference", "out_of_memory_training"}
    assert len(records) == 6


def test_attention_that_really_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "free", lambda _: 64.0 * MIB)
    chosen = cells([], [4096], [], NETWORK)
    records = measured(chosen, Network(D, 2, F, 1), How(("inference",), 4096, repeats=1))
    assert of(chosen[1], records)["out_of_memory_inference"].value == 64
    assert of(chosen[0], records)["latency"].value > 0


def test_a_lower_precision_is_another_setting_and_takes_less_memory() -> None:
    # So large that what kernels need for themselves, on processors with AMX as much again, is little of it.
    network, how = Network(256, 4, 1024, 1), replace(HOW, tokens=512)
    (dense, *_) = cells([], [64], [], network)
    single, lower = (measured([dense], network, replace(how, precision=name)) for name in ("fp32", "bf16"))
    assert {record.setting["precision"] for record in lower} == {"bf16"}
    for metric in ("peak_memory_inference", "peak_memory_training"):
        assert of(dense, lower)[metric].value < 0.75 * of(dense, single)[metric].value


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cell", CELLS[2:4], ids=lambda cell: cell.name)
def test_the_largest_batch_is_that_of_a_plain_search(cell: Cell, mode: str) -> None:
    network = replace(NETWORK, layers=1)
    stack = Stack(network, cell).train(mode == "training")
    weights = sum(p.numel() * 4 for p in stack.parameters())

    def needed(batch: int) -> int:
        x = torch.randn(batch, cell.length, D)
        return weights + x.numel() * 4 + peak_memory(call(stack, x, mode))

    plain, memory = 0, 36_000 if mode == "training" else 24_000
    while needed(plain + 1) <= memory:
        plain += 1
    assert 1 < plain < 50
    assert largest_batch(stack, cell.length, network, replace(HOW, memory=memory), mode) == plain
    assert largest_batch(stack, cell.length, network, replace(HOW, memory=1000), mode) == 0


TIMED = cells(["lrt"], [64], [RANK], NETWORK)[::2]
# Short calls: a scheduler shares out the core by milliseconds, so most are undisturbed.
LONG = How(("inference",), tokens=64, repeats=101)


@pytest.mark.slow
def test_two_runs_agree_within_their_spreads() -> None:
    for _ in range(3):  # the machine is shared
        runs = [measured(TIMED, how=LONG) for _ in range(2)]
        pairs = [[of(cell, run)["latency"] for run in runs] for cell in TIMED]
        if all(abs(a.value - b.value) < 1.5 * (a.spread + b.spread) for a, b in pairs):
            return
    pytest.fail(f"the runs differ: {[(a.value, b.value, a.spread, b.spread) for a, b in pairs]}")


@pytest.mark.slow
def test_a_ratio_stands_other_load() -> None:
    for _ in range(3):
        quiet = of(TIMED[1], measured(TIMED, how=LONG))["latency"].ratio
        load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            loaded = of(TIMED[1], measured(TIMED, how=LONG))["latency"].ratio
        finally:
            load.kill()
            load.wait()
        if quiet / 1.5 < loaded < 1.5 * quiet:
            return
    pytest.fail(f"the ratio was {quiet} and is {loaded}")
