"""How long sequences can be within a memory budget: counted bytes against those of real steps."""

import math

import pytest
import torch

from greenformers.genome import longest as module
from greenformers.genome.longest import LongestSequence, Setting, Size, longest, needed, records, study
from greenformers.measure.grid import BASELINE, EAGER, attention_by
from greenformers.measure.memory import peak_memory

TOKENS = 41
MODES = {"inference": ("inference", False), "training": ("training", False), "recomputed": ("training", True)}
RANDOM = torch.get_rng_state().numel()
"""Bytes of the state of random numbers: kept for each layer that is computed again, whatever the sizes."""


def size(layers: int = 1, **given: int) -> Size:
    return Size(**{"hidden": 14, "heads": 2, "feed_forward": 23, "k": 7, "rank": 3, "batch": 3} | given, layers=layers)


def of(variant: str, mode: str) -> Setting:
    return Setting(variant, *MODES[mode], vocabulary=61)


def step(setting: Setting, of: Size) -> tuple[int, int]:
    """Bytes that are held before a real step of a real network, and the most that it needs beside them."""
    training = setting.mode == "training"
    model = module._Classifier(setting, of, TOKENS).train(training)
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    x = torch.empty(of.batch, TOKENS)

    def call() -> None:
        with attention_by(setting.variant == EAGER), torch.set_grad_enabled(training):
            out = model(x).sum()
            if training:
                out.backward()
                del out
                model.zero_grad()

    call()
    peak = peak_memory(call)
    if training:
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        held += sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    return held, peak


@pytest.mark.parametrize(
    ("variant", "mode", "layers"),
    [
        (variant, mode, layers)
        for variant in (EAGER, BASELINE, "linformer") for mode in MODES
        for layers in ((1, 2, 5) if variant == EAGER else (5,))
    ],
)  # fmt: skip
def test_needed_is_what_a_real_step_needs(variant: str, mode: str, layers: int) -> None:
    # Of many at once, what does not grow with the sizes is little.
    where = size(layers, batch=31)
    held, peak = step(of(variant, mode), where)
    estimate = needed(of(variant, mode), where, TOKENS) - held
    # Kernels have a little of their own; a tensor of activations would be more than a percent.
    random = RANDOM * (layers + 1) if mode == "recomputed" else 0
    assert 0 <= peak - estimate <= 0.005 * peak + random


@pytest.mark.parametrize("mode", MODES)
def test_a_larger_vocabulary_and_more_at_once_need_more(mode: str) -> None:
    setting = of("linformer", mode)
    first = needed(setting, size(), TOKENS)
    many = needed(Setting("linformer", *MODES[mode], vocabulary=97), size(), TOKENS)
    # Weights; in training gradients and both moments too.
    assert many - first >= 4 * 14 * 36 * (1 if mode == "inference" else 3)
    assert needed(setting, size(batch=5), TOKENS) > first


@pytest.mark.slow
@pytest.mark.parametrize("variant", [EAGER, "linformer", "lrt"])
def test_longer_sequences_need_more(variant: str) -> None:
    # Around the length to which linformer projects, and far from it.
    lengths = (3, 6, 7, 8, 40, 97) if variant == "linformer" else (3, 40, 41)
    sizes = [needed(of(variant, "training"), size(), tokens) for tokens in lengths]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.slow
def test_computed_again_it_needs_less_where_there_are_layers() -> None:
    plain, again = (needed(of(EAGER, mode), size(5), TOKENS) for mode in ("training", "recomputed"))
    assert again < 0.6 * plain
    assert needed(of(EAGER, "inference"), size(5), TOKENS) < again


@pytest.mark.parametrize(("variant", "mode"), [(EAGER, "training"), (EAGER, "inference"), ("linformer", "recomputed")])
def test_longest_fits_and_two_more_do_not(variant: str, mode: str) -> None:
    setting = of(variant, mode)
    budget = needed(setting, size(), 97)
    length = longest(setting, size(), budget)
    assert length in (96, 97)
    assert needed(setting, size(), length) <= budget < needed(setting, size(), length + 2)


