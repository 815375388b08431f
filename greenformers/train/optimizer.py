"""Muon for the matrices inside the layers, AdamW for all other parameters. Jordan 2024; Liu 2025, arXiv:2502.16982.

Muon updates a matrix by its momentum M with all singular values made alike: with M = U S V^T by about U V^T, found by
Newton-Schulz steps; scaled by 0.2 sqrt(max(m, n)), so that entries change by as much as AdamW's would. Both factors of
a low-rank layer so learn at one speed in all of their directions, whatever the size of the other factor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from greenformers.train.bf16 import quickest

MOMENTUM = 0.95
QUINTIC, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
"""Coefficients of Newton-Schulz: five steps make singular values of about 0.7 to 1.2 of all but the least."""
LEAST, LONG = 64, 3
"""Rows of a matrix, and columns in units of its rows, from which on polynomials of its Gram matrix are quicker."""
LARGE = 192
"""Rows and columns of a matrix from which on a CPU with instructions for bfloat16 is quicker in it than in float32."""


class Muon(Optimizer):
    """Orthogonalised momentum for matrices, by torch.optim.Muon's formula and scale.

    That one computes in bfloat16, which a CPU without instructions for it emulates: for a matrix of 512 x 128 20 times
    as long as float32 takes there, and longer than the rest of a step. Here it is bfloat16 on GPUs, and where it is
    asked for, for matrices of at least `LARGE` rows and columns: on a CPU with instructions for it a quarter to two
    thirds of the time.

    Args:
        groups: Groups of matrices.
        lr: Highest learning rate.
        bf16: Whether a CPU computes in bfloat16 too.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, *, bf16: bool = False) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self._bf16 = bf16

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the matrices that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                momentum = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - MOMENTUM)
                direction = orthogonalised(matrix.grad.lerp(momentum, MOMENTUM), bf16=self._bf16)  # as Nesterov's
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.sub_(direction, alpha=group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def orthogonalised(matrix: Tensor, *, bf16: bool = False) -> Tensor:
    """About U V^T of a matrix U S V^T, by Newton-Schulz: X <- a X + (b X X^T + c (X X^T)^2) X.

    Args:
        matrix: The matrix.
        bf16: Whether a large matrix is computed in bfloat16 on a CPU; on a GPU all are.
    """
    half = matrix.is_cuda or (bf16 and min(matrix.shape) >= LARGE)
    x = matrix.bfloat16() if half else matrix
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    # Polynomials of X X^T take more digits than bfloat16 has, and pay where they are much smaller than X.
    long = not half and x.shape[0] >= LEAST and x.shape[1] >= LONG * x.shape[0]
    x = _by_gram(x) if long else _by_matrix(x)
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


def _by_matrix(x: Tensor) -> Tensor:
    """Newton-Schulz as it is written, for X (p, q): 4 p^2 q + 2 p^3 FLOPs an iteration."""
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _by_gram(x: Tensor) -> Tensor:
    """The same by G = X X^T (p, p), as each iteration is a polynomial P = a I + b G + c G^2 of it.

    G <- P G P, and in the end X <- P_5 .. P_1 X: 8 p^3 FLOPs an iteration and 4 p^2 q in all, about half for q = 4 p.
    """
    gram = x @ x.T
    whole = polynomial = _polynomial(gram)
    for _ in range(ITERATIONS - 1):
        gram = polynomial @ gram @ polynomial
        polynomial = _polynomial(gram)
        whole = polynomial @ whole
    return whole @ x


def _polynomial(gram: Tensor) -> Tensor:
    """P of a matrix G."""
    a, b, c = QUINTIC
    polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    polynomial.diagonal().add_(a)
    return polynomial


class MuonAndAdamW(Optimizer):
    """One optimiser with the groups and the state of two.

    Args:
        muon: The optimiser of matrices.
        adamw: The optimiser of other parameters.
    """

    def __init__(self, muon: Muon, adamw: AdamW) -> None:
        self._parts: tuple[Optimizer, ...] = (muon, adamw)
        self._counts = [len(part.param_groups) for part in self._parts]
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        start = 0
        for part, count in zip(self._parts, self._counts, strict=True):
            # Whoever loads a state puts new groups and states in place of these.
            part.param_groups, part.state = self.param_groups[start : start + count], self.state
            part.step()
            start += count
        return loss


def muon_and_adamw(
    model: nn.Module,
    decayed: set[str],
    *,
    muon_rate: float,
    learning_rate: float,
    weight_decay: float,
    bf16: bool = False,
) -> MuonAndAdamW:
    """The optimiser of a model.

    Args:
        model: The model.
        decayed: Names of the parameters that decay.
        muon_rate: Highest learning rate of Muon.
        learning_rate: Highest learning rate of AdamW.
        weight_decay: Weight decay of both.
        bf16: Whether the model is trained in bfloat16: a CPU with instructions for it computes Muon's steps in it too.

    Raises:
        ValueError: There is no matrix inside a layer.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = {name for name, parameter in named.items() if is_matrix(name, parameter)}
    if not matrices:
        raise ValueError(f"muon_rate is for matrices inside layers, and {type(model).__name__} has none")

    def group(names: set[str], decay: float) -> dict[str, Any]:
        return {"params": [named[name] for name in named if name in names], "weight_decay": decay}

    rest = named.keys() - matrices
    groups = [group(rest & decayed, weight_decay), group(rest - decayed, 0.0)]
    muon = Muon([group(matrices, weight_decay)], lr=muon_rate, bf16=bf16 and quickest() == "bf16")
    return MuonAndAdamW(muon, AdamW(groups, lr=learning_rate, fused=True))


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix inside a layer of a stack: no embedding, nothing before or after the layers.

    Biases of all experts of a layer, and of all distances and heads, are tables and no matrices.
    """
    parts = name.split(".")
    inside = any(part.isdecimal() for part in parts) and "embed" not in name
    return parameter.ndim == 2 and inside and "bias" not in parts[-1]
