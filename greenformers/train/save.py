"""Saves a trained model, whole or not at all."""

import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.train.checkpoint import UNFINISHED, share, sync


def check_new(folder: Path) -> None:
    """Check that a folder can be made, before the work whose result it is for.

    Raises:
        ValueError: The folder exists and is not empty; what a killed process was writing into it does not count.
        OSError: The folder above it cannot be written to.
    """
    if folder.exists() and not (folder.is_dir() and all(path.name.startswith(UNFINISHED) for path in folder.iterdir())):
        raise ValueError(
            f"out must be a new or empty folder, got {str(folder)!r}, which is neither; what was stopped goes on with "
            "--resume"
        )
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    with tempfile.TemporaryDirectory(dir=above):
        pass


def save(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> None:
    """Write configuration, safetensors and tokenizer; if that fails, `folder` is unchanged.

    Raises:
        OSError: The disk is full or not writable.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        whole = Path(temporary) / "model"
        model.save_pretrained(whole)
        if tokenizer is not None:
            tokenizer.save_pretrained(whole)
        if folder.exists():
            folder.rmdir()
        for path in whole.glob("*.safetensors"):
            share(path)
        for path in (*whole.iterdir(), whole):  # checkpoints are removed next
            sync(path)
        shutil.move(whole, folder)
    sync(folder.parent)
