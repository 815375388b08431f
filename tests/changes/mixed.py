"""A network of torch with every kind of linear layer, and one of linear layers only."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.solve.factorise import factorise
from greenformers.solve.result import Factorisation


class Mixed(nn.Module):
    """Token ids (B, N) to logits (B, N, 23): a table, a grouped convolution, torch's encoder, a frozen map, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(23, 12, padding_idx=0)
        self.conv = nn.Conv1d(12, 20, 3, padding=1, groups=2)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(20, 2, 28, batch_first=True), 1)
        self.frozen = nn.Linear(20, 20).requires_grad_(False)
        self.head = nn.Linear(20, 23)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.table(ids).mT).mT  # (B, N, 20)
        return self.head(self.frozen(self.body(x)).tanh())


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


def tokens(batches: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(1, 23, (4, 6), generator=draw) for _ in range(batches)]


def chain(*widths: int, bias: bool = True) -> nn.Sequential:
    """Linear layers with tanh between; their outputs lie far from 0."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for n, m in pairwise(widths):
        parts += [nn.Linear(n, m, bias), nn.Tanh()]
        if bias:
            nn.init.normal_(parts[-2].bias, 0.5)  # type: ignore[arg-type]
    return nn.Sequential(*parts[:-1])


def rows(n: int, batches: int = 3, size: int = 41) -> list[Tensor]:
    """Inputs that vary much more in some directions, far from 0."""
    draw = torch.Generator().manual_seed(2)
    mix = torch.randn(n, n, generator=draw) * torch.logspace(0, -2, n)[:, None]
    return [torch.randn(size, n, generator=draw) @ mix + 0.7 for _ in range(batches)]


def all_of(model: nn.Module, budget: Any, **options: Any) -> Factorisation:
    """Everything selected, ranks of any number."""
    return factorise(model, budget, **{"select": lambda *_: True, "multiple": 1} | options)
