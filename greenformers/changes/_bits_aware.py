"""Training with weights as they will be rounded to few bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from greenformers.changes._coded import codable
from greenformers.changes._straight_through import noise_of, rounded_inputs, straight_through
from greenformers.model.experts import as_modules
from greenformers.solve.grid import Form, Grid, nearest
from greenformers.solve.walk import Select


@contextmanager
def aware(
    model: nn.Module, select: Select, form: Form, share: float, *, inputs: bool = False, stays: bool = True
) -> Iterator[None]:
    """A `with` block for training with rounded weights; gradients pass as if nothing were rounded.

    Weights that were trained are afterwards as they were rounded, so that rounding them changes nothing, by whatever
    way: GPTQ would round the numbers behind them otherwise than they were trained for, and undo what was learned.
    (A grid of what lies on a grid is the same one, but where it is symmetric, of two bits or more.) Below 2 bits the
    sizes of weights are trained too.

    Args:
        model: The network.
        select: Layers that are rounded.
        form: Form of the grids.
        share: Share of the weights that a step rounds.
        inputs: Whether inputs of linear layers are rounded to 8 bits too.
        stays: Whether weights stay as they were rounded, where all were at every step.
    """
    held: list[tuple[list[Any], _Rounded]] = []
    handles: list[Any] = []
    with as_modules(model):
        for site in codable(model, select):
            modules: dict[int, Any] = {id(module): module for module in map(model.get_submodule, site.paths)}
            rounded = _Rounded(site.stacked(), form, turned=site.turned, share=share)
            for module in modules.values():
                parametrize.register_parametrization(module, "weight", rounded)
                if inputs and not isinstance(module, nn.Embedding):
                    handles.append(
                        module.register_forward_pre_hook(lambda _, args: (rounded_inputs(args[0]), *args[1:]))
                    )
            held.append((list(modules.values()), rounded))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for modules_of_one, rounded in held:
                original = modules_of_one[0].parametrizations.weight.original
                stay = rounded.moved or (stays and share == 1 and rounded.trained(original))
                value = rounded.eval()(original) if stay else None
                for module in modules_of_one:
                    parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
                if value is not None:
                    with torch.no_grad():
                        modules_of_one[0].weight.copy_(value)


class _Rounded(nn.Module):
    """A weight rounded to the nearest numbers, as a parametrization.

    Attributes:
        growth: Logarithms of what steps are multiplied by; None from 2 bits on, where steps follow the weights.
    """

    def __init__(self, W: Tensor, form: Form, *, turned: bool, share: float) -> None:
        super().__init__()
        self.form, self.turned, self.share = form, turned, share
        self.growth = nn.Parameter(torch.zeros_like(Grid.of(W, form).scale)) if form.bits < 2 else None
        self._before = digest(W)

    def trained(self, weight: Tensor) -> bool:
        """Whether the weight is another than at the start: where nothing was learned, it is put back."""
        whole = weight.mT if self.turned else weight
        return digest(whole.reshape(-1, whole.shape[-1])) != self._before

    @property
    def moved(self) -> bool:
        """Whether training has changed the steps."""
        return self.growth is not None and bool(self.growth.count_nonzero())

    def forward(self, weight: Tensor) -> Tensor:
        whole = weight.mT if self.turned else weight
        rows = whole.reshape(-1, whole.shape[-1])  # of all experts, one below the other
        n = rows.shape[1]
        with torch.no_grad():
            scale, zero = Grid.of(rows, self.form).columns(0, n, n)
        if self.growth is not None:
            grown = self.growth.exp()
            scale = scale * (grown if grown.shape[1] == 1 else grown[:, torch.arange(n) // self.form.group_of(n)])
        q = nearest(rows.detach(), scale.detach(), zero, self.form.levels)
        rounded = (scale * (q - zero)).to(rows.dtype)
        rows = straight_through(rows, rounded, noise_of(rows, self.share, self.training))
        rows = rows.view_as(whole)
        return rows.mT if self.turned else rows


def digest(W: Tensor) -> bytes:
    """A short text that is another for other numbers."""
    return blake2b(W.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
