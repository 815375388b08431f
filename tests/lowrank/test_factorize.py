from dataclasses import replace

import pytest
import torch

from greenformers.lowrank.factorize import (
    CALIBRATED,
    SOLVERS,
    SPECTRAL,
    Factors,
    Statistics,
    factorize,
    randomized,
    root,
    spectrum,
)

m, n, r, tokens = 23, 37, 5, 101
SHAPES = [(23, 37), (37, 23), (31, 31), (131, 61)]
f64 = torch.float64


def orthonormal(rows, columns):
    return torch.linalg.qr(torch.randn(rows, columns, dtype=f64)).Q


def with_spectrum(spectrum, m=m, n=n):
    """A weight of known singular values, in float64."""
    spectrum = torch.as_tensor(spectrum, dtype=f64)
    return orthonormal(m, len(spectrum)) * spectrum @ orthonormal(n, len(spectrum)).mT


def falling(m=m, n=n):
    return with_spectrum(torch.linspace(2, 0.3, min(m, n)), m, n)


def product(factors):
    return factors.decoder.double() @ factors.encoder.double()


def truncation(W, rank):
    U, z, Vh = torch.linalg.svd(W.double(), full_matrices=False)
    return U[:, :rank] * z[:rank] @ Vh[:rank]


def squared(M):
    return M.double().square().sum().item()


def covariance(*X):
    return X[0] @ X[-1].mT


def statistics(m=m, n=n, W=None):
    """Of a weight, drawn if none is given."""
    W = torch.randn(m, n) if W is None else W
    X, changed, gradients = (torch.randn(size, tokens, dtype=f64) for size in (n, n, m))
    changed = X + 0.3 * changed
    return Statistics(covariance(changed), cross=covariance(W.double() @ X, changed), gradients=covariance(gradients))


def find(W, rank, solver, seed=0):
    return factorize(W, rank, solver, statistics(*W.shape, W) if solver in CALIBRATED else None, seed)


# svd


