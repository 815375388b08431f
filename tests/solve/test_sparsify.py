"""Which weights go, and how the others make up for them: beside oracles that follow the papers weight by weight."""

from typing import Any

import pytest
import torch
from torch import Tensor

from greenformers.solve.sparsify import factor, magnitude, magnitude_all, sparsegpt, wanda


def drawn(m: int = 5, n: int = 12, tokens: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A weight, and the products of correlated inputs."""
    draw = torch.Generator().manual_seed(seed)
    W, mix = torch.randn(m, n, generator=draw).double(), torch.randn(n, n, generator=draw).double()
    x = torch.randn(tokens, n, generator=draw).double() @ mix
    return W, x.T @ x


def obs(W: Tensor, C: Tensor, *, keep: float, block: int, two_of_four: bool = False) -> Tensor:
    """SparseGPT by the inverses of the Hessians of the columns that are left: no Cholesky factor, no blocks of updates.

    Frantar & Alistarh 2023, section 3: from left to right, a weight that goes costs w^2 / [H_F^-1]_jj, where F are the
    columns from j on, and the others of F change by -w / [H_F^-1]_jj times row j of H_F^-1.
    """
    m, n = W.shape
    H, Q = C + 0.01 * C.diagonal().mean() * torch.eye(n).double(), W.clone()
    inverses = [torch.linalg.inv(H[j:, j:]) for j in range(n)]
    gone: set[tuple[int, int]] = set()
    for j in range(n):
        if not two_of_four and j % block == 0:
            columns = range(j, min(j + block, n))
            costs = {(i, k): (Q[i, k] ** 2 / inverses[k][0, 0]).item() for i in range(m) for k in columns}
            stay = round(keep * m * (columns[-1] + 1)) - round(keep * m * j)
            gone |= set(sorted(costs, key=lambda at: costs[at])[: len(costs) - stay])
        for i in range(m):
            if two_of_four and j % 4 == 0:
                four = {(i, k): (Q[i, k] ** 2 / inverses[k][0, 0]).item() for k in range(j, j + 4)}
                gone |= set(sorted(four, key=lambda at: four[at])[:2])
            if (i, j) in gone:
                change = Q[i, j] / inverses[j][0, 0] * inverses[j][0]
                for k in range(j, n):
                    Q[i, k] -= change[k - j]
                Q[i, j] = 0
    return Q


@pytest.mark.parametrize("keep", [0.5, 0.3])
@pytest.mark.parametrize("block", [4, 5, 128])
def test_sparsegpt_is_optimal_brain_surgery_column_by_column(keep: float, block: int) -> None:
    W, C = drawn()
    Q = sparsegpt(W, C, keep=keep, block=block)
    torch.testing.assert_close(Q, obs(W, C, keep=keep, block=block), rtol=1e-8, atol=1e-10)
    assert int(Q.count_nonzero()) == round(keep * 60)


@pytest.mark.parametrize("block", [8, 128])
def test_sparsegpt_chooses_two_of_four_as_they_come(block: int) -> None:
    W, C = drawn()
    Q = sparsegpt(W, C, keep=0.5, two_of_four=True, block=block)
    torch.testing.assert_close(Q, obs(W, C, keep=0.5, block=block, two_of_four=True), rtol=1e-8, atol=1e-10)
    assert (Q.unflatten(1, (-1, 4)) != 0).sum(-1).eq(2).all()


def test_sparsegpt_in_float32_and_better_than_no_update() -> None:
    W, C = drawn(24, 64, 300)
    precise, single = sparsegpt(W, C, keep=0.5), sparsegpt(W.float(), C, keep=0.5)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), precise, rtol=1e-4, atol=1e-5)

    def lost(Q: Tensor) -> float:
        return torch.trace((W - Q) @ C @ (W - Q).T).item()

    assert lost(precise) < 0.95 * min(lost(wanda(W, C, keep=0.5)), lost(magnitude(W, keep=0.5)))


def test_wanda_takes_the_least_products_of_each_row() -> None:
    W, C = drawn()
    Q = wanda(W, C, keep=0.4)
    for i in range(5):
        scores = [abs(W[i, j].item()) * C[j, j].item() ** 0.5 for j in range(12)]
        stays = sorted(range(12), key=lambda j: -scores[j])[:5]  # round(0.4 * 12)
        assert Q[i].nonzero().flatten().tolist() == sorted(stays)
        assert all(Q[i, j] == W[i, j] for j in stays)
    four = wanda(W, C, keep=0.5, two_of_four=True)
    for i in range(5):
        for j in range(0, 12, 4):
            scores = [abs(W[i, k].item()) * C[k, k].item() ** 0.5 for k in range(j, j + 4)]
            assert (four[i, j : j + 4] != 0).tolist() == [score in sorted(scores)[2:] for score in scores]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_are_those_of_the_weights_in_half_precision(dtype: torch.dtype) -> None:
    W = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    W[:, 0], W[4:, 1:] = 0, 1
    C = torch.diag(torch.linspace(1, 1.01, 12, dtype=torch.float64))
    C[0, 0] = 1e12  # whose root is infinite in float16
    assert torch.equal(wanda(W, C, keep=0.5), wanda(W.float(), C, keep=0.5).to(dtype))


def test_magnitudes_of_a_matrix_of_rows_and_of_all() -> None:
    W = torch.tensor([[1.0, -9, 8, 7], [2, 3, -4, 0.5]])
    assert magnitude(W, keep=0.5).tolist() == [[0, -9, 8, 7], [0, 0, -4, 0]]
    assert magnitude(W, keep=0.5, rows=True).tolist() == [[0, -9, 8, 0], [0, 3, -4, 0]]
    assert magnitude(W, keep=0.5, two_of_four=True).tolist() == [[0, -9, 8, 0], [0, 3, -4, 0]]
    both = magnitude_all([W, torch.full((1, 4), 5.0)], keep=0.5)
    assert [Q.tolist() for Q in both] == [[[0, -9, 8, 7], [0, 0, 0, 0]], [[5.0, 5, 5, 0]]]


@pytest.mark.parametrize("keep", [0.5, 0.35, 0.9])
def test_counts_are_exact_under_ties(keep: float) -> None:
    """Public code compares with the least that stays, and so drops one too many and all that are equal."""
    W, C = torch.ones(6, 20, dtype=torch.float64), torch.eye(20, dtype=torch.float64)
    for Q in (magnitude(W, keep=keep), sparsegpt(W, C, keep=keep), sparsegpt(W, C, keep=keep, block=7)):
        assert int(Q.count_nonzero()) == round(keep * 120)
    for Q in (magnitude(W, keep=keep, rows=True), wanda(W, C, keep=keep)):
        assert Q.count_nonzero(1).eq(round(keep * 20)).all()
    assert sum(int(Q.count_nonzero()) for Q in magnitude_all([W, W[:, :7]], keep=keep)) == round(keep * 162)


SOLVERS: dict[str, Any] = {"sparsegpt": sparsegpt, "wanda": wanda}


@pytest.mark.parametrize("solver", SOLVERS)
def test_inputs_that_are_silent_in_calibration_keep_their_large_weights(solver: str) -> None:
    """Public code sets all their weights to 0."""
    W, _ = drawn(4, 8)
    silent = [1, 6]
    C = torch.eye(8, dtype=torch.float64)
    C[silent, silent] = 0
    W[:, 1], W[:, 6] = 10 * W[:, 1].sign(), 0.001
    Q = SOLVERS[solver](W, C, keep=0.5)
    assert Q[:, 1].equal(W[:, 1])
    assert not Q[:, 6].any()
    # With nothing but silence the order is that of magnitude.
    nothing = SOLVERS[solver](W, torch.zeros_like(C), keep=0.5)
    assert nothing.equal(magnitude(W, keep=0.5, rows=solver == "wanda"))


def test_where_nothing_goes_nothing_changes() -> None:
    W, C = drawn()
    W = W.float()
    for Q in (sparsegpt(W, C, keep=0.999), wanda(W, C, keep=0.999), magnitude(W, keep=0.999)):
        assert Q.equal(W)


def test_a_covariance_that_rounding_left_without_a_factor_gets_one() -> None:
    """Of inputs that hardly vary: what is left of their products behind those of the mean may be below 0."""
    H = torch.eye(3).double() * 1e-9
    H[0, 1] = H[1, 0] = 3e-9
    L = factor(H)
    torch.testing.assert_close(L @ L.T, H)
    assert 3e-9 < H[0, 0] < 2e-8
    with pytest.raises(ValueError, match="products of the inputs of a layer are not finite"):
        factor(torch.full((2, 2), torch.nan))


def test_numbers_that_are_not_finite_are_refused() -> None:
    W, C = drawn()
    C[3, 3] = torch.inf
    with pytest.raises(ValueError, match="a weight or the inputs of calibration hold values that are not finite"):
        sparsegpt(W, C, keep=0.5)
