"""Read a compressed network, or say why not; never one with missing weights."""

import json
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model
from torch import nn
from transformers import PreTrainedModel

from greenformers.checkpoint.description import NAME, STRUCTURE, Description
from greenformers.checkpoint.place import MISSING, place, settle


def load(folder: str | Path, cls: type[PreTrainedModel] | None = None, into: nn.Module | None = None) -> nn.Module:
    """Read a network that `save` or `save_pretrained` wrote.

    Args:
        folder: a local folder.
        cls: of `transformers`; by default the one the configuration names.
        into: for a network that is not of `transformers`: the dense one, which is changed.

    Returns:
        The network, in evaluation mode; `into` if given.

    Raises:
        FileNotFoundError: no such folder, or no weights in safetensors in it.
        ValueError: files that are damaged, foreign, not of a compressed network, or do not fit.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    check_weights(folder)
    if into is not None:
        return _load_into(into, folder)
    config = read_json(folder / "config.json")
    check_local(config, folder)
    described = config.get("quantization_config")
    if not isinstance(described, dict) or described.get("quant_method") != NAME:
        raise ValueError(f"{folder / 'config.json'} does not describe a compressed network; it may be a dense one")
    Description.read(described)
    try:
        found: Any = (cls or model_class(config, folder)).from_pretrained(
            folder, output_loading_info=True, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except OSError:
        raise
    except Exception as error:  # whatever `transformers` makes of files that anyone may have written
        raise ValueError(f"{folder}: the weights do not fit the configuration: {line(error)}") from error
    model, info = found
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            some = ", ".join(map(str, sorted(info[what])[:3]))
            raise ValueError(f"{folder}: {len(info[what])} {what.replace('_', ' ')}: {some}")
    missing = vars(model).pop(MISSING, [])
    if missing and cls is None:  # another class may have no place for some: a head comes or goes
        raise ValueError(f"{folder}: the network has no {sorted(missing)[0]!r}, one of {len(missing)} changed parts")
    return model


def _load_into(model: nn.Module, folder: Path) -> nn.Module:
    missing = place(model, Description.read(read_json(folder / STRUCTURE)))
    if missing:
        raise ValueError(f"{folder}: the network has no {missing[0]!r}, one of {len(missing)} changed parts")
    try:
        load_model(model, folder / "model.safetensors")
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder}: the weights do not fit the network: {line(error)}") from error
    settle(model)
    return model.eval()


def model_class(config: dict[str, Any], folder: Path) -> type[PreTrainedModel]:
    """The class that a configuration names, of transformers or of ours.

    Raises:
        ValueError: there is none of that name.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        from greenformers import model as own

        found = getattr(own, name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise ValueError(f"{folder / 'config.json'} names the architecture {name!r}, which transformers does not have")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {line(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(found).__name__}")
    return found


def check_local(config: dict[str, Any], folder: Path) -> None:
    """See that a configuration asks for no code of its own.

    Raises:
        ValueError: it does.
    """
    if config.get("auto_map"):
        raise ValueError(f"{folder / 'config.json'} asks for code of its own (auto_map): not run")


def check_weights(folder: Path) -> None:
    """See that a folder has weights in safetensors, whole, all of them within the folder.

    Raises:
        FileNotFoundError: there are none.
        ValueError: a file is damaged, or an index leads out of the folder.
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
        if Path(name).name != name or path.resolve().parent != folder.resolve():
            raise ValueError(f"{index} names {name!r}, which is not a file of its folder: not read")
        if not path.is_file():
            pickles = sorted(found.name for found in folder.glob("*.bin")) + sorted(f.name for f in folder.glob("*.pt"))
            beside = f"; {pickles[0]} is a pickle, which could run code: not read" if pickles else ""
            raise FileNotFoundError(f"{path} is missing{beside}")
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file: {line(error)}") from error


def line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())[:300]
