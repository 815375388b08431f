"""One weight, factorised: its factors at the highest rank that could be chosen, and the errors at all ranks below."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from greenformers.lowrank.factorize import CALIBRATED, Factors, Statistics, factorize, spectrum
from greenformers.solve.walk import Site


@dataclass(frozen=True)
class Solved:
    """A factorised weight.

    Attributes:
        site: The weight.
        decoder: Factor D (g, m, r), its columns in order of importance.
        encoder: Factor E (g, r, n).
        energies: Squared singular values, summed over the groups; None without a spectrum.
        total: Squared norm that the squared errors are relative to.
        errors: Squared errors at the ranks 1..r, of the factors as stored.
        seen: Statistics that the factors were made for, of which only the means are kept.
    """

    site: Site
    decoder: Tensor
    encoder: Tensor
    energies: Tensor | None
    total: float
    errors: Tensor
    seen: Sequence[Statistics]

    def shift(self, rank: int) -> Tensor | None:
        """The difference of the mean outputs, (g m,), by which the bias is to be raised; None without a bias."""
        if self.seen[0].mean is None:
            return None
        weights, parts = self.site.matrices().double(), zip(self.decoder, self.encoder, self.seen, strict=True)
        shifts = []
        for W, (D, E, at) in zip(weights, parts, strict=True):
            assert at.mean is not None
            before = W @ at.mean if at.output_mean is None else at.output_mean
            shifts.append(before - D[:, :rank].double() @ (E[:rank].double() @ at.mean))
        return torch.cat(shifts)

    def predicted(self, rank: int) -> float | None:
        """Relative error at a rank, by the spectrum; None without one."""
        if self.energies is None:
            return None
        return _relative(self.total - self.energies[:rank].sum().item(), self.total)

    def achieved(self, rank: int) -> float:
        """Relative error at a rank, of the factors as stored."""
        return _relative(self.errors[rank - 1].item(), self.total)


def _relative(squared: float, total: float) -> float:
    return (max(squared, 0.0) / total) ** 0.5 if total > 0 else 0.0


def solve(site: Site, rank: int, solver: str, seen: Sequence[Statistics] | None = None, seed: int = 0) -> Solved:
    """Factorise a weight.

    Args:
        site: The weight.
        rank: Highest rank that is needed.
        solver: One of `greenformers.lowrank.factorize.SOLVERS`.
        seen: Statistics of each group, for calibrated solvers; for an embedding `inputs` is the diagonal (V,).
        seed: Seed of solvers that draw.

    Raises:
        ValueError: The weight or the statistics are not finite, or missing; the message names the layer.
    """
    weights = site.matrices()
    seen = [Statistics()] * site.groups if seen is None else seen
    try:
        if site.kind == "embedding" and solver in CALIBRATED:
            counts = seen[0].inputs
            assert counts is not None
            return _by_frequency(site, weights[0], rank, counts, seen[0].gradients)
        # Each group draws other numbers.
        parts = enumerate(zip(weights, seen, strict=True))
        factored = [factorize(W, rank, solver, at, seed + group) for group, (W, at) in parts]
    except ValueError as error:
        raise ValueError(f"{site.path}: {error}") from error
    if solver not in CALIBRATED:
        seen = [Statistics()] * site.groups
    curves = [errors(W.double(), part, at) for W, part, at in zip(weights, factored, seen, strict=True)]
    spectra = [part.energies for part in factored if part.energies is not None]
    energies = _summed(spectra) if spectra else None
    return Solved(
        site,
        torch.stack([part.decoder for part in factored]),
        torch.stack([part.encoder for part in factored]),
        energies,
        sum(total for total, _ in curves),
        torch.stack([curve for _, curve in curves]).sum(0),
        # Only the means are needed later, not the d x d sums.
        [Statistics(mean=at.mean, output_mean=at.output_mean) for at in seen],
    )


def _summed(spectra: Sequence[Tensor]) -> Tensor:
    """The sum of the spectra of groups: that of one whose covariances are not of full rank may be shorter."""
    length = max(map(len, spectra))
    return torch.stack([pad(energies, (0, length - len(energies))) for energies in spectra]).sum(0)


def _by_frequency(site: Site, W: Tensor, rank: int, counts: Tensor, felt: Tensor | None) -> Solved:
    """The factors of an embedding: a row weighs as often as it is looked up; rows never seen count as seen once.

    Beside linear layers its errors count by the mean square `felt` of the gradients in its outputs, where it is known.
    """
    weight = (counts.double() + 1).sqrt()[:, None]
    factors = factorize(weight * W.double(), rank, "svd")
    decoder, encoder = (factors.decoder / weight).to(W.dtype), factors.encoder.to(W.dtype)
    total, curve = errors(weight * W.double(), Factors(weight * decoder.double(), encoder, None), Statistics())
    energies = factors.energies
    if energies is not None and felt is not None:
        energies, total, curve = energies * felt, total * float(felt), curve * felt
    return Solved(site, decoder[None], encoder[None], energies, total, curve, [Statistics()])


def spectrum_of(site: Site, solver: str, seen: Sequence[Statistics]) -> Tensor:
    """Squared singular values of a weight, summed over its groups, falling: the energies of `solve`, without factors.

    Args:
        site: The weight.
        solver: "activation" or "loss".
        seen: Statistics of each group; for an embedding `inputs` is the diagonal (V,).

    Raises:
        ValueError: The weight or the statistics are not finite, or missing; the message names the layer.
    """
    weights = site.matrices()
    try:
        if site.kind == "embedding":
            counts = seen[0].inputs
            assert counts is not None
            energies = spectrum((counts.double() + 1).sqrt()[:, None] * weights[0].double())
            return energies if seen[0].gradients is None else energies * seen[0].gradients
        return _summed([spectrum(W, solver, at) for W, at in zip(weights, seen, strict=True)])
    except ValueError as error:
        raise ValueError(f"{site.path}: {error}") from error


def errors(W: Tensor, factors: Factors, seen: Statistics) -> tuple[float, Tensor]:
    """The squared norm of a layer's outputs, and the squared error of the first 1, 2, ... r components of its factors.

    The norm is that of the statistics: tr(G (W X - D E X^) (W X - D E X^)^T), without them |W - D E|^2. It is computed
    from traces of small products: |W X|^2 - 2 <W X, D E X^> + |D E X^|^2, the last two summed over leading components.
    """
    D, E = factors.decoder.double(), factors.encoder.double()
    C = None if seen.inputs is None else seen.inputs.double()
    GD = D if seen.gradients is None else seen.gradients.double() @ D
    EC = E if C is None else E @ C
    # sum y x^T, without a change of the inputs W C
    target = seen.cross.double() if seen.cross is not None else W if C is None else W @ C
    total = seen.total
    if total is None:
        assert seen.cross is None  # changed inputs do not tell the norm of the dense outputs
        total = (target * (W if seen.gradients is None else seen.gradients.double() @ W)).sum().item()
    mixed = (GD.mT @ target * E).sum(1).cumsum(0)
    own = (D.mT @ GD) * (EC @ E.mT)  # (r, r): the norm of the first components is the sum of a leading block
    return total, total - 2 * mixed + own.cumsum(0).cumsum(1).diagonal()
