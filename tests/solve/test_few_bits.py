"""Grids of few bits, their storage, and rounding of second order, beside loops written from the formulas."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from greenformers.solve.bit_packing import pack, packed_width, unpack
from greenformers.solve.gptq import gptq
from greenformers.solve.grid import BITS, Form, Grid


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("n", [1, 7, 8, 13, 64])
def test_packed_numbers_come_back_to_the_bit(bits: float, n: int) -> None:
    q = torch.randint(
        0, 3 if bits == 1.58 else 2 ** int(bits), (5, n), dtype=torch.uint8, generator=torch.Generator().manual_seed(n)
    )
    packed = pack(q, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (5, packed_width(n, bits))
    assert unpack(packed, bits, n).equal(q)
    if bits == 1.58:
        assert packed_width(n, bits) == -(-n // 5)
        for row, line in zip(q.tolist(), packed.tolist(), strict=True):
            assert line == [sum(3**i * digit for i, digit in enumerate(row[at : at + 5])) for at in range(0, n, 5)]
        return
    bits = int(bits)
    assert packed_width(n, bits) == bits * -(-n // 8)
    single = np.unpackbits(packed.numpy(), axis=1, bitorder="little")
    for row, line in zip(q.tolist(), single.tolist(), strict=True):
        for place, number in enumerate(row):
            assert sum(line[place * bits + b] << b for b in range(bits)) == number
    assert pack(q[:0], bits).shape == (0, packed_width(n, bits))
    assert unpack(pack(q[:0], bits), bits, n).shape == (0, n)


def test_numbers_of_too_many_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="numbers of 3 bits must be below 8, got 9"):
        pack(torch.tensor([[1, 9]], dtype=torch.uint8), 3)


@pytest.mark.parametrize("per", ["group", "row", "tensor"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_grids_are_those_of_the_survey(per: str, symmetric: bool, bits: int) -> None:
    W = normal(3, 10)
    W[1] = W[1].abs() + 5  # all on one side of 0
    W[2] = 0
    form = Form(bits, per, group=4, symmetric=symmetric)
    grid = Grid.of(W, form)
    q, values = grid.round(W), grid.values(grid.round(W))
    parts = {"group": [slice(0, 4), slice(4, 8), slice(8, 10)]}.get(per, [slice(0, 10)])
    for row in range(3):
        for columns in parts:
            part = W if per == "tensor" else W[row, columns]
            low, high = min(part.min().item(), 0), max(part.max().item(), 0)
            if symmetric:
                high = max(-low, high)
                low = -high
            s = exact = (high - low) / (2**bits - 1)  # as stored: in half precision, in units of the largest one
            s = np.float16(s / grid.unit.item()) if high > low else np.float16(1)
            if not symmetric and high > low and s.item() * grid.unit.item() > exact:
                s = np.nextafter(s, np.float16(0))
            s = s.item() * (grid.unit.item() if high > low else 1.0)
            z = 2 ** (bits - 1) if symmetric else round(-low / s)
            for place in range(*columns.indices(10)):
                expected = min(max(round(W[row, place].item() / s) + z, 0), 2**bits - 1)
                assert int(q[row, place]) == expected
                assert values[row, place].item() == pytest.approx(s * (expected - z), abs=1e-6)
    assert (values[2] == 0).all()
    if not symmetric:  # where the range is symmetric its ends may be rounded to less
        scale, _ = grid.columns(0, 10, 10)
        assert ((values - W).abs() <= 0.51 * scale + 1e-3 * W.abs()).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_what_was_rounded_has_the_same_grid(bits: int) -> None:
    W = normal(20_000, 16).float()
    form = Form(bits, "row")
    grid = Grid.of(W, form)
    once = grid.values(grid.round(W))
    again = Grid.of(once, form)
    assert again.values(again.round(once)).equal(once)


@pytest.mark.parametrize("per", ["group", "row", "tensor"])
def test_ternary_and_binary_weights_are_the_nearest_of_their_kind(per: str) -> None:
    W = normal(3, 10)
    W[2] = 0
    for bits in (1, 1.58):
        form = Form(bits, per, group=4, symmetric=True)
        grid = Grid.of(W, form)
        values = grid.values(grid.round(W))
        parts = {"group": [slice(0, 4), slice(4, 8), slice(8, 10)]}.get(per, [slice(0, 10)])
        for rows, columns in [(slice(0, 3), slice(0, 10))] if per == "tensor" else itertools.product(
            [slice(row, row + 1) for row in range(3)], parts
        ):  # fmt: skip
            part, ours = W[rows, columns].flatten(), values[rows, columns].flatten().double()
            if bits == 1:
                a = part.abs().mean()
                expected = torch.where(part >= 0, a, -a)
            else:  # over every number of weights that are not 0
                sizes = part.abs().sort(descending=True).values
                each = [(sizes[:k].mean(), sizes[k - 1]) for k in range(1, len(part) + 1)]
                tries = [torch.where(part.abs() >= least, a * part.sign(), 0.0) for a, least in each]
                expected = min(tries, key=lambda x: (x - part).square().sum().item())
                by_rule = part.abs() > 0.7 * part.abs().mean()  # TWN's own approximation
                a = part.abs()[by_rule].mean() if by_rule.any() else torch.tensor(0.0).double()
                assert (ours - part).norm() <= (a * part.sign() * by_rule - part).norm() + 1e-3
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("form", [Form(2, "row"), Form(3, "group", 4), Form(4, "tensor", symmetric=True)])
def test_narrower_ranges_are_taken_where_they_lose_less(form: Form) -> None:
    W, felt = normal(6, 10) ** 3, torch.linspace(0.1, 3, 10).double()
    plain, grid = Grid.of(W, form), Grid.of(W, form, felt=felt)
    at = [slice(0, 4), slice(4, 8), slice(8, 10)] if form.per == "group" else [slice(0, 10)]

    def lost(tried: Grid, rows: slice, columns: slice) -> float:
        far = (tried.values(tried.round(W)) - W)[rows, columns]
        return (felt[columns] * far.square()).sum().item()

    narrower = 0
    for row in [slice(0, 6)] if form.per == "tensor" else [slice(i, i + 1) for i in range(6)]:
        for group, columns in enumerate(at):
            each = []
            for share in [1 - 0.05 * step for step in range(13)]:
                steps = plain.steps.clone()
                steps[row.start, group] = (steps[row.start, group].float() * share).half()
                each.append(lost(Grid(form, plain.unit, steps, plain.zero), row, columns))
            assert lost(grid, row, columns) == pytest.approx(min(each), rel=1e-4)
            narrower += each.index(min(each)) > 0
    assert narrower > 0


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e9])
def test_steps_of_any_size_are_kept(size: float) -> None:
    W = size * normal(4, 16)
    W[2] /= 1000
    grid = Grid.of(W, Form(8, "row"))
    assert grid.steps.dtype == torch.float16
    scale, _ = grid.columns(0, 16, 16)
    assert ((grid.values(grid.round(W)) - W).abs() <= 0.51 * scale + 1e-3 * W.abs()).all()
    assert scale[2].item() == pytest.approx((W[2].max() - W[2].min()).item() / 255, rel=1e-3)


def by_the_inverse(W: Tensor, C: Tensor, form: Form, order: list[int], static: bool) -> Tensor:
    """Optimal brain surgeon with the inverse of what is left of H, column by column. The rounded weight."""
    m, n = W.shape
    H = C + 0.01 * C.diagonal().mean() * torch.eye(n).double()
    w, left = W.clone(), list(order)
    fixed = Grid.of(W, form)
    scale, zero = (x.double().expand(m, n).clone() for x in fixed.columns(0, n, n))
    g = form.group_of(n)
    while left:
        j = left[0]
        if not static and j % g == 0:
            fresh = Grid.of(w[:, j : j + g], form, fixed.unit)
            scale[:, j : j + g] = fresh.scale.double()
            if fresh.zero is not None:
                zero[:, j : j + g] = fresh.zero.double()
        q = ((w[:, j] / scale[:, j]).round() + zero[:, j]).clamp(0, form.levels)
        inverse = torch.linalg.inv(H[left][:, left])
        error = (w[:, j] - scale[:, j] * (q - zero[:, j])) / inverse[0, 0]
        w[:, left] -= torch.outer(error, inverse[0])
        w[:, j] = scale[:, j] * (q - zero[:, j])
        left = left[1:]
    return w


@pytest.mark.parametrize(
    "form", [Form(3, "row"), Form(4, "group", 48), Form(2, "tensor", symmetric=True), Form(1.58, "group", 48, True)]
)
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_is_the_loop_over_the_inverse_hessian(form: Form, act_order: bool) -> None:
    n = 150  # more than a block, and no multiple of a group
    x = normal(400, n, seed=1) @ normal(n, n, seed=2)
    C, W = x.T @ x, normal(6, n, seed=3)
    q, grid = gptq(W, C, form, act_order=act_order)
    order: Any = C.diagonal().argsort(descending=True) if act_order else torch.arange(n)
    expected = by_the_inverse(W, C, form, order.tolist(), static=act_order or form.per != "group")
    torch.testing.assert_close(grid.values(q).double(), expected, rtol=1e-5, atol=1e-6)

    def lost(Q: Tensor) -> float:
        return (((W - Q) @ C) * (W - Q)).sum().item()

    plain = Grid.of(W, form)
    assert lost(grid.values(q).double()) < 0.8 * lost(plain.values(plain.round(W)).double())


@pytest.mark.parametrize("form", [Form(4, "row"), Form(3, "group", 16), Form(2, "tensor", symmetric=True)])
@pytest.mark.parametrize(("act_order", "clip"), [(True, False), (False, False), (True, True)])
def test_some_rows_at_a_time_gptq_gives_the_same(
    form: Form, act_order: bool, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = normal(200, 48, seed=1)
    C, W = x.T @ x, normal(23, 48, seed=2) * torch.logspace(-2, 1, 23)[:, None]
    q, grid = gptq(W, C, form, act_order=act_order, clip=clip)
    monkeypatch.setattr("greenformers.solve.gptq.AT_ONCE", 5 * 48)
    parts, stacked = gptq(W, C, form, act_order=act_order, clip=clip)
    assert parts.equal(q)
    assert stacked.values(parts).equal(grid.values(q))


def test_silent_inputs_are_rounded_too() -> None:
    x = normal(60, 12)
    x[:, 3] = 0
    W = normal(4, 12, seed=1)
    q, grid = gptq(W, x.T @ x, Form(4, "row"))
    scale, _ = grid.columns(0, 12, 12)
    assert ((grid.values(q) - W)[:, 3].abs() <= 0.51 * scale[:, 0]).all()
    with pytest.raises(ValueError, match="hold values that are not finite"):
        gptq(W / 0, x.T @ x, Form(4, "row"))
