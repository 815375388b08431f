"""Outputs of exported files beside those of their model, on padded batches of many sizes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from greenformers._torch import has_vnni
from greenformers.changes import kinds
from greenformers.checkpoint.files import line
from greenformers.export.network import Batch, Call, Network
from greenformers.export.static_int8 import jittered

TOLERANCE = 1e-4  # of the largest output: far above the rounding of float32, far below what a lost mask changes
# For int8: share of the largest output that one flipped rounding may change, and factor on the change that was seen
# in a few draws of such flips.
FLIPPED, NOISE, DRAWS = 2e-2, 2.0, 3


class Comparison:
    """The outputs of a network, with which those of files are compared.

    Args:
        network: The network.
        batches: Inputs of the network.

    Attributes:
        allowed: Largest difference that is allowed, as a share of the largest output.
        rounds: Whether the network holds int8 layers.
    """

    def __init__(self, network: Network, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.expected = [_run(network, "the model", batch) for batch in batches]
        self.allowed = self._allowed(network)

    def _allowed(self, network: Network) -> float:
        """The largest difference from a network that is allowed to its files.

        In int8 layers the last digit of a float decides to which side an input on the edge between two integers is
        rounded, and so for the layers behind: how far that changes outputs is measured on the network itself.
        """
        moved = None
        for seed in range(DRAWS):
            static = jittered(network, seed)
            rounding = [change for change in kinds() if change.freezes and change.describe(network.model)]
            dynamic = () if static else (change.jittered(network, seed) for change in rounding)
            for block in (static, *dynamic):
                if block is not None:
                    with block:
                        moved = max(moved or 0.0, *(self._difference(network, "the model", at) for at in self._places))
        self.rounds = moved is not None
        return TOLERANCE if moved is None else max(FLIPPED, NOISE * moved)

    @property
    def _places(self) -> range:
        return range(len(self.batches))

    def __call__(self, name: str, call: Call) -> float:
        """The largest difference of a file's outputs, as a share of the network's largest output.

        Args:
            name: Name of the file.
            call: The file, as its runtime reads it.

        Raises:
            ValueError: The file cannot be run, or differs by more than is allowed.
        """
        differences = []
        for at in self._places:
            difference = self._difference(call, name, at)
            if not difference <= self.allowed:  # nor if it is not a number
                size, length = self.batches[at][0].shape
                overflow = (
                    "; this processor has no VNNI, without which runtimes add products of int8 in 16 bits, where they "
                    "overflow"
                )
                raise ValueError(
                    f"{name} differs from the model by {difference:.2g} of the largest output, on a batch of {size} "
                    f"with {length} tokens; {self.allowed:.2g} is allowed"
                    f"{overflow if self.rounds and not has_vnni() else ''}"
                )
            differences.append(difference)
        return max(differences)

    def _difference(self, call: Call, name: str, at: int) -> float:
        batch, right = self.batches[at], self.expected[at]
        output = _run(call, name, batch)
        if output.shape != right.shape:
            raise ValueError(f"{name} gives {tuple(output.shape)} where the model gives {tuple(right.shape)}")
        if right.shape[:2] == batch[0].shape:  # nobody reads what stands at the padding
            output, right = output[batch[1].bool()], right[batch[1].bool()]
        return ((output - right).abs().max() / right.abs().max()).item()


def _run(call: Call, name: str, batch: Batch) -> Tensor:
    size, length = batch[0].shape
    try:
        with torch.inference_mode():
            outputs = call(*batch)
    except Exception as error:  # of a network, or of a runtime: whatever they raise
        raise ValueError(f"{name} cannot be run on a batch of {size} with {length} tokens: {line(error)}") from error
    return outputs if isinstance(outputs, Tensor) else torch.stack(outputs, dim=-1)
