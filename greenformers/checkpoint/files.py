"""Files of a checkpoint, which anyone may have written: what is read of them, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel


def model_class(config: dict[str, Any], folder: Path) -> type[PreTrainedModel]:
    """The class that a configuration names, of transformers or of ours.

    Raises:
        ValueError: There is none of that name.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        from greenformers import model as own

        cls = getattr(own, name, None) if isinstance(name, str) else None
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise ValueError(f"{folder / 'config.json'} names the architecture {name!r}, which transformers does not have")
    return cls


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file does not hold a JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {line(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content


def check_local(config: dict[str, Any], folder: Path) -> None:
    """Check that a configuration asks for no code of its own.

    Raises:
        ValueError: It does.
    """
    if config.get("auto_map"):
        raise ValueError(f"{folder / 'config.json'} asks for code of its own (auto_map): not run")


def check_weights(folder: Path) -> list[Path]:
    """The files of a folder's weights, once it is checked that they are safetensors, whole and within the folder.

    Raises:
        FileNotFoundError: There are none.
        ValueError: A file is damaged, or an index leads out of the folder.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise ValueError(f"{index} has no weight_map of file names")
        names = sorted(set(named.values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        path = folder / name
        if Path(name).name != name or not name or not _inside(path):
            raise ValueError(f"{index} names {name!r}, which is not a file of its folder: not read")
        if not path.is_file():
            pickles = sorted(file.name for file in folder.glob("*.bin")) + sorted(f.name for f in folder.glob("*.pt"))
            beside = f"; {pickles[0]} is a pickle, which could run code: not read" if pickles else ""
            raise FileNotFoundError(f"{path} is missing{beside}")
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file: {line(error)}") from error
    return [folder / name for name in names]


def _inside(path: Path) -> bool:
    """Whether a file is one of its folder; in the hub's cache the files of a snapshot are links to its blobs."""
    folder = path.parent.resolve()
    if path.resolve().parent == folder:
        return True
    for at in (folder, *folder.parents):
        if at.parent.name == "snapshots" and at.parent.parent.name.startswith("models--"):
            # One step only: blobs may be links to a place that several caches share.
            blobs = at.parent.parent / "blobs"
            return path.is_symlink() and Path(os.path.normpath(folder / os.readlink(path))).parent == blobs
    return False


def check_complete(info: dict[str, Any], folder: Path) -> None:
    """Check that a network that was loaded took all weights of a folder, and found all that it has.

    Args:
        info: What `from_pretrained` says of the loading.
        folder: The folder, for the message.

    Raises:
        ValueError: It did not.
    """
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[fault]:
            some = ", ".join(map(str, sorted(info[fault])[:3]))
            raise ValueError(f"{folder}: {len(info[fault])} {fault.replace('_', ' ')}: {some}")


def line(error: BaseException) -> str:
    """The message of an error in one line, of at most 300 characters; with its class where that says more."""
    words = " ".join(str(error).split())
    if not words:
        return type(error).__name__
    # As "list index out of range".
    bare = isinstance(error, LookupError | ArithmeticError | AttributeError | AssertionError)
    return (f"{type(error).__name__}: {words}" if bare else words)[:300]
