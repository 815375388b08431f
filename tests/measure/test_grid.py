"""The grid of the efficiency study: which cells there are, and what a cell is."""

import sys
from itertools import product
from pathlib import Path

import pytest
import torch

import greenformers.attention
from greenformers.measure.bench import How, call
from greenformers.measure.grid import (
    BASELINE,
    EAGER,
    Cell,
    Network,
    Stack,
    cells,
    possible,
    ranked,
    refusal,
    variants,
)
from greenformers.measure.memory import peak_memory
from greenformers.model.variant import NARROW

NETWORK = Network(hidden=16, heads=2, feed_forward=32, layers=2)
USUAL = ["lrt", "linformer", "lrt+linformer"]


@pytest.fixture
def windowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A mechanism of the user's own, in a file of the folder."""
    (tmp_path / "windowed.py").write_text(
        "from greenformers.attention.full import Full\n\n\n"
        "class Windowed(Full):\n"
        "    rank_option = 'w'\n\n"
        "    def __init__(self, shape, *, w=1):\n"
        "        super().__init__(shape)\n"
        "        self.w = w\n"
    )
    monkeypatch.setattr(greenformers.attention, "__path__", [*greenformers.attention.__path__, str(tmp_path)])
    # Forgotten afterwards: an import adds to both.
    monkeypatch.setitem(sys.modules, "greenformers.attention.windowed", None)
    monkeypatch.delitem(sys.modules, "greenformers.attention.windowed")
    monkeypatch.setattr(greenformers.attention, "windowed", None, raising=False)
    return "windowed"


def test_every_length_begins_with_both_dense_networks() -> None:
    grid = cells(USUAL, [8, 64], [4, 8], NETWORK)
    assert [cell.length for cell in grid] == [8] * 8 + [64] * 8
    for start in (0, 8):
        assert [cell.name for cell in grid[start : start + 8]] == [
            BASELINE, EAGER, "lrt 4", "lrt 8", "linformer 4", "linformer 8", "lrt+linformer 4", "lrt+linformer 8",
        ]  # fmt: skip


def test_ranks_that_cannot_be_are_left_out() -> None:
    grid = cells(USUAL, [8, 64], [8, 16, 32], NETWORK)
    ranks = {(cell.variant, cell.length): [] for cell in grid}
    for cell in grid:
        ranks[cell.variant, cell.length].append(cell.rank)
    # A rank is at most d = 16; a projected length is at most N too.
    assert ranks["lrt", 8] == ranks["lrt", 64] == [8, 16]
    assert ranks["linformer", 8] == ranks["lrt+linformer", 8] == [8]
    assert ranks["linformer", 64] == ranks["lrt+linformer", 64] == [8, 16]
    for cell in grid:
        Stack(NETWORK, cell)


def test_the_dense_networks_are_there_once_though_they_are_asked_for() -> None:
    assert cells([BASELINE, EAGER, "lrt"], [8], [4], NETWORK) == cells(["lrt"], [8], [4], NETWORK)
    assert [cell.name for cell in cells([], [8], [4], NETWORK)] == [BASELINE, EAGER]
    assert cells(["lrt", "lrt"], [8, 16, 8], [4, 4], NETWORK) == cells(["lrt"], [8, 16], [4], NETWORK)


def test_dense_attention_by_its_own_name_has_no_rank() -> None:
    assert [cell.name for cell in cells(["full"], [8], [4, 8], NETWORK)] == [BASELINE, EAGER, "full"]
    assert [name for name in [BASELINE, EAGER, "full", *USUAL] if ranked(name)] == USUAL


@pytest.mark.parametrize("variant", ["linformer", "lrt+linformer"])
def test_causal_linformer_is_refused_with_its_reason(variant: str) -> None:
    causal = Network(hidden=16, heads=2, feed_forward=32, layers=1, causal=True)
    with pytest.raises(ValueError, match="linformer has no causal form: E and F mix all positions"):
        cells([variant], [8], [4], causal)
    assert possible(variant, causal=False) is None
    assert set(USUAL) <= set(variants())
    assert not {"linformer", "lrt+linformer"} & set(variants(causal=True))
    assert [cell.name for cell in cells(["lrt"], [8], [4], causal)] == [BASELINE, EAGER, "lrt 4"]


def test_a_control_that_cannot_be_as_small_is_refused_at_these_sizes_alone() -> None:
    network = Network(hidden=64, heads=16, feed_forward=256, layers=1)
    assert set(NARROW) <= set(variants())
    reasons = {cell.name: refusal(cell, network) for cell in cells(["lrt", *NARROW], [8], [4, 48], network)}
    few = {name: reason for name, reason in reasons.items() if reason is not None}
    assert set(few) == {"narrow 4", "narrow_flops 4"}
    for reason in few.values():
        assert reason.startswith("no dense network of 16 heads costs as little as that of width 64 with the rank 4: ")


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError, match=r"variant must be one of transformer, lrt, .*; got 'performance'"):
        cells(["lrt", "performance"], [8], [4], NETWORK)


