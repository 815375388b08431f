"""Codebooks of weights, beside loops written from the formulas."""

import pytest
import torch
from torch import Tensor

from greenformers.solve.codebook import blocks, joined, kmeans, moved, nearest
from greenformers.solve.product_quantization import fitted, second_order, weighted
from greenformers.solve.sparsify import damped


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).double()


def metrics(B: int, d: int) -> Tensor:
    x = normal(B, 2 * d, d, seed=3)
    return x.mT @ x


def test_vectors_come_back() -> None:
    W = normal(3, 10)
    w = blocks(W, 4)
    assert w.shape == (3, 3, 4)
    assert w[1, 2].tolist() == [*W[1, 8:].tolist(), 0, 0]
    codes = torch.arange(9, dtype=torch.uint8).view(3, 3)
    assert joined(codes, w.flatten(0, 1), 10).equal(W)


@pytest.mark.parametrize("weighed", [False, True])
def test_a_step_of_kmeans_is_that_of_the_formulas(weighed: bool) -> None:
    w, centroids = normal(30, 2, 3), normal(7, 3, seed=1)
    metric = metrics(2, 3) if weighed else None
    M = [torch.eye(3).double()] * 2 if metric is None else list(metric)
    codes = nearest(w, centroids, metric)
    assert codes.dtype == torch.uint8
    for i in range(30):
        for b in range(2):
            far = [((w[i, b] - c) @ M[b] @ (w[i, b] - c)).item() for c in centroids]
            assert int(codes[i, b]) == min(range(7), key=far.__getitem__)
    new = moved(w, codes, centroids, metric)
    for k in range(7):
        members = [(i, b) for i in range(30) for b in range(2) if codes[i, b] == k]
        assert len(members) > 1
        A = sum((M[b] for _, b in members), torch.zeros(3, 3).double())
        total = sum((M[b] @ w[i, b] for i, b in members), torch.zeros(3).double())
        torch.testing.assert_close(new[k], torch.linalg.solve(A, total))


def test_a_centroid_without_vectors_joins_the_fullest() -> None:
    w = torch.tensor([0.0, 1.0, 2.0, 10.0]).double().view(4, 1, 1)
    centroids = torch.tensor([[1.0], [10.0], [-50.0]]).double()
    new = moved(w, nearest(w, centroids), centroids)
    assert new[:, 0].tolist() == pytest.approx([1, 10, 1.001])
    codes = nearest(w, kmeans(w, 3))
    assert len(set(codes.flatten().tolist())) == 3
    result = moved(w[:1], nearest(w[:1], centroids), centroids)  # no other has a vector to share
    assert result[1:].equal(centroids[1:])


def test_more_centroids_than_vectors_are_no_error() -> None:
    w = normal(2, 2, 3)
    centroids = kmeans(w, 9)
    assert centroids.shape == (9, 3)
    torch.testing.assert_close(centroids[nearest(w, centroids).long()], w)


def test_kmeans_lowers_the_distance_at_every_step() -> None:
    w, metric = normal(200, 3, 4), metrics(3, 4)

    def lost(centroids: Tensor) -> float:
        far = w - centroids[nearest(w, centroids, metric).long()]
        return torch.einsum("mbd,bde,mbe->", far, metric, far).item()

    each = [lost(kmeans(w, 16, metric=metric, steps=steps)) for steps in range(12)]
    assert each == sorted(each, reverse=True)
    assert each[-1] < 0.8 * each[0]


def by_the_inverse(W: Tensor, H: Tensor, d: int, centroids: Tensor) -> Tensor:
    """Codes, block after block by falling size of inputs, with the inverse of what is left of H."""
    n = W.shape[1]
    parts = [list(range(start, min(start + d, n))) for start in range(0, n, d)]
    order = sorted(range(len(parts)), key=lambda b: -H.diagonal()[parts[b]].sum().item())
    w, codes, left = W.clone(), torch.zeros(len(W), len(parts), dtype=torch.uint8), list(order)
    while left:
        b = left[0]
        columns = [j for block in left for j in parts[block]]
        inverse, own = torch.linalg.inv(H[columns][:, columns]), len(parts[b])
        metric = torch.linalg.inv(inverse[:own, :own])
        for i in range(len(W)):
            far = [((w[i, parts[b]] - c[:own]) @ metric @ (w[i, parts[b]] - c[:own])).item() for c in centroids]
            k = min(range(len(far)), key=far.__getitem__)
            codes[i, b] = k
            gone = w[i, parts[b]] - centroids[k, :own]
            w[i, columns] -= gone @ metric @ inverse[:own]
        left = left[1:]
    return codes


@pytest.mark.parametrize("n", [24, 22])  # a whole number of vectors, and not
def test_second_order_is_the_loop_over_the_inverse_hessian(n: int) -> None:
    x = normal(100, n, seed=1) @ normal(n, n, seed=2)
    C, W = x.T @ x, normal(12, n, seed=3)
    codes, centroids = second_order(W, C, 4, 6)
    H = damped(C)

    def lost(Q: Tensor) -> float:
        return (((W - Q) @ H) * (W - Q)).sum().item()

    # Centroids with these codes: the least squares of all of them at once.
    S = torch.zeros(12 * n, 6 * 4).double()
    for i in range(12):
        for j in range(n):
            S[i * n + j, int(codes[i, j // 4]) * 4 + j % 4] = 1
    L = torch.kron(torch.eye(12).double(), torch.linalg.cholesky(H).T)
    best = torch.linalg.lstsq(L @ S, L @ W.flatten(), driver="gelsd").solution.view(6, 4)
    assert lost(joined(codes, centroids, n)) == pytest.approx(lost(joined(codes, best, n)), rel=1e-4)
    # And codes: those of the loop for the centroids that they were chosen for.
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(5)).double()
    assert codes_for(W, C, start).equal(by_the_inverse(W, H, 4, start))


def codes_for(W: Tensor, C: Tensor, centroids: Tensor) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("greenformers.solve.product_quantization.kmeans", lambda *_, **__: centroids)
        return second_order(W, C, 4, len(centroids))[0]


def test_each_way_loses_less_than_the_one_before() -> None:
    x = normal(400, 32, seed=1) @ normal(32, 32, seed=2)
    C, W = x.T @ x, normal(64, 32, seed=3)

    def lost(codes: Tensor, centroids: Tensor) -> float:
        D = W - joined(codes, centroids, 32)
        return ((D @ C) * D).sum().item()

    plain = kmeans(blocks(W, 4), 32)
    each = [lost(nearest(blocks(W, 4), plain), plain), lost(*weighted(W, C, 4, 32)), lost(*second_order(W, C, 4, 32))]
    assert each[0] > each[1] > 1.2 * each[2]


def test_a_fit_of_centroids_that_are_best_already_changes_nothing() -> None:
    centroids = normal(5, 4)
    codes = torch.randint(0, 5, (8, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert fitted(joined(codes, centroids, 12), torch.eye(12).double(), codes, centroids).equal(centroids)


def test_values_that_are_not_finite_are_refused() -> None:
    for solve in (weighted, second_order):
        with pytest.raises(ValueError, match="hold values that are not finite"):
            solve(normal(4, 8) / 0, torch.eye(8).double(), 4, 2)
