"""Weights of experts, of which each row of the input goes through its own: dense ones, and those of low rank.

A mixture of E experts holds each of its weights once an expert: W_e (m x n). Rows come sorted by expert, so that those
of one are a slice; row i of expert e gives W_e x_i. Of low rank, W_e ~ D_e E_e: r (m + n) parameters an expert and as
many multiply-adds a row in place of m n. One rank for all experts keeps the factors in three dimensions.
"""

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers._torch import is_fake
from greenformers.lowrank.computed import computed


class Routed(NamedTuple):
    """Which rows are whose.

    Attributes:
        counts: How many rows each of the E experts has, one expert after the other.
        experts: The expert of each row (S,), rising.
        tokens: The token of each row (S,): its place in the input of the layer.
        order: The place of each row (S,) in the flattened choices, k of each token.
        length: How many tokens the layer got.
    """

    counts: list[int]
    experts: Int[Tensor, " S"]
    tokens: Int[Tensor, " S"]
    order: Int[Tensor, " S"]
    length: int

    @classmethod
    def of(cls, chosen: Int[Tensor, "N k"], experts: int) -> Self:
        """Rows by expert, of the k experts that a router chose for each token; numbers from E on mean none."""
        ids, order = chosen.flatten().sort(stable=True)
        if is_fake(ids) or ids.is_meta:  # nobody knows who is chosen: all alike
            counts = [len(range(e, len(ids), experts)) for e in range(experts)]
        else:
            counts = torch.bincount(ids, minlength=experts)[:experts].tolist()
        rows = sum(counts)
        return cls(counts, ids[:rows], order[:rows] // chosen.shape[-1], order[:rows], len(chosen))


class ExpertsLinear(nn.Module):
    """One dense weight of all experts, and their biases.

    Args:
        weight: (E, m, n); (E, n, m) if `transposed`.
        bias: (E, m).
        transposed: The weight is held so.
    """

    bias: nn.Parameter | None

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None, *, transposed: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.transposed = weight, bias, transposed

    @property
    def matrices(self) -> Float[Tensor, "E m n"]:
        """W_1 to W_E."""
        return self.weight.mT if self.transposed else self.weight

    def forward(self, x: Float[Tensor, "S n"], routed: Routed) -> Float[Tensor, "S m"]:
        """W_e x of each row, e its expert."""
        biases = [None] * len(routed.counts) if self.bias is None else self.bias.unbind()
        # Taken apart at once: the gradient of each by itself would be as large as that of all.
        parts = zip(x.split(routed.counts), self.matrices.unbind(), biases, strict=True)
        found = [F.linear(part, W, bias) for part, W, bias in parts if len(part)]
        return torch.cat(found) if found else x.new_zeros(0, self.matrices.shape[1])

    def extra_repr(self) -> str:  # noqa: D102
        experts, m, n = self.matrices.shape
        return f"{n}, {m}, experts={experts}, bias={self.bias is not None}, transposed={self.transposed}"


class ExpertsLED(nn.Module):
    """One weight of all experts, of rank at most r each, in place of `ExpertsLinear`.

    Args:
        experts: E.
        in_features: Width n of the input.
        out_features: Width m of the output.
        rank: r, in 1..min(n, m).
        bias: Add biases after the second factors.
        transposed: The dense weight it stands for is held transposed.

    Attributes:
        encoders: `ExpertsLinear` with the weights E_e (E, r, n).
        decoders: `ExpertsLinear` with the weights D_e (E, m, r). Not named as the factors of an LED are: who asks PEFT
            for those, which are linear layers, must not get these.
        bias: (E, m).

    Raises:
        ValueError: rank out of range.
    """

    def __init__(
        self, experts: int, in_features: int, out_features: int, rank: int, bias: bool = True, transposed: bool = False
    ) -> None:
        super().__init__()
        limit = min(in_features, out_features)
        if not 1 <= rank <= limit:
            raise ValueError(f"rank must be in 1..{limit} for experts of {in_features} x {out_features}, got {rank}")
        self.experts, self.in_features, self.out_features, self.rank = experts, in_features, out_features, rank
        self.encoders = ExpertsLinear(nn.Parameter(torch.empty(experts, rank, in_features)))
        self.decoders = ExpertsLinear(nn.Parameter(torch.empty(experts, out_features, rank)))
        self.bias = nn.Parameter(torch.empty(experts, out_features)) if bias else None
        self.transposed = transposed

    @classmethod
    def like(cls, dense: ExpertsLinear, rank: int) -> Self:
        """An empty unit of the sizes, dtype and device of dense weights.

        Raises:
            ValueError: rank out of range.
        """
        weight, (experts, m, n) = dense.weight, dense.matrices.shape
        with torch.device("meta"):
            made = cls(experts, n, m, rank, dense.bias is not None, dense.transposed)
        return made.to(weight.dtype).to_empty(device=weight.device).train(dense.training)

    @property
    def weight(self) -> Float[Tensor, "E m n"]:
        """The dense weights the factors stand for, as `ExpertsLinear` holds them; see `computed`."""
        D, E = self.decoders.weight, self.encoders.weight
        m, n = self.out_features, self.in_features
        if self.transposed:
            return computed(lambda: (D @ E).mT.contiguous(), (self.experts, n, m), D)
        return computed(lambda: D @ E, (self.experts, m, n), D)

    def to_dense(self) -> ExpertsLinear:
        """The dense weights, trainable where a factor is; the biases are these."""
        learnt = any(factor.weight.requires_grad for factor in (self.decoders, self.encoders))
        weight = nn.Parameter(self.weight.detach() + 0, learnt)
        return ExpertsLinear(weight, self.bias, transposed=self.transposed).train(self.training)

    def forward(self, x: Float[Tensor, "S n"], routed: Routed) -> Float[Tensor, "S m"]:
        """D_e E_e x of each row, e its expert."""
        found: Tensor = self.decoders(self.encoders(x, routed), routed)
        return found if self.bias is None else found + self.bias[routed.experts]

    def extra_repr(self) -> str:  # noqa: D102
        return (
            f"{self.in_features}, {self.out_features}, experts={self.experts}, rank={self.rank}, "
            f"bias={self.bias is not None}"
        )
