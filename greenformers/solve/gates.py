"""Fisher information of units of a network: how the loss feels gates on them. Kwon 2022, arXiv:2204.09656, section 3.

A unit's output o is multiplied by a gate m = 1; for each example g = dL/dm = <dL/do, o>, and F = E g g^T.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.watch import Batch, Loss, padding


def gate_gradients(
    model: nn.Module,
    paths: Sequence[str],
    batches: Sequence[Batch],
    loss: Loss,
    progress: Callable[[float], None] = lambda _: None,
    *,
    outputs: bool = False,
) -> dict[str, Tensor]:
    """The gradients g of gates on the inputs of layers: one row for each example, one column for each input.

    Args:
        model: The network, left as it was.
        paths: Paths of layers with inputs (B, N, n).
        batches: Batches of examples.
        loss: Loss of the model on a batch, a sum over its examples.
        progress: Function that is called with the share of the batches that is done.
        outputs: Whether the gates are on the outputs of the layers instead.

    Returns:
        Gradients (examples, n) by path, float32.

    Raises:
        ValueError: They are not finite.
    """
    rows: dict[str, list[Tensor]] = {path: [] for path in paths}
    seen: list[tuple[str, Tensor, Tensor | None]] = []

    def gated(path: str, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        key_mask = next((mask for mask in masks.at(x).values() if mask.shape == x.shape[:2]), None)
        seen.append((path, x, key_mask))
        return x

    def watch(path: str) -> Callable[[], None]:
        module = model.get_submodule(path)
        if outputs:
            return module.register_forward_hook(lambda _, __, out: gated(path, out)).remove
        return module.register_forward_pre_hook(lambda _, args: (gated(path, args[0]), *args[1:])).remove

    restart = getattr(loss, "restart", None)
    if restart is not None:
        restart()
    with evaluating(model), torch.enable_grad(), padding(model) as masks, ExitStack() as stack:
        for path in paths:
            stack.callback(watch(path))
        for number, batch in enumerate(batches):
            seen.clear()
            masks.begin(batch)
            value = loss(model, batch)
            slopes = torch.autograd.grad(value, [x for _, x, _ in seen], allow_unused=True, materialize_grads=True)
            felt: dict[str, Tensor] = {}
            for (path, x, key_mask), slope in zip(seen, slopes, strict=True):
                product = slope * x.detach()
                product = product if key_mask is None else product * key_mask[..., None]
                total = product.float().sum(1)  # of all calls of a layer: they share its gates
                felt[path] = felt[path] + total if path in felt else total
            for path, total in felt.items():
                if not total.isfinite().all():
                    raise ValueError(f"the gradients at {path!r} are not finite on batch {number} of the examples")
                rows[path].append(total.cpu())
            progress((number + 1) / len(batches))
    return {path: torch.cat(parts) for path, parts in rows.items() if parts}
