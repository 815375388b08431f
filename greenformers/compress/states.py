"""Hidden states between two blocks of a network, on disk: a file for each batch, mapped into memory when it is read."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from greenformers.compress.blocks import Arguments

STATES = "hidden_states"


class States:
    """The hidden states (B, N, d) that one section reads, of all batches, in the number format of the network.

    Args:
        folder: Folder for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, number: int) -> bool:
        """Whether the states of the batch with this number are there."""
        return self._file(number).is_file()

    def write(self, number: int, states: Tensor) -> None:
        """Write the states of a batch: all of them, or, if the process ends, none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._file(number).with_suffix(".part")
        save_file({STATES: states.contiguous()}, unfinished)
        unfinished.replace(self._file(number))

    def read(self, number: int) -> Tensor:
        """The states of a batch, in memory of their own, as torch aligns it: sums are then the same to the bit."""
        with safe_open(self._file(number), framework="pt") as file:
            states: Tensor = file.get_tensor(STATES)
            return states.clone()

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"


class Outputs(Sequence[Tensor]):
    """What a section gives for each batch, read as it is asked for.

    Args:
        states: The hidden states that the next section reads.
        count: Number of batches.
    """

    def __init__(self, states: States, count: int) -> None:
        self.states, self._length = states, count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[place] for place in range(self._length)[number]]
        return self.states.read(range(self._length)[number])


class Inputs(Sequence[dict[str, Any]]):
    """The batches that a network of a few blocks is called with; their hidden states are read as they are asked for.

    Args:
        states: The hidden states of each batch.
        arguments: What else each of the blocks is called with, for each batch.
        masks: Masks (B, N) of each batch; None where nothing is padding.
    """

    def __init__(
        self, states: States, arguments: Sequence[Sequence[Arguments]], masks: Sequence[Tensor | None]
    ) -> None:
        self.states, self.arguments, self.masks = states, arguments, masks

    def __len__(self) -> int:
        return len(self.arguments)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[place] for place in range(len(self))[number]]
        number = range(len(self))[number]
        batch = {STATES: self.states.read(number), "arguments": self.arguments[number]}
        mask = self.masks[number]
        return batch if mask is None else {**batch, "attention_mask": mask}
