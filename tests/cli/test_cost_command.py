"""`greenformers cost`, as a user meets it: what it prints, what it adds to the records, and how it refuses."""

import re
from pathlib import Path

import pytest
from command_line import refused, run

from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record, append, read


def rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """What the command prints, by the first cell of a line."""
    assert run(monkeypatch, "cost", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {first: rest for first, *rest in cells}


def measured(file: Path) -> str:
    speedups = [(128, 64, 2.59), (512, 64, 1.93), (128, 32, 2.73), (512, 32, 2.0)]
    append(
        file,
        [
            Record("bench", "lrt", {"length": length, "rank": rank}, "train_step", 1.0, "ms", ratio=ratio, to="dense")
            for length, rank, ratio in speedups
        ],
    )
    return str(file)


def test_without_options_the_tables_of_the_thesis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = rows(monkeypatch, capsys)
    assert shown["BERT-base"] == ["2018", "2.24", "–", "2,074-6,912", "2,074-6,912", "652.3", "652.0"]
    assert shown["GPT-3"] == ["2020", "3,640", "3,646", "4,600,000", "–", "552,000", "553,142"]
    assert shown["256"] == [
        "1.48", "1.42", "1.42", "1.52", "1.58", "1,406-4,686", "1,459-4,862", "442.2", "458.9",
    ]  # fmt: skip


def test_a_published_run_and_a_faster_variant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    by_hand = ["--speedup", "128:2.59, 512:1.93", "--shares", "128:0.9,512:0.1", "--variant", "lrt"]
    shown = rows(monkeypatch, capsys, "--base", "bert-base", *by_hand)
    assert shown["BERT-base"] == ["1.00", "–", "2.24", "2,074-6,912", "652.3", "1,507"]
    assert shown["BERT-base, lrt"] == ["2.50", "2.52", "0.894", "828-2,760", "260.5", "602"]
    # The same speed-ups, from records; BERT-base is the base if none is named.
    file = measured(tmp_path / "bench.jsonl")
    options = ["--records", file, "--variant", "lrt", "--rank", "64", "--shares", "128:0.9,512:0.1"]
    assert rows(monkeypatch, capsys, *options) == shown
    options[4:6] = ["--where", "rank=64"]
    assert rows(monkeypatch, capsys, *options) == shown


def test_one_length_needs_no_shares(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for factor in ("2", "512:2"):
        shown = rows(monkeypatch, capsys, "--base", "GPT-2", "--speedup", factor)
        assert shown["GPT-2 1.5B, faster"] == ["2.00", "5-50", "6,451-21,504"]


def test_another_grid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kwh = 652.3 / 0.432727
    shown = rows(monkeypatch, capsys, "--base", "BERT-base", "--country", "HKG")
    assert float(shown["BERT-base"][3].replace(",", "")) == pytest.approx(kwh * grid_intensity("HKG") / 1000, abs=0.06)


def test_a_run_from_physics_leaves_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "new" / "cost.jsonl"
    machine = ["--peak", "100", "--utilisation", "0.5", "--gpus", "4", "--watts", "300", "--price", "1.5,3"]
    options = [*machine, "--pue", "1.2", "--country", "USA", "--speedup", "2", "--results", str(file)]
    shown = rows(monkeypatch, capsys, "--parameters", "1e9", "--tokens", "20e9", *options)
    # 1.2e20 FLOPs at 2e14 a second: 166.7 hours.
    assert shown["estimated run"][1:3] == ["1.39", "1,000-2,000"]
    assert shown["estimated run"][4:] == ["240", "167"]
    records = {(each.variant, each.metric, each.setting.get("bound")): each for each in read(file)}
    fast = records["estimated run, faster", "usd", "high"]
    assert (round(fast.value), fast.unit, fast.ratio, fast.to) == (1000, "USD", 2.0, "estimated run")
    assert fast.context["command"].startswith("greenformers cost --parameters 1e9")
    co2 = records["estimated run", "co2", None]
    assert co2.value == pytest.approx(240 * grid_intensity("USA"))
    # The same from FLOPs; and the report shows what was recorded.
    assert rows(monkeypatch, capsys, "--flops", "1.2e20", *options) == shown
    assert run(monkeypatch, "report", str(file), "--markdown") == 0
    assert "Compute, training (petaflop/s-days)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--base BRET-base", "base must be one of .* got 'BRET-base'; did you mean BERT-base"),
        ("--base BERT-base --flops 1e20", "--base and --flops exclude each other: give one of them"),
        ("--base BERT-base --peak 100", "--peak needs --parameters and --tokens, or --flops"),
        ("--parameters 1e9", "--parameters and --tokens need each other: give both"),
        ("--tokens 1e9 --flops 1e20", "--flops and --tokens exclude each other: give one of them"),
        ("--parameters nan --tokens 1e9", "parameters must be above 0, and finite; got nan"),
        ("--flops 1e20 --utilisation 2", r"utilisation must be in \(0, 1\], got 2.0"),
        ("--flops 1e20 --gpus 0", "devices must be at least 1, got 0"),
        ("--flops 1e20 --price cheap", "price must be a number, got 'cheap'"),
        ("--flops 1e20 --price 3,2", "a range must be 0 <= low <= high, and finite; got 3.0 to 2.0"),
        ("--flops 1e20 --price 1,2,3", "price must be one number or LOW,HIGH; got '1,2,3'"),
        ("--flops 1e20 --country Norway", "got 'Norway'; did you mean NOR"),
        ("--speedup 2 --records a.jsonl", "--speedup and --records exclude each other: give one of them"),
        ("--speedup fast", "speedup must be a number, got 'fast'"),
        ("--speedup -2", "efficiency must be above 0, and finite; got -2.0"),
        ("--speedup 128:2,512", "speedup must be LENGTH:NUMBER, with commas between; got '128:2,512'"),
        ("--speedup 128:2,128:3", "speedup has length 128 twice"),
        ("--speedup 0:2", "speedup must be LENGTH:NUMBER"),
        ("--speedup 128:x", "speedup must be a number, got 'x'"),
        ("--speedup 128:2,512:3", "--shares must say how much of the base's time each length takes: 128, 512"),
        ("--speedup 128:2 --shares 512:1", "speed-ups and shares must be of the same lengths, got 128 and 512"),
        ("--speedup 128:2,512:3 --shares 128:0.9,512:0.2", "shares must sum to 1, got 1.1"),
        ("--speedup 2 --shares 128:1", "--shares needs speed-ups by length"),
        ("--speedup 2 --rank 64", "--rank needs --records"),
        ("--shares 128:1", "--shares needs --speedup or --records"),
        ("--variant lrt", "--variant needs --speedup or --records"),
        ("--records a.jsonl", "--records needs --variant"),
        ("--records none.jsonl --variant lrt", "none.jsonl: No such file or directory"),
        ("--records bench.jsonl --variant lrt --where rank", "where must be name=value, got 'rank'"),
        ("--records bench.jsonl --variant lrt --shares 64:1", "lrt was not measured at length 64, only at 128, 512"),
        ("--records bench.jsonl --variant lrt", "length 128 was measured in several settings, name one: rank 64, 32"),
        ("--records bench.jsonl --variant lrt,star --rank 32", "training speed-ups in the records: lrt; got 'star'"),
        ("--results cost.jsonl", "--results goes with a run: name one with --base"),
    ],
)
def test_mistakes_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    measured(tmp_path / "bench.jsonl")
    assert re.search(message, refused(monkeypatch, capsys, "cost", *words.split()))
    assert not (tmp_path / "cost.jsonl").exists()


def test_a_mistyped_option_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--speedups", "2"], ["--parameters", "many"]):
        assert run(monkeypatch, "cost", *words) == 2
        assert words[0] in capsys.readouterr().err