@pytest.mark.parametrize("shape", [*SHAPES, (1, 1), (1, 7), (7, 1), (2, 3), (3, 5)])
def test_svd_is_the_truncated_svd(shape):
    W = torch.randn(shape, dtype=f64)
    for rank in sorted({1, (min(shape) + 1) // 2, min(shape)}):
        factors = factorize(W, rank)
        assert factors.decoder.shape == (shape[0], rank)
        assert factors.encoder.shape == (rank, shape[1])
        torch.testing.assert_close(product(factors), truncation(W, rank), atol=1e-11, rtol=0)
        torch.testing.assert_close(factors.energies, torch.linalg.svdvals(W).square(), atol=1e-11, rtol=0)


# of float32, eps * |W| / gap = 1.2e-7 * 2 / 0.077: what rounding turns the r leading directions by
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_svd_of_narrower_weights(shape, dtype, tolerance):
    W = falling(*shape).to(dtype)
    factors = factorize(W, r)
    assert factors.decoder.dtype == factors.encoder.dtype == dtype
    torch.testing.assert_close(product(factors), truncation(W, r), atol=tolerance, rtol=0)
    torch.testing.assert_close(factors.energies, torch.linalg.svdvals(W.double()).square(), atol=1e-5, rtol=0)


index = torch.arange(1, 62, dtype=f64)
STEEP = {
    "1 / i": 1 / index,
    "1 / i^2": index**-2,
    "1 / i^4": index**-4,
    "geometric": 0.7**index,
    "outlier": torch.cat([torch.tensor([1e4]), torch.linspace(2, 1, 60)]),
    "far outlier": torch.cat([torch.tensor([1e6]), torch.linspace(2, 1, 60)]),
    "rank 3": torch.tensor([2.0, 1.0, 0.5]),
    "rank of the factors": torch.linspace(2, 1, 11),
    "one more": torch.linspace(2, 1, 12),
    "all equal": torch.ones(61),
    "a step": torch.cat([torch.ones(20), torch.full((41,), 0.1)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, f64])
@pytest.mark.parametrize("solver", ["svd", "randomized"])
@pytest.mark.parametrize("name", STEEP)
def test_spectra_that_squares_do_not_resolve(name, solver, dtype):
    rank = 11
    for shape in ((61, 67), (131, 61)):
        W = with_spectrum(STEEP[name], *shape).to(dtype)
        factors = factorize(W, rank, solver)
        z = torch.linalg.svdvals(W.double())
        best = z[rank:].square().sum().sqrt().item()
        allowed = 1e-6 if solver == "svd" else 0.02
        rounding = {torch.float32: 3e-7, f64: 1e-14}[dtype] * z.norm().item()
        error = (W.double() - product(factors)).norm().item()
        assert error <= (1 + allowed) * best + rounding
        assert factors.error(rank) == pytest.approx(error / z.norm().item(), rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("solver", ["svd", "randomized"])
def test_rank_deficient_and_zero_weights(solver):
    W = torch.randn(m, 3, dtype=f64) @ torch.randn(3, n, dtype=f64)
    torch.testing.assert_close(product(factorize(W, r, solver)), W, atol=1e-12, rtol=0)
    nothing = factorize(torch.zeros(131, 61), r, solver)
    assert not nothing.decoder.any()
    assert not nothing.encoder.any()
    assert nothing.error(r) == 0


@pytest.mark.parametrize("solver", SPECTRAL)
def test_full_rank_is_the_weight(solver):
    W = torch.randn(m, n, dtype=f64)
    if "sequential" in solver:  # without a change: otherwise the best weight is another
        C = covariance(torch.randn(n, tokens, dtype=f64))
        factors = factorize(W, m, solver, Statistics(C, cross=W @ C, gradients=statistics().gradients))
    else:
        factors = find(W, m, solver)
    torch.testing.assert_close(product(factors), W, atol=1e-10, rtol=0)
    assert factors.error(m) == 0


# all solvers


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_to_the_bit(solver):
    W = torch.randn(131, 61)
    seen = statistics(131, 61, W)
    first, second = (factorize(W, r, solver, seen, seed=3) for _ in range(2))
    assert torch.equal(first.decoder, second.decoder)
    assert torch.equal(first.encoder, second.encoder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, f64])
@pytest.mark.parametrize("solver", SOLVERS)
def test_dtype_stays(solver, dtype):
    W = torch.randn(m, n).to(dtype)
    factors = find(W, r, solver)
    for factor in (factors.decoder, factors.encoder):
        assert factor.dtype == dtype
        assert factor.isfinite().all()
        assert factor.is_contiguous()  # safetensors takes no other
        assert not factor.requires_grad
    assert factors.energies is None or factors.energies.dtype == f64


def test_a_parameter_may_be_given():
    W = torch.nn.Parameter(torch.randn(m, n))
    assert not factorize(W, r).decoder.requires_grad


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-12, 1e12, 1e30])
def test_extremes_are_finite(solver, size):
    W = falling(61, 67)
    plain = statistics(61, 67, W)
    seen = replace(plain, cross=size * plain.cross)
    factors = factorize((size * W).float(), r, solver, seen)
    assert factors.decoder.isfinite().all()
    assert factors.encoder.isfinite().all()
    if solver != "random" and size > 1e-40:  # the smallest floats have no digits to factorise
        ordinary = factorize(W.float(), r, solver, plain)
        torch.testing.assert_close(product(factors) / size, product(ordinary), atol=1e-4, rtol=0)
        if solver in SPECTRAL:
            assert factors.error(r) == pytest.approx(ordinary.error(r), rel=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_constant_row_and_a_dead_column(solver):
    W = torch.randn(m, n)
    W[3], W[:, 7] = 5.0, 0.0
    factors = find(W, r, solver)
    assert factors.decoder.isfinite().all()
    assert factors.encoder.isfinite().all()


@pytest.mark.parametrize("solver", SPECTRAL)
def test_truncations_are_nested(solver):
    W = torch.randn(m, n, dtype=f64)
    seen = statistics(W=W)
    high, low = (factorize(W, rank, solver, seen) for rank in (11, r))
    cut = high.truncate(r)
    assert cut.decoder.is_contiguous()
    assert cut.encoder.is_contiguous()
    torch.testing.assert_close(cut.decoder, low.decoder, atol=1e-9, rtol=0)
    torch.testing.assert_close(cut.encoder, low.encoder, atol=1e-9, rtol=0)
    assert cut.error(r) == pytest.approx(low.error(r))


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"random"}))
def test_both_halves_of_a_component_are_of_one_size(solver):
    factors = find(torch.randn(m, n, dtype=f64), r, solver)
    torch.testing.assert_close(factors.decoder.norm(dim=0), factors.encoder.norm(dim=1))
    assert (factors.encoder.amax(1) >= -factors.encoder.amin(1)).all()


