"""The order in which the units of a layer go: each time the one without which least is lost after the fit of the rest.

Second order, as in ZipLM (Kurtic 2023, arXiv:2302.04089), with the curvature of K-FAC: inputs h of the layer that reads
the units have moments C, the loss feels its outputs by G = E d d^T over gradients d. Of a change D of its weight (n, m)
tr D G D^T C is lost; without the rows S, and with all others fitted, K = C^-1:

    loss of S = tr G W_S^T (K_SS)^-1 W_S,   then   W -= K_.S (K_SS)^-1 W_S   and   K -= K_.S (K_SS)^-1 K_S.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from greenformers.solve.refit import DAMPING

BLOCK = 32
"""Units that go between two updates of all of K; until then only the columns that are needed are up to date."""


@dataclass
class Order:
    """The units of a layer in the order in which they go.

    Attributes:
        units: Their numbers (U,).
        lost: What is lost with so many of them left, (U + 1,): all, ..., 0 with U.
    """

    units: Tensor
    lost: Tensor

    def left(self, count: int) -> Tensor:
        """The units that stay, of a number; ascending."""
        return self.units[len(self.units) - count :].sort().values


def order(C: Tensor, weight: Tensor, columns: Tensor, G: Tensor) -> Order:
    """The order in which the units of a layer go.

    Args:
        C: Moments of its inputs (n, n), about their mean where it has a bias.
        weight: Its weight (n, m).
        columns: Inputs of each unit (U, s).
        G: Curvature of the loss in its outputs (m, m).
    """
    C, G, rows = C.double(), G.to(C.device).double(), columns.flatten().to(C.device)
    size = columns.shape[1]
    K = torch.linalg.inv(_damped(C))[rows][:, rows]
    W = (weight.double() @ torch.linalg.cholesky(_damped(G)))[rows]
    numbers, units, lost = torch.arange(len(columns), device=C.device), [], [0.0]
    while len(numbers):
        count = len(numbers)
        gone = torch.zeros(count, dtype=torch.bool, device=K.device)
        blocks = K.view(count, size, count, size).diagonal(dim1=0, dim2=2)
        D = blocks.permute(2, 0, 1).clone()  # (U, s, s), the blocks K_SS
        T = W.view(count, size, -1) @ W.view(count, size, -1).mT  # (U, s, s), the blocks W_S W_S^T
        L, M = K.new_zeros(len(K), 0), W.new_zeros(0, W.shape[1])  # K - L L^T and W - L M are up to date
        for _ in range(min(BLOCK, count)):
            each = _losses(D, T).masked_fill_(gone, torch.inf)
            unit = int(each.argmin())
            S = slice(unit * size, (unit + 1) * size)
            root = torch.linalg.cholesky(D[unit])
            new = torch.linalg.solve_triangular(root, K[S] - L[S] @ L.T, upper=False).T  # new new^T = K_.S D^-1 K_S.
            R = torch.linalg.solve_triangular(root, W[S] - L[S] @ M, upper=False)  # new R = K_.S D^-1 W_S
            N, Q = new.view(count, size, size), (W @ R.T - L @ (M @ R.T)).view(count, size, size)
            D -= N @ N.mT
            T -= N @ Q.mT + Q @ N.mT - N @ (R @ R.T) @ N.mT
            D[unit].fill_(0).fill_diagonal_(1)  # not singular
            L, M = torch.cat([L, new], 1), torch.cat([M, R])
            gone[unit] = True
            units.append(int(numbers[unit]))
            lost.append(lost[-1] + max(each[unit].item(), 0.0))
        numbers, rows = numbers[~gone], (~gone).repeat_interleave(size).nonzero().flatten()
        L = L[rows]
        K = K[rows][:, rows] - L @ L.T
        W = W[rows] - L @ M
    return Order(torch.tensor(units), torch.tensor(lost, dtype=torch.float64).flip(0))


def _losses(D: Tensor, T: Tensor) -> Tensor:
    """Traces of D^-1 T (U,), of the blocks K_SS and W_S W_S^T (U, s, s)."""
    if D.shape[1] == 1:
        return (T / D)[:, 0, 0]
    return torch.linalg.solve(D, T).diagonal(dim1=1, dim2=2).sum(1)


def _damped(square: Tensor) -> Tensor:
    mean = square.diagonal().mean()
    return square + DAMPING * mean.where(mean > 0, 1) * torch.eye(len(square), dtype=mean.dtype, device=mean.device)
