"""Fewer hidden coordinates by deletion: those that the loss feels least, everywhere at once.

With a gate m_j = 1 on coordinate j of the outputs of all norms, F_j is the Fisher information of these gates, summed
over the norms: the sum over norms of E (dL/dm_j)^2, over examples (Kwon 2022, arXiv:2204.09656, section 3.2).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from greenformers.solve.gates import gate_gradients
from greenformers.solve.hidden_width import HiddenWidth
from greenformers.solve.narrow import Exchange, like
from greenformers.solve.watch import Batch, Loss


def information(
    model: nn.Module, width: HiddenWidth, batches: Sequence[Batch], loss: Loss,
    progress: Callable[[float], None] = lambda _: None,
) -> Tensor:  # fmt: skip
    """The Fisher information (d,) of the hidden coordinates, float32.

    Args:
        model: The network, left as it was.
        width: Its hidden width.
        batches: Batches of examples.
        loss: Loss of the model on a batch, a sum over its examples.
        progress: Function that is called with the share of the batches that is done.
    """
    gradients = gate_gradients(model, width.sequential, batches, loss, progress, outputs=True)
    return torch.stack([rows.square().mean(0) for rows in gradients.values()]).sum(0)


def delete(exchange: Exchange, width: HiddenWidth, left: Tensor) -> None:
    """Delete all hidden coordinates of a network but those with the numbers `left`, in this order.

    Args:
        exchange: The network.
        width: Its hidden width, where coordinates of shared weights are the same.
        left: Numbers of coordinates (d',).
    """
    parts: dict[int, nn.Parameter] = {}
    for path, dimensions in width.dimensions.items():
        module = exchange.model.get_submodule(path)
        values: dict[str, nn.Parameter] = {}
        for name in dict.fromkeys(name for name, _ in dimensions):
            before: nn.Parameter = getattr(module, name)
            if id(before) not in parts:
                value = before.detach()
                for at in (at for other, at in dimensions if other == name):
                    value = value.index_select(at, left.to(value.device))
                parts[id(before)] = like(before, value)
            values[name] = parts[id(before)]
        exchange.parameters(path, values)