def test_a_variant_that_cannot_be_is_refused() -> None:
    for setting, of_size, message in (
        (of("foo", "training"), size(), "variant must be one of .*; got 'foo'"),
        (of(BASELINE, "training"), size(hidden=15), ".*15.*"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            longest(setting, of_size, 1e9)


# The search and the table, with a network of which it is known what it needs.

SHAPES = {
    "quadratic": lambda tokens: 5.0 * tokens**2 + 3 * tokens + 1000,
    "linear": lambda tokens: 7.0 * tokens + 3,
    "stairs": lambda tokens: 1000.0 * (tokens // 2) + 5,
    "bent": lambda tokens: 50.0 * min(tokens, 300) ** 2 + 9 * tokens,
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "needed", lambda *given: SHAPES[request.param](given[2]))
    return SHAPES[request.param]


def test_the_search_finds_the_most(shape) -> None:
    before = 0
    for budget in sorted(10**power * (1 + digit / 7) for power in range(1, 9) for digit in range(60)):
        length = longest(of(EAGER, "training"), size(), budget)
        if length == 0:
            assert shape(3) > budget
        else:
            assert shape(length) <= budget < shape(length + 2)
        assert length >= before - 1
        before = length


@pytest.mark.parametrize("kind", ["quadratic", "linear"])
@pytest.mark.parametrize("near", [3, 1024, 10**6])
def test_few_lengths_are_traced(monkeypatch: pytest.MonkeyPatch, kind: str, near: int) -> None:
    asked: list[int] = []

    def counted(*given) -> float:
        asked.append(given[2])
        return SHAPES[kind](given[2])

    monkeypatch.setattr(module, "needed", counted)
    for most in (5, 97, 1026, 12_527, 400_001):
        asked.clear()
        assert longest(of(EAGER, "training"), size(), SHAPES[kind](most), near=near) in (most - 1, most)
        assert len(asked) <= (6 if near == 1024 else 12)
    # Where the answer is known already, only what is beyond it is tried.
    asked.clear()
    assert longest(of(EAGER, "training"), size(), SHAPES[kind](777), near=777) == 777
    assert len(asked) <= 3


@pytest.fixture
def quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention needs n^2, half of it in inference; others 100 n, half of it where layers are computed again."""

    def bytes_of(setting: Setting, _: Size, tokens: int, *__: str) -> float:
        dense = setting.variant == EAGER
        return (tokens**2 if dense else 100.0 * tokens) / (1 + (setting.recompute or setting.mode == "inference"))

    monkeypatch.setattr(module, "needed", bytes_of)


def answered(variants, modes, vocabularies, *, budget=None, **options) -> list[LongestSequence]:
    settings = module.rows(variants, modes, size(), vocabularies, budget)
    return list(study(settings, size(), vocabularies, budget=budget, **options))


@pytest.mark.usefixtures("quadratic")
def test_the_table_has_all_rows_and_the_budget_of_each_mode() -> None:
    told: list[float] = []
    results = answered([EAGER, "linformer"], ["training", "inference"], {61: 1.0, 500: 4.0}, progress=told.append)
    modes = [("training", False), ("training", True), ("inference", False)]
    rows = [
        Setting(variant, *mode, vocabulary)
        for mode in modes for variant in (EAGER, "linformer") for vocabulary in (61, 500)
    ]  # fmt: skip
    assert [result.setting for result in results] == rows
    assert [result.budget for result in results] == [1026**2] * 8 + [1026**2 / 2] * 4
    assert [result.tokens for result in results if result.setting.variant == EAGER] == pytest.approx(
        [1026, 1026, 1026 * 2**0.5, 1026 * 2**0.5, 1026, 1026], abs=1
    )
    assert [result.nucleotides for result in results] == [
        (result.tokens - 2) * (4 if result.setting.vocabulary == 500 else 1) for result in results
    ]
    assert told == [number / 12 for number in range(12)] + [1.0]


@pytest.mark.usefixtures("quadratic")
def test_a_budget_of_ones_own_and_another_reference() -> None:
    (own,) = answered([EAGER], ["inference"], {61: 1.0}, budget=5000.0)
    assert (own.budget, own.tokens) == (5000, 100)
    # So many nucleotides as subwords of 4.
    (other,) = answered([EAGER], ["inference"], {61: 4.0}, reference=392)
    assert (other.budget, other.tokens, other.nucleotides) == (5000, 100, 392)
    (nothing,) = answered([EAGER], ["inference"], {61: 4.0}, budget=4.0)
    assert (nothing.tokens, nothing.nucleotides) == (0, 0)


def test_records_compare_with_eager_attention_of_the_same_mode() -> None:
    names, about = {61: "one a nucleotide", 500: "subwords"}, {"command": "this"}
    rows = {
        Setting(EAGER, "training", False, 61): 100.0,
        Setting(EAGER, "training", False, 500): 220.0,
        Setting("linformer", "training", True, 61): 700.0,
        Setting("linformer", "inference", False, 61): 900.0,
    }
    results = [LongestSequence(setting, 3 * 2**30, round(value) + 2, value) for setting, value in rows.items()]
    entries = records(results, size(), names, about)
    assert [(entry.value, entry.ratio, entry.to) for entry in entries] == [
        (100, 1, EAGER), (220, 2.2, EAGER), (700, 7, EAGER), (900, None, None),
    ]  # fmt: skip
    assert [entry.variant for entry in entries] == [EAGER, EAGER, "linformer", "linformer"]
    assert [entry.setting["tokens"] for entry in entries] == ["one a nucleotide", "subwords", *["one a nucleotide"] * 2]
    assert entries[2].setting | {"mode": "training", "recompute": True, "token_count": 702, "memory_gib": 3.0} == (
        entries[2].setting
    )
    assert entries[2].setting["feed_forward"] == 23
    assert {(entry.benchmark, entry.metric, entry.unit, entry.source) for entry in entries} == {
        ("genome_length", "longest_sequence", "nucleotides", "counted")
    }
    assert all(entry.context == about for entry in entries)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": size(batch=0)}, "batch must be at least 1, got 0"),
        ({"size": size(k=0)}, "k must be at least 1, got 0"),
        ({"size": size(rank=-1)}, "rank must be at least 1, got -1"),
        ({"budget": 0.0}, "memory must be above 0 GiB, and finite; got 0"),
        ({"budget": -(2.0**30)}, "memory must be above 0 GiB, and finite; got -1"),
        ({"budget": math.nan}, "memory must be above 0 GiB, and finite; got nan"),
        ({"modes": ["training", "sleep"]}, "mode must be of inference, training; got 'sleep'"),
    ],
)
def test_what_is_out_of_range_is_refused(given, message: str) -> None:
    options = {"variants": [EAGER], "modes": ["training"], "size": size(), "vocabularies": {61: 1.0}, "budget": None}
    with pytest.raises(ValueError, match=f"^{message}$"):
        module.rows(**options | given)
