"""A stack of reversible layers, whose activations are computed back from its output. Gomez 2017, arXiv:1707.04585.

Kitaev 2020, arXiv:2001.04451, section 3: y1 = x1 + f(x2), y2 = x2 + g(y1), with f attention and g feed-forward, each
behind its layer norm. Backward: x2 = y2 - g(y1), then x1 = y1 - f(x2). Both streams begin as the input, and their mean
is the output. Memory for the backward pass does not grow with depth, except for the state of the random generator
before each layer, which repeats dropout, and the choices of mechanisms (hash buckets): activations computed back
differ by rounding, which could change a choice.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from greenformers._gradients import only_once
from greenformers._torch import function_modes, in_transform

if TYPE_CHECKING:
    from collections.abc import Iterator


class Half(NamedTuple):
    """f or g of a layer.

    Attributes:
        run: Function from a stream and a dictionary of choices, which it fills or reads, to the update of the other
            stream and the loss of a mechanism that has one, or None.
        parameters: Parameters that it reads.
    """

    run: Callable[[Tensor, dict[str, Tensor]], tuple[Tensor, Tensor | None]]
    parameters: list[nn.Parameter]


def reversible(
    x: Float[Tensor, "B N d"], halves: Sequence[Half], *, twice: bool = True
) -> tuple[Float[Tensor, "B N d"], Float[Tensor, ""] | None]:
    """The mean of both streams after the layers.

    Args:
        x: Input of both streams (B, N, d).
        halves: The halves f and g of each layer, in order.
        twice: Whether they may be called again in the backward pass, which changes nothing but bytes of memory.

    Returns:
        Mean of the two streams (B, N, d), and the sum of the losses, or None.
    """
    learnt = {id(parameter): parameter for half in halves for parameter in half.parameters if parameter.requires_grad}
    if twice and torch.is_grad_enabled() and not in_transform() and (learnt or x.requires_grad):
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
        streams, ctx.before, total = [x.clone(), x.clone()], [], None
        ctx.halves, ctx.places = halves, {id(parameter): place for place, parameter in enumerate(parameters)}
        ctx.autocast, ctx.modes = _autocast(x), function_modes()  # which backward() is called without
        for number, half in enumerate(halves):
            state, choice = _state(x.device), dict[str, Tensor]()
            added, loss = half.run(streams[1 - number % 2], choice)
            ctx.before.append((state, choice))
            # In place: only the last two streams are read again.
            streams[number % 2].add_(added)
            total = loss if total is None else total if loss is None else total + loss
        ctx.save_for_backward(*streams)
        return *streams, total

    @staticmethod
    @only_once("a reversible stack")
    def backward(ctx: Any, grad_first: Tensor, grad_second: Tensor, grad_loss: Tensor | None) -> Any:
        streams = [stream.clone() for stream in ctx.saved_tensors]
        grads = [grad_first.clone(), grad_second.clone()]
        sums: list[Tensor | None] = [None] * len(ctx.places)
        for number in reversed(range(len(ctx.halves))):
            half, (state, choice), side = ctx.halves[number], ctx.before[number], number % 2
            own = [parameter for parameter in half.parameters if id(parameter) in ctx.places]
            with torch.enable_grad(), _replayed(state, streams[0].device), ctx.autocast(), ExitStack() as modes:
                for mode in set(ctx.modes) - set(function_modes()):
                    modes.enter_context(mode)
                leaf = streams[1 - side].detach().requires_grad_()
                added, loss = half.run(leaf, choice)
            streams[side].sub_(added.detach())
            outputs, output_grads = [added], [grads[side].to(added.dtype)]
            if loss is not None and loss.requires_grad and grad_loss is not None:
                outputs, output_grads = [added, loss], [*output_grads, grad_loss.to(loss.dtype)]
            half_grads = torch.autograd.grad(outputs, [leaf, *own], output_grads, allow_unused=True)
            if half_grads[0] is not None:
                grads[1 - side] += half_grads[0]
            for parameter, grad in zip(own, half_grads[1:], strict=True):
                place = ctx.places[id(parameter)]
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
    """A function that enters the current autocast again."""
    if x.is_meta:  # there is none for the meta device, on which operations are counted
        return nullcontext
    kind = x.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
