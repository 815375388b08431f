"""Finished steps of a recipe on disk, from which the same command goes on, or another that begins alike."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from greenformers.changes import Change
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.pretrained import pretrained
from greenformers.checkpoint.save import REPORT, building, discard, save

UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Unfinished:
    """Finished steps of a recipe on disk, until all of them are finished.

    Attributes:
        folder: Folder beside that of the result, with a digest of the job in its name.
    """

    folder: Path

    @classmethod
    def of(cls, out: Path, job: object, files: Iterable[Path]) -> "Unfinished":
        """The finished steps of a job on these files."""
        digest = hashlib.sha256(json.dumps(job, default=str, sort_keys=True).encode())
        for path in files:
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        return cls(out.with_name(f"{out.name}{UNFINISHED}{digest.hexdigest()[:8]}"))

    def keep(self, number: int, model: nn.Module, report: CompressionReport) -> None:
        """Write the network as it is after a step."""
        save(model, self._step(number), report)

    def last(self, model: PreTrainedModel) -> tuple[PreTrainedModel, CompressionReport | None]:
        """The network after the last finished step, and the report so far; without one, the network given and None."""
        numbers = [int(path.name.rpartition("-")[2]) for path in self.folder.glob("step-*")]
        if not numbers:
            return model, None
        step = self._step(max(numbers))
        return pretrained(str(step))[0], CompressionReport.of(json.loads((step / REPORT).read_text()))

    def leave(self, out: Path) -> None:
        """Leave the finished steps beside the result, for another recipe that begins with the same changes."""
        for training in self.folder.glob("training-*"):  # checkpoints, of which no other recipe has use
            shutil.rmtree(training)
        discard(steps_of(out))
        self.folder.rename(steps_of(out))

    def begin(self, out: Path, changes: Sequence[Change]) -> None:
        """Take over those steps of another result with which this recipe begins, as far as it has not made them itself.

        Args:
            out: Folder of the other result, beside which its steps were left.
            changes: This recipe.
        """
        other = Unfinished(steps_of(out))
        for number, change in enumerate(changes):
            step = other._step(number)
            own = json.loads(json.dumps(as_dict(change)))
            if not step.is_dir() or json.loads((step / REPORT).read_text())["steps"][-1]["report"]["change"] != own:
                return
            if not self._step(number).is_dir():
                with building(self._step(number)) as folder:
                    shutil.copytree(step, folder, dirs_exist_ok=True)

    def models(self, names: Sequence[str], last: PreTrainedModel) -> dict[str, PreTrainedModel]:
        """The network after each step, by name; all but the last one as read from disk."""
        before = {name: pretrained(str(self._step(number)))[0] for number, name in enumerate(names[:-1])}
        return before | {names[-1]: last}

    def remove(self) -> None:
        """Remove the finished steps from disk; killed meanwhile, none of them is taken for work to go on with."""
        discard(self.folder)

    def _step(self, number: int) -> Path:
        return self.folder / f"step-{number}"


def steps_of(out: Path) -> Path:
    """The folder of the finished steps that a result has beside it, where it keeps them; it is there once all is."""
    return out.with_name(f"{out.name}.steps")
