"""Experts spread over processes: process w of W owns experts w E / W to (w + 1) E / W - 1, and computes all their rows.

GShard, Lepikhin 2020, arXiv:2006.16668, 3.3. Counts go first, then rows by `all_to_all_single` with uneven splits, and
the outputs back the same way; nothing is padded.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from greenformers._gradients import only_once
from greenformers.lowrank.experts import Routed


def through_owners(
    run: Callable[[Tensor, Routed], Tensor], rows: Float[Tensor, "S d"], routed: Routed, group: Any
) -> Float[Tensor, "S m"]:
    """Each row through its expert, in the process that owns it.

    Args:
        run: Function that puts rows through the experts of this process.
        rows: Rows (S, d) of this process, sorted by expert.
        routed: Which row goes to which of all experts.
        group: The processes, all of which must call this; None: this one has all experts.
    """
    if group is None:
        return run(rows, routed)
    processes = dist.get_world_size(group)
    sent = torch.tensor(routed.counts, device=rows.device).view(processes, -1)
    received = torch.empty_like(sent)  # (W, E / W): rows of each process for each expert of this one
    dist.all_to_all_single(received, sent, group=group)
    there, here = sent.sum(1).tolist(), received.sum(1).tolist()
    own = exchange(rows, there, here, group)
    experts = torch.arange(received.shape[1], device=rows.device).repeat(processes)
    order = Routed.of(experts.repeat_interleave(received.flatten())[:, None], received.shape[1])
    outputs = run(own[order.tokens], order)
    back = outputs.new_zeros(outputs.shape).index_copy(0, order.tokens, outputs)
    return exchange(back, here, there, group)


def exchange(rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    """The rows that processes send to this one, which sends its own in turn, in the order of the processes.

    Args:
        rows: Rows of this process, those for the first process first.
        sent: Number of rows for each process.
        received: Number of rows from each process.
        group: The processes.
    """
    # The backward pass exchanges too, in all processes: also in one whose rows have no gradient, having none.
    anchor = torch.zeros((), device=rows.device, requires_grad=True)
    output: Tensor = _Exchange.apply(rows, anchor, sent, received, group)
    return output


def summed_over(x: Tensor, group: Any) -> Tensor:
    """The sum of a tensor over processes, whose gradient is the sum of their gradients; itself without a group."""
    if group is None:
        return x
    total: Tensor = _Sum.apply(x, group)
    return total


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, _: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.splits, ctx.group = (sent, received), group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    @only_once("an exchange between processes")
    def backward(ctx: Any, grad: Tensor) -> Any:
        sent, received = ctx.splits
        return _exchanged(grad, received, sent, ctx.group), None, None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _total(x, group)

    @staticmethod
    @only_once("a sum over processes")
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _total(grad, ctx.group), None


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output


def _total(x: Tensor, group: Any) -> Tensor:
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total
