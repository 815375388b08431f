"""The seconds that linear layers of any size take on this machine: c0 + c1 m + c2 n + c3 m n, fitted to measured ones.

A layer with fewer units, or at a rank, has sizes that nobody has time to measure one by one.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import torch
from torch import nn

from greenformers.measure.latency import interleaved

Sizes = tuple[int, int]
"""Outputs m and inputs n."""


class LinearTime:
    """Seconds of linear layers on inputs of some shapes, by their sizes.

    Args:
        measured: Sizes that are measured, of the range that is asked for.
        weight: A weight, for its device and dtype.
    """

    def __init__(self, measured: Iterable[Sizes], weight: torch.Tensor) -> None:
        self.measured, self.weight = sorted(set(measured)), weight
        self._fits: dict[tuple[torch.Size, ...], list[float]] = {}

    def __call__(self, m: int, n: int, leading: Sequence[torch.Size]) -> float:
        """Seconds of a layer with m outputs and n inputs.

        Args:
            m: Its outputs.
            n: Its inputs.
            leading: Shapes of its inputs, one for each call, without the last dimension.
        """
        key = tuple(leading)
        if key not in self._fits:
            self._fits[key] = self._fitted(key)
        return sum(part * value for part, value in zip(self._fits[key], (1, m, n, m * n), strict=True))

    def _fitted(self, leading: Sequence[torch.Size]) -> list[float]:
        times = interleaved(
            {str(number): self._run(m, n, leading) for number, (m, n) in enumerate(self.measured)},
            repeats=7, warmup=2, min_time=0.1, device=self.weight.device,
        )  # fmt: skip
        seconds = torch.tensor([times[str(number)].median for number in range(len(self.measured))]).double()
        m, n = torch.tensor(self.measured).double().T
        # Relative errors: short times count as much as long ones. Nothing is faster for being larger.
        parts = torch.stack([torch.ones_like(m), m, n, m * n], 1) / seconds[:, None]
        return _not_negative(parts, torch.ones(len(m)).double())

    def _run(self, m: int, n: int, leading: Sequence[torch.Size]) -> Callable[[], None]:
        layer = nn.Linear(n, m, device=self.weight.device, dtype=self.weight.dtype)
        inputs = [torch.randn(*shape, n).to(self.weight) for shape in leading]

        def run() -> None:
            with torch.inference_mode():
                for x in inputs:
                    layer(x)

        return run


def _not_negative(A: torch.Tensor, b: torch.Tensor) -> list[float]:
    """The x >= 0 with least |A x - b|^2: of all choices of columns whose own least squares are not negative, the best.

    With four columns there are fifteen choices.
    """
    best, least = [0.0] * A.shape[1], float("inf")
    for count in range(1, A.shape[1] + 1):
        for columns in map(list, combinations(range(A.shape[1]), count)):
            # Columns differ in size by many orders of magnitude.
            scale = A[:, columns].norm(dim=0)
            x = torch.linalg.lstsq(A[:, columns] / scale, b).solution / scale
            error = (A[:, columns] @ x - b).square().sum().item()
            if bool((x >= 0).all()) and error < least:
                best, least = [0.0] * A.shape[1], error
                for column, value in zip(columns, x.tolist(), strict=True):
                    best[column] = value
    return best
