"""What a call would do, operation by operation, without doing it: on tensors that have a shape and no content."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from greenformers._torch import OperatorWatch, fake_tensors, leaves, operators
from greenformers.attention._tiled_op import amount

NARROW = 64
"""Products with a side below this run at a lower rate."""

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.linear, aten.matmul}
TILED = (torch.ops.greenformers.tiled, torch.ops.greenformers.tiled_backward)
FREE = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, operators.unchecked_view, torch.ops.prim.device,
}  # fmt: skip
"""Make no time: nothing is read or written, or, as the last, only tensors without content ask it."""
EXPONENTIAL = {
    aten.exp, aten.exp_, aten.softmax, operators.softmax, operators.safe_softmax, operators.softmax_backward, aten.gelu,
    aten.gelu_backward, aten.sigmoid, aten.sigmoid_, aten.tanh, aten.sin, aten.cos, aten.pow, aten.logsumexp,
}  # fmt: skip
GATHERING = {
    aten.gather, aten.scatter, aten.scatter_, aten.scatter_add, aten.scatter_add_, aten.index, aten.index_select,
    aten.index_add, aten.index_add_, aten.index_put, aten.index_put_, operators.index_put, aten.embedding, aten.roll,
    aten.cumsum, aten.slice_backward, aten.select_backward, aten.tril, aten.tril_,
}  # fmt: skip
"""Not in the order of memory, or one entry after the other."""
SORTING = {aten.sort, aten.topk, aten.argsort}


@dataclass
class Work:
    """Sums over all operations of a call.

    Attributes:
        wide, narrow: FLOPs of matrix products, by their smaller inner or outer side.
        batched: FLOPs of batched matrix products.
        moved: bytes read and written by matrix products.
        attention: FLOPs of fused attention.
        scores: entries of its matrices.
        exponential, gathered, sorted: bytes read and written by exponentials and their like, by operations that gather
            or scatter, and by sorting.
        elementwise: bytes read and written by all other operations.
        operations: how many there are that are no views.
        peak: most bytes of tensors that live at once, above those at the start.
    """

    wide: float = 0.0
    narrow: float = 0.0
    batched: float = 0.0
    moved: float = 0.0
    attention: float = 0.0
    scores: float = 0.0
    exponential: float = 0.0
    gathered: float = 0.0
    sorted: float = 0.0
    elementwise: float = 0.0
    operations: float = 0.0
    peak: float = 0.0

    FEATURES = (
        "wide", "narrow", "batched", "moved", "attention", "scores", "exponential", "gathered", "sorted", "elementwise",
        "operations",
    )  # fmt: skip

    def features(self) -> list[float]:
        """What time is made of, in giga of each unit; operations in thousands."""
        return [getattr(self, name) / (1e3 if name == "operations" else 1e9) for name in self.FEATURES]


@dataclass
class _Watch(OperatorWatch):
    work: Work = field(default_factory=Work)
    live: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        self.known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def saw(self, operator: Any, arguments: tuple[Any, ...], result: Any) -> None:
        """Add the operator's work and memory."""
        given = [leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor)]  # an out= is no operand
        made = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        for leaf in given:  # not made by an operation: it was there at the start
            self.known.setdefault(leaf.untyped_storage(), 0)
        self._hold(made)
        if operator.overloadpacket is operators.safe_softmax:
            # Within it there is a mask of rows that are -inf throughout.
            self.work.peak = max(self.work.peak, self.live + made[0].numel())
        if not operator.is_view and operator.overloadpacket not in FREE:
            self._count(operator.overloadpacket, arguments, given, made)

    def _count(self, kind: Any, args: Any, given: list[Tensor], made: list[Tensor]) -> None:
        work = self.work
        work.operations += 1
        size = sum(leaf.numel() * leaf.element_size() for leaf in [*given, *made])
        if kind in PRODUCTS:
            # In inference_mode operators that are made of others arrive whole: linear, with its bias last.
            left, right = (given[0], given[1].mT) if kind is aten.linear else given[-2:]
            flops = 2.0 * made[0].numel() * left.shape[-1]  # either side may be broadcast
            if right.dim() > 2:
                work.batched += flops
            elif min(left.numel() // left.shape[-1], *right.shape) < NARROW:
                work.narrow += flops
            else:
                work.wide += flops
            work.moved += size
        elif "scaled_dot_product" in str(kind):
            backward = "backward" in str(kind)
            q, k = given[1:3] if backward else given[:2]
            scores = prod(q.shape[:-1]) * k.shape[-2]
            work.scores += scores
            work.attention += (10.0 if backward else 4.0) * scores * q.shape[-1]
        elif kind in TILED:
            found, backward = amount(args), kind is TILED[1]
            work.batched += found.flops
            work.moved += 4.0 * (found.operands + found.scores * (5 if backward else 2))
            # Reads and writes of each score, and operations of a slice, as counted on the engine itself.
            work.elementwise += 4.0 * found.scores * (13 if backward else 10)
            work.operations += found.slices * (37 if backward else 17)
        elif kind in EXPONENTIAL:
            work.exponential += size
        elif kind in GATHERING:
            work.gathered += size
        elif kind in SORTING:
            work.sorted += size
        else:
            work.elementwise += size

    def _hold(self, made: list[Tensor]) -> None:
        for leaf in made:
            storage = leaf.untyped_storage()
            if storage not in self.known:
                size = storage.nbytes()
                self.known[storage] = size
                self.live += size
                weakref.finalize(storage, self._release, size)
        self.work.peak = max(self.work.peak, self.live)

    def _release(self, size: int) -> None:
        self.live -= size


def trace(build: Callable[[], nn.Module], shape: tuple[int, ...], *, training: bool, device: str = "cpu") -> Work:
    """The work of a forward pass, in training of a forward and a backward pass.

    Args:
        build: makes the module.
        shape: of its input.
        training: with gradients.
        device: on which it would run; its kernels are those counted.
    """
    with fake_tensors(), torch.device(device):
        module = build().train(training)
        x = torch.empty(shape)
        # What the module holds is no part of the peak; gradients are dropped within a step, and are.
        # Not in inference_mode: there eager attention arrives whole, and what it holds within itself is not seen.
        with _Watch() as watch, torch.set_grad_enabled(training):
            out = module(x).sum()
            if training:
                out.backward()
        return watch.work
