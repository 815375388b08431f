"""Weights of the experts of a mixture, dense or low-rank: each row of the input goes through its expert's weight.

A mixture of E experts holds each of its weights once per expert: W_e (m x n). Rows come sorted by expert, so that the
rows of an expert are a slice; row i of expert e gives W_e x_i. Of low rank, W_e ~ D_e E_e: r (m + n) parameters an
expert and as many multiply-adds a row in place of m n. One rank for all experts keeps the factors in three dimensions.
"""

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers._torch import is_fake
from greenformers.lowrank.computed import computed


class Routed(NamedTuple):
    """The rows of a batch, sorted by the expert each is routed to.

    Attributes:
        counts: Number of rows of each of the E experts, in their order.
        experts: The expert of each row (S,), in ascending order.
        tokens: The token of each row (S,): its place in the input of the layer.
        order: The place of each row (S,) in the flattened choices, k of each token.
        length: Number N of tokens that the layer got.
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
        if is_fake(ids) or ids.is_meta:  # the choice is unknown: the same number for all
            counts = [len(range(e, len(ids), experts)) for e in range(experts)]
        else:
            counts = torch.bincount(ids, minlength=experts)[:experts].tolist()
        rows = sum(counts)
        return cls(counts, ids[:rows], order[:rows] // chosen.shape[-1], order[:rows], len(chosen))


class ExpertsLinear(nn.Module):
    """A dense linear layer of every expert: E weights and biases.

    Args:
        weight: Weights (E, m, n); (E, n, m) if `transposed`.
        bias: Biases (E, m), or None.
        transposed: Whether the weight is held transposed.
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
        """W_e x for each row x, where e is its expert."""
        biases = [None] * len(routed.counts) if self.bias is None else self.bias.unbind()
        # One unbind for all: the gradient of each weight indexed by itself would be as large as that of all weights.
        parts = zip(x.split(routed.counts), self.matrices.unbind(), biases, strict=True)
        outputs = [F.linear(part, W, bias) for part, W, bias in parts if len(part)]
        return torch.cat(outputs) if outputs else x.new_zeros(0, self.matrices.shape[1])

    def extra_repr(self) -> str:  # noqa: D102
        experts, m, n = self.matrices.shape
        return f"{n}, {m}, experts={experts}, bias={self.bias is not None}, transposed={self.transposed}"


class ExpertsLED(nn.Module):
    """A linear layer of every expert, each of rank at most r, in place of `ExpertsLinear`.

    Args:
        experts: Number E of experts.
        in_features: Width n of the input.
        out_features: Width m of the output.
        rank: Rank r of each expert, in 1..min(n, m).
        bias: Whether biases are added after the second factors.
        transposed: Whether the dense weight it replaces is held transposed.

    Attributes:
        encoders: `ExpertsLinear` with the weights E_e (E, r, n).
        decoders: `ExpertsLinear` with the weights D_e (E, m, r). They are not named as the factors of an LED:
            a PEFT target of those names means linear layers, and must not match these.
        bias: Biases (E, m), or None.

    Raises:
        ValueError: The rank is out of range.
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
            ValueError: The rank is out of range.
        """
        weight, (experts, m, n) = dense.weight, dense.matrices.shape
        with torch.device("meta"):
            unit = cls(experts, n, m, rank, dense.bias is not None, dense.transposed)
        return unit.to(weight.dtype).to_empty(device=weight.device).train(dense.training)

    @property
    def weight(self) -> Float[Tensor, "E m n"]:
        """The products of the factors, the dense weights as `ExpertsLinear` holds them; see `computed`."""
        D, E = self.decoders.weight, self.encoders.weight
        m, n = self.out_features, self.in_features
        if self.transposed:
            return computed(lambda: (D @ E).mT.contiguous(), (self.experts, n, m), D)
        return computed(lambda: D @ E, (self.experts, m, n), D)

    def to_dense(self) -> ExpertsLinear:
        """The dense layer, trainable where a factor is; it shares the biases."""
        learnt = any(factor.weight.requires_grad for factor in (self.decoders, self.encoders))
        weight = nn.Parameter(self.weight.detach() + 0, learnt)
        return ExpertsLinear(weight, self.bias, transposed=self.transposed).train(self.training)

    def forward(self, x: Float[Tensor, "S n"], routed: Routed) -> Float[Tensor, "S m"]:
        """D_e E_e x for each row x, where e is its expert."""
        output: Tensor = self.decoders(self.encoders(x, routed), routed)
        return output if self.bias is None else output + self.bias[routed.experts]

    def extra_repr(self) -> str:  # noqa: D102
        return (
            f"{self.in_features}, {self.out_features}, experts={self.experts}, rank={self.rank}, "
            f"bias={self.bias is not None}"
        )