@pytest.mark.parametrize("solver", SPECTRAL)
def test_energies_fall_and_give_the_error(solver):
    factors = find(torch.randn(m, n, dtype=f64), r, solver)
    assert (factors.energies.diff() <= 0).all()
    total = factors.energies.sum().item()
    for rank in (1, r):
        assert factors.error(rank) == pytest.approx((factors.energies[rank:].sum().item() / total) ** 0.5)


def test_no_spectrum_no_error():
    assert Factors(torch.ones(m, r), torch.ones(r, n), None).error(r) is None


# activation


@pytest.mark.parametrize("shape", SHAPES)
def test_activation_makes_the_error_its_spectrum_says(shape):
    W, X = torch.randn(shape, dtype=f64), torch.randn(shape[1], tokens, dtype=f64) * torch.rand(shape[1], 1, dtype=f64)
    factors = factorize(W, r, "activation", Statistics(covariance(X)))
    error = squared((W - product(factors)) @ X)
    assert error == pytest.approx(factors.energies[r:].sum().item(), rel=1e-9)
    assert error == pytest.approx(squared(W @ X - truncation(W @ X, r)), rel=1e-9)  # Eckart and Young on the outputs
    assert factors.error(r) == pytest.approx((error / squared(W @ X)) ** 0.5)


def test_activation_is_better_than_any_other():
    W, X = torch.randn(m, n, dtype=f64), torch.randn(n, tokens, dtype=f64) * torch.linspace(0.1, 3, n)[:, None]
    factors = factorize(W, r, "activation", Statistics(covariance(X)))
    error = squared((W - product(factors)) @ X)
    assert error < 0.99 * squared((W - product(factorize(W, r))) @ X)
    for size in (1e-3, 1e-2, 0.1):
        D = factors.decoder + size * torch.randn_like(factors.decoder)
        E = factors.encoder + size * torch.randn_like(factors.encoder)
        assert squared((W - D @ E) @ X) > error


def test_activation_for_white_inputs_is_the_svd():
    W = torch.randn(m, n, dtype=f64)
    factors = factorize(W, r, "activation", Statistics(7 * torch.eye(n)))
    torch.testing.assert_close(product(factors), truncation(W, r), atol=1e-11, rtol=0)


@pytest.mark.parametrize("seen", [1, 3, 11, 30])
@pytest.mark.parametrize("shape", [(m, n), (n, m)])
def test_fewer_tokens_than_inputs(shape, seen):
    W, X = torch.randn(shape, dtype=f64), torch.randn(shape[1], seen, dtype=f64)
    factors = factorize(W, r, "activation", Statistics(covariance(X)))
    assert factors.decoder.shape == (shape[0], r)
    expected = squared(W @ X - truncation(W @ X, r))
    assert squared((W - product(factors)) @ X) == pytest.approx(expected, rel=1e-9, abs=1e-18)
    if seen <= r:
        torch.testing.assert_close(product(factors) @ X, W @ X, atol=1e-10, rtol=0)


def test_inputs_never_seen_are_not_forgotten():
    """A projection of W, so never further from it than nothing is, and no larger."""
    W, X = torch.randn(m, n, dtype=f64), torch.randn(n, r + 2, dtype=f64)
    approximation = product(factorize(W, r, "activation", Statistics(covariance(X))))
    unseen = torch.randn(n, tokens, dtype=f64)
    unseen -= X @ torch.linalg.lstsq(X, unseen).solution
    assert squared(approximation @ unseen) > 0.05 * squared(W @ unseen)
    assert squared((W - approximation) @ unseen) < squared(W @ unseen)


@pytest.mark.parametrize("solver", CALIBRATED)
def test_nothing_seen_is_the_svd(solver):
    W, nothing = torch.randn(m, n, dtype=f64), torch.zeros(n, n)
    factors = factorize(W, r, solver, Statistics(nothing, cross=torch.zeros(m, n), gradients=torch.zeros(m, m)))
    torch.testing.assert_close(product(factors), truncation(W, r), atol=1e-11, rtol=0)
    assert factors.error(r) == 0


