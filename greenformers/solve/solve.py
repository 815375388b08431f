"""One map, factorised: its factors at the highest rank that could be chosen, and the errors at all ranks below."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from greenformers.lowrank.factorize import CALIBRATED, Factors, Statistics, factorize, spectrum
from greenformers.solve.walk import Site


@dataclass(frozen=True)
class Solved:
    """A factorised map.

    Attributes:
        site: the map.
        decoder: (g, m, r), in order of importance.
        encoder: (g, r, n).
        energies: squared singular values, of all groups together; None without a spectrum.
        total: what the squared error is relative to.
        errors: squared error at the ranks 1..r of the factors as stored.
        seen: what the factors were made for.
    """

    site: Site
    decoder: Tensor
    encoder: Tensor
    energies: Tensor | None
    total: float
    errors: Tensor
    seen: Sequence[Statistics]

    def shift(self, rank: int) -> Tensor | None:
        """What the bias is to be raised by, (g m,): the difference of the mean output. None without a bias."""
        if self.seen[0].mean is None:
            return None
        weights, parts = self.site.matrices().double(), zip(self.decoder, self.encoder, self.seen, strict=True)
        found = []
        for W, (D, E, at) in zip(weights, parts, strict=True):
            assert at.mean is not None
            before = W @ at.mean if at.output_mean is None else at.output_mean
            found.append(before - D[:, :rank].double() @ (E[:rank].double() @ at.mean))
        return torch.cat(found)

    def predicted(self, rank: int) -> float | None:
        """Relative error at a rank, from the spectrum."""
        if self.energies is None:
            return None
        return _relative(self.total - self.energies[:rank].sum().item(), self.total)

    def achieved(self, rank: int) -> float:
        """Relative error at a rank, of the factors as stored."""
        return _relative(self.errors[rank - 1].item(), self.total)


def _relative(squared: float, total: float) -> float:
    return (max(squared, 0.0) / total) ** 0.5 if total > 0 else 0.0


def solve(site: Site, rank: int, solver: str, seen: Sequence[Statistics] | None = None, seed: int = 0) -> Solved:
    """Factorise a map.

    Args:
        site: the map.
        rank: the highest that is wanted.
        solver: one of `greenformers.lowrank.factorize.SOLVERS`.
        seen: statistics of each group, for calibrated solvers; of an embedding `inputs` is the diagonal (V,).
        seed: of solvers that draw.

    Raises:
        ValueError: the weight or the statistics are not finite, or missing; the message names the map.
    """
    weights = site.matrices()
    seen = [Statistics()] * site.groups if seen is None else seen
    try:
        if site.kind == "embedding" and solver in CALIBRATED:
            counts = seen[0].inputs
            assert counts is not None
            return _by_frequency(site, weights[0], rank, counts)
        # Each group draws other numbers.
        parts = enumerate(zip(weights, seen, strict=True))
        found = [factorize(W, rank, solver, at, seed + group) for group, (W, at) in parts]
    except ValueError as error:
        raise ValueError(f"{site.path}: {error}") from error
    if solver not in CALIBRATED:
        seen = [Statistics()] * site.groups
    curves = [errors(W.double(), part, at) for W, part, at in zip(weights, found, seen, strict=True)]
    spectra = [part.energies for part in found if part.energies is not None]
    energies = torch.stack([_padded(part, max(map(len, spectra))) for part in spectra]).sum(0) if spectra else None
    return Solved(
        site,
        torch.stack([part.decoder for part in found]),
        torch.stack([part.encoder for part in found]),
        energies,
        sum(total for total, _ in curves),
        torch.stack([curve for _, curve in curves]).sum(0),
        # Only the means are needed later, not the d x d sums.
        [Statistics(mean=at.mean, output_mean=at.output_mean) for at in seen],
    )


def _padded(energies: Tensor, length: int) -> Tensor:
    return torch.cat([energies, energies.new_zeros(length - len(energies))])


def _by_frequency(site: Site, W: Tensor, rank: int, counts: Tensor) -> Solved:
    """An embedding: its rows matter as often as they are looked up. Rows never seen count as seen once."""
    weight = (counts.double() + 1).sqrt()[:, None]
    found = factorize(weight * W.double(), rank, "svd")
    decoder, encoder = (found.decoder / weight).to(W.dtype), found.encoder.to(W.dtype)
    total, curve = errors(weight * W.double(), Factors(weight * decoder.double(), encoder, None), Statistics())
    return Solved(site, decoder[None], encoder[None], found.energies, total, curve, [Statistics()])


def spectrum_of(site: Site, solver: str, seen: Sequence[Statistics]) -> Tensor:
    """Squared singular values of a map, of all its groups together, falling: the energies of `solve`, without factors.

    Args:
        site: the map.
        solver: "activation" or "loss".
        seen: statistics of each group; of an embedding `inputs` is the diagonal (V,).

    Raises:
        ValueError: the weight or the statistics are not finite, or missing; the message names the map.
    """
    weights = site.matrices()
    try:
        if site.kind == "embedding":
            counts = seen[0].inputs
            assert counts is not None
            return spectrum((counts.double() + 1).sqrt()[:, None] * weights[0].double())
        return torch.stack([spectrum(W, solver, at) for W, at in zip(weights, seen, strict=True)]).sum(0)
    except ValueError as error:
        raise ValueError(f"{site.path}: {error}") from error


def errors(W: Tensor, factors: Factors, seen: Statistics) -> tuple[float, Tensor]:
    """The squared norm of what a map gives, and the squared error of its first 1, 2, ... r components.

    In the norm of the statistics at hand: tr(G (W X - D E X^) (W X - D E X^)^T), without them |W - D E|^2. From traces
    of small products: |W X|^2 - 2 <W X, D E X^> + |D E X^|^2, the last two summed over leading components.
    """
    D, E = factors.decoder.double(), factors.encoder.double()
    C = None if seen.inputs is None else seen.inputs.double()
    GD = D if seen.gradients is None else seen.gradients.double() @ D
    EC = E if C is None else E @ C
    # sum y x^T, without a change of the inputs W C
    target = seen.cross.double() if seen.cross is not None else W if C is None else W @ C
    total = seen.total
    if total is None:
        assert seen.cross is None  # what changed inputs give says nothing of the norm of what the dense ones gave
        total = (target * (W if seen.gradients is None else seen.gradients.double() @ W)).sum().item()
    mixed = (GD.mT @ target * E).sum(1).cumsum(0)
    own = (D.mT @ GD) * (EC @ E.mT)  # (r, r): the norm of the first components is the sum of a leading block
    return total, total - 2 * mixed + own.cumsum(0).cumsum(1).diagonal()
