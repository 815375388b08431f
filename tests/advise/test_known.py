"""What variants are known to lose: the file is what the records say, and parts are added up with care."""

import sys
from pathlib import Path

import pytest

from greenformers.advise import known as module
from greenformers.advise.known import TOLERANCE, Known, known
from greenformers.attention import names

ROOT = Path(__file__).parents[2]


def test_the_file_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import known_losses

    from greenformers.measure.record import read

    of_records = known_losses.losses(read(ROOT / "results/language_models.jsonl"))
    file = module._file()
    for task, rows in of_records.items():
        assert {name: list(row) for name, row in rows.items()} == file[task]
    assert file["blind"] == [name for name in names() if known_losses.is_blind(name)]
    # Those of Tay 2020. A Reformer, whose queries are its keys, compares tokens.
    assert file["blind"] == [name for name in names() if name.startswith("synthesizer")]
    sys.modules.pop("known_losses")


FILE = {
    "causal": {
        "good": [0.0, -0.01, 0.01, 2], "bad": [0.3, 0.2, 0.4, 2], "random": [0.3, 0.2, 0.4, 2],
        "lrt 0.25": [0.05, 0.04, 0.06, 2], "lrt 0.5": [0.01, 0.0, 0.02, 2],
    },
    "masked": {"good": [0.0, -0.01, 0.01, 2], "bad": [0.3, 0.2, 0.4, 2]},
    "blind": ["random"],
}  # fmt: skip


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_file", lambda: FILE)


@pytest.mark.usefixtures("made_up")
def test_a_mechanism_alone() -> None:
    assert known("good", causal=True) == Known(0.0, -0.01, 0.01, 2)
    assert not known("good", causal=True).worse
    assert known("bad", causal=True).worse
    assert known("random", causal=True).blind
    assert known("other", causal=True) is None


@pytest.mark.usefixtures("made_up")
def test_low_rank_by_the_share_that_is_nearest() -> None:
    assert known("lrt", causal=True, share=0.25).difference == 0.05
    assert known("lrt", causal=True, share=0.45).difference == 0.01
    for unknown in (known("lrt", causal=False, share=0.25), known("lrt", causal=True)):
        assert (str(unknown), unknown.worse) == ("rank not studied", False)
    assert str(known("narrow", causal=True, share=0.25)) == "width not studied"


@pytest.mark.usefixtures("made_up")
def test_both_together_are_added_up_and_what_was_not_studied_is_named() -> None:
    both = known("lrt+good", causal=True, share=0.25)
    assert (both.difference, both.low, both.high, both.added) == pytest.approx((0.05, 0.03, 0.07, True))
    assert str(both).endswith("nats, added up")
    assert known("lrt+random", causal=True, share=0.5).blind
    alone = known("lrt+other", causal=True, share=0.25)
    assert alone.worse, "low rank alone loses"
    assert str(alone) == "+0.05 (+0.04 to +0.06) nats, attention not studied"
    bad = known("lrt+bad", causal=False, share=0.5)
    assert bad.worse
    assert str(bad) == "+0.30 (+0.20 to +0.40) nats, rank not studied"
    assert not known("lrt+good", causal=False, share=0.5).worse
    assert str(known("lrt+other", causal=False, share=0.5)) == "rank and attention not studied"


def test_worse_is_what_the_mean_says_and_certain_what_every_seed_does() -> None:
    split = Known(0.3, TOLERANCE / 2, 0.6, 2)
    assert split.worse
    assert str(split) == "+0.30 (+0.01 to +0.60) nats, not certain"
    assert str(Known(-0.05, -0.2, 0.1, 2)).endswith("nats, not certain")
    assert not Known(-0.05, -0.2, 0.1, 2).worse
    assert Known(0.3, 2 * TOLERANCE, 0.6, 2).worse
    assert str(Known(0.305, 0.2, 0.41, 2)) == "+0.30 (+0.20 to +0.41) nats"