@pytest.mark.parametrize("solver", CALIBRATED)
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e12])
def test_the_number_of_tokens_does_not_matter(solver, scale):
    W = torch.randn(m, n, dtype=f64)
    seen = statistics(W=W)
    scaled = Statistics(scale * seen.inputs, cross=scale * seen.cross, gradients=scale * seen.gradients)
    factors, expected = factorize(W, r, solver, scaled), factorize(W, r, solver, seen)
    torch.testing.assert_close(factors.decoder, expected.decoder, atol=1e-9, rtol=0)
    torch.testing.assert_close(factors.encoder, expected.encoder, atol=1e-9, rtol=0)


# sequential


def reduced_rank_regression(Y, X, rank):
    """The best V of a rank for Y ~ V X. Izenman 1975: least squares, projected on its leading outputs."""
    V = torch.linalg.lstsq(X.mT, Y.mT, driver="gelsd").solution.mT
    U = torch.linalg.svd(V @ X, full_matrices=False).U[:, :rank]
    return U @ U.mT @ V


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("seen", [tokens, 17])
def test_sequential_is_reduced_rank_regression(shape, seen):
    W, X = torch.randn(shape, dtype=f64), torch.randn(shape[1], seen, dtype=f64)
    changed = X + 0.5 * torch.randn_like(X)
    factors = factorize(W, r, "sequential", Statistics(covariance(changed), cross=covariance(W @ X, changed)))
    best = reduced_rank_regression(W @ X, changed, r)
    error = squared(W @ X - product(factors) @ changed)
    assert error == pytest.approx(squared(W @ X - best @ changed), rel=1e-8)
    torch.testing.assert_close(product(factors) @ changed, best @ changed, atol=1e-7, rtol=0)
    # The spectrum tells what is lost beyond the best weight of full rank.
    full = reduced_rank_regression(W @ X, changed, min(shape))
    unavoidable = squared(W @ X - full @ changed)
    assert factors.energies[r:].sum().item() == pytest.approx(error - unavoidable, rel=1e-7)
    plain = factorize(W, r, "activation", Statistics(covariance(changed)))
    assert error < squared(W @ X - product(plain) @ changed)


@pytest.mark.parametrize("seen", [tokens, 17])
def test_sequential_without_a_change_is_activation(seen):
    W, C = torch.randn(m, n, dtype=f64), covariance(torch.randn(n, seen, dtype=f64))
    factors, expected = (factorize(W, r, solver, Statistics(C, cross=W @ C)) for solver in ("sequential", "activation"))
    torch.testing.assert_close(product(factors), product(expected), atol=1e-10, rtol=0)
    torch.testing.assert_close(factors.energies, expected.energies, atol=1e-8, rtol=0)


def test_sequential_loss_is_reduced_rank_regression_in_the_norm_of_gradients():
    W, X = torch.randn(m, n, dtype=f64), torch.randn(n, tokens, dtype=f64)
    changed, d = X + 0.3 * torch.randn(n, tokens, dtype=f64), torch.randn(m, tokens, dtype=f64)
    G = covariance(d)
    seen = Statistics(covariance(changed), cross=covariance(W @ X, changed), gradients=G)
    factors = factorize(W, r, "sequential_loss", seen)

    def lost(factors):
        R = W @ X - product(factors) @ changed
        return (R.mT @ G @ R).trace().item()

    # From the definition: T^T W X projected on the row space of X^, truncated.
    T, V = torch.linalg.cholesky(G), torch.linalg.svd(changed, full_matrices=False).Vh
    left, z, right = torch.linalg.svd(T.mT @ W @ X @ V.mT @ V, full_matrices=False)
    rest = T.mT @ W @ X - left[:, :r] * z[:r] @ right[:r]
    assert lost(factors) == pytest.approx(squared(rest), rel=1e-8)
    for solver in ("sequential", "loss", "activation"):
        assert lost(factors) < 0.999 * lost(factorize(W, r, solver, seen))


