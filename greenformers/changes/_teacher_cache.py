"""What a teacher gives to examples, computed once and kept on disk: training then reads it, and runs the student alone.

A folder holds one array for each output that the loss compares (`NAME.npy`, mapped into memory as it is read), of all
examples in their order: a row for each, or for each of its positions, without padding. `teacher.json` says of which
teacher and examples they are, and how many examples are done: what was stopped goes on.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from greenformers.data._pooling import SentencePooling
from greenformers.data._rows import Rows
from greenformers.train.checkpoint import UNFINISHED, replace

TAUGHT = "taught."
"""What stands before the name of an output of the teacher among the arguments of a batch."""

INDEX, EVERY = "teacher.json", 50
"""File of a folder that says what it holds, and batches after which it is written."""

Ask = Callable[[Sequence[int]], dict[str, list[Tensor]]]
"""Function from numbers of examples to what the teacher gives to each of them, by name."""


class TeacherCache:
    """What a teacher gives to examples.

    Args:
        folder: Folder of the arrays; made where it is not there.
        key: Digest of the teacher and the examples, see `digest`.
        count: Number of examples.

    Raises:
        ValueError: The folder holds what another teacher gave, or what it gave to other examples.
    """

    def __init__(self, folder: Path, key: str, count: int) -> None:
        self.folder, self.key, self.count = folder, key, count
        index = folder / INDEX
        held: dict[str, Any] = json.loads(index.read_text()) if index.is_file() else {"key": key, "done": {}}
        if held["key"] != key:
            raise ValueError(
                f"{folder} holds what another teacher gave, or what it gave to other examples: name another folder, or "
                "remove it"
            )
        others = folder.iterdir() if folder.is_dir() else ()
        if not index.is_file() and any(not path.name.startswith(UNFINISHED) for path in others):
            raise ValueError(f"{folder} holds other files than of a teacher: name another folder")
        self.done: dict[str, int] = held["done"]
        self._arrays: dict[str, Any] = {}
        self._starts: dict[str, Any] = {}

    def fill(
        self, names: Sequence[str], rows: Mapping[str, Sequence[int]], ask: Ask, batches: Sequence[Sequence[int]],
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Ask the teacher for all that is not there.

        Args:
            names: Names of the outputs that are needed.
            rows: Number of rows that each example has of an output, by name.
            ask: Function that asks the teacher.
            batches: Numbers of the examples that are run together; always the same.
            progress: Function that is called with the share that is done.

        Raises:
            ValueError: There is less room on the disk than they need.
        """
        missing = [name for name in names if self.done.get(name, 0) < len(batches)]
        if missing:
            self.folder.mkdir(parents=True, exist_ok=True)
            first = min(self.done.get(name, 0) for name in missing)
            self._note()  # before any array: what is killed among the first examples goes on too
            given = ask(batches[first])
            self._make(missing, rows, given)
            for number in range(first, len(batches)):
                given = given if number == first else ask(batches[number])
                for name in missing:
                    for at, value in zip(batches[number], given[name], strict=True):
                        start = self._starts[name][at]
                        self._arrays[name][start : start + rows[name][at]] = value.cpu().numpy()
                if (number + 1) % EVERY == 0 or number + 1 == len(batches):
                    for name in missing:
                        self._arrays[name].flush()
                        self.done[name] = number + 1
                    self._note()
                progress((number + 1) / len(batches))
        for name in names:
            self._arrays[name] = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            self._starts[name] = _starts(rows[name])
        self._rows = {name: rows[name] for name in names}

    def _note(self) -> None:
        """Write of which teacher and examples the folder is, and how many of them are done."""
        replace(self.folder / INDEX, json.dumps({"key": self.key, "done": self.done}) + "\n")

    def _make(self, names: Sequence[str], rows: Mapping[str, Sequence[int]], given: Mapping[str, list[Tensor]]) -> None:
        """Make room for arrays, of the shape of what the teacher gives."""
        shapes = {name: (int(sum(rows[name])), *given[name][0].shape[1:]) for name in names}
        types = {name: given[name][0].cpu().numpy().dtype for name in names}
        new = [name for name in names if not (self.folder / f"{name}.npy").is_file() or not self.done.get(name)]
        needed = sum(int(np.prod(shapes[name])) * types[name].itemsize for name in new)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(
                f"what the teacher gives takes {needed / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free at "
                f"{self.folder}"
            )
        for name in names:
            file = self.folder / f"{name}.npy"
            mode: Any = "w+" if name in new else "r+"
            self._arrays[name] = np.lib.format.open_memmap(file, mode=mode, dtype=types[name], shape=shapes[name])
            self._starts[name] = _starts(rows[name])

    def __contains__(self, at: int) -> bool:
        return 0 <= at < self.count

    def whole(self, name: str) -> Tensor:
        """All rows of an output."""
        return torch.from_numpy(np.array(self._arrays[name]))

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        """What the teacher gave to an example, as arguments of a batch."""
        given = {}
        for name, rows in self._rows.items():
            start = self._starts[name][at]
            given[TAUGHT + name] = torch.from_numpy(np.array(self._arrays[name][start : start + rows[at]]))
        return given


class Asked:
    """What a teacher gave to examples, in memory: it is asked once for each.

    It is asked for the groups that examples are in, whichever example comes first: the bits of what it gives depend on
    what else is in a batch, and so do not depend on what was asked before.

    Args:
        groups: Numbers of the examples that are asked for at once; no example is in two of them.
        ask: Function that asks the teacher.
        held: What it gave before, by the numbers of examples; what it gives is added.
    """

    def __init__(self, groups: Sequence[Sequence[int]], ask: Ask, held: dict[int, dict[str, Tensor]]) -> None:
        self._group = {at: group for group in groups for at in group}
        self._ask, self._held = ask, held

    def __contains__(self, at: int) -> bool:
        return at in self._group

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        """What the teacher gives to an example, as arguments of a batch."""
        if at not in self._held:
            group = self._group[at]
            given = self._ask(group)
            for number, place in enumerate(group):
                # A copy: a part of a batch would hold all of it.
                self._held[place] = {TAUGHT + name: values[number].cpu().clone() for name, values in given.items()}
        return self._held[at]


def _starts(rows: Sequence[int]) -> Any:
    return np.concatenate([[0], np.cumsum(np.asarray(rows, dtype=np.int64))[:-1]])


def _tensors(layer: object) -> list[tuple[str, Tensor]]:
    return [(name, x) for name, x in vars(layer).items() if isinstance(x, Tensor)]


def digest(teacher: nn.Module, rows: Rows, pooling: SentencePooling) -> str:
    """A digest of a teacher's weights, of the pooling that makes the vector that is kept, and of all examples."""
    sha = hashlib.sha256()
    own = {f"{at} {name}": x for at, layer in enumerate(pooling.layers) for name, x in _tensors(layer)}
    if pooling.modes != SentencePooling().modes:
        sha.update(" ".join(pooling.modes).encode())
    for name, x in (*teacher.state_dict().items(), *own.items()):
        sha.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
        sha.update(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b"")
    for at in range(len(rows)):
        for name, x in rows[at].items():
            sha.update(f"{name} {tuple(x.shape)}".encode())
            sha.update(x.contiguous().numpy().tobytes())
    return sha.hexdigest()
