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
    learnt = any(parameter.requires_grad for half in halves for parameter in half.parameters)
    again = twice and torch.is_grad_enabled() and not in_transform() and (learnt or x.requires_grad)
    streams, total, tape = [x.clone(), x.clone()] if again else [x, x], None, _Tape(_autocast(x))
    for number, half in enumerate(halves):
        side, other = streams[number % 2], streams[1 - number % 2]
        if again:
            own = [parameter for parameter in half.parameters if parameter.requires_grad]
            streams[number % 2], loss = _Half.apply(other, side, half, number, tape, *own)
        else:
            added, loss = half.run(other, {})
            streams[number % 2] = side + added
        total = loss if total is None else total if loss is None else total + loss
    if not again:
        return (streams[0] + streams[1]) / 2, total
    mean, total = _Mean.apply(*streams, total, tape)
    return mean, total


class _Tape:
    """What the halves of a stack have in common: its streams, which the backward pass computes back.

    Args:
        autocast: Function that enters the autocast of the forward pass.
    """

    def __init__(self, autocast: Callable[[], AbstractContextManager[object]]) -> None:
        self.streams: list[Tensor] = []
        self.autocast, self.modes = autocast, function_modes()  # which backward() is called without


class _Half(torch.autograd.Function):
    """The update of a stream in place; each returns its gradients before those of the one below are computed."""

    @staticmethod
    def forward(
        ctx: Any, other: Tensor, side: Tensor, half: Half, number: int, tape: _Tape, *parameters: Tensor
    ) -> Any:
        ctx.half, ctx.number, ctx.tape, ctx.own = half, number, tape, parameters
        ctx.state, ctx.choice = _state(other.device), dict[str, Tensor]()
        added, loss = half.run(other, ctx.choice)
        ctx.mark_dirty(side)
        return side.add_(added), loss

    @staticmethod
    @only_once("a reversible stack")
    def backward(ctx: Any, grad: Tensor, grad_loss: Tensor | None) -> Any:
        tape, at = ctx.tape, ctx.number % 2
        with (
            torch.enable_grad(), _replayed(ctx.state, grad.device), tape.autocast(), ExitStack() as modes
        ):  # fmt: skip
            for mode in set(tape.modes) - set(function_modes()):
                modes.enter_context(mode)
            leaf = tape.streams[1 - at].detach().requires_grad_()
            added, loss = ctx.half.run(leaf, ctx.choice)
        tape.streams[at].sub_(added.detach())
        outputs, output_grads = [added], [grad.to(added.dtype)]
        if loss is not None and loss.requires_grad and grad_loss is not None:
            outputs, output_grads = [added, loss], [*output_grads, grad_loss.to(loss.dtype)]
        of_leaf, *of_own = torch.autograd.grad(outputs, [leaf, *ctx.own], output_grads, allow_unused=True)
        if not ctx.number:
            tape.streams = []
        return of_leaf, grad, None, None, None, *of_own


class _Mean(torch.autograd.Function):
    """The mean of both streams, and the sum of the losses, from which the backward pass of the stack begins."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, loss: Tensor | None, tape: _Tape) -> Any:
        ctx.tape = tape
        ctx.save_for_backward(first, second)
        return (first + second) / 2, None if loss is None else loss.clone()

    @staticmethod
    @only_once("a reversible stack")
    def backward(ctx: Any, grad: Tensor, grad_loss: Tensor | None) -> Any:
        ctx.tape.streams = [stream.clone() for stream in ctx.saved_tensors]
        return grad / 2, grad / 2, grad_loss, None


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