def test_sequential_loss_without_a_change_is_loss():
    W, C, G = torch.randn(m, n, dtype=f64), covariance(torch.randn(n, tokens, dtype=f64)), statistics().gradients
    factors, expected = (
        factorize(W, r, solver, Statistics(C, cross=W @ C, gradients=G)) for solver in ("sequential_loss", "loss")
    )
    torch.testing.assert_close(product(factors), product(expected), atol=1e-9, rtol=0)


def test_sequential_does_not_fit_the_rounding_of_float32():
    """Inputs that all but miss some directions: what float32 covariances say there is noise."""
    W = torch.randn(m, n, dtype=f64)
    X = torch.cat([torch.randn(20, tokens), 1e-6 * torch.randn(n - 20, tokens)])
    changed = X + 0.1 * torch.randn_like(X) * X.abs()
    seen = Statistics(covariance(changed), cross=W @ covariance(X, changed).double())
    factors = factorize(W, 15, "sequential", seen)
    assert product(factors).norm() < 2 * W.norm()


# loss


def symmetric_root(C, power):
    eigenvalues, Q = torch.linalg.eigh(C)
    return Q * eigenvalues**power @ Q.mT


@pytest.mark.parametrize("shape", SHAPES)
def test_loss_minimises_the_two_sided_error(shape):
    W, seen = torch.randn(shape, dtype=f64), statistics(*shape)
    C, G = seen.inputs, seen.gradients
    if shape[0] > tokens:
        G = G + torch.eye(shape[0])
        seen = Statistics(C, gradients=G)
    factors = factorize(W, r, "loss", seen)
    whitened = truncation(symmetric_root(G, 0.5) @ W @ symmetric_root(C, 0.5), r)
    best = symmetric_root(G, -0.5) @ whitened @ symmetric_root(C, -0.5)
    torch.testing.assert_close(product(factors), best, atol=1e-8, rtol=0)
    rest = W - product(factors)
    error = torch.trace(G @ rest @ C @ rest.mT).item()
    assert error == pytest.approx(factors.energies[r:].sum().item(), rel=1e-8)
    for size in (1e-3, 1e-2, 0.1):
        other = W - (factors.decoder + size * torch.randn_like(factors.decoder)) @ factors.encoder
        assert torch.trace(G @ other @ C @ other.mT).item() > error


def test_loss_with_equal_gradients_is_activation():
    W, C = torch.randn(m, n, dtype=f64), covariance(torch.randn(n, tokens, dtype=f64))
    factors = factorize(W, r, "loss", Statistics(C, gradients=torch.eye(m)))
    expected = factorize(W, r, "activation", Statistics(C))
    torch.testing.assert_close(product(factors), product(expected), atol=1e-10, rtol=0)
    torch.testing.assert_close(factors.energies, expected.energies, atol=1e-8, rtol=0)


@pytest.mark.parametrize("seen", [2, 7])
def test_loss_from_few_gradients(seen):
    W, C = torch.randn(m, n, dtype=f64), covariance(torch.randn(n, tokens, dtype=f64))
    G = covariance(torch.randn(m, seen, dtype=f64))
    factors = factorize(W, r, "loss", Statistics(C, gradients=G))
    rest = W - product(factors)
    error = torch.trace(G @ rest @ C @ rest.mT).item()
    assert error == pytest.approx(factors.energies[r:].sum().item(), rel=1e-8, abs=1e-6)
    # Outputs that the loss did not feel are still as near as the inner dimension allows.
    assert torch.trace(rest @ C @ rest.mT) < torch.trace(W @ C @ W.mT)


