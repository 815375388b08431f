"""`greenformers bench` and `greenformers recommend`, as a user meets them."""

import re
from pathlib import Path

import pytest
from command_line import refused, run

from greenformers.advise import prices as pricing
from greenformers.advise import recommend
from greenformers.advise.prices import KINDS, Prices, Rates
from greenformers.measure import bench as bench_module
from greenformers.measure.grid import BASELINE, variants
from greenformers.measure.record import append, read
from greenformers.report import advice

pytestmark = pytest.mark.usefixtures("drafts", "traced_once")

TINY = ["--hidden", "8", "--heads", "2", "--feed-forward", "16", "--layers", "1"]
GRID = [*TINY, "--lengths", "4,8", "--ranks", "2", "--tokens", "16", "--repeats", "1", "--no-energy"]
BENCH = [*GRID, "--results", "r/bench.jsonl", "--out", "page"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_grid_is_measured_once_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    words = ["bench", "--variants", "lrt, linformer", *BENCH]
    assert run(monkeypatch, *words) == 0
    out = capsys.readouterr().out
    assert "records: r/bench.jsonl" in out
    assert "figures: page/index.html" in out
    records = read("r/bench.jsonl")
    cells = {(r.variant, r.setting["length"], r.setting["rank"]) for r in records}
    assert cells == {
        (variant, length, rank)
        for length in (4, 8)
        for variant, rank in (("transformer", None), ("transformer (eager)", None), ("lrt", 2), ("linformer", 2))
    }
    assert {r.metric for r in records} == {
        "latency", "train_step", "peak_memory_inference", "peak_memory_training", "flops", "flops_training",
        "parameters",
    }  # fmt: skip
    assert len({(r.variant, str(r.setting), r.metric) for r in records}) == len(records) == 8 * 7
    assert all(r.setting["batch"] * r.setting["length"] == 16 and r.to == "transformer" for r in records)
    assert all(r.context["command"].startswith("greenformers bench --variants") for r in records)
    drawn = files(here / "page")
    assert set(drawn) == {
        "index.html", "inference.png", "training.png", "lrt-linformer.png", "parameters.png", "time.png", "saved.png",
    }  # fmt: skip
    # Once more: nothing is measured, and the same is drawn.
    before = Path("r/bench.jsonl").read_bytes()

    def never(*_: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr(bench_module, "_group", never)
        assert run(monkeypatch, *words) == 0
    assert Path("r/bench.jsonl").read_bytes() == before
    assert files(here / "page") == drawn
    # A larger grid: only what is new is measured, and the page is of what was asked for.
    capsys.readouterr()
    (here / "there").mkdir()
    larger = ["--ranks", "2,4", "--modes", "inference", "--published", "there"]
    assert run(monkeypatch, "bench", "--variants", "lrt", *BENCH, *larger) == 0
    assert "there lacks thesis_fig3_4_lrt_inference.csv, " in capsys.readouterr().out
    new = read("r/bench.jsonl")[len(records) :]
    assert {(r.variant, r.setting["rank"]) for r in new} == {("lrt", 4)}
    assert all(r.to == "transformer" and r.ratio for r in new)
    assert "linformer" not in (here / "page/index.html").read_text().split("<h2>How it was measured")[0]


def test_a_control_that_cannot_be_as_small_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--hidden", "64", "--heads", "16", "--feed-forward", "256", "--ranks", "4,128", "--modes", "inference"]
    assert run(monkeypatch, "bench", "--variants", "lrt,narrow", *BENCH, *sizes) == 0
    line = (
        "left out at N 4, 8: narrow 4: no dense network of 16 heads costs as little as that of width 64 with the rank 4"
    )
    out = capsys.readouterr().out
    assert line in out
    assert "left out: rank 128, larger than the width d of 64\n" in out
    assert {r.variant for r in read("r/bench.jsonl")} == {"transformer", "transformer (eager)", "lrt"}


@pytest.mark.slow
def test_other_slots_causal_and_the_largest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--causal", "--slot", "residual=pre", "--memory", "0.000006", "--modes", "inference", "--lengths", "4"]
    assert run(monkeypatch, "bench", "--variants", "lrt", *BENCH, *options) == 0
    records = read("r/bench.jsonl")
    assert all(r.setting["causal"] is True and r.setting["slots"] == {"residual": "pre"} for r in records)
    batches = {r.variant: r.value for r in records if r.metric == "largest_batch_inference"}
    assert batches.keys() == {"transformer", "transformer (eager)", "lrt"}
    assert min(batches.values()) >= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--variants reformed", "variant must be one of .* got 'reformed'"),
        ("--variants linformer --causal", "(?i)linformer"),
        ("--lengths 4,x", "lengths must be whole numbers from 1 on, with commas between; got '4,x'"),
        ("--lengths 0", "lengths must be whole numbers from 1 on"),
        ("--lengths -4", "lengths must be whole numbers from 1 on"),
        ("--lengths ,", "lengths must be at least one whole number, got ','"),
        ("--ranks ,", "ranks must be at least one whole number, got ','"),
        ("--seed -1", r"seed must be in 0\.\.4294967295, got -1"),
        ("--country FRA", "country is of the energy, which is not measured; got FRA"),
        ("--ranks 2.5", "ranks must be whole numbers from 1 on"),
        ("--modes inference,sleep", "mode must be of inference, training; got 'sleep'"),
        ("--tokens 0", "tokens and repeats must be at least 1, got 0 and 1"),
        ("--repeats 0", "tokens and repeats must be at least 1, got 16 and 0"),
        ("--memory 0", "memory must be positive, got 0"),
        ("--heads 3", "3"),
        ("--layers -1", "layers must be at least 1, got -1"),
        ("--ranks 17,400", "ranks must be at most the width d of 8, got 17,400"),
        ("--published nowhere", "published must be a folder that is there, got nowhere"),
        ("--slot residual=sideways", "sideways"),
        ("--slot residul=pre", "slot must be one of residual, .*; got 'residul'"),
        ("--slot hidden_size=32", "slot must be one of residual, .*; got 'hidden_size'"),
        ("--slot qk_norm=maybe", "slot qk_norm must be true or false, got 'maybe'"),
        ("--slot num_key_value_heads=true", "slot num_key_value_heads must be an integer, got True"),
    ],
)
def test_mistakes_of_bench_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    variants = [] if "--variants" in words else ["--variants", "lrt"]
    assert re.search(message, refused(monkeypatch, capsys, "bench", *variants, *BENCH, *words.split()))
    assert not Path("r/bench.jsonl").exists()
    assert not Path("page").exists()


