"""What the tests of the attention slot run over: each row, each of its forms, and drawn inputs and masks."""

from collections.abc import Callable

import pytest
import torch
from rows import DIM, HEADS, ROWS, Row
from torch import Tensor

from greenformers.attention import names

BATCH = 2

each_row = pytest.mark.parametrize("row", ROWS, ids=str)
FORMS = [(row, causal) for causal in (False, True) for row in ROWS if row.causal or not causal]
FIRST = {(row.name, causal): row for row, causal in reversed(FORMS)}
"""Of each mechanism the first row of either form."""


def form(row: Row, causal: bool, *marks: pytest.MarkDecorator) -> object:
    return pytest.param(row, causal, id=f"{row}-causal" if causal else str(row), marks=marks)


each_form = pytest.mark.parametrize(("row", "causal"), [form(*each) for each in FORMS])
# Without the rows that are alike but for numbers.
each_kind = pytest.mark.parametrize("row", [row for row in ROWS if not row.alike], ids=str)
each_kind_form = pytest.mark.parametrize(("row", "causal"), [form(*each) for each in FORMS if not each[0].alike])
# One row of each mechanism.
each_mechanism = pytest.mark.parametrize("row", [FIRST[name, False] for name in names()], ids=str)
# All forms, but those of the same code as one before only in the slow tests.
each_code = pytest.mark.parametrize(
    ("row", "causal"),
    [form(*each, *([] if FIRST[each[0].name, each[1]] is each[0] else [pytest.mark.slow])) for each in FORMS],
)


def draw(
    queries: int, keys: int, *, seed: int = 1, batch: int = BATCH, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, H, N, D), k and v (B, H, M, D), standard normal; the same numbers in every dtype."""
    generator = torch.Generator().manual_seed(seed)

    def normal(length: int) -> Tensor:
        return torch.randn(batch, HEADS, length, DIM, generator=generator, dtype=torch.float64).to(dtype)

    return normal(queries), normal(keys), normal(keys)


def holes(length: int, batch: int = BATCH) -> Tensor:
    """A mask (B, length): row 0 lacks the first position and every third one from there, the others their end.

    At length 1 row 0 is hidden altogether.
    """
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, ::3] = False
    mask[1:, length - length // 3 :] = False
    return mask


def unmasked(out: Tensor, query_mask: Tensor | None) -> Tensor:
    """The outputs that mean something: (B, H, N, D) to those of the kept queries, (n, H, D)."""
    out = out.transpose(1, 2)
    return out.flatten(0, 1) if query_mask is None else out[query_mask]


def filled(x: Tensor, where: Tensor, fill: Callable[[Tensor], Tensor]) -> Tensor:
    """`x` (B, H, N, D) with other contents at the positions `where` (B, N) or (N,), as a new leaf."""
    return torch.where(where[..., None, :, None], fill(x), x.detach()).requires_grad_(x.requires_grad)


def noise(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)


def huge(x: Tensor) -> Tensor:
    """Values whose products of two stay finite in float32."""
    return 1e15 * noise(x)