def test_a_new_mechanism_appears_by_itself(windowed: str) -> None:
    assert variants()[-2:] == [windowed, f"lrt+{windowed}"]
    assert variants(causal=True)[-2:] == [windowed, f"lrt+{windowed}"]
    grid = cells([windowed, f"lrt+{windowed}"], [8], [4, 16], NETWORK)
    assert [cell.name for cell in grid] == [BASELINE, EAGER, "windowed 4", "lrt+windowed 4"]
    stack = Stack(NETWORK, grid[2])
    assert [layer.attention.mechanism.w for layer in stack.layers] == [4, 4]
    assert stack(torch.randn(1, 8, 16)).shape == (1, 8, 16)


def test_a_rank_goes_to_the_maps_and_to_the_mechanism() -> None:
    for variant in USUAL:
        for layer in Stack(NETWORK, Cell(variant, 4, 8)).layers:
            assert getattr(layer.attention.mechanism, "k", None) == (4 if "linformer" in variant else None)
            assert getattr(layer.feed_forward.up, "rank", None) == (4 if "lrt" in variant else None)


def weighted_alike(length: int, network: Network = NETWORK) -> tuple[Stack, Stack]:
    fused, eager = (Stack(network, Cell(variant, None, length)).eval() for variant in (BASELINE, EAGER))
    eager.load_state_dict(fused.state_dict())
    return fused, eager


@pytest.mark.parametrize(("length", "causal"), [*product((8, 64), (False, True))])
def test_eager_attention_computes_what_fused_attention_does(length: int, causal: bool) -> None:
    torch.manual_seed(0)
    fused, eager = weighted_alike(length, Network(16, 2, 32, 2, causal))
    x = torch.randn(2, length, 16)
    torch.testing.assert_close(eager(x), fused(x), atol=1e-5, rtol=0)
    with torch.inference_mode():
        torch.testing.assert_close(eager(x), fused(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_only_eager_attention_holds_the_square_matrix(mode: str) -> None:
    peaks = {}
    for length in (512, 1024):
        x = torch.randn(1, length, 16)
        for name, stack in zip(("fused", "eager"), weighted_alike(length), strict=True):
            peaks[name, length] = peak_memory(call(stack, x, mode))
    matrix = 2 * 512**2 * 4  # H N^2 floats
    assert peaks["eager", 512] > matrix > peaks["fused", 512]
    assert peaks["eager", 1024] / peaks["eager", 512] > 3.5
    assert peaks["fused", 1024] / peaks["fused", 512] < 3


def test_eager_attention_ends_with_the_stack() -> None:
    before = torch.backends.cuda.flash_sdp_enabled()
    weighted_alike(8)[1](torch.randn(1, 8, 16))
    assert torch.backends.cuda.flash_sdp_enabled() == before


def test_a_stack_is_causal_where_the_network_is() -> None:
    x = torch.randn(1, 8, 16)
    later = x.clone()
    later[:, 4:] += 1
    for variant in (BASELINE, EAGER, "lrt"):
        stack = Stack(Network(16, 2, 32, 2, causal=True), Cell(variant, 4 if variant == "lrt" else None, 8)).eval()
        torch.testing.assert_close(stack(x)[:, :4], stack(later)[:, :4])


def test_a_network_has_further_slots() -> None:
    stack = Stack(Network(16, 2, 32, 1, slots={"residual": "pre"}), Cell(BASELINE, None, 8))
    assert stack.layers[0].pre_norm
    assert not Stack(NETWORK, Cell(BASELINE, None, 8)).layers[0].pre_norm


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Network(hidden=16, heads=3, feed_forward=32), "16.*3|3.*16"),
        (Network(hidden=16, heads=2, feed_forward=32, slots={"residual": "none"}), "residual"),
    ],
)
def test_a_network_that_cannot_be_is_refused(network: Network, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stack(network, Cell(BASELINE, None, 8))


def test_a_rank_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k must be in 1\.\.8"):
        Stack(NETWORK, Cell("linformer", 16, 8))
    with pytest.raises(ValueError, match="rank"):
        Stack(NETWORK, Cell("lrt", 17, 8))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"modes": ("inference", "test")}, "mode must be of inference, training; got 'test'"),
        ({"tokens": 0}, "tokens and repeats must be at least 1, got 0 and 7"),
        ({"repeats": 0}, "tokens and repeats must be at least 1, got 4096 and 0"),
        ({"precision": "half"}, "precision must be one of fp32, bf16, fp16; got 'half'"),
        ({"memory": 0.0}, "memory must be positive, got 0"),
        ({"memory": float("nan")}, "memory must be positive, got nan"),
    ],
)
def test_how_refuses_what_is_out_of_range(field: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        How(**field)