@pytest.mark.parametrize("solver", CALIBRATED)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_root_gives_the_factors_that_two_do(shape, solver):
    """Factors from eigenvectors of the smaller Gram matrix, against those of an SVD of T^T W S."""
    W = torch.randn(shape, dtype=f64)
    seen = statistics(*shape, W)
    if shape[0] > tokens:  # G is singular, of its root fewer columns are left
        assert root(seen.gradients)[0].shape[1] == tokens
    V = seen.cross @ torch.linalg.inv(seen.inputs) if "sequential" in solver else W
    T = root(seen.gradients)[0] if "loss" in solver else torch.eye(shape[0], dtype=f64)
    S, _ = root(seen.inputs)
    U, z, _ = torch.linalg.svd(T.mT @ V @ S, full_matrices=False)
    factors = factorize(W, r, solver, seen)
    torch.testing.assert_close(factors.energies, z.square(), rtol=1e-9, atol=1e-9 * z[0].item() ** 2)
    encoder = U[:, :r].mT @ T.mT @ V
    expected = V @ S @ torch.linalg.pinv(encoder @ S) @ encoder
    torch.testing.assert_close(product(factors), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("solver", ["svd", "activation", "loss"])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_spectrum_alone_is_that_of_the_factors(shape, size, solver):
    W = size * torch.randn(shape, dtype=f64)
    seen = statistics(*shape)
    energies = factorize(W, r, solver, seen).energies
    torch.testing.assert_close(spectrum(W, solver, seen), energies, rtol=1e-9, atol=1e-9 * energies[0].item())


def test_only_solvers_that_make_factors_at_once_have_a_spectrum_alone():
    for solver in ("sequential", "randomized", "nmf"):
        with pytest.raises(ValueError, match=f"must be svd, activation or loss; got {solver!r}"):
            spectrum(torch.ones(m, n), solver, statistics())
    with pytest.raises(ValueError, match="1 values that are not finite"):
        spectrum(torch.full((1, 1), float("nan")))


@pytest.mark.parametrize("seen", [tokens, 17])
def test_inputs_with_and_without_directions_below_the_noise_are_refitted_alike(seen):
    """By Cholesky where all are above it, by eigenvalues where not: both are the pseudo-inverse."""
    W, X = torch.randn(m, n, dtype=f64), torch.randn(n, seen, dtype=f64)
    Y = torch.randn(m, seen, dtype=f64)
    factors = factorize(W, m, "sequential", Statistics(covariance(X), cross=covariance(Y, X)))
    best = W + (Y - W @ X) @ torch.linalg.pinv(X)
    torch.testing.assert_close(product(factors) @ X, best @ X, rtol=1e-8, atol=1e-9)


def test_root_of_a_singular_covariance():
    C = covariance(torch.randn(n, 11, dtype=f64))
    S, S_inverse = root(C)
    assert S.shape == (n, 11)
    torch.testing.assert_close(S @ S.mT, C, atol=1e-10, rtol=0)
    torch.testing.assert_close(S_inverse @ S, torch.eye(11, dtype=f64), atol=1e-10, rtol=0)


# randomized


@pytest.mark.parametrize("power", [0, 1, 4])
@pytest.mark.parametrize("spectrum", ["flat", "slow", "gap"])
def test_randomized_stays_within_its_bound(power, spectrum):
    rank, oversample, seeds = 7, 5, 40
    z = {
        "flat": torch.linspace(1.2, 1, 61),
        "slow": index**-0.5,
        "gap": torch.cat([torch.full((7,), 3.0), torch.linspace(1, 0.5, 54)]),
    }[spectrum].double()
    W = with_spectrum(z, 67, 61)
    best = z[rank:].square().sum().item()
    errors = torch.tensor(
        [
            squared(W - product(randomized(W, rank, oversample=oversample, power=power, seed=seed)))
            for seed in range(seeds)
        ]
    )
    rho = (z[rank] / z[rank - 1]).item() ** (2 * power + 1)
    assert errors.mean() <= best * (1 + rho**2 * rank / (oversample - 1))
    assert (errors >= best * (1 - 1e-12)).all()


@pytest.mark.parametrize("shape", [(211, 307), (307, 211), (499, 101)])
def test_randomized_is_no_worse_than_ten_power_iterations(shape):
    """As greenformer 0.2.2 makes them, on the spectrum hardest for both, that of random weights."""
    rank = int(shape[0] * shape[1] / sum(shape) / 4)
    W = torch.randn(shape)
    best = squared(W - truncation(W, rank))
    ours, theirs = [], []
    for seed in range(5):
        ours.append(squared(W - product(factorize(W, rank, "randomized", seed=seed))))
        U, z, V = torch.svd_lowrank(W, q=rank, niter=10)
        theirs.append(squared(W - (U * z @ V.mT)))
    assert max(ours) < 1.01 * best
    assert sum(ours) < sum(theirs)


def test_randomized_draws_by_its_seed():
    W = torch.randn(131, 61)
    first, again, other = (factorize(W, r, "randomized", seed=seed) for seed in (1, 1, 2))
    state = torch.get_rng_state()
    assert torch.equal(first.decoder, again.decoder)
    assert torch.equal(first.encoder, again.encoder)
    assert not torch.equal(first.decoder, other.decoder)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, f64])
