"""What the inputs of linear layers depend on: the outputs of the linear layers before them, by gradients."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.walk import sites
from greenformers.solve.watch import Batch, call


class Dependence:
    """Inputs and outputs of all linear layers in one pass; the outputs are leaves, at which gradients end.

    Args:
        model: The network, left as it was.
        example: A batch.

    Attributes:
        inputs: Input of each layer in its first call, by path, in the order of execution.
        outputs: Output of each layer in its first call, by path.
        calls: How often each layer is called, by path.
    """

    def __init__(self, model: nn.Module, example: Batch) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.calls: Counter[str] = Counter()
        alone = [site for site in sites(model, "linear") if len(site.paths) == 1]
        with evaluating(model), torch.enable_grad(), ExitStack() as stack:
            for site in alone:
                stack.callback(site.module.register_forward_hook(self._note(site.path)).remove)
            call(model, example)

    def _note(self, path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
            leaf = out.detach().requires_grad_()
            self.calls[path] += 1
            self.inputs.setdefault(path, args[0])
            self.outputs.setdefault(path, leaf)
            return leaf.clone()  # which the network may change in place

        return hook