def test_mistyped_options_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command, option, value in (
        ("bench", "--variant", "lrt"),
        ("bench", "--hidden", "wide"),
        ("recommend", "--lengths", "4"),
        ("recommend", "--length", "long"),
    ):
        assert run(monkeypatch, command, option, value) == 2
        assert option in capsys.readouterr().err
    assert run(monkeypatch, "recommend") == 2
    assert "--length" in capsys.readouterr().err
    assert not Path("results").exists()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is advised is chosen from some variants of either kind, not from all."""
    some = ["lrt", "linformer", "lrt+linformer", "nystromformer", "lrt+nystromformer"]
    monkeypatch.setattr(recommend, "variants", lambda: some)


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that cost nothing to measure; and all work is as dear."""
    fake = Prices((1.0,) * len(KINDS), 0.04)
    monkeypatch.setattr(pricing, "rates", lambda *_: Rates(1.0, 1.0, 1.0))
    monkeypatch.setattr(pricing, "prices", lambda _: {"inference": fake, "training": fake})


ADVISE = ["recommend", "--length", "16", *TINY, "--batch", "2", "--ranks", "2,4", "--quick"]


def lines(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, in one line: a table breaks its lines."""
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.usefixtures("prices")
def test_advice_is_chosen_from_all_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, table = [], advice.table
    monkeypatch.setattr(advice, "table", lambda rows, *more: chosen.extend(rows) or table(rows, *more))
    assert run(monkeypatch, *ADVISE, "--ranks", "2") == 0
    assert {row.cell.variant for row in chosen} == {BASELINE, *variants()}


@pytest.mark.usefixtures("prices", "few")
@pytest.mark.parametrize("task", ["inference", pytest.param("training", marks=pytest.mark.slow)])
def test_advice_is_a_table_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    assert run(monkeypatch, *ADVISE, "--task", task) == 0
    out = lines(capsys)
    assert f"{task.capitalize()}: 2 x 16 tokens, d 8, 2 heads, f 16, 1 layers" in out
    assert "three rates of this machine: half of them are off by more than 4 %" in out
    assert re.search(r"At rank 2 and N 128 to 4096, the Low-Rank Transformer is faster than Linformer .* together", out)
    assert "what the others" in out
    assert "measured here" not in out


@pytest.mark.usefixtures("prices", "few")
def test_advice_is_as_long_as_asked_for_and_names_the_dense_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *ADVISE, "--top", "2") == 0
    out = lines(capsys)
    assert 3 <= out.count("estimated") <= 2 * 4  # two of each group at most, and the dense network
    assert "what the others" in out
    assert re.search(r"\d+ slower candidates are left out: --top shows", out)
    assert "top must be at least 1, got 0" in refused(monkeypatch, capsys, *ADVISE, "--top", "0")


@pytest.mark.usefixtures("prices", "few")
def test_advice_for_a_decoder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, *ADVISE, "--causal") == 0
    assert "The choice between the Low-Rank Transformer and Linformer (Cahyawijaya 2021) does not arise:" in lines(
        capsys
    )


@pytest.mark.usefixtures("prices", "few")
def test_advice_from_records_of_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--lengths", "16", "--tokens", "32", "--modes", "inference"]
    assert run(monkeypatch, "bench", "--variants", "lrt", *BENCH, *grid) == 0
    capsys.readouterr()
    assert run(monkeypatch, *ADVISE, "--records", "r/bench.jsonl") == 0
    assert capsys.readouterr().out.count("measured here") == 2  # the dense network, LRT at rank 2


@pytest.mark.usefixtures("prices", "few")
def test_estimates_come_first_and_then_the_promising_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *ADVISE[:-1], "--seconds", "1") == 0
    out = lines(capsys)
    first, second = out.split("Both together are the fastest")
    assert "measured here" not in first
    assert "measured here" in second
    assert "Measured times are those of one layer" in second


@pytest.mark.usefixtures("few")
def test_an_estimate_by_rates_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *ADVISE) == 0
    assert f"off by more than {100 * pricing.ERRORS['inference']:.0f} %" in lines(capsys)


@pytest.mark.usefixtures("prices", "few")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--task sleep", "task must be one of inference, training; got 'sleep'"),
        ("--memory 0", "memory must be positive, got 0"),
        ("--memory -1", "memory must be positive, got -1"),
        ("--memory nan", "memory must be positive, got nan"),
        ("--ranks 2,x", "ranks must be whole numbers from 1 on"),
        ("--ranks ,", "ranks must be at least one number"),
        ("--length 0", "length and batch must be at least 1, got 0 and 2"),
        ("--batch 0", "length and batch must be at least 1, got 16 and 0"),
        ("--heads 3", "3"),
        ("--records none.jsonl", "none.jsonl: No such file or directory"),
        ("--seconds 5", "--seconds is of no use with --quick, which times nothing"),
    ],
)
def test_mistakes_of_recommend_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert re.search(message, refused(monkeypatch, capsys, *ADVISE, *words.split()))


@pytest.mark.usefixtures("prices", "few")
def test_of_ranks_wider_than_the_network_dense_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *ADVISE, "--ranks", "64") == 0
    shown = capsys.readouterr().out
    assert "transformer" in shown
    assert "At rank 8 and N" in shown
    assert "left out: rank 64, larger than the width d of 8" in shown


def test_a_file_of_other_records_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "bench", "--variants", "lrt", *BENCH, "--lengths", "4", "--modes", "inference") == 0
    records = read("r/bench.jsonl")
    append("other.jsonl", records[:1])
    Path("other.jsonl").write_text(Path("other.jsonl").read_text() + "no record\n")
    assert run(monkeypatch, "bench", "--variants", "lrt", *BENCH, "--results", "other.jsonl") == 2
    assert Path("other.jsonl").read_text().endswith("no record\n")
