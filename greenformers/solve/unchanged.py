"""Whether a network computes what it did with its hidden coordinates turned, and runs with fewer of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from greenformers._torch import leaves
from greenformers.data._pooling import pooling_of
from greenformers.measure.quality import evaluating
from greenformers.solve.coupled import exact
from greenformers.solve.hidden_width import HiddenWidth, layer_of
from greenformers.solve.loss import output
from greenformers.solve.narrow import Exchange
from greenformers.solve.watch import Batch, call

Cut = Callable[[Exchange, Tensor], None]
"""Function that puts orthonormal columns (d, d') between a network's stream and what reads and writes it."""


def check_whole(model: nn.Module, width: HiddenWidth, cut: Cut, basis: Tensor, batch: Batch) -> None:
    """Check that a network computes the same with a basis of all of its coordinates, and put it back.

    Args:
        model: The network.
        width: Its hidden width.
        cut: How the basis is put in.
        basis: Orthonormal columns (d, d).
        batch: A batch.

    Raises:
        ValueError: It does not: something else reads the hidden states, or writes to them. Or what it gives is not
            finite.
    """
    before = outputs(model, batch)
    if not all(x.isfinite().all() for x in before):
        raise ValueError(f"what {type(model).__name__} gives is not finite: no hidden width is found by it")
    exchange = Exchange(model)
    try:
        cut(exchange, basis)
        after = outputs(model, batch)
    except (RuntimeError, ValueError, IndexError) as error:
        raise _refused(model, width, " ".join(str(error).split())[:200]) from error
    finally:
        exchange.undo()
    for ours, theirs in zip(after, before, strict=True):
        turned = [ours, ours @ basis.T.to(ours)] if ours.shape[-1:] == (width.size,) else [ours]  # hidden states
        if not any(bool((x - theirs).abs().max() <= exact(model) * theirs.abs().max()) for x in turned):
            raise _refused(model, width, "it does not compute the same with them turned")


def check_runs(model: nn.Module, width: HiddenWidth, narrow: int, before: Sequence[Tensor], batch: Batch) -> None:
    """Check that a network with fewer coordinates gives outputs as before, hidden states of which may be narrower.

    Raises:
        ValueError: It does not.
    """
    try:
        after = outputs(model, batch)
        with evaluating(model), torch.no_grad():
            output(call(model, batch), batch, pooling_of(model))
    except (RuntimeError, ValueError, IndexError) as error:
        raise _refused(model, width, " ".join(str(error).split())[:200]) from error
    for ours, theirs in zip(after, before, strict=True):
        if ours.shape != theirs.shape and ours.shape != (*theirs.shape[:-1], narrow):
            raise _refused(model, width, f"an output would be {tuple(ours.shape)}, not {tuple(theirs.shape)}")
        if theirs.isfinite().all() and not ours.isfinite().all():
            raise _refused(model, width, "an output would not be finite")


def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """All floating-point tensors that a network returns for a batch."""
    with evaluating(model), torch.no_grad():
        returned = call(model, batch)
    return [leaf for leaf in leaves(returned) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _refused(model: nn.Module, width: HiddenWidth, why: str) -> ValueError:
    other = [
        path or type(model).__name__
        for path, module in model.named_modules()
        if path not in width.dimensions and layer_of(module) is not None
        if any(width.size in x.shape for x in module.parameters(recurse=False))
    ]
    named = f", perhaps in {', '.join(other[:3])}" if other else ""
    return ValueError(f"{type(model).__name__} uses its hidden states in a way that is not understood{named}: {why}")
