"""A stack of reversible layers, whose activations are computed back from its output. Gomez 2017, arXiv:1707.04585.

Kitaev 2020, arXiv:2001.04451, section 3: y1 = x1 + f(x2), y2 = x2 + g(y1), with f attention and g feed-forward, each
behind its layer norm. Backward: x2 = y2 - g(y1), then x1 = y1 - f(x2). Both streams begin as the input, and their mean
is the output. What the stack keeps for the backward pass does not grow with its depth, but for the state of the
generator before each layer, that dropout is the same again, and what a mechanism has chosen (hash buckets): computed
back, activations differ by rounding, and a choice could be another one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from greenformers._gradients import only_once
from greenformers._torch import in_transform

if TYPE_CHECKING:
    from collections.abc import Iterator


class Half(NamedTuple):
    """f or g of a layer.

    Attributes:
        run: a stream, and a dictionary in which choices are kept, or found, to what is added to the other stream; and
            the loss of a mechanism that has one, or None.
        parameters: that it reads.
    """

    run: Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor | None]]
    parameters: list[nn.Parameter]


def reversible(
    x: Float[Tensor, "B N d"], halves: Sequence[Half]
) -> tuple[Float[Tensor, "B N d"], Float[Tensor, ""] | None]:
    """Run the layers.

    Args:
        x: the input of both streams.
        halves: f and g of each layer, one after the other.

    Returns:
        Mean of the two streams (B, N, d), and the sum of the losses, None where there is none.
    """
    learnt = {id(one): one for half in halves for one in half.parameters if one.requires_grad}
    if torch.is_grad_enabled() and not in_transform() and (learnt or x.requires_grad):
        first, second, loss = _Reversible.apply(x, halves, *learnt.values())
        return (first + second) / 2, loss
    streams, total = [x, x], None
    for number, half in enumerate(halves):
        added, loss = half.run(streams[1 - number % 2], {})
        streams[number % 2] = streams[number % 2] + added
        total = loss if total is None else total if loss is None else total + loss
    return (streams[0] + streams[1]) / 2, total


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, halves: Sequence[Half], *parameters: Tensor) -> Any:
        streams, ctx.kept, total = [x.clone(), x.clone()], [], None
        ctx.halves, ctx.places = halves, {id(one): place for place, one in enumerate(parameters)}
        ctx.autocast = _autocast(x)
        for number, half in enumerate(halves):
            state, choice = _state(x.device), dict[str, Tensor]()
            added, loss = half.run(streams[1 - number % 2], choice)
            ctx.kept.append((state, choice))
            # In place: no stream but the last two is ever read again.
            streams[number % 2].add_(added)
            total = loss if total is None else total if loss is None else total + loss
        ctx.save_for_backward(*streams)
        return *streams, total

    @staticmethod
    @only_once("a reversible stack")
    def backward(ctx: Any, grad_first: Tensor, grad_second: Tensor, grad_loss: Tensor | None) -> Any:
        streams = [one.clone() for one in ctx.saved_tensors]
        grads = [grad_first.clone(), grad_second.clone()]
        sums: list[Tensor | None] = [None] * len(ctx.places)
        for number in reversed(range(len(ctx.halves))):
            half, (state, choice), side = ctx.halves[number], ctx.kept[number], number % 2
            own = [one for one in half.parameters if id(one) in ctx.places]
            with torch.enable_grad(), _replayed(state, streams[0].device), ctx.autocast():
                leaf = streams[1 - side].detach().requires_grad_()
                added, loss = half.run(leaf, choice)
            streams[side].sub_(added.detach())
            outs, ways = [added], [grads[side].to(added.dtype)]
            if loss is not None and loss.requires_grad and grad_loss is not None:
                outs, ways = [added, loss], [*ways, grad_loss.to(loss.dtype)]
            found = torch.autograd.grad(outs, [leaf, *own], ways, allow_unused=True)
            if found[0] is not None:
                grads[1 - side] += found[0]
            for one, grad in zip(own, found[1:], strict=True):
                place = ctx.places[id(one)]
                if grad is not None:
                    before = sums[place]
                    sums[place] = grad if before is None else before.add_(grad)
        return grads[0] + grads[1], None, *sums


def _state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def _replayed(state: tuple[Tensor, Tensor | None], device: torch.device) -> "Iterator[None]":
    """A `with` block in which the generator is in an earlier state."""
    with torch.random.fork_rng([device] if state[1] is not None else []):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        yield


def _autocast(x: Tensor) -> Callable[[], AbstractContextManager[object]]:
    """The autocast of now, for later."""
    if x.is_meta:  # there is none for the meta device, on which operations are counted
        return nullcontext
    kind = x.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