@pytest.mark.parametrize("shape", [(131, 61), (61, 131)])
def test_the_last_energy_of_randomized_is_the_rest(shape, dtype):
    W = torch.randn(shape, dtype=dtype)
    factors = factorize(W, r, "randomized")
    assert len(factors.energies) == r + 1
    assert factors.energies.sum().item() == pytest.approx(squared(W), rel=1e-6)
    assert factors.energies[-1].item() == pytest.approx(squared(W - product(factors)), rel=1e-5)
    assert factors.error(r) == pytest.approx((squared(W - product(factors)) / squared(W)) ** 0.5, rel=1e-5)


def test_randomized_is_exact_where_that_costs_no_more():
    W = torch.randn(m, n, dtype=f64)
    factors = factorize(W, 11, "randomized")
    torch.testing.assert_close(product(factors), truncation(W, 11), atol=1e-11, rtol=0)
    assert len(factors.energies) == m


# random


@pytest.mark.parametrize("std", [1e-3, 0.02, 3.0])
def test_random_varies_as_the_weight(std):
    W = std * torch.randn(211, 307)
    factors = factorize(W, 31, "random")
    assert product(factors).std().item() == pytest.approx(std, rel=0.05)
    # The code varies as the input does.
    assert (factors.encoder.double() @ torch.randn(307, 1000, dtype=f64)).std().item() == pytest.approx(1, rel=0.05)


# errors


def one_line(caught):
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_unknown_solver():
    with pytest.raises(ValueError, match="solver must be one of") as caught:
        factorize(torch.ones(m, n), r, "best")
    assert one_line(caught).endswith("got 'best'")


@pytest.mark.parametrize("rank", [-1, 0, m + 1])
def test_rank_out_of_range(rank):
    with pytest.raises(ValueError, match=f"rank must be in 1..{m}") as caught:
        factorize(torch.ones(m, n), rank)
    assert one_line(caught) == f"rank must be in 1..{m} for a {m} x {n} weight, got {rank}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_must_be_finite(value, solver, dtype):
    W = torch.ones(m, n, dtype=dtype)
    W[2, 3] = W[5, 7] = value
    with pytest.raises(ValueError, match="2 values that are not finite") as caught:
        factorize(W, r, solver, statistics())
    one_line(caught)


@pytest.mark.parametrize(
    ("solver", "missing"),
    [("activation", "inputs"), ("sequential", "inputs"), ("sequential", "cross"), ("loss", "gradients")],
)
def test_missing_statistics(solver, missing):
    given = {name: getattr(statistics(), name) for name in ("inputs", "cross", "gradients") if name != missing}
    for seen in (Statistics(**given), *([None] if missing == "inputs" else [])):
        with pytest.raises(ValueError, match=f"{solver!r} needs the covariance {missing!r}") as caught:
            factorize(torch.ones(m, n), r, solver, seen)
        one_line(caught)


@pytest.mark.parametrize(("solver", "name"), [("activation", "inputs"), ("sequential", "cross"), ("loss", "gradients")])
def test_statistics_must_be_finite_and_fit(solver, name):
    seen = statistics()
    getattr(seen, name)[1, 2] = float("nan")
    with pytest.raises(ValueError, match=f"covariance {name!r} holds values that are not finite") as caught:
        factorize(torch.ones(m, n), r, solver, seen)
    one_line(caught)
    size = (m, m) if name == "gradients" else (m if name == "cross" else n, n)
    fitting = {other: getattr(statistics(), other) for other in ("inputs", "cross", "gradients")}
    with pytest.raises(ValueError, match=f"covariance {name!r} must be") as caught:
        factorize(torch.ones(m, n), r, solver, Statistics(**{**fitting, name: torch.eye(size[0] + 1)}))
    assert one_line(caught).endswith(f"must be {size}, got ({size[0] + 1}, {size[0] + 1})")
