"""Weights of the experts of a mixture, dense or low-rank: each row of the input goes through its expert's weight.

A mixture of E experts holds each of its weights once per expert: W_e (m x n). Rows come sorted by expert, so that the
rows of an expert are a slice; row i of expert e gives W_e x_i. Of low rank, W_e ~ D_e E_e: r (m + n) parameters an
expert and as many multiply-adds a row in place of m n. One rank for all experts keeps the factors in three dimensions.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers._gradients import by_hand
from greenformers._initial import may_set
from greenformers._torch import in_transform, is_fake
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

    @classmethod
    def all(cls, length: int, experts: int, device: torch.device) -> Self:
        """Every token once for each expert: `length` times as many rows as there are experts."""
        order = torch.arange(length * experts, device=device)
        return cls([length] * experts, order // length, order % length, order, length)

    def summed(self, rows: Float[Tensor, "S m"], weights: Float[Tensor, "N k"]) -> Float[Tensor, "N m"]:
        """The sum of the rows of each token, each times the weight of its choice; 0 for a token without a row."""
        rows = rows * weights.flatten()[self.order, None]
        # Sums in the order of the choices: `index_add` of rows is not deterministic on a GPU.
        choices = rows.new_zeros(weights.numel(), rows.shape[1]).index_copy(0, self.order, rows)
        return choices.unflatten(0, weights.shape).sum(1)


def by_expert(
    x: Float[Tensor, "S n"], W: Float[Tensor, "E m n"], bias: Float[Tensor, "E m"] | None, counts: list[int]
) -> Float[Tensor, "S m"]:
    """W_e x + b_e for each row x, the first `counts[0]` of expert 0 and so on; experts without rows are not computed.

    Outputs and gradients of all experts are each written into one tensor, in place of being put together from parts:
    the gradient of the weights is as large as all weights, most of which few rows may reach.
    """
    # Autocast chooses the types of single operators, and transforms of functions know operators alone.
    autocast = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    alike = x.dtype == W.dtype and (bias is None or bias.dtype == x.dtype)
    if autocast or not alike or torch.compiler.is_compiling() or in_transform():
        return _in_parts(x, W, bias, counts)
    output: Tensor = _ByExpert.apply(x, W, bias, counts)
    return output


def _in_parts(x: Tensor, W: Tensor, bias: Tensor | None, counts: list[int]) -> Tensor:
    """The same in operations that torch differentiates."""
    biases = [None] * len(counts) if bias is None else bias.unbind()
    # One unbind for all: the gradient of each weight indexed by itself would be as large as that of all weights.
    parts = zip(x.split(counts), W.unbind(), biases, strict=True)
    outputs = [F.linear(part, weight, own) for part, weight, own in parts if len(part)]
    return torch.cat(outputs) if outputs else x.new_zeros(0, W.shape[1])


class _ByExpert(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, bias: Tensor | None, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, W, bias)
        ctx.counts = counts
        output = x.new_empty(len(x), W.shape[1])
        for e, part, y in _rows(counts, x, output):
            if bias is None:
                torch.mm(part, W[e].T, out=y)
            else:
                torch.addmm(bias[e], part, W[e].T, out=y)
        return output

    @staticmethod
    @by_hand(3, lambda ctx, x, W, bias: _in_parts(x, W, bias, ctx.counts))
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, W, bias = ctx.saved_tensors
        grad = grad.contiguous()
        wants_x, wants_W, wants_bias = ctx.needs_input_grad[:3]
        grad_x: Tensor | None = torch.empty_like(x) if wants_x else None
        grad_W: Tensor | None = W.new_empty(W.shape) if wants_W else None
        grad_bias: Tensor | None = bias.new_zeros(bias.shape) if wants_bias else None
        for e, part, dy, *dx in _rows(ctx.counts, x, grad, *([] if grad_x is None else [grad_x])):
            if dx:
                torch.mm(dy, W[e], out=dx[0])
            if grad_W is not None:
                torch.mm(dy.T, part, out=grad_W[e])
            if grad_bias is not None:
                grad_bias[e] = dy.sum(0)
        if grad_W is not None:
            for idle in (e for e, count in enumerate(ctx.counts) if not count):
                grad_W[idle].zero_()
        return grad_x, grad_W, grad_bias, None


def _rows(counts: list[int], *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Each expert that has rows, with its rows of every tensor."""
    for e, *parts in zip(range(len(counts)), *(x.split(counts) for x in tensors), strict=True):
        if counts[e]:
            yield e, *parts


class ExpertsLinear(nn.Module):
    """A dense linear layer of every expert: E weights and biases.

    Args:
        weight: Weights (E, m, n); (E, n, m) if `transposed`.
        bias: Biases (E, m), or None.
        transposed: Whether the weight is held transposed.
    """

    bias: nn.Parameter | None
    std: float | None = None
    """The standard deviation that weights are drawn with; None where nobody draws them."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None, *, transposed: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.transposed = weight, bias, transposed

    def reset_parameters(self) -> None:
        """Draw the weights anew, and set biases to 0, where these are drawn at all."""
        if self.std is None:
            return
        draw_truncated(self.weight, self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def matrices(self) -> Float[Tensor, "E m n"]:
        """W_1 to W_E."""
        return self.weight.mT if self.transposed else self.weight

    def forward(self, x: Float[Tensor, "S n"], routed: Routed) -> Float[Tensor, "S m"]:
        """W_e x for each row x, where e is its expert."""
        return by_expert(x, self.matrices, self.bias, routed.counts)

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


def experts_layer(
    experts: int, in_features: int, out_features: int, rank: int | None, *, bias: bool = True
) -> ExpertsLinear | ExpertsLED:
    """A linear layer of every expert, not initialised: dense, or with a rank low-rank.

    Raises:
        ValueError: The rank is out of range.
    """
    if rank is not None:
        return ExpertsLED(experts, in_features, out_features, rank, bias)
    weight = nn.Parameter(torch.empty(experts, out_features, in_features))
    return ExpertsLinear(weight, nn.Parameter(torch.empty(experts, out_features)) if bias else None)


def draw_experts(layer: nn.Module, std: float) -> None:
    """Draw weights by `draw_truncated`, and set biases to 0.

    The factors of a low-rank layer are drawn so that their product has that deviation, as `LED.reset_parameters` does.
    Layers of another kind (int8, say) keep what they hold. A network that is loaded without some of them draws these.
    """
    if isinstance(layer, ExpertsLED):
        n = layer.in_features
        layer.encoders.std, layer.decoders.std = n**-0.5, std * (n / layer.rank) ** 0.5
        layer.encoders.reset_parameters()
        layer.decoders.reset_parameters()
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif isinstance(layer, ExpertsLinear):
        layer.std = std
        layer.reset_parameters()


def draw_truncated(weight: Tensor, std: float) -> None:
    """Draw a weight from a normal distribution of this standard deviation, cut at two of them.

    By its quantiles: x = std sqrt(2) erfinv(u), u uniform in (-erf(sqrt 2), erf(sqrt 2)). `torch.nn.init` draws all of
    a tensor again until none is beyond, ten times as long for experts of 2 million weights. What was loaded stays.
    """
    if may_set(weight):
        bound = math.erf(2**0.5)
        with torch.no_grad():
            weight.uniform_(-bound, bound).erfinv_().mul_(std * 2**0.5).clamp_(-2 * std, 2 * std)
