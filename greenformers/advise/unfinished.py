"""The finished parts of a comparison, stored on disk until all of it is done, so that it can be stopped."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.device import accelerator
from greenformers.measure.record import Record, append, read
from greenformers.train import checkpoint
from greenformers.train.state import load_weights, save_weights, weights

JOB, RECORDS, RIGHT = "job.json", "records.jsonl", "right.json"


@dataclass(frozen=True)
class Unfinished:
    """The parts of a job that are done, by number; each is written whole, or not at all.

    Attributes:
        folder: Folder that holds the parts, and a description of the job.
    """

    folder: Path

    def begin(self, job: Any) -> None:
        """Go on with this job where the folder holds parts of it.

        Args:
            job: Settings that the figures depend on, as JSON.

        Raises:
            ValueError: Raised where it holds those of another, or anything else.
            OSError: Raised where the folder cannot be written.
        """
        told, file = json.dumps(job, indent=1, sort_keys=True, default=str), self.folder / JOB
        if file.is_file() and file.read_text() == told:
            return
        # What a kill left of this file is none of another command.
        there = self.folder.iterdir() if self.folder.exists() else ()
        if any(not path.name.startswith(checkpoint.UNFINISHED) for path in there):
            raise ValueError(
                f"{self.folder} holds what another command has not finished: give that one again, or remove the folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint.replace(file, told)

    def keep(
        self, number: int, records: Sequence[Record], model: nn.Module | None = None, right: Tensor | None = None
    ) -> None:
        """Write the results of one part.

        Args:
            number: Number of the part, from 0.
            records: Records of the part.
            model: Network that the part trained, None for a part without training.
            right: Test examples that the network gets right, booleans (L,).

        Raises:
            OSError: Raised where the disk is full or not writable; the parts before are as they were.
        """

        def fill(folder: Path) -> None:
            append(folder / RECORDS, records)
            if model is not None and right is not None:
                save_weights(folder, weights(model))
                checkpoint.write_json(folder / RIGHT, right.tolist())

        checkpoint.write(self.folder, number, fill, keep=number + 1)

    def records(self, number: int, context: dict[str, Any]) -> list[Record] | None:
        """The records of a part, or None where it is not done, or damaged.

        Args:
            number: Number of the part, from 0.
            context: Context of the run that ends the job, which the records get.
        """
        part = self._part(number)
        if not part.is_dir() or checkpoint.damage(part) is not None:
            return None
        return [replace(record, context=context) for record in read(part / RECORDS)]

    def load(self, number: int, model: nn.Module) -> Tensor:
        """Load the weights that a part trained; returns which test examples the network gets right, booleans (L,).

        The network is moved to the device that it would be trained on.

        Args:
            number: Number of the part, from 0.
            model: Network of the part, as it was built.
        """
        load_weights(self._part(number), model)
        model.to(accelerator())
        return torch.tensor(json.loads((self._part(number) / RIGHT).read_text()))

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _part(self, number: int) -> Path:
        return self.folder / f"step-{number}"
