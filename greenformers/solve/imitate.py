"""Linear layers and norms fitted to the outputs of another network, on the inputs that their network gives them.

Where hidden states have fewer coordinates than before, no layer has what it gave before: it is fitted to part of what
the whole network gives, least E |W h + b - B^T y|^2 / |B^T y|^2 over positions that are no padding, B the coordinates
that are left (SliceGPT, Ashkboos 2024, arXiv:2401.15024, fits nothing). The weights of positions are those of
`greenformers.solve.refit`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from greenformers.model._transformers import TransposedLinear
from greenformers.solve.norms import norm_form, normalised
from greenformers.solve.refit import DAMPING, importance
from greenformers.solve.seen import Seen, summed
from greenformers.solve.watch import Batch

SLIGHT = 1e-4
"""Share of the mean square that is added to each coordinate of a norm, which depends on no other."""


class Imitate:
    """Least squares for layers of a changed network, one after the other, in the order of execution.

    Args:
        model: The changed network.
        dense: The network before; its layers give the outputs to be reached.
        batches: Batches of examples.
        memory: Bytes of outputs of finished layers that may be held, with which passes begin where the last one ended.
    """

    def __init__(self, model: nn.Module, dense: nn.Module, batches: Sequence[Batch], memory: float) -> None:
        self.now, self.before = (Seen(network, batches, memory / 2) for network in (model, dense))

    def fit(self, path: str, calls: int, basis: Tensor | None = None) -> None:
        """Fit weight and bias of a layer, damped towards the weight as it is.

        Args:
            path: Path of the layer.
            calls: How often a pass calls it.
            basis: Matrix (m, m') by which the outputs (m,) of the network before are multiplied, to be reached.
        """
        layer: nn.Linear | TransposedLinear = self.now.model.get_submodule(path)  # type: ignore[assignment]
        transposed = isinstance(layer, TransposedLinear)
        weight = (layer.weight if transposed else layer.weight.T).detach().double()  # (n, m)
        C, cross, h_mean, y_mean = self._sums(path, calls, basis, centred=layer.bias is not None)
        damping = DAMPING * C.diagonal().mean().clamp(min=torch.finfo(C.dtype).tiny)
        eye = torch.eye(len(C), dtype=C.dtype, device=C.device)
        fitted = weight + torch.linalg.solve(C + damping * eye, cross - C @ weight)
        with torch.no_grad():
            layer.weight.copy_(fitted if transposed else fitted.T)
            if layer.bias is not None:
                layer.bias.copy_(y_mean - h_mean @ fitted)

    def fit_norm(self, path: str, calls: int, basis: Tensor) -> None:
        """Fit the factor and the summand of each coordinate of a norm, damped towards a factor of their mean size.

        A norm of a form that is not known is left as it is.

        Args:
            path: Path of the norm.
            calls: How often a pass calls it.
            basis: Matrix (m, m') by which the outputs (m,) of the network before are multiplied, to be reached.
        """
        module = self.now.model.get_submodule(path)
        form = norm_form(module)
        if form is None:
            return
        biased = getattr(module, "bias", None) is not None

        def sums() -> list[Tensor]:
            zz = zy = z_sum = y_sum = total = torch.zeros((), dtype=torch.float64)
            sides = (seen.rows(path, calls) for seen in (self.now, self.before))
            for (x, _), (_, y) in zip(*sides, strict=True):
                z, y = normalised(x.double(), form.centred, form.eps), y.double() @ basis.to(y.device)
                weight = importance(y)
                zz, zy = zz.to(z.device) + (weight * z * z).sum(0), zy.to(z.device) + (weight * z * y).sum(0)
                z_sum, y_sum = z_sum.to(z.device) + (weight * z).sum(0), y_sum.to(z.device) + (weight * y).sum(0)
                total = total.to(z.device) + weight.sum()
            return [zz / total, zy / total, z_sum / total, y_sum / total]

        zz, zy, z_mean, y_mean = self._summed(path, sums)
        if biased:
            zz, zy = zz - z_mean.square(), zy - z_mean * y_mean
        usual = zy.sum() / zz.sum().clamp(min=torch.finfo(zz.dtype).tiny)
        damping = SLIGHT * zz.mean()
        weight = (zy + damping * usual) / (zz + damping)
        form.set(module, weight, y_mean - weight * z_mean)

    def _sums(
        self, path: str, calls: int, basis: Tensor | None, *, centred: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weighted sums h h^T and h y^T, about the means where a bias makes up for these; and the weighted means."""

        def sums() -> list[Tensor]:
            C = cross = h_sum = y_sum = total = torch.zeros((), dtype=torch.float64)
            sides = (seen.rows(path, calls) for seen in (self.now, self.before))
            for (h, _), (_, y) in zip(*sides, strict=True):
                h, y = h.double(), y.double() if basis is None else y.double() @ basis.to(y.device)
                weight = importance(y)
                weighted = weight * h
                C, cross = C.to(h.device) + weighted.T @ h, cross.to(h.device) + weighted.T @ y
                h_sum, y_sum = h_sum.to(h.device) + weighted.sum(0), y_sum.to(h.device) + (weight * y).sum(0)
                total = total.to(h.device) + weight.sum()
            return [C, cross, h_sum, y_sum, total]

        C, cross, h_sum, y_sum, total = self._summed(path, sums)
        if centred:
            C, cross = C - torch.outer(h_sum, h_sum) / total, cross - torch.outer(h_sum, y_sum) / total
        return C, cross, h_sum / total, y_sum / total

    def _summed(self, path: str, sums: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Sums over what a layer is given and what it is to give.

        Raises:
            ValueError: They are not finite.
        """
        given = summed([self.now, self.before], sums, _finite)
        if not _finite(given):
            raise ValueError(f"what {path!r} is given, or gave before, is not finite on the examples")
        return given


def _finite(parts: Sequence[Tensor]) -> bool:
    return all(bool(part.isfinite().all()) for part in parts)
