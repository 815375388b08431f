"""Finished blocks of a network that is changed block by block, and the hidden states between them, on disk."""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from greenformers._tensors import save_file
from greenformers.checkpoint.save import discard
from greenformers.compress.blocks import read_tensors
from greenformers.compress.from_disk import INDEX
from greenformers.compress.states import Calls, States
from greenformers.train.checkpoint import replace, sync

AROUND = "around"
"""Name of the part before and behind the blocks."""


@dataclass(frozen=True)
class Part:
    """What was done to one part of a network, as JSON holds it.

    Attributes:
        description: Where it differs from the class because of each change, by name.
        order: Names of the changes in the order in which they were applied.
        units: Reports on its units, for each change of the recipe.
        sizes: Number of its parameters and of their bytes, after each change.
        seconds: Time that each change took.
        peak: Most bytes of memory that the process had held by the end of it.
    """

    description: dict[str, Any]
    order: list[str]
    units: list[list[dict[str, Any]]]
    sizes: list[list[int]]
    seconds: list[float]
    peak: int


@dataclass(frozen=True)
class Work:
    """Finished parts and hidden states on disk, until all is finished.

    Attributes:
        folder: Folder beside that of the result, with a digest of the recipe, the weights and the examples in its name.
    """

    folder: Path

    @classmethod
    def of(cls, out: Path, job: object, model: Path, batches: Sequence[Mapping[str, Tensor]]) -> Self:
        """The work of a recipe on these weights and examples.

        Raises:
            FileExistsError: There is other work for the same result.
        """
        digest = hashlib.sha256(json.dumps(job, default=str, sort_keys=True).encode())
        for path in sorted([*model.glob("*.safetensors"), *model.glob("*.json")]):
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        for batch in batches:
            for name, x in sorted(batch.items()):
                digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
                digest.update(x.contiguous().numpy().tobytes())
        stem = f"{out.name}.unfinished-"
        folder = out.with_name(stem + digest.hexdigest()[:8])
        others = [path for path in sorted(out.parent.glob(f"{glob.escape(stem)}*")) if path != folder]
        if others:
            raise FileExistsError(
                f"{others[0]} holds unfinished work of another recipe, or on other weights or texts: "
                "give these to go on with it, or remove it"
            )
        return cls(folder)

    def states(self, number: int, *, original: bool = False) -> States:
        """The hidden states that a section reads: from the changed blocks before it, or the original ones."""
        return States(self.folder / f"{'original' if original else 'changed'}-{number}")

    def calls(self) -> Calls:
        """What the blocks are called with besides hidden states."""
        return Calls(self.folder / "calls")

    def file(self, number: int | None) -> Path:
        """The tensors of a finished part."""
        return self.folder / f"{_name(number)}.safetensors"

    def part(self, number: int | None) -> Part | None:
        """What was done to a part; None where it is not finished."""
        path = self.folder / f"{_name(number)}.json"
        if not path.is_file():
            return None
        try:
            return Part(**json.loads(path.read_text()))
        except (ValueError, TypeError):  # the machine went down before it was on the disk, or another version wrote it
            return None

    def keep(self, number: int | None, tensors: Mapping[str, Tensor], part: Part) -> None:
        """Write a finished part: its tensors, and then what was done, which makes it finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "unfinished"
        save_file({key: x.contiguous() for key, x in tensors.items()}, unfinished, metadata={"format": "pt"})
        sync(unfinished)
        unfinished.replace(self.file(number))
        replace(self.folder / f"{_name(number)}.json", json.dumps(asdict(part)))

    def write(self, out: Path, numbers: Sequence[int | None], guards: Sequence[str]) -> None:
        """Put the tensors of all parts into a folder, with an index; files without a guard are not written again."""
        weight_map: dict[str, str] = {}
        size = 0
        for position, number in enumerate(numbers, 1):
            name = f"model-{position:05d}-of-{len(numbers):05d}.safetensors"
            tensors = dict(read_tensors(self.file(number)))
            weight_map |= dict.fromkeys(tensors, name)
            size += sum(x.numel() * x.element_size() for x in tensors.values())
            if any(guard in tensors for guard in guards):
                guarded = {key: x[None] if key in guards else x for key, x in tensors.items()}
                save_file(guarded, out / name, metadata={"format": "pt"})
            else:
                _link(self.file(number), out / name)
        (out / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=1))

    def remove(self) -> None:
        """Remove all of it from disk; killed meanwhile, none of it is taken for unfinished work."""
        discard(self.folder)


def _name(number: int | None) -> str:
    return AROUND if number is None else f"block-{number}"


def _link(file: Path, path: Path) -> None:
    """The same file at another path: a copy where the file system has no links."""
    try:
        os.link(file, path)
    except OSError:
        shutil.copy(file, path)
