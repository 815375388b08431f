"""Hidden states between blocks of a network, and what else these are called with, on disk: a file for each batch."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from greenformers._tensors import save_file
from greenformers._torch import leaves, map_leaves
from greenformers.compress.blocks import Arguments
from greenformers.train.checkpoint import sync

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
        _save({STATES: states.contiguous()}, self._file(number))

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


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in a file.

    Attributes:
        key: Name of the tensor.
        is_complex: Whether the tensor is complex; files hold real numbers.
    """

    key: str
    is_complex: bool

    def tensor(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensor, of those of the file."""
        stored = tensors[self.key]
        return torch.view_as_complex(stored) if self.is_complex else stored


class Calls:
    """What each block of a network is called with besides the hidden states, for every batch.

    Its tensors, such as masks and rotary embeddings, are on disk, as there may be more of them than memory holds.

    Args:
        folder: Folder for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forms: list[list[Arguments]] = []

    def __len__(self) -> int:
        return len(self._forms)

    def add(self, by_block: Sequence[Arguments], *, write: bool = True) -> None:
        """Take those of the next batch; what several blocks are called with is written once.

        Args:
            by_block: What each block is called with.
            write: Whether this process writes the tensors; else another one does.
        """
        places: dict[int, _Place] = {}
        tensors: dict[str, Tensor] = {}

        def placed(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if id(leaf) not in places:
                places[id(leaf)] = place = _Place(str(len(places)), leaf.is_complex())
                # What is a view of another tensor has memory of its own in the file.
                stored = torch.view_as_real(leaf) if place.is_complex else leaf
                tensors[place.key] = stored.detach().clone(memory_format=torch.contiguous_format)
            return places[id(leaf)]

        form = [map_leaves(placed, arguments) for arguments in by_block]
        if write and tensors:
            _save(tensors, self._file(len(self._forms)))
        # Of most batches only the tensors differ.
        self._forms.append(self._forms[-1] if self._forms and self._forms[-1] == form else form)

    def read(self, number: int, blocks: Sequence[int]) -> list[Arguments]:
        """What these blocks are called with, of the batch with this number."""
        form = [self._forms[number][block] for block in blocks]
        keys = {leaf.key for leaf in leaves(form) if isinstance(leaf, _Place)}
        tensors: dict[str, Tensor] = {}
        if keys:
            with safe_open(self._file(number), framework="pt") as file:
                tensors = {key: file.get_tensor(key).clone() for key in keys}
        return [
            map_leaves(lambda leaf: leaf.tensor(tensors) if isinstance(leaf, _Place) else leaf, arguments)
            for arguments in form
        ]

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a file: all of them, or, if the process ends, none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".part")
    save_file(dict(tensors), unfinished)
    sync(unfinished)
    unfinished.replace(file)


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
        calls: What else each block of the network is called with, for each batch.
        blocks: The numbers of these blocks.
        masks: Masks (B, N) of each batch; None where nothing is padding.
    """

    def __init__(self, states: States, calls: Calls, blocks: Sequence[int], masks: Sequence[Tensor | None]) -> None:
        self.states, self.calls, self.blocks, self.masks = states, calls, blocks, masks

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[place] for place in range(len(self))[number]]
        number = range(len(self))[number]
        batch = {STATES: self.states.read(number), "arguments": self.calls.read(number, self.blocks)}
        mask = self.masks[number]
        return batch if mask is None else {**batch, "attention_mask": mask}
