"""Work of a call, counted operation by operation without doing it: on tensors that have a shape and no content."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from greenformers._torch import OperatorWatch, fake_tensors, leaves, operators
from greenformers.attention._tiled_op import amount

NARROW = 64
"""Matrix products with a side below this run at a lower rate."""

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.linear, aten.matmul}
TILED = (torch.ops.greenformers.tiled, torch.ops.greenformers.tiled_backward)
FREE = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, operators.unchecked_view, torch.ops.prim.device,
}  # fmt: skip
"""Operators that take no time: they read and write nothing or, as the last, exist only without content."""
EXPONENTIAL = {
    aten.exp, aten.exp_, aten.softmax, operators.softmax, operators.safe_softmax, operators.softmax_backward, aten.gelu,
    aten.gelu_backward, aten.sigmoid, aten.sigmoid_, aten.tanh, aten.sin, aten.cos, aten.pow, aten.logsumexp,
}  # fmt: skip
GATHERING = {
    aten.gather, aten.scatter, aten.scatter_, aten.scatter_add, aten.scatter_add_, aten.index, aten.index_select,
    aten.index_add, aten.index_add_, aten.index_put, aten.index_put_, operators.index_put, aten.embedding, aten.roll,
    aten.cumsum, aten.slice_backward, aten.select_backward, aten.tril, aten.tril_,
}  # fmt: skip
"""Operators that read or write memory out of order, or one entry after the other."""
SORTING = {aten.sort, aten.topk, aten.argsort}


@dataclass
class Work:
    """Sums over all operations of a call.

    Attributes:
        wide: FLOPs of matrix products whose sides are all `NARROW` or more.
        narrow: FLOPs of matrix products with a smaller side.
        batched: FLOPs of batched matrix products.
        moved: Bytes read and written by matrix products.
        attention: FLOPs of fused attention.
        scores: Number of scores of fused attention.
        exponential: Bytes read and written by exponentials, softmax and other costly functions of single entries.
        gathered: Bytes read and written by operations that gather or scatter.
        sorted: Bytes read and written by sorting.
        elementwise: Bytes read and written by all other operations.
        operations: Number of operations that are no views.
        peak: Largest number of bytes of tensors that live at once, above those at the start.
        saved: Bytes of tensors that live between the forward and the backward pass, in training.
        gradients: Bytes of the gradients of the weights, in training.
        before: Work that was done before a part of the module, see `trace`.
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
    saved: float = 0.0
    gradients: float = 0.0
    before: "Work | None" = None

    FEATURES = (
        "wide", "narrow", "batched", "moved", "attention", "scores", "exponential", "gathered", "sorted", "elementwise",
        "operations",
    )  # fmt: skip

    def features(self) -> list[float]:
        """Amounts that time depends on, in the order of `FEATURES`: 1e9 FLOPs, bytes or scores; 1e3 operations."""
        return [getattr(self, name) / (1e3 if name == "operations" else 1e9) for name in self.FEATURES]


@dataclass
class _Watch(OperatorWatch):
    work: Work = field(default_factory=Work)
    live: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        self.sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def mark(self, *_: Any) -> None:
        """Note what was done before."""
        self.work.before = replace(self.work)

    def saw(self, operator: Any, arguments: tuple[Any, ...], result: Any) -> None:
        """Add the work of an operator, and the bytes of its outputs."""
        inputs = [leaf for leaf in leaves(arguments) if isinstance(leaf, Tensor)]  # an out= is no operand
        outputs = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        for leaf in inputs:  # no operation returned it: it was there at the start
            self.sizes.setdefault(leaf.untyped_storage(), 0)
        self._hold(outputs)
        if operator.overloadpacket is operators.safe_softmax:
            # Within it a mask marks the rows that are -inf throughout.
            self.work.peak = max(self.work.peak, self.live + outputs[0].numel())
        if not operator.is_view and operator.overloadpacket not in FREE:
            self._count(operator.overloadpacket, arguments, inputs, outputs)

    def _count(self, kind: Any, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        work = self.work
        work.operations += 1
        size = sum(leaf.numel() * leaf.element_size() for leaf in [*inputs, *outputs])
        if kind in PRODUCTS:
            # In inference_mode composite operators are not split: linear has its bias last.
            left, right = (inputs[0], inputs[1].mT) if kind is aten.linear else inputs[-2:]
            flops = 2.0 * outputs[0].numel() * left.shape[-1]  # either side may be broadcast
            if right.dim() > 2:
                work.batched += flops
            elif min(left.numel() // left.shape[-1], *right.shape) < NARROW:
                work.narrow += flops
            else:
                work.wide += flops
            work.moved += size
        elif "scaled_dot_product" in str(kind):
            backward = "backward" in str(kind)
            q, k = inputs[1:3] if backward else inputs[:2]
            scores = prod(q.shape[:-1]) * k.shape[-2]
            work.scores += scores
            work.attention += (10.0 if backward else 4.0) * scores * q.shape[-1]
        elif kind in TILED:
            tiled, backward = amount(args), kind is TILED[1]
            work.batched += tiled.flops
            work.moved += 4.0 * (tiled.operands + tiled.scores * (5 if backward else 2))
            # Reads and writes of each score, and operations of a slice, were counted in the operator itself.
            work.elementwise += 4.0 * tiled.scores * (13 if backward else 10)
            work.operations += tiled.slices * (37 if backward else 17)
        elif kind in EXPONENTIAL:
            work.exponential += size
        elif kind in GATHERING:
            work.gathered += size
        elif kind in SORTING:
            work.sorted += size
        else:
            work.elementwise += size

    def _hold(self, outputs: list[Tensor]) -> None:
        for leaf in outputs:
            storage = leaf.untyped_storage()
            if storage not in self.sizes:
                size = storage.nbytes()
                self.sizes[storage] = size
                self.live += size
                weakref.finalize(storage, self._release, size)
        self.work.peak = max(self.work.peak, self.live)

    def _release(self, size: int) -> None:
        self.live -= size


def trace(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    *,
    training: bool,
    device: str = "cpu",
    through: bool = False,
    within: str | None = None,
) -> Work:
    """The work of a forward pass, in training of a forward and a backward pass.

    Args:
        build: Function that makes the module.
        shape: Shape of the module's input.
        training: Whether there is a backward pass.
        device: Device that the module would run on, whose kernels are counted.
        through: Whether the input gets a gradient, in training.
        within: Path of a part of the module; what was done before it is `Work.before`. None for no such part.
    """
    # A device as a context costs each operation a call of its own, so not for the usual one.
    with fake_tensors(), nullcontext() if device == "cpu" else torch.device(device):
        module = build().train(training)
        x = torch.empty(shape, requires_grad=through and training)
        # Weights are no part of the peak; gradients are, as they live within a step alone.
        # Not in inference_mode: there eager attention is one operator, and the tensors within it are not seen.
        with _Watch() as watch, torch.set_grad_enabled(training):
            if within is not None:
                module.get_submodule(within).register_forward_pre_hook(watch.mark)
            out = module(x).sum()
            if training:
                watch.work.saved = watch.live
                out.backward()
                weights = [x for x in module.parameters() if x.grad is not None]
                watch.work.gradients = float(sum(x.numel() * x.element_size() for x in weights))
        return watch.work
